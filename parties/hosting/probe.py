"""Probe a peer before a session: its name, TCP, CURVE and the version of the protocol, one after the other.

The probe is a message that begins nothing and must be answered. If no link comes about, a bare TCP connection shows the
reason.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from tacit.parties.links.client_endpoint import ClientEndpoint, CopyError, NotAdmittedError, UnreachableError
from tacit.parties.links.endpoint import IPC, EndpointError, Received, host_of, resolve
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.tokens import TokenFile
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.codec import Envelope, decode, encode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Abort, Kinds, Message, Resume
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, InferenceHello
from tacit.protocol.session.messages import MESSAGES

State = Literal["ok", "warning", "untested", "absent", "wrong"]

_SIGNATURE: Final = b"\xff\0\0\0\0\0\0\0\0\x7f"
_GREETING_BYTES: Final = 64
"""Length of the ZeroMQ greeting of both ends (RFC 23): signature, version, mechanism from byte 12 on."""


class NotReady(Exception):
    """A prerequisite is missing, or could not be checked; the message names it and the remedy."""

    def __init__(self, detail: str, state: State = "wrong") -> None:
        super().__init__(detail)
        self.state = state


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A kind of peer.

    prefix: begins the names of its findings. address_key: its address in the party file. other: another service that
    may be found at the address, with the same key, and its messages."""

    what: str
    prefix: str
    address_key: str
    role: Literal["server", "dealer"]
    kinds: Kinds
    other: tuple[str, Kinds] | None = None

    def member(self, roster: Roster) -> Member:
        return roster.server if self.role == "server" else roster.dealer

    def question(self, roster: Roster) -> Message:
        """Return a message that the peer answers, and that begins no session.

        A model owner answers a hello with its offer; the dealer hears of a session only when both owners agree. All
        other peers are asked to resume a conversation that does not exist: a server refuses it, and a dealer does not
        know it."""
        offers = self.role == "server" and self.kinds is not MESSAGES
        return InferenceHello(roster=roster.hash) if offers else Resume()


SERVER: Final = Peer(
    what="server", prefix="", address_key="connect", role="server", kinds=MESSAGES,
    other=("a model owner of private inference", INFERENCE_MESSAGES),
)  # fmt: skip
DEALER: Final = Peer(
    what="dealer", prefix="dealer-", address_key="dealer", role="dealer", kinds=INFERENCE_MESSAGES
)  # fmt: skip
SUMS: Final = Peer(
    what="dealer of the sums", prefix="sums-", address_key="adaptation.sums", role="dealer", kinds=MESSAGES,
    other=("where the dealer deals, and not where it sums", INFERENCE_MESSAGES),
)  # fmt: skip
MODEL_OWNER: Final = Peer(
    what="model owner", prefix="owner-", address_key="model_owner", role="server", kinds=INFERENCE_MESSAGES,
    other=("the server of a federation", MESSAGES),
)  # fmt: skip
TEACHER: Final = replace(
    MODEL_OWNER, kinds=ADAPTATION_MESSAGES, other=("a model owner of private inference", INFERENCE_MESSAGES)
)
"""A model owner in adaptation."""


async def probe(
    peer: Peer, address: str, keys: PartyKeys, roster: Roster, *, seconds: float, tokens: TokenFile | None = None
) -> AsyncIterator[tuple[str, Sequence[bytes]]]:
    """Probe name, TCP, CURVE and version of a peer, one after the other: yields a finding for each, the last with the
    frames of the peer's answer. Waits `seconds` for every answer.

    Raises NotReady, EndpointError, or ValueError at the first failure."""
    yield await _addresses(address), ()
    member, accepts = peer.member(roster), f"{address} accepts connections"
    try:
        endpoint = await ClientEndpoint.connect(
            address, keys=keys, server=member, connect_deadline=seconds, tokens=tokens
        )
    except NotAdmittedError:
        yield accepts, ()
        raise
    except EndpointError as error:
        greeting = await _greeting(peer, address, seconds)
        yield accepts, ()
        if isinstance(error, UnreachableError) and greeting[12:17] == b"CURVE":
            raise NotReady(
                f"what listens at {address} has not answered in {seconds:g} s: the {peer.what} is busy, or starts; "
                "try again",
                "untested",
            ) from None
        raise NotReady(why_no_link(peer, address, member, greeting)) from None
    async with endpoint:
        yield accepts, ()
        yield f"it has the key of {member.name}, and knows this party's", ()
        frames = await _answer(endpoint, peer, keys, roster, seconds)
    check_version(peer, address, frames)
    yield f"{peer.kinds.version} of the protocol, as the {peer.what}'s", frames


async def _addresses(address: str) -> str:
    await resolve(address)
    if (host := host_of(address)) is None:
        return f"{address} needs none"
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return f"{host} is {', '.join(sorted({str(entry[4][0]) for entry in found}))}"


async def _greeting(peer: Peer, address: str, seconds: float) -> bytes:
    """First bytes that a ZeroMQ client receives at the address, at most 64. NotReady if nothing accepts it."""
    try:
        async with asyncio.timeout(seconds):
            if address.startswith(IPC):
                reader, writer = await asyncio.open_unix_connection(address.removeprefix(IPC))
            else:
                reader, writer = await asyncio.open_connection(host_of(address), int(address.rpartition(":")[2]))
    except TimeoutError:
        raise NotReady(
            f"no answer from {address} in {seconds:g} s: a firewall drops packets, or the host is off", "absent"
        ) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise NotReady(
            f"nothing listens at {address} ({reason}): start the {peer.what}, or check the address and the firewall",
            "absent",
        ) from None
    received = b""
    # A timeout is an OSError too.
    with suppress(OSError):
        # No more than this, or a peer with another mechanism hangs up before it has named it.
        writer.write(_SIGNATURE + b"\x03\x01")
        async with asyncio.timeout(seconds):
            while len(received) < _GREETING_BYTES and (more := await reader.read(_GREETING_BYTES - len(received))):
                received += more
    writer.close()
    return received


def why_no_link(peer: Peer, address: str, member: Member, greeting: bytes) -> str:
    """Explain from its first bytes what is at an address where no link comes about."""
    if not greeting.startswith(_SIGNATURE[:1]) or greeting[9:10] != _SIGNATURE[9:]:
        shown = re.sub(r"[^ -~]+", " ", greeting.decode("latin-1")).strip()
        if shown:
            return f"what listens at {address} is no tacit {peer.what} (it says {shown!r}): correct the address"
        return (
            f"what listens at {address} says nothing: it is no tacit {peer.what}, or one that is stopped or overloaded"
        )
    if greeting[12:32].rstrip(b"\0") not in (b"CURVE", b""):
        return f"what listens at {address} is another service of ZeroMQ, without CURVE: correct the address"
    return (
        f"who listens at {address} has another key than {member.name} in the roster: compare fingerprints of the "
        f"roster by telephone, and get the {peer.what}'s own; do not connect before it is known whose key that is"
    )


async def _answer(
    endpoint: ClientEndpoint, peer: Peer, keys: PartyKeys, roster: Roster, seconds: float
) -> Sequence[bytes]:
    question = peer.question(roster)
    # A session identifier that nobody has drawn, or none at all.
    resumes = isinstance(question, Resume)
    envelope = Envelope(
        version=peer.kinds.version, type=question.TYPE, sender=keys.name, round=0, sequence=0, link=int(resumes),
        session=secrets.token_bytes(32) if resumes else NO_SESSION,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            await endpoint.send(encode(question, envelope))
            while True:
                event = await endpoint.receive()
                if isinstance(event, Received):
                    return tuple(map(bytes, event.frames))
    except CopyError:
        raise
    except (TimeoutError, EndpointError):
        return ()


def check_version(peer: Peer, address: str, frames: Sequence[bytes]) -> None:
    """Raise NotReady or RemoteProtocolError unless these frames are an answer in the peer's protocol and version."""
    if not frames:
        raise NotReady(
            f"the {peer.what} has not answered: it is busy, or bars this party; its log says why", "untested"
        )
    if peer.other is not None:
        with suppress(RemoteProtocolError):
            decode(frames, peer.other[1])
            raise NotReady(f"what listens at {address} is {peer.other[0]}: correct the address")
    try:
        answer = decode(frames, peer.kinds).parse()
    except RemoteProtocolError as error:
        if error.code is Code.VERSION:
            raise
        return
    if isinstance(answer, Abort) and answer.code is Code.VERSION:
        raise NotReady(answer.detail)
