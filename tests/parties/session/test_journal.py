"""The journal of a client: what was written is read, a crash cuts off one line at most, and a full disk is an error."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tacit.parties.links.tokens import TokenFile
from tacit.parties.session.journal import JournalError, JournalFile
from tacit.protocol.session.rounds import JournalEntry


def entered(round: int, cost: float = 0.0) -> JournalEntry:
    return JournalEntry(session=bytes([7]) * 32, round=round, cost=cost)


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_missing_file_is_an_empty_journal(tmp_path: Path) -> None:
    assert JournalFile(tmp_path / "alice.jsonl").read() == []


def test_what_was_written_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "alice.jsonl"
    for entry in (entered(1), entered(1, 0.5), entered(2)):
        JournalFile(path).write(entry)
    assert JournalFile(path).read() == [entered(1), entered(1, 0.5), entered(2)]


def test_a_restored_or_removed_journal_is_refused(tmp_path: Path) -> None:
    """By a backup of it two updates were spent twice, without a word: the file of tokens knows how long it was."""
    path, tokens = tmp_path / "alice.jsonl", tmp_path / "tokens.json"

    def opened() -> JournalFile:
        journal = JournalFile(path, tokens=TokenFile(tokens))
        journal.open("alice")
        return journal

    journal = opened()
    journal.write(entered(1, 0.5))
    backup = path.read_bytes()
    journal.write(entered(2, 0.5))
    journal.close()
    opened().close()
    path.write_bytes(backup)
    with pytest.raises(JournalError, match=r"has 1 lines, and 2 were written: it is a backup, or was removed"):
        JournalFile(path, tokens=TokenFile(tokens)).read()
    path.unlink()
    with pytest.raises(JournalError, match="has 0 lines, and 2 were written"):
        JournalFile(path, tokens=TokenFile(tokens)).read()
    path.write_bytes(backup + backup)
    opened().close()


def test_the_journal_of_release_0_2_is_read(tmp_path: Path) -> None:
    """Its lines have a stage too; what they say of rounds and of the budget still holds."""
    path = tmp_path / "alice.jsonl"
    session = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="
    path.write_text(f'{{"type":"stage","session":"{session}","round":3,"stage":2,"cost":1.5}}\n')
    assert JournalFile(path).read() == [entered(3, 1.5)]


def test_every_line_and_a_new_file_are_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each synchronisation sees the complete line; the first one of a process makes the file's name durable too."""
    path = tmp_path / "alice.jsonl"
    synchronised: list[tuple[str, int]] = []
    synchronise = os.fsync

    def note(descriptor: int) -> None:
        synchronised.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.read_bytes().count(b"\n")))
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    journal = JournalFile(path)
    journal.write(entered(1))
    assert synchronised == [(str(path), 1), (str(tmp_path), 1)]
    journal.write(entered(2))
    assert synchronised[2:] == [(str(path), 2)]


def test_every_cut_of_the_last_line_leaves_the_lines_before(tmp_path: Path) -> None:
    path = tmp_path / "alice.jsonl"
    JournalFile(path).write(entered(1))
    first = path.stat().st_size
    JournalFile(path).write(entered(2))
    whole = path.read_bytes()
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        assert JournalFile(path).read() == [entered(1)]
        JournalFile(path).write(entered(3))
        assert JournalFile(path).read() == [entered(1), entered(3)]


@pytest.mark.parametrize(
    "line",
    [b"{}", b"not JSON", b'{"session": "", "round": "one"}', b"[]", b"\xff\xfe", b""],
    ids=["empty object", "no JSON", "wrong type", "list", "no UTF-8", "empty line"],
)
def test_a_damaged_line_is_an_error_and_never_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "alice.jsonl"
    JournalFile(path).write(entered(1))
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(JournalError, match=r"alice\.jsonl cannot be read .*: restore it, or start with new keys"):
        JournalFile(path).read()


def test_a_directory_in_its_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be read"):
        JournalFile(tmp_path).read()


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "alice.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(JournalError, match=r"alice\.jsonl cannot be written \(No space left on device\): make room"):
        JournalFile(path).write(entered(1))


def test_a_disk_that_fills_up_within_a_line_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "alice.jsonl"
    JournalFile(path).write(entered(1))
    with (
        file_size_limit(path.stat().st_size + 10),
        pytest.raises(JournalError, match="cannot be written"),
    ):
        JournalFile(path).write(entered(2))
    assert JournalFile(path).read() == [entered(1)]
