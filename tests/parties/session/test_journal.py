"""A client's journal and spending file: read back as written, for one process at a time; a crash costs little."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.links.keys import encode_key
from tacit.parties.links.tokens import TokenFile
from tacit.parties.session.events import ConfigurationAccepted, RoundEnded
from tacit.parties.session.journal import JournalError, JournalFile
from tacit.parties.session.spending import SpendingFile, SpendingFileError
from tacit.protocol.session.rounds import JournalEntry
from tacit.simulate.world.federation import JOURNAL, MemoryFederation, small_configuration


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


ENTRY = JournalEntry(session=bytes(32), round=1)
REFUSAL = "'alice' is running already, and has {}: stop it first"
HOLD = """
import sys
from pathlib import Path
from tacit.parties.session.journal import JournalFile
journal = JournalFile(Path(sys.argv[1]))
journal.open("alice")
print("open", flush=True)
sys.stdin.read()
"""


def test_a_journal_is_open_once_and_free_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "alice.jsonl"
    first, second = JournalFile(path), JournalFile(path)
    assert first.open("alice") == []
    for _ in range(2):
        with pytest.raises(JournalError) as refused:
            second.open("alice")
        assert str(refused.value) == REFUSAL.format(path)
    first.write(ENTRY)
    first.close()
    first.close()
    assert second.open("alice") == [ENTRY]
    with pytest.raises(JournalError, match="is running already"):
        first.open("alice")


def test_a_process_that_is_killed_has_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "alice.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(JournalError, match="is running already"):
            JournalFile(path).open("alice")
        holder.send_signal(signal.SIGKILL)
    assert JournalFile(path).open("alice") == []


def test_a_journal_in_a_place_that_is_none_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "alice.jsonl"):
        with pytest.raises(JournalError, match=r"cannot be opened .*: make it accessible"):
            JournalFile(path).open("alice")


@pytest.mark.asyncio
async def test_a_second_start_of_a_client_is_refused_and_the_first_goes_on(federation: Any) -> None:
    server = await federation.serve(rounds=2)
    first = [federation.join(name) for name in federation.clients[:1]]
    await federation.event("client-1", ConfigurationAccepted)
    with pytest.raises(JournalError, match="'client-1' is running already"):
        federation.client_party("client-1")
    clients = [*first, *(federation.join(name) for name in federation.clients[1:])]
    assert [end.code for end in await federation.all_of(server, *clients)] == [None] * 5
    for done in federation.events("server", RoundEnded):
        assert done.survivors == list(federation.clients)
    # It has ended, and may be started again.
    assert len(JournalFile(federation.journal("client-1")).open("client-1")) == 2


@pytest.mark.asyncio
async def test_a_client_that_cannot_connect_leaves_its_journal(federation: Any) -> None:
    federation.address = "tcp://127.0.0.1:1"
    with pytest.raises(Exception, match="nothing listens"):
        await federation.client_party("client-1", patience=0.1).run()
    assert JournalFile(federation.journal("client-1")).open("client-1") == []


def test_in_memory_too_only_a_restart_takes_the_journal_over() -> None:
    one = MemoryFederation(small_configuration(3), 3)
    one.start_client("client-0")
    with pytest.raises(JournalError, match="'client-0' is running already, and has"):
        one.journal("client-0").open("client-0")
    one.start_client("client-0")
    assert one.disks["client-0"].lock(JOURNAL.with_name("another"))


KEYS = [bytes([number]) * 32 for number in (1, 2)]
LINEAGE, OTHER = bytes(32), b""


def test_statements_are_kept_by_lineage_and_key(tmp_path: Path) -> None:
    path = tmp_path / "spending.json"
    for number, key in enumerate(KEYS):
        SpendingFile(path).keep(LINEAGE, {key: bytes([number]) * 72})
    SpendingFile(path).keep(OTHER, {KEYS[0]: bytes(72)})
    SpendingFile(path).keep(LINEAGE, {KEYS[0]: b"\x09" * 72})
    assert SpendingFile(path).held(LINEAGE) == {KEYS[0]: b"\x09" * 72, KEYS[1]: bytes([1]) * 72}
    assert SpendingFile(path).held(OTHER) == {KEYS[0]: bytes(72)}
    assert SpendingFile(tmp_path / "none.json").held(LINEAGE) == {}


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spending.json"
    for content in (b"{", b'{"": {"short": "aGk="}}', b'{"": {"%s": "aGk="}}' % encode_key(KEYS[0]).encode()):
        path.write_bytes(content)
        with pytest.raises(SpendingFileError, match=r"spending\.json cannot be read .* restore it, or remove it"):
            SpendingFile(path).held(OTHER)
