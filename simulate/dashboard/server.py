"""HTTP server of the live page, in its own thread, and the guard that authorises readers.

docs/dashboard.md has the rules. A token comes in a header, or in a cookie set by the first answer to it; never in an
address, since logs and histories keep addresses. No reader can make the server wait, or delay a round: each gets the
differences from its last state, at most twice a second, and a reader that accepts no data for a while is disconnected.
Connections are limited, so that strangers do not use up the descriptors that the party's own links need.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Self

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tacit.parties.runs.experiment import Experiment
from tacit.protocol.core.events import Event
from tacit.simulate.dashboard.metrics import CONTENT_TYPE, Metrics
from tacit.simulate.dashboard.view import Live, page, sections


class DashboardError(ValueError):
    """The page cannot be served; the message names the address and the remedy."""


@dataclass(frozen=True)
class Place:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse HOST:PORT, with an IPv6 address in brackets; :PORT and PORT: this machine alone. DashboardError."""
        found = re.fullmatch(r"(?:(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*):)?(?P<port>\d{1,5})", text)
        if found is None or int(found["port"]) > 65_535:
            raise DashboardError(
                f"--dashboard {text}: expected HOST:PORT, such as 127.0.0.1:8080, or [::1]:8080 with IPv6"
            )
        return cls((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))

    @property
    def loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listen(self) -> OpenPlace:
        try:
            family, kind, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen()
            except OSError:
                listening.close()
                raise
        except OSError as error:
            raise DashboardError(
                f"--dashboard {self}: cannot listen there: {error.strerror}; use an address of this host and a port "
                "that no other process uses"
            ) from error
        listening.setblocking(False)
        return OpenPlace(Place(self.host, listening.getsockname()[1]), listening)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class OpenPlace:
    """A listening socket, and its place with the port that the system chose."""

    place: Place
    socket: socket.socket


@contextmanager
def listening(where: str) -> Iterator[OpenPlace]:
    """Listen there, as Place.parse reads it, before there is a page. DashboardError if that fails."""
    listener = Place.parse(where).listen()
    with listener.socket:
        yield listener


OPEN: Final = frozenset({"/enter", "/enter.js", "/dashboard.css", "/healthz"})
"""Paths served without a token: they are the same everywhere, and request one."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
UNKNOWN: Final = (
    "tacit: open the link that was printed at the start, or send its token as the header 'Authorization: Bearer TOKEN'"
)
MISDIRECTED: Final = "tacit: this page is for this machine alone; open it as http://localhost"


class Guard:
    """Rejects unauthorised readers of the pages, and sends browsers the security headers."""

    def __init__(self, app: ASGIApp, *, token: str | None, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"tacit-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        cookie = ""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if cookie:
                    headers.append("Set-Cookie", cookie)
            await send(message)

        refusal = self._refusal(request)
        if refusal is None and self._token is not None and self._in_header(request):
            cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Lax; Path=/"
        app = self._app if refusal is None else refusal
        await app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        if self._token is None:
            host = re.sub(r":\d+\Z", "", request.headers.get("host", ""))
            if not Place(host.strip("[]"), 0).loopback:
                return PlainTextResponse(f"{MISDIRECTED}\n", 421)
        elif request.url.path not in OPEN and not (
            self._in_header(request) or self._is_token(request.cookies.get(self._cookie, ""))
        ):
            return PlainTextResponse(f"{UNKNOWN}\n", 401, {"WWW-Authenticate": "Bearer"})
        return None

    def _in_header(self, request: Request) -> bool:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(shown)

    def _is_token(self, shown: str) -> bool:
        return self._token is not None and hmac.compare_digest(shown.encode(), self._token.encode())


def draw_token() -> str:
    return secrets.token_urlsafe(32)


def kept_token(path: Path) -> str:
    """Read the token from a file, created for its owner alone if missing. DashboardError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(made, "w", encoding="ascii") as file:
                file.write(draw_token())
        token, mode = path.read_text(encoding="ascii").strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise DashboardError(f"{path}: no token can be read or made ({error}): delete the file") from None
    if mode & 0o077 or len(token) < SHORTEST_TOKEN:
        raise DashboardError(f"{path}: others may read this token, or it is too short: delete the file")
    return token


SHORTEST_TOKEN: Final = 32
PAUSE_SECONDS: Final = 0.5
"""Between two messages to a reader."""
QUIET_SECONDS: Final = 15.0
"""Silence after which a reader receives an empty line, to detect a lost one."""
STUCK_SECONDS: Final = 30.0
"""Time after which a reader that accepts no data is disconnected."""
REQUEST_SECONDS: Final = 10.0
"""Time that a connection may stay without a request."""
MOST_CONNECTIONS: Final = 64
BACKLOG: Final = 16
"""Connections accepted in one turn of the loop, before the surplus is closed."""
STATIC: Final = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "enter.js": "text/javascript"}


class MetricsPage:
    """Serves /metrics and /healthz of one party within its `with` block."""

    def __init__(self, listener: OpenPlace, metrics: Metrics, *, token: Path | None = None) -> None:
        """token: file of the token, to keep it over restarts. DashboardError if that cannot be read or made."""
        self._place, self._socket = listener.place, listener.socket
        self._token = None if self._place.loopback else draw_token() if token is None else kept_token(token)
        self._metrics = metrics
        self._loop = asyncio.new_event_loop()
        config = uvicorn.Config(
            Guard(Starlette(routes=self._routes()), token=self._token, port=self._place.port),
            http=_Connection,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    @property
    def link(self) -> str:
        """Return the address to open; it may hold the token, so show it to the operator only."""
        return f"http://{self._place}/metrics"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join()
        self._loop.close()
        self._socket.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._server.serve(sockets=[self._socket]))

    def _end(self) -> None:
        self._server.should_exit = True

    def _routes(self) -> list[Route]:
        return [Route("/metrics", self._measure), Route("/healthz", _healthy)]

    async def _measure(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)


class Dashboard(MetricsPage):
    def __init__(
        self,
        listener: OpenPlace,
        experiment: Experiment,
        earlier: Iterable[Event] = (),
        *,
        one_machine: bool = True,
        token: Path | None = None,
    ) -> None:
        """earlier: logged events of the sessions before, oldest first; one_machine: whether all parties run on this
        machine; token: as for MetricsPage."""
        self._live = Live(experiment, earlier, one_machine=one_machine)
        self._closing = False
        self._changed = asyncio.Event()
        self._rendered: tuple[int, dict[str, str]] = (-1, {})
        super().__init__(listener, Metrics(lambda: self._live.state), token=token)

    @property
    def link(self) -> str:
        return f"http://{self._place}/" + ("" if self._token is None else f"enter#{self._token}")

    def take(self, event: Event) -> None:
        """Take an event that happens now; from any thread, without blocking."""
        with contextlib.suppress(RuntimeError):  # The loop is closed, without readers.
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        before = self._live.version
        self._live.take(event)
        if self._live.version != before:
            self._wake()

    def _end(self) -> None:
        super()._end()
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _routes(self) -> list[Route]:
        return [
            *super()._routes(),
            Route("/", self._show),
            Route("/events", self._stream),
            Route("/enter", _static("enter.html", "text/html")),
            *(Route(f"/{name}", _static(name, kind)) for name, kind in STATIC.items()),
        ]

    async def _show(self, request: Request) -> Response:
        return HTMLResponse(page(self._live))

    async def _stream(self, request: Request) -> Response:
        return StreamingResponse(self._messages(), media_type="text/event-stream")

    async def _messages(self) -> AsyncIterator[str]:
        """Yield one reader's messages: first everything, then changed sections."""
        shown: dict[str, str] = {}
        version = -1
        while not self._closing or version != self._live.version:
            if version == self._live.version:
                try:
                    async with asyncio.timeout(QUIET_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    yield ":\n\n"
                continue
            version, now = self._sections()
            news = {name: text for name, text in now.items() if shown.get(name) != text}
            shown = now
            yield f"data: {json.dumps({'now': time.time(), 'sections': news})}\n\n"
            await asyncio.sleep(0 if self._closing else PAUSE_SECONDS)

    def _sections(self) -> tuple[int, dict[str, str]]:
        if self._rendered[0] != self._live.version:
            self._rendered = (self._live.version, sections(self._live))
        return self._rendered


class _Connection(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._expect_request)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deadline.cancel()
        self._deadline = self.loop.call_later(STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._deadline.cancel()

    def _expect_request(self) -> None:
        # uvicorn declares it as never None, but it is None before the first request.
        cycle: object | None = self.cycle
        if cycle is None:
            self.transport.abort()


async def _healthy(request: Request) -> Response:
    return PlainTextResponse("ok\n")


def _static(name: str, kind: str) -> Any:
    content = files(__package__).joinpath(name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind)

    return answer
