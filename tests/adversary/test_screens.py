"""Words of other parties on a screen: they do nothing to the terminal, and are no lines of their own."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tacit.cli import output
from tacit.cli.screen import Screen
from tacit.parties.hosting.folder import OpenedParty, PartyFolder, Status, at_work
from tacit.parties.hosting.party_file import LogConfiguration
from tacit.parties.links.keys import generate
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.results import Column, Table, prose
from tacit.parties.session.event_log import EventFile, EventLog, read
from tacit.parties.session.events import ClientRoundEnded, Dropout, RoundEnded
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.events import ClientLeft, RoundStarted
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase
from tests.cases import cases

DETAIL = "\x1b[2J\x1b]0;owned\x07gone\nround   9 of 9  completed\r\u202edenosiop\x9b31m"
"""Text, which the codec takes."""
SHOWN = " [2J ]0;owned gone round   9 of 9  completed  denosiop 31m"


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), highlight=False, width=200)


def said(console: Console) -> str:
    text: Any = console.file
    return str(text.getvalue())


@pytest.mark.threat("client/words-on-screen")
def test_of_a_client_at_the_server(console: Console, tmp_path: Path) -> None:
    of: dict[str, Any] = {"party": "server", "member": "client-1", "detail": DETAIL}
    events = [
        ClientLeft(**of),
        ClientDropped(phase=Phase.TRAIN, code="LOCAL", **of),
        MessageRefused(code="LOCAL", **of),
    ]
    screen = Screen(console, Experiment(), tmp_path)
    for event in events:
        screen.show(event)
    assert said(console) == "".join(event.text.replace(DETAIL, SHOWN) + "\n" for event in events)
    assert said(console).count(SHOWN) == len(events)


@pytest.mark.threat("client/words-on-screen")
def test_of_a_client_at_other_clients(console: Console) -> None:
    show = output.party_screen(console)
    show(ClientRoundEnded(party="client-2", round=1, code="THRESHOLD", detail=DETAIL))
    assert said(console) == f"round 1 over: {SHOWN} (THRESHOLD)\n"


@pytest.mark.threat("client/words-on-screen")
@cases("complain", [output.warn, lambda text: output.failure(text, 1)])
def test_in_what_a_command_complains_of(capsys: pytest.CaptureFixture[str], complain: Any) -> None:
    complain(DETAIL)
    assert capsys.readouterr().err == f"tacit: {SHOWN}\n"


@pytest.mark.threat("client/words-on-screen")
def test_in_the_files_that_owners_read(tmp_path: Path) -> None:
    """`tail -f` on the log of a party played what a member had said."""
    told: list[Event] = []
    keys, folder, file = generate("lab"), PartyFolder(tmp_path), SimpleNamespace(log=LogConfiguration(level="debug"))
    lab = OpenedParty[Any](file, keys, Roster((keys.member("server"),)), folder)
    lost = Dropout(party="client-1", phase=Phase.TRAIN, included_in_sum=False, code="LOCAL", detail=DETAIL)
    ended = RoundEnded(
        round=1, status="aborted", code="THRESHOLD", detail=DETAIL, culprit=None, cohort=["client-1"], absent={},
        repeated=False, survivors=[], dropped=[lost], seconds=1.0,
    )  # fmt: skip
    with (
        at_work(lab, Status(name="lab", role="server", process=1, since=0.0), told.append) as tell,
        EventFile(tmp_path / "lab.jsonl", "lab") as log,
    ):
        event_log = EventLog(log, tell)
        event_log.write(RoundStarted(round=1, cohort=["client-1"]))
        event_log.write(ClientLeft(member="client-1", detail=DETAIL))
        event_log.write(ended)
    assert list(read(tmp_path / "lab.jsonl")) == told
    _, left, round_ended = told
    assert isinstance(left, ClientLeft)
    assert isinstance(round_ended, RoundEnded)
    assert [left.detail, round_ended.detail, round_ended.dropped[0].detail] == [SHOWN] * 3
    lines = folder.log("lab").read_text().removesuffix("\n").split("\n")
    assert all(map(str.isprintable, lines))
    assert [SHOWN in line for line in lines] == [False, True, True]


@pytest.mark.threat("client/words-on-screen")
def test_in_tables(console: Console) -> None:
    console.print(output.terminal(Table(columns=(Column("case"), Column("seen", prose)), rows=[("one", DETAIL)])))
    assert [line for line in said(console).splitlines() if SHOWN in line] == [f"│ one  │ {SHOWN} │"]
    assert not set("\x1b\x07\r\u202e\x9b") & set(said(console))
