"""One process at a time has the journal of a client: a second start is refused by name, a dead one stops nobody."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.session.events import ConfigurationAccepted, RoundEnded
from tacit.parties.session.journal import JournalError, JournalFile
from tacit.protocol.session.rounds import JournalEntry
from tacit.simulate.world.federation import JOURNAL, MemoryFederation, small_configuration

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
