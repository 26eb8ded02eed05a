"""Words of other parties on a screen: they do nothing to the terminal, and are no lines of their own."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tacit.cli import conformance, host, output
from tacit.cli.screen import Screen
from tacit.parties.hosting.folder import line, logging_to
from tacit.parties.hosting.party_file import LogConfiguration
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.event_log import Diary, EventLog, read
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
    events = ["left", "dropped", "refused", "complaint"]
    screen = Screen(console, Experiment(), tmp_path)
    for event in events:
        screen.show("server", event, {"member": "client-1", "code": "LOCAL", "detail": DETAIL})
    assert said(console) == "".join(f"  {event}: member client-1, code LOCAL, detail {SHOWN}\n" for event in events)


@pytest.mark.threat("client/words-on-screen")
def test_of_a_client_at_other_clients(console: Console) -> None:
    host._show_client(console, "round-over", {"round": 1, "code": "THRESHOLD", "detail": DETAIL})
    assert said(console) == f"round   1  over: {SHOWN}\n"


@pytest.mark.threat("client/words-on-screen")
@cases("complain", [output.warn, lambda text: output.failure(text, 1)])
def test_in_what_a_command_complains_of(capsys: pytest.CaptureFixture[str], complain: Any) -> None:
    complain(DETAIL)
    assert capsys.readouterr().err == f"tacit: {SHOWN}\n"


@pytest.mark.threat("client/words-on-screen")
def test_in_the_files_that_owners_read(tmp_path: Path) -> None:
    """`tail -f` on the log of a party played what a member had said."""
    told: list[tuple[str, dict[str, Any]]] = []
    with (
        logging_to(tmp_path / "lab.log", LogConfiguration(level="debug")) as logger,
        EventLog(tmp_path / "lab.jsonl", "lab") as log,
    ):
        diary = Diary(log, lambda event, fields: told.append((event, fields)))
        diary.write("left", member="client-1", detail=DETAIL, dropped=[{"detail": DETAIL}])
        for event, fields in told:
            logger.info(line(event, fields))
    (event,) = read(tmp_path / "lab.jsonl")
    assert (event["detail"], event["dropped"]) == (SHOWN, [{"detail": SHOWN}])
    assert told == [("left", {"member": "client-1", "detail": SHOWN, "dropped": [{"detail": SHOWN}]})]
    assert (tmp_path / "lab.log").read_text().strip().isprintable()


@pytest.mark.threat("client/words-on-screen")
def test_in_tables(console: Console) -> None:
    for cell in (DETAIL, conformance._judged(DETAIL, False)):
        console.print(output.table(("case", "seen"), [("one", cell)], left=("seen",)))
    assert [line for line in said(console).splitlines() if SHOWN in line] == [f"│ one  │ {SHOWN} │"] * 2
    assert not set("\x1b\x07\r\u202e\x9b") & set(said(console))
