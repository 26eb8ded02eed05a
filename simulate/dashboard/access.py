"""Who may read the page: where it listens, and what a reader must show.

On this machine's own addresses everybody may who is on it, if the browser was sent to such an address by its name, so
that no page of somebody else's can have it read by a name that leads here. Elsewhere a token is needed, which is drawn
at the start. It is shown in a header, or in a cookie that the first answer to it sets; never in an address, since
addresses are kept in logs and histories. Everything is read-only: GET and HEAD.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.simulate.dashboard.place import Place

OPEN: Final = frozenset({"/enter", "/enter.js", "/dashboard.css"})
"""What is shown without a token: it is the same everywhere, and asks for one."""
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
    """Lets nobody through to the pages who may not read them, and says to the browser how narrow these are."""

    def __init__(self, app: ASGIApp, *, token: str | None, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"tacit-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
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
    """256 random bits, as an address can hold them."""
    return secrets.token_urlsafe(32)
