"""`tacit infer --protocol crypten`, and the same between hosts: a student by CrypTen's tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.command import Invoke
from tests.cli.inference_house import House, check_answers
from tests.cli.outputs import check_output


@pytest.mark.end_to_end
@pytest.mark.smoke
def test_a_student_answers(tacit: Invoke, student: Path, tmp_path: Path) -> None:
    copy = tmp_path / "answers.json"
    done = tacit("infer", student, "--protocol", "crypten", "--batch", 5, "--data-owners", 2, "--json", copy)
    assert done.exit_code == 0, done.stderr
    figures = check_output(copy, "inference")
    assert (figures["protocol"], figures["data_owners"], figures["passes"]) == ("crypten", 2, 4)
    assert len(figures["images"]) == 12
    assert figures["agreement"] == 1
    # A last bit of a logit is 2^-12; the rest is what fixed-point numbers of 16 bits add up to.
    assert 0 < figures["largest_difference"] < 0.005
    costs = figures["per_operation"]
    assert {"embedding", "truncation", "mul", "matmul", "qkv", "fc2", "result"} <= set(costs)
    assert costs["result"]["data_owner_bytes"] == 0 < costs["result"]["model_owner_bytes"]
    assert "range" not in costs
    assert "protocol crypten: CrypTen's tensors computed the student's polynomials on shares" in done.stdout
    assert "there is no range check" in done.stdout


def test_what_crypten_does_not_compute_is_refused_in_one_line(
    tacit: Invoke, student: Path, held_run: tuple[Result, Path], images: Path, tmp_path: Path
) -> None:
    weights, checkpoint = tmp_path / "w.safetensors", ("--model", "vit_tiny_patch16_224", "--images", images.parent)
    weights.touch()
    (images.parent / "one.png").touch()
    crypten = 'the protocol "crypten"'
    wrong: list[tuple[list[Any], str]] = [
        ([student, "--labels", 1], f"--labels 1: {crypten} reveals logits, and never labels alone"),
        ([student, "--input", "known"], f"--input known: {crypten} reveals the input of no block"),
        ([student, "--device", "cuda"], f"--device cuda: {crypten} computes on the processor alone"),
        (
            [*checkpoint, "--checkpoint", weights],
            f"--model vit_tiny_patch16_224: {crypten} computes a student of `tacit distill`, and no checkpoint",
        ),
        ([held_run[1]], f"{crypten} computes polynomials alone, and this model has the softmax itself: make a student"),
    ]
    for arguments, reason in wrong:
        done = tacit("infer", *arguments, "--protocol", "crypten")
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        (line,) = done.stderr.splitlines()
        assert reason in line.replace("LayerNorm", "softmax")
    done = tacit("infer", student, "--protocol", "foo")
    assert done.exit_code == 2
    assert "'foo' is not one of 'tacit', 'crypten'" in done.stderr


@pytest.fixture
def house(tmp_path: Path, tacit: Invoke, student: Path, images: Path) -> Iterator[House]:
    made = House(tmp_path, tacit, student, images)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.end_to_end
def test_hosts_agree_on_the_protocol(house: House, tacit: Invoke, student: Path, images: Path) -> None:
    """Another protocol is refused by a line that names both; with the same one every image is answered."""
    house.model_owner(protocol="crypten", most_batch=5, **{"policy.refused_a_day": 12})
    house.alice(batch=5)
    house.start("dealer")
    owner = house.start("owner")
    alice = house.start("alice")
    assert alice.end() == 1, alice.everything
    (line,) = alice.complained
    both = 'the model owner computes by the protocol "crypten", the data owner by "tacit"'
    assert both in line
    owner.until(re.escape(both))
    party = house.path / "alice" / "party.toml"
    warned = tacit("preflight", party)
    assert warned.exit_code == 1
    assert both in " ".join(warned.output.split())
    house.alice(batch=5, protocol="crypten")
    house.command("preflight", party)
    alice = house.start("alice", "--json", "answers.json")
    assert alice.end() == 0, alice.everything
    figures = check_output(house.path / "alice" / "answers.json", "answers")
    check_answers(figures, student, images)
    assert figures["passes"] == 3
    # What was answered is not counted as refused: more images than may be refused in a day can be asked about.
    (house.path / "alice" / "state" / "answers").rename(house.path / "alice" / "former")
    assert house.start("alice").end() == 0
