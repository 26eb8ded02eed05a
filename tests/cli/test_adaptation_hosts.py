"""Double-blind adaptation between hosts: real processes and sockets, folders that share nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.adaptation_house import CLASSES, DATA_OWNERS, AdaptationHouse
from tests.cli.outputs import check_output

pytestmark = pytest.mark.end_to_end

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def student(distilled: tuple[Result, Path]) -> Path:
    return distilled[1] / "out"


@pytest.fixture
def house(tmp_path: Path, tacit: Invoke, student: Path) -> Iterator[AdaptationHouse]:
    made = AdaptationHouse(tmp_path, tacit, student)
    try:
        yield made
    finally:
        made.stop()


def test_adapting_between_hosts(house: AdaptationHouse) -> None:
    """The order does not matter; all data owners have the same adapters; the same command again asks nobody."""
    running = {name: house.start(name, "--json", "learned.json") for name in DATA_OWNERS}
    running["alice"].until(f"nothing listens at {house.at('owner')} yet")
    running["owner"] = house.start("owner")
    running["owner"].until(f"shares of {house.words} words")
    running["dealer"] = house.start("dealer")
    for name in (*DATA_OWNERS, "dealer"):
        assert running[name].end() == 0, running[name].everything
        assert running[name].complained == []
    found = [check_output(house.path / name / "learned.json", "learned") for name in DATA_OWNERS]
    for figures in found:
        assert (figures["round"], figures["planned"], figures["classes"]) == (2, 2, list(CLASSES))
        assert [(row["round"], row["lost"], row["owners"], row["images"]) for row in figures["rounds"]] == [
            (1, None, 3, 12),
            (2, None, 3, 12),
        ]
        assert figures["rounds"] == found[0]["rounds"]
        assert (figures["batches"], figures["refused_batches"]) == (2, 0)
    assert len({house.adapters(name) for name in DATA_OWNERS}) == 1
    assert any(line.startswith("round   2 of 2  while learning: loss ") for line in running["bob"].said)
    for name in (*DATA_OWNERS, "dealer"):
        told = house.status(name)
        assert (told["running"], told["round"], told["rounds"], told["learning"]) == (False, 2, 2, True)
    told = house.status("owner")
    assert (told["running"], told["phase"], told["round"], told["serves"]) == (True, "listening", 2, [])
    again = house.start("alice", "--json", "again.json")
    assert again.end() == 0, again.everything
    assert check_output(house.path / "alice" / "again.json", "learned") == found[0]
    assert "6 images to learn from; round 2 is learned" in again.said
