"""The real code of journals and models on a disk that fails: whatever the moment, what was relied upon is there."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tacit.models import checkpoint
from tacit.models.layout import Layout, LayoutEntry
from tacit.parties.session.journal import JournalError, JournalFile
from tacit.protocol.session.rounds import JournalEntry
from tacit.simulate.world.disk import Killed, SimulatedDisk

JOURNAL, MODEL = Path("/journal/own.jsonl"), Path("/run/model.safetensors")
LAYOUT = Layout((LayoutEntry("w", (2,)),))


def entry(round: int) -> JournalEntry:
    return JournalEntry(session=b"s", round=round)


ENTRIES = [entry(1), entry(2), entry(3), entry(4)]


def after_kills(act: Callable[[SimulatedDisk], Any]) -> Iterator[SimulatedDisk]:
    """The disk after a kill in the place of each of its operations, and after none."""
    whole = SimulatedDisk()
    act(whole)
    for operation in range(whole.operations + 1):
        disk = SimulatedDisk()
        disk.kill_at = operation
        try:
            act(disk)
        except Killed:
            assert operation < whole.operations
        disk.start_again()
        yield disk


def test_every_aftermath_of_a_journal_tells_what_was_relied_upon() -> None:
    """A process killed anywhere, another one after it killed anywhere, and then power that fails."""
    returned: list[JournalEntry] = []
    seen = 0

    def first(disk: SimulatedDisk) -> None:
        returned.clear()
        journal = JournalFile(JOURNAL, disk)
        for one in ENTRIES[:2]:
            journal.write(one)
            returned.append(one)

    def second(disk: SimulatedDisk) -> None:
        journal = JournalFile(JOURNAL, disk)
        journal.read()
        for one in ENTRIES[2:]:
            journal.write(one)
            returned.append(one)

    for after_first in after_kills(first):
        relied = list(returned)
        for operation in range(8):
            disk = deepcopy(after_first)
            returned[:] = relied
            disk.kill_at = disk.operations + operation
            try:
                second(disk)
            except Killed:
                disk.start_again()
            for aftermath in disk.aftermaths():
                seen += 1
                told = JournalFile(JOURNAL, aftermath).read()
                assert {*returned} <= {*told} <= {*ENTRIES}
                # What is told beside it was being written, by either process.
                assert len(told) <= len(returned) + 2
                JournalFile(JOURNAL, aftermath).write(entry(9))
                assert JournalFile(JOURNAL, aftermath).read() == [*told, entry(9)]
    assert seen > 500


def test_a_name_that_a_killed_process_left_in_memory_is_made_durable_by_the_next() -> None:
    disk = SimulatedDisk()
    disk.kill_at = 2
    with pytest.raises(Killed):
        JournalFile(JOURNAL, disk).write(entry(1))
    disk.start_again()
    JournalFile(JOURNAL, disk).write(entry(2))
    assert all(entry(2) in JournalFile(JOURNAL, aftermath).read() for aftermath in disk.aftermaths())


def save(disk: SimulatedDisk, round: int) -> None:
    flat = np.full(2, round, np.float32)
    checkpoint.save(MODEL, layout=LAYOUT, flat=flat, metadata={"round": str(round)}, files=disk)


def saved(disk: SimulatedDisk) -> int:
    flat, metadata = checkpoint.load(MODEL, LAYOUT, disk)
    assert flat.tolist() == [float(metadata["round"])] * 2
    return int(metadata["round"])


def test_every_aftermath_of_saving_a_model_is_the_former_one_or_the_new_one() -> None:
    returned: list[int] = []

    def save_two(disk: SimulatedDisk) -> None:
        returned.clear()
        save(disk, 1)
        returned[:] = [1]
        save(disk, 2)
        returned[:] = [2]

    rounds = set[tuple[int, int]]()
    for disk in after_kills(save_two):
        relied = sum(returned)
        for aftermath in disk.aftermaths():
            try:
                found = saved(aftermath)
            except FileNotFoundError:
                found = 0
            rounds.add((relied, found))
            save(aftermath, 3)
            assert saved(aftermath) == 3
    assert rounds == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)}


def test_a_full_disk_keeps_the_former_model_and_journal() -> None:
    disk = SimulatedDisk()
    save(disk, 1)
    JournalFile(JOURNAL, disk).write(entry(1))
    disk.room = 50
    with pytest.raises(OSError, match="No space left"):
        save(disk, 2)
    disk.room = 20
    with pytest.raises(JournalError, match="make room"):
        JournalFile(JOURNAL, disk).write(entry(2))
    assert saved(disk) == 1
    assert JournalFile(JOURNAL, disk).read() == [entry(1)]


def test_what_was_not_synchronised_is_lost_or_torn_and_what_was_stays() -> None:
    disk, path = SimulatedDisk(), Path("/folder/file")
    disk.append(path, b"abc")
    assert {content(each, path) for each in disk.aftermaths()} == {None, b"", b"a", b"ab", b"abc"}
    disk.synchronise(path)
    disk.synchronise(path.parent)
    disk.append(path, b"de")
    disk.truncate(path, 1)
    states = {content(each, path) for each in disk.aftermaths()}
    assert states == {b"abc", b"abcd", b"abcde", b"a"}
    drawn = set()
    for seed in range(40):
        again = SimulatedDisk()
        again.append(path, b"abc")
        again.fail_power(Random(seed))
        drawn.add(content(again, path))
    assert drawn == {None, b"", b"a", b"ab", b"abc"}


def content(disk: SimulatedDisk, path: Path) -> bytes | None:
    try:
        return disk.read(path)
    except FileNotFoundError:
        return None


def test_a_rename_happens_or_not_and_removes_what_was_there() -> None:
    disk = SimulatedDisk()
    one, other = Path("/folder/one"), Path("/folder/other")
    for path in (one, other):
        disk.write(path, path.name.encode())
        disk.synchronise(path)
    disk.synchronise(one.parent)
    disk.rename(one, other)
    found = {(content(each, one), content(each, other)) for each in disk.aftermaths()}
    assert found == {(b"one", b"other"), (None, b"one")}
    disk.remove(other)
    assert content(disk, other) is None
