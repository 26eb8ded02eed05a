"""Material that a dealer deals ahead, between hosts: real processes, killed between a mark and the first opening.

And folders that are restored from a copy. No piece serves twice, and answers are those in the clear.
"""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tacit.parties.inference.store import Store
from tests.cli import warm
from tests.cli.hosts import Process
from tests.cli.inference_house import ROLES, House, check_answers
from tests.cli.outputs import check_output

pytestmark = pytest.mark.end_to_end

Invoke = Callable[..., Result]
AHEAD = 8
BOTH = ("owner", "alice")
KILLED = """
import os, signal
from tacit.cli.main import main
from tacit.parties.inference.store import Store

mark = Store.mark

def marked(*given):
    mark(*given)
    os.kill(os.getpid(), signal.SIGKILL)

Store.mark = marked
main()
"""
"""The command of a party that dies as soon as a piece is marked, before anything of its pass is said."""


@pytest.fixture(scope="module")
def student(distilled: tuple[Result, Path]) -> Path:
    return distilled[1] / "out"


class Ahead(House):
    """Both owners have laid material by for as many images as the dealer deals ahead, in passes of one."""

    def __init__(self, path: Path, tacit: Invoke, student: Path, images: Path) -> None:
        super().__init__(path, tacit, student, images)
        self.running = {"dealer": self.start("dealer", "--ahead", str(AHEAD)), "owner": self.start("owner")}
        self.asked = 0
        self.answers(1).until(f"material for {AHEAD} passes is laid by")

    def ask(self, count: int) -> None:
        """Of the images, the next ones."""
        arrays = np.load(self.images)
        path = self.path / f"{self.asked}.npz"
        chosen = np.arange(self.asked, self.asked + count) % len(arrays["x_test"])
        np.savez(path, x_test=arrays["x_test"][chosen], y_test=arrays["y_test"][chosen])
        self.asked += count
        self.alice(batch=1, images=str(path))

    def answers(self, count: int) -> Process:
        """Alice asks about so many images, and is told what is right."""
        self.ask(count)
        alice = self.start("alice", "--json", "answers.json")
        self.check(alice)
        return alice

    def check(self, alice: Process) -> None:
        assert alice.end() == 0, alice.everything
        figures = check_output(self.path / "alice" / "answers.json", "answers")
        asked = self.path / f"{self.asked - len(figures['images'])}.npz"
        check_answers(figures, self.student, asked)

    def dying(self, name: str) -> Process:
        """The command of a party that dies once it has marked a piece."""
        script = self.path / "killed.py"
        script.write_text(KILLED)
        process = Process(warm.start((ROLES[name], "party.toml"), self.path / name, script=str(script)))
        self._running.append(process)
        return process

    def material(self, name: str) -> Path:
        return self.path / name / "state" / "material"

    def counters(self) -> list[tuple[int, int] | None]:
        """First piece that is not used, and number of pieces, of both owners."""
        found = []
        for name, peer in (BOTH, BOTH[::-1]):
            held = Store(self.material(name), own=name, peer=peer).held()
            found.append(None if held is None else (held.stock.next, held.stock.end))
        return found


@pytest.fixture
def house(tmp_path: Path, tacit: Invoke, student: Path, images: Path) -> Iterator[Ahead]:
    made = Ahead(tmp_path, tacit, student, images)
    try:
        yield made
    finally:
        made.stop()


def test_who_is_killed_between_mark_and_opening_uses_the_piece_no_more(house: Ahead) -> None:
    assert house.counters() == [(0, AHEAD)] * 2
    house.ask(2)
    assert house.dying("alice").end() == -signal.SIGKILL
    # Only the data owner knows of it: the model owner has heard nothing of the pass.
    assert house.counters() == [(0, AHEAD), (1, AHEAD)]
    alice = house.start("alice", "--json", "answers.json")
    house.check(alice)
    assert house.counters() == [(3, AHEAD)] * 2
    house.running["owner"].signal(signal.SIGKILL)
    house.running["owner"].end()
    owner = house.dying("owner")
    house.ask(2)
    alice = house.start("alice", "--json", "answers.json")
    assert owner.end() == -signal.SIGKILL
    assert house.counters() == [(4, AHEAD)] * 2
    house.start("owner")
    house.check(alice)
    assert house.counters() == [(6, AHEAD)] * 2
    # The dealer was asked in the first session alone.
    assert len(house.events("dealer", "session")) == 1


@pytest.mark.parametrize("restored", BOTH)
def test_who_is_restored_from_a_copy_uses_no_piece_again(house: Ahead, restored: str) -> None:
    copy = house.path / "copy"
    shutil.copytree(house.material(restored), copy)
    house.answers(2)
    assert house.counters() == [(2, AHEAD)] * 2
    shutil.rmtree(house.material(restored))
    shutil.copytree(copy, house.material(restored))
    house.answers(1)
    assert house.counters() == [(3, AHEAD)] * 2
    # Of a stock that the other side no longer has, nothing serves.
    shutil.rmtree(house.material("alice" if restored == "owner" else "owner"))
    house.answers(1)
    assert house.counters() == [(0, AHEAD)] * 2
    assert len(house.events("dealer", "session")) == 2
    void = [found["reason"] for found in house.events(restored, "laid-by")]
    assert any("is void, and deleted" in reason for reason in void)
