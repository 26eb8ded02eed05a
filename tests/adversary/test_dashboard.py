"""Strangers and members against the page of a run: who reads it, who holds it up, what it is made to show."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from tacit.parties.runs.events import PartyFailed
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.events import HandshakeRefused, WaitingChanged
from tacit.protocol.core.events import MessageRefused
from tacit.simulate.dashboard import server
from tacit.simulate.dashboard.server import Dashboard, listening

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
