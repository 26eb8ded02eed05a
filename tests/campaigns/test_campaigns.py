"""No random fault breaks a rule; planted defects do, and every failure says how to see it again."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Report
from tests.campaigns.campaign import CAMPAIGNS, RuleBroken, run
from tests.campaigns.defects import DEFECTS

ROOT = Path(__file__).parents[2]
FEW, MANY = range(6), range(6, 500)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.exhaustive)], ids=["few", "many"])
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_no_run_breaks_a_rule(name: str, seeds: range) -> None:
    federations = [run(name, seed) for seed in seeds]
    assert sum(federation.sums for federation in federations) > len(seeds)
    if name == "broken-links":
        assert sum(federation.network.faults for federation in federations) > len(seeds)
        reports = [report for federation in federations for report in federation.outcome(Report)]
        refused = [report.fields["code"] for report in reports if report.event == "refused"]
        # What is lost, repeated or swapped is found by its number; a second hello begins another conversation.
        assert Code.SEQUENCE.name in refused


def first_fault(defect: str) -> str:
    for seed in range(40):
        try:
            run("kills", seed, defect)
        except RuleBroken as broken:
            return str(broken)
    return ""


@pytest.mark.parametrize(
    ("defect", "rule"),
    [
        ("journal-too-late", "leaves before its journal is on the disk"),
        ("file-not-synchronised", "is not a safetensors file"),
        ("folder-not-synchronised", "No such file or directory: '/run/model.safetensors'"),
        ("model-in-place", "a failure of power leaves no model on the server's disk"),
        ("journal-forgotten", "opens a sum, or sums of one model, twice"),
    ],
)
def test_a_planted_defect_is_found_and_its_run_is_repeated_by_the_command(defect: str, rule: str) -> None:
    fault = first_fault(defect)
    assert rule in fault
    command = shlex.split(fault.partition("repeat it with: python ")[2])
    again = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (again.returncode, again.stderr.strip()) == (1, fault)


def test_every_defect_is_tried() -> None:
    (mark,) = [
        mark
        for mark in test_a_planted_defect_is_found_and_its_run_is_repeated_by_the_command.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    ]
    assert {"", *(defect for defect, _ in mark.args[1])} == set(DEFECTS)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_run_is_a_function_of_its_seed(name: str) -> None:
    """Also in processes that order their sets otherwise."""
    shown = {
        subprocess.run(
            [sys.executable, "-m", "tests.campaigns", name, "--seed", "3"],
            capture_output=True, text=True, cwd=ROOT, check=True, env=os.environ | {"PYTHONHASHSEED": hashes},
        ).stdout
        for hashes in ("1", "2")
    }  # fmt: skip
    one, other = run(name, 3), run(name, 4)
    assert shown == {f"{name} 3: {one.sums} sums, run {one.digest()[:16]}\n"}
    assert one.digest() != other.digest()
