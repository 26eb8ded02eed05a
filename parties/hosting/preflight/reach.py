"""Whether a client gets to its server, as far as that can be known before a session: name, TCP, CURVE, version.

The link is opened as for a session. Then the client asks to go on with a conversation that there never was: the server
says that it has none, in its own version of the protocol, and nobody has joined or left. Where no link comes about, a
bare connection tells why: nothing listens; something else does; or a server whose key is another one.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from contextlib import suppress
from typing import Final

from tacit.parties.hosting.preflight.checks import Absent, Caution, Check, NotFit, Untested
from tacit.parties.hosting.preflight.subjects import Attempt, ClientSubject, ServerSubject
from tacit.parties.links.address import IPC, host_of, resolve
from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.links.endpoint import EndpointError, Received
from tacit.parties.links.keys import generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.codec import VERSION, Envelope, decode, encode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import Abort, Resume
from tacit.protocol.session.messages import MESSAGES

SECONDS: Final = 4.0
"""How long an answer is waited for; a server that is there answers at once."""
_SESSION_BYTES: Final = 32
_SIGNATURE: Final = b"\xff\0\0\0\0\0\0\0\0\x7f"
_GREETING_BYTES: Final = 64
"""With which both ends of ZeroMQ begin (RFC 23): signature, version, from the 12th on the mechanism."""


def name(subject: ClientSubject) -> str:
    """The name of the server leads to an address."""
    address = subject.file.connect
    asyncio.run(resolve(address))
    host = host_of(address)
    if host is None:
        return f"{address} needs none"
    found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return f"{host} is {', '.join(sorted(map(str, found)))}"


def tcp(subject: ClientSubject) -> str:
    """Something listens at the address."""
    address = subject.file.connect
    if subject.running:
        raise Untested("a process of this party has its link to the server now: `tacit status` says how it stands")
    if _attempt(subject).error is not None and not isinstance(_attempt(subject).error, NotAdmittedError):
        try:
            asyncio.run(_greeted(address))
        except TimeoutError:
            raise Absent(
                f"no answer from {address} in {SECONDS:g} s: a firewall drops packets, or the host is off"
            ) from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise Absent(
                f"nothing listens at {address} ({reason}): start the server, or check the address and the firewall"
            ) from None
    return f"{address} accepts connections"


def curve(subject: ClientSubject) -> str:
    """Who listens has the server's key, and knows that of this client."""
    error = _attempt(subject).error
    if error is None:
        return f"it has the key of {subject.roster.server.name}, and knows this party's"
    if isinstance(error, NotAdmittedError):
        raise NotFit(str(error))
    said = asyncio.run(_greeted(subject.file.connect))
    where = subject.file.connect
    if not said.startswith(_SIGNATURE[:1]) or said[9:10] != _SIGNATURE[9:]:
        shown = re.sub(r"[^ -~]+", " ", said.decode("latin-1")).strip()
        if not shown:
            raise NotFit(
                f"what listens at {where} says nothing: it is no tacit server, or one that is stopped or overloaded"
            )
        raise NotFit(f"what listens at {where} is no tacit server (it says {shown!r}): correct the address")
    if said[12:32].rstrip(b"\0") not in (b"CURVE", b""):
        raise NotFit(f"what listens at {where} is another service of ZeroMQ, without CURVE: correct the address")
    raise NotFit(
        f"who listens at {where} has another key than {subject.roster.server.name} in the roster: compare fingerprints "
        "of the roster by telephone, and get the server's own; do not connect before it is known whose key that is"
    )


def version(subject: ClientSubject) -> str:
    """Both speak the same version of the protocol."""
    answer = _attempt(subject).answer
    if answer is None:
        raise Untested("the server has not answered: it is busy, or bars this client; its log says why")
    if answer.code is Code.VERSION:
        raise NotFit(answer.detail)
    return f"{VERSION} of the protocol, as the server's"


def address(subject: ServerSubject) -> str:
    """The server can listen, and is reached at the addresses that it tells."""
    bind = subject.file.bind
    if subject.running:
        raise Untested(f"a process of this party listens at {bind} now: `tacit status` says how it stands")
    return asyncio.run(_heard_at(subject))


def _attempt(subject: ClientSubject) -> Attempt:
    if subject.attempt is None:
        subject.attempt = asyncio.run(_linked(subject))
    return subject.attempt


async def _linked(subject: ClientSubject) -> Attempt:
    keys, server = subject.keys, subject.roster.server
    try:
        endpoint = await ClientEndpoint.connect(
            subject.file.connect, keys=keys, server=server, connect_deadline=SECONDS
        )
    except EndpointError as error:
        return Attempt(error)
    # A session that no server has drawn.
    asked = Envelope(
        version=VERSION, type=Resume.TYPE, session=secrets.token_bytes(_SESSION_BYTES), round=0, sender=keys.name,
        sequence=0, link=1,
    )  # fmt: skip
    async with endpoint:
        with suppress(TimeoutError, EndpointError):
            async with asyncio.timeout(SECONDS):
                await endpoint.send(encode(Resume(), asked))
                while True:
                    event = await endpoint.receive()
                    if isinstance(event, Received):
                        return Attempt(answer=_read(event))
    return Attempt()


def _read(received: Received) -> Abort | None:
    try:
        packet = decode(received.frames, MESSAGES)
        message = packet.parse()
    except RemoteProtocolError as error:
        return Abort(code=error.code, detail=error.detail, culprit="")
    return message if isinstance(message, Abort) else None


async def _greeted(address: str) -> bytes:
    """What stands at an address says first to a client of ZeroMQ, 64 bytes at most. OSError, TimeoutError."""
    async with asyncio.timeout(SECONDS):
        if address.startswith(IPC):
            reader, writer = await asyncio.open_unix_connection(address.removeprefix(IPC))
        else:
            reader, writer = await asyncio.open_connection(host_of(address), int(address.rpartition(":")[2]))
    said = b""
    try:
        # No more, or who has another mechanism hangs up before it has named it.
        writer.write(_SIGNATURE + b"\x03\x01")
        async with asyncio.timeout(SECONDS):
            while len(said) < _GREETING_BYTES and (more := await reader.read(_GREETING_BYTES - len(said))):
                said += more
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()
    return said


async def _heard_at(subject: ServerSubject) -> str:
    server, told = subject.roster.server, subject.file.tell
    async with await ServerEndpoint.bind(subject.file.bind, keys=subject.keys, roster=subject.roster) as endpoint:
        for address in told:
            try:
                # A key that nobody knows: whoever refuses it has shown the server's.
                await ClientEndpoint.connect(
                    address, keys=generate("preflight"), server=server, connect_deadline=SECONDS
                )
            except NotAdmittedError:
                continue
            except EndpointError as error:
                raise Caution(f"tell = {address!r} does not lead back here: {error}") from None
        return f"can listen at {endpoint.address}" + (f", reached at {', '.join(told)}" if told else "")


NAME: Final = Check("name", name)
TCP: Final = Check("tcp", tcp, needs=("key", "roster", "name"))
CURVE: Final = Check("curve", curve, needs=("tcp",))
VERSIONS: Final = Check("version", version, needs=("curve",))
ADDRESS: Final = Check("address", address, needs=("key", "roster"))
