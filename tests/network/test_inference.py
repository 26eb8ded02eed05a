"""Private inference between namespaces: plain wires with a partition in a pass, and slow ones."""

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.parties.inference.events import ImagesAnswered, TermsAgreed
from tests.cli.distillations import write
from tests.cli.hosts import images
from tests.cli.inference_house import check_answers
from tests.network.inference import NetworkHouse, inference, tacit
from tests.network.wire import Shape

AWAY_SECONDS = 10.0
USUAL = Shape(delay_ms=50.0, mbit=20.0)
SLOWEST = Shape(delay_ms=50.0, mbit=1.0)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "images.npz"
    images(path, train=[0, 1, 2] * 20, test=[0, 1, 2] * 4)
    return path


@pytest.fixture(scope="module")
def student(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distilled")
    result = tacit("distill", write(folder / "tiny.toml", own), "--out", folder / "out")
    assert result.exit_code == 0, result.output
    return folder / "out"


def answers(house: NetworkHouse) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((house.path / "alice" / "answers.json").read_bytes())
    return found


def test_a_partition_of_ten_seconds_in_a_pass_costs_no_answer(tmp_path: Path, student: Path, own: Path) -> None:
    """Either owner is cut off once; the session goes on, and all answers are those in the clear."""
    many = tmp_path / "many.npz"
    arrays = np.load(own)
    x_test, y_test = (np.resize(arrays[name], (60, *arrays[name].shape[1:])) for name in ("x_test", "y_test"))
    np.savez(many, x_test=x_test, y_test=y_test)
    with inference(tmp_path, student, many) as house:
        house.alice(batch=1, images=str(many))
        for name in ("dealer", "owner"):
            house.start(name).until("listens at")
        alice = house.start("alice", "--json", "answers.json")
        for name, count in (("alice", 3), ("owner", 20)):
            alice.until(f"^{count} of 60 images")
            house.network.unplug(name)
            threading.Event().wait(AWAY_SECONDS)
            house.network.plug(name)
        assert alice.end() == 0, alice.everything
        check_answers(answers(house), student, many)
        assert answers(house)["passes"] == 60
        assert len(house.events("owner", TermsAgreed)) == 1
        # Both partitions held a pass up, or the material for one.
        seconds = [event.time for event in house.events("alice", ImagesAnswered)]
        assert sum(later - sooner > AWAY_SECONDS for sooner, later in pairwise(seconds)) >= 2
        print(json.dumps({name: value for name, value in answers(house).items() if "seconds" in name}))


def test_slow_wires_give_the_answers_of_the_clear(tmp_path: Path, student: Path, own: Path) -> None:
    shapes = {"dealer": USUAL, "alice": SLOWEST}
    with inference(tmp_path, student, own, shapes=shapes) as house:
        for name in ("dealer", "owner"):
            house.start(name)
        alice = house.start("alice", "--json", "answers.json")
        assert alice.end() == 0, alice.everything
        found = answers(house)
        check_answers(found, student, own)
        # The rounds of a pass wait for each other, and its bytes for the slowest wire.
        assert found["online_seconds"] > 8 * found["data_owner_bytes"] / 1e6
        print(json.dumps({name: value for name, value in found.items() if "seconds" in name or "bytes" in name}))
