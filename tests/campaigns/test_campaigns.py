"""No random fault breaks a rule; planted defects do, and every failure says how to see it again."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tests.campaigns.campaign import CAMPAIGNS, RuleBroken, run
from tests.campaigns.defects import DEFECTS

ROOT = Path(__file__).parents[2]
FEW, MANY = range(3), range(3, 200)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.exhaustive)], ids=["few", "many"])
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_no_run_breaks_a_rule(name: str, seeds: range) -> None:
    federations = [run(name, seed) for seed in seeds]
    assert sum(federation.sums for federation in federations) > len(seeds)
    if name == "broken-links":
        assert sum(federation.network.faults for federation in federations) > len(seeds)
        refused = [event.code for federation in federations for event in federation.outcome(MessageRefused)]
        # What is lost, repeated or swapped is found by its number; a second hello begins another conversation.
        assert Code.SEQUENCE.name in refused


def first_fault(defect: str) -> str:
    for seed in range(40):
        try:
            run("kills", seed, defect)
        except RuleBroken as broken:
            return str(broken)
    return ""


RULES = {
    "journal-too-late": "leaves before its journal is on the disk",
    "file-not-synchronised": "is not a safetensors file",
    "folder-not-synchronised": "No such file or directory: '/run/model.safetensors'",
    "model-in-place": "a failure of power leaves no model on the server's disk",
    "journal-forgotten": "enters a round twice",
}


@pytest.mark.parametrize("defect", [defect for defect in DEFECTS if defect])
def test_a_planted_defect_is_found(defect: str) -> None:
    assert RULES[defect] in first_fault(defect)


@pytest.mark.end_to_end
def test_the_command_of_a_failure_repeats_it() -> None:
    fault = first_fault("journal-forgotten")
    command = shlex.split(fault.partition("repeat it with: python ")[2])
    again = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (again.returncode, again.stderr.strip()) == (1, fault)


def test_a_run_is_a_function_of_its_seed() -> None:
    command = [sys.executable, "-m", "tests.campaigns", "broken-links", "--seed", "3"]
    hashes = os.environ | {"PYTHONHASHSEED": "1"}
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=hashes).stdout
    one, other = run("broken-links", 3), run("broken-links", 4)
    assert shown == f"broken-links 3: {one.sums} sums, run {one.digest()[:16]}\n"
    assert one.digest() != other.digest()
