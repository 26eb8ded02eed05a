"""Words of other parties on a screen or a page: they do nothing there, and strangers read no page of a run."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tacit.cli import output
from tacit.cli.screen import Screen
from tacit.parties.hosting.folder import OpenedParty, PartyFolder, at_work
from tacit.parties.hosting.party_file import LogConfiguration
from tacit.parties.links.keys import generate
from tacit.parties.runs.events import PartyFailed
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.results import Column, Table, prose
from tacit.parties.session.event_log import EventFile, EventLog, read
from tacit.parties.session.events import ClientRoundEnded, Dropout, HandshakeRefused, RoundEnded, WaitingChanged
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.events import ClientLeft, RoundStarted
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase
from tacit.simulate.dashboard import server
from tacit.simulate.dashboard.server import Dashboard, listening
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
    keys, folder, file = (
        generate("lab"),
        PartyFolder(tmp_path),
        SimpleNamespace(role="server", log=LogConfiguration(level="debug")),
    )
    lab = OpenedParty[Any](file, keys, Roster((keys.member("server"),)), folder)
    lost = Dropout(party="client-1", phase=Phase.TRAIN, included_in_sum=False, code="LOCAL", detail=DETAIL)
    ended = RoundEnded(
        round=1, status="aborted", code="THRESHOLD", detail=DETAIL, culprit=None, cohort=["client-1"], absent={},
        repeated=False, survivors=[], dropped=[lost], seconds=1.0,
    )  # fmt: skip
    with (
        at_work(lab, told.append) as tell,
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


SECONDS = 60.0
SECRET_NAME = "clinic-in-a-small-town"


def opened(where: str) -> Iterator[tuple[Dashboard, int]]:
    with listening(where) as listener, Dashboard(listener, Experiment(name=SECRET_NAME)) as dashboard:
        yield dashboard, int(dashboard.link.removeprefix("http://").partition("/")[0].rpartition(":")[2])


@pytest.fixture
def here() -> Iterator[tuple[Dashboard, int]]:
    yield from opened("127.0.0.1:0")


@pytest.fixture
def elsewhere() -> Iterator[tuple[Dashboard, int]]:
    yield from opened("0.0.0.0:0")


def ask(port: int, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


@pytest.mark.threat("stranger/reads-the-dashboard")
def test_without_the_token_and_by_another_name_nothing_of_the_run_is_shown(
    elsewhere: tuple[Dashboard, int], here: tuple[Dashboard, int]
) -> None:
    dashboard, port = elsewhere
    token = dashboard.link.partition("#")[2]
    guesses = (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {token[:-1]}"},
        {"Cookie": f"tacit-{port}="},
    )
    for path in ("/", "/events", "/metrics", "/enter", f"/?token={token}", f"/{token}", "//", "/%2e%2e/metrics"):
        for headers in guesses:
            status, text, _ = ask(port, path, **headers)
            assert status == (200 if path == "/enter" else 401)
            assert SECRET_NAME not in text
            assert "tacit_rounds" not in text
    assert SECRET_NAME in ask(port, "/", Authorization=f"Bearer {token}")[1]

    _, port = here
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        for path in ("/", "/events", "/metrics"):
            status, text, headers = ask(port, path, Host=host)
            assert (status, SECRET_NAME in text, headers["Access-Control-Allow-Origin"]) == (421, False, None)
    assert SECRET_NAME in ask(port, "/", Host=f"localhost:{port}")[1]


@pytest.mark.threat("stranger/holds-the-dashboard")
def test_connections_without_end_hold_up_nobody_and_take_no_descriptors(
    here: tuple[Dashboard, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 2.0)
    dashboard, port = here
    held = []
    try:
        for number in range(3 * server.MOST_CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
            # Some begin a request, some ask for the stream and never read.
            connection.sendall((b"", b"GET / HT", b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")[number % 3])
            held.append(connection)
        for number in range(1000):
            dashboard.take(WaitingChanged(party="server", on=[f"client-{number}"]))
        # Those of one turn of the loop, and of the turn before, may be on their way out.
        assert len(dashboard._server.server_state.connections) <= server.MOST_CONNECTIONS + 2 * server.BACKLOG
    finally:
        for connection in held:
            connection.close()


@pytest.mark.threat("client/hostile-words")
def test_the_words_of_an_abort_are_shown_as_text(here: tuple[Dashboard, int]) -> None:
    dashboard, port = here
    words = "</li></ul><script src=/dashboard.js></script><img src=x onerror=alert(1)>{{ 7*7 }}"
    dashboard.take(MessageRefused(party="server", member=words, code=words, detail=words))
    dashboard.take(HandshakeRefused(party="server", public_key=words, address=words, reason=words))
    dashboard.take(PartyFailed(party="server", reason=words))
    while "refused a message of" not in (text := ask(port, "/")[1]):
        pass
    assert text.count("<script") == 1
    assert "<img" not in text
    assert "{{ 7*7 }}" in text
    policy = ask(port, "/")[2]["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
