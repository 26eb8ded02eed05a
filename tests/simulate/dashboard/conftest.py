"""Pages of runs that never took place: events by hand, readers with sockets of their own."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tacit.parties.runs.experiment import load
from tacit.parties.runs.reading import recorded
from tacit.parties.session.events import CopyDetected, HandshakeRefused, LinkLost, LinkOpened
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.session.events import ClientJoined
from tacit.simulate.dashboard.server import Dashboard, listening

SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str


class Reader:
    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self.host, _, port = dashboard.link.removeprefix("http://").partition("/")[0].rpartition(":")
        self.port = int(port)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host.strip("[]"), self.port), timeout=SECONDS)

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host.strip("[]"), self.port, timeout=SECONDS)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    def news(self, **headers: str) -> Iterator[dict[str, str]]:
        connection = http.client.HTTPConnection(self.host.strip("[]"), self.port, timeout=SECONDS)
        try:
            connection.request("GET", "/events", headers=headers)
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))["sections"]
        finally:
            connection.close()


Show = Callable[..., Reader]


@pytest.fixture
def show() -> Iterator[Show]:
    """show(run, where=) shows a scripted run; its logs are what it goes on from."""
    with ExitStack() as stack:

        def opened(run: Any, where: str = "127.0.0.1:0", **options: Any) -> Reader:
            earlier = recorded(run.run.path / "events")
            return Reader(
                stack.enter_context(
                    Dashboard(stack.enter_context(listening(where)), load(run.run.experiment), earlier, **options)
                )
            )

        yield opened


@pytest.fixture
def eventful(script: Any) -> Any:
    """Dropouts, a stopped round, a stranger, a refused message whose words are hostile."""
    run = script(toml='name = "clinics"')
    run.session()
    for name in run.clients:
        run.log("server", LinkOpened(peer=name))
        run.log("server", ClientJoined(member=name))
    reason = "this key is not in the roster"
    run.log("server", HandshakeRefused(reason=reason, public_key="Z" * 40, address="10.0.0.7"))
    run.log("server", CopyDetected(peer="client-1", detail="an old token", address="10.0.0.8", other="10.0.0.9"))
    run.round(1)
    run.round(2, dropped={"client-2": False}, killed=["client-2"])
    run.log("server", LinkLost(peer="client-2"))
    run.log("server", MessageRefused(member="client-4", code="VECTOR", detail=HOSTILE))
    run.round(3, status="aborted")
    return run


HOSTILE = "</li><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
