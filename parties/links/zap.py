"""Who may open a link: answers to ZeroMQ's authentication requests (ZAP, ZeroMQ RFC 27) from the roster.

libzmq asks one handler per context about every CURVE handshake. This one admits exactly the keys of the roster and
gives each link the name of its member as user id, which libzmq then attaches to every frame of that link. A refused
key is visible here and nowhere else on this side, so it is reported.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import zmq
import zmq.asyncio

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"tacit"
_VERSION = b"1.0"

OnRefused = Callable[[bytes, str], None]
"""Called with the 32-byte public key that was refused and the address that it came from."""


class ZapHandler:
    """Answers in a task of its own from construction to close(); bind the sockets that it protects afterwards.

    `names` maps the 32-byte CURVE public key of each admitted member to its name.
    """

    def __init__(self, context: zmq.asyncio.Context, names: Mapping[bytes, str], on_refused: OnRefused) -> None:
        self._names = names
        self._on_refused = on_refused
        self._socket = context.socket(zmq.REP)
        self._socket.bind(ZAP_ADDRESS)
        self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop answering: libzmq refuses all handshakes from now on."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._socket.close(linger=0)

    async def _serve(self) -> None:
        while True:
            await self._socket.send_multipart(self._answer(await self._socket.recv_multipart()))

    def _answer(self, request: Sequence[bytes]) -> list[bytes]:
        # Version, request id, domain, address, routing id, mechanism, then the credentials of the mechanism.
        request_id = request[1] if len(request) > 1 else b""
        if len(request) != 7 or request[0] != _VERSION or request[2] != ZAP_DOMAIN or request[5] != b"CURVE":
            return [_VERSION, request_id, b"400", b"only CURVE handshakes of this application", b"", b""]
        key = request[6]
        name = self._names.get(key)
        if name is None:
            self._on_refused(key, request[3].decode("utf-8", "replace"))
            return [_VERSION, request_id, b"400", b"key not in the roster", b"", b""]
        return [_VERSION, request_id, b"200", b"OK", name.encode("ascii"), b""]
