"""Whether a party gets to those whom it connects to, as far as that can be known before a session.

Four lines for each: name, TCP, CURVE, version. The link is opened as for a session. Then something is said that begins
nothing and must be answered, and the answer has the version of who gives it. Where no link comes about, a bare
connection tells why: nothing listens; something else does; or one whose key is another one.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from tacit.parties.hosting.preflight.checks import Absent, Caution, Check, NotFit, Untested
from tacit.parties.hosting.preflight.subjects import Attempt, ConnectingSubject, ListeningSubject
from tacit.parties.links.address import IPC, host_of, resolve
from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.links.endpoint import EndpointError, Received
from tacit.parties.links.keys import generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.codec import Envelope, decode, encode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Abort, Kinds, Message, Resume
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, InferenceHello
from tacit.protocol.session.messages import MESSAGES

SECONDS: Final = 4.0
"""How long an answer is waited for; who is there answers at once."""
_SIGNATURE: Final = b"\xff\0\0\0\0\0\0\0\0\x7f"
_GREETING_BYTES: Final = 64
"""With which both ends of ZeroMQ begin (RFC 23): signature, version, from the 12th on the mechanism."""

Connecting = ConnectingSubject[Any]


@dataclass(frozen=True)
class _Other:
    """What may be met in the place of whom a party connects to."""

    what: str
    """What that is."""
    kinds: Kinds
    """What is spoken there."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """To one whom a party connects to."""

    what: str
    """What that is."""
    prefix: str = ""
    """Of the names of its lines."""
    key: str
    """Of its address in the party's file."""
    member: Callable[[Roster], Member]
    kinds: Kinds
    """What is spoken there."""
    question: Callable[[Roster], Message]
    other: _Other | None = None
    """What has the same key, and speaks something else."""

    @property
    def checks(self) -> tuple[Check[Connecting], ...]:
        """Its lines."""
        name, tcp, curve, version = (self.prefix + each for each in ("name", "tcp", "curve", "version"))
        return (
            Check(name, self.name),
            Check(tcp, self.tcp, needs=("key", "roster", name)),
            Check(curve, self.curve, needs=(tcp,)),
            Check(version, self.version, needs=(curve,)),
        )

    def name(self, subject: Connecting) -> str:
        """The name leads to an address."""
        address = self._address(subject)
        asyncio.run(resolve(address))
        host = host_of(address)
        if host is None:
            return f"{address} needs none"
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        return f"{host} is {', '.join(sorted(map(str, found)))}"

    def tcp(self, subject: Connecting) -> str:
        """Something listens at the address."""
        address = self._address(subject)
        if subject.running:
            raise Untested(
                f"a process of this party has its link to the {self.what} now: `tacit status` says how it stands"
            )
        error = self.attempt(subject).error
        if error is not None and not isinstance(error, NotAdmittedError):
            try:
                asyncio.run(_greeted(address))
            except TimeoutError:
                raise Absent(
                    f"no answer from {address} in {SECONDS:g} s: a firewall drops packets, or the host is off"
                ) from None
            except OSError as refused:
                reason = os.strerror(refused.errno) if refused.errno else str(refused)
                raise Absent(
                    f"nothing listens at {address} ({reason}): start the {self.what}, or check the address and the "
                    "firewall"
                ) from None
        return f"{address} accepts connections"

    def curve(self, subject: Connecting) -> str:
        """Who listens has the key of the roster, and knows that of this party."""
        error, member = self.attempt(subject).error, self.member(subject.roster)
        if error is None:
            return f"it has the key of {member.name}, and knows this party's"
        if isinstance(error, NotAdmittedError):
            raise NotFit(str(error))
        where = self._address(subject)
        said = asyncio.run(_greeted(where))
        if not said.startswith(_SIGNATURE[:1]) or said[9:10] != _SIGNATURE[9:]:
            shown = re.sub(r"[^ -~]+", " ", said.decode("latin-1")).strip()
            if not shown:
                raise NotFit(
                    f"what listens at {where} says nothing: it is no tacit {self.what}, or one that is stopped or "
                    "overloaded"
                )
            raise NotFit(f"what listens at {where} is no tacit {self.what} (it says {shown!r}): correct the address")
        if said[12:32].rstrip(b"\0") not in (b"CURVE", b""):
            raise NotFit(f"what listens at {where} is another service of ZeroMQ, without CURVE: correct the address")
        raise NotFit(
            f"who listens at {where} has another key than {member.name} in the roster: compare fingerprints of the "
            f"roster by telephone, and get the {self.what}'s own; do not connect before it is known whose key that is"
        )

    def version(self, subject: Connecting) -> str:
        """Both speak the same version of the same protocol."""
        attempt = self.attempt(subject)
        answer = attempt.answer
        if answer is None:
            raise Untested(f"the {self.what} has not answered: it is busy, or bars this party; its log says why")
        if self.other is not None and _speaks(self.other.kinds, attempt.frames):
            raise NotFit(f"what listens at {self._address(subject)} is {self.other.what}: correct the address")
        if isinstance(answer, Abort) and answer.code is Code.VERSION:
            raise NotFit(answer.detail)
        return f"{self.kinds.version} of the protocol, as the {self.what}'s"

    def _address(self, subject: Connecting) -> str:
        address: str = attrgetter(self.key)(subject.file)
        return address

    def attempt(self, subject: Connecting) -> Attempt:
        """What came of opening a link and asking, which is done once."""
        if self.key not in subject.attempts:
            subject.attempts[self.key] = asyncio.run(self._linked(subject))
        return subject.attempts[self.key]

    async def _linked(self, subject: Connecting) -> Attempt:
        keys, roster = subject.keys, subject.roster
        try:
            endpoint = await ClientEndpoint.connect(
                self._address(subject), keys=keys, server=self.member(roster), connect_deadline=SECONDS
            )
        except EndpointError as error:
            return Attempt(error)
        question = self.question(roster)
        # A session that nobody has drawn, or none at all.
        resumes = isinstance(question, Resume)
        asked = Envelope(
            version=self.kinds.version, type=question.TYPE, sender=keys.name, round=0, sequence=0, link=int(resumes),
            session=secrets.token_bytes(32) if resumes else NO_SESSION,
        )  # fmt: skip
        async with endpoint:
            with suppress(TimeoutError, EndpointError):
                async with asyncio.timeout(SECONDS):
                    await endpoint.send(encode(question, asked))
                    while True:
                        event = await endpoint.receive()
                        if isinstance(event, Received):
                            return Attempt(answer=self._read(event), frames=tuple(map(bytes, event.frames)))
        return Attempt()

    def _read(self, received: Received) -> Message:
        try:
            return decode(received.frames, self.kinds).parse()
        except RemoteProtocolError as error:
            return Abort(code=error.code, detail=error.detail, culprit="")


def _speaks(kinds: Kinds, frames: Sequence[bytes]) -> bool:
    """Whether this is a message of these."""
    try:
        decode(frames, kinds)
    except RemoteProtocolError:
        return False
    return True


SERVER: Final = Way(
    what="server", key="connect", member=lambda roster: roster.server, kinds=MESSAGES,
    question=lambda roster: Resume(), other=_Other("a model owner of private inference", INFERENCE_MESSAGES),
)  # fmt: skip
"""A client asks to go on with a conversation that there never was, which the server says."""
MODEL_OWNER: Final = Way(
    what="model owner", prefix="owner-", key="model_owner", member=lambda roster: roster.server,
    kinds=INFERENCE_MESSAGES, question=lambda roster: InferenceHello(roster=roster.hash),
    other=_Other("the server of a federation", MESSAGES),
)  # fmt: skip
"""A data owner says hello, is told what it may ask for, and leaves: the dealer learns of a session by the agreement."""
TEACHER: Final = replace(
    MODEL_OWNER, kinds=ADAPTATION_MESSAGES, other=_Other("a model owner of private inference", INFERENCE_MESSAGES)
)
"""The same, where it comes to learn beside the model."""
DEALER: Final = Way(
    what="dealer", prefix="dealer-", key="dealer", member=lambda roster: roster.dealer, kinds=INFERENCE_MESSAGES,
    question=lambda roster: Resume(),
)  # fmt: skip
"""An owner asks the same as a client. There is no such message in private inference, and a dealer says so."""

SUMS: Final = Way(
    what="dealer of the sums", prefix="sums-", key="adaptation.sums", member=lambda roster: roster.dealer,
    kinds=MESSAGES, question=lambda roster: Resume(),
    other=_Other("where the dealer deals, and not where it sums", INFERENCE_MESSAGES),
)  # fmt: skip
"""A data owner that learns asks as a client."""


def address(subject: ListeningSubject[Any]) -> str:
    """The party can listen, and is reached at the addresses that it tells."""
    bind = subject.file.bind
    if subject.running:
        raise Untested(f"a process of this party listens at {bind} now: `tacit status` says how it stands")
    return asyncio.run(_heard_at(subject))


async def _heard_at(subject: ListeningSubject[Any]) -> str:
    own, told = subject.roster.member(subject.keys.name), subject.file.tell
    async with await ServerEndpoint.bind(subject.file.bind, keys=subject.keys, roster=subject.roster) as endpoint:
        for address in told:
            try:
                # A key that nobody knows: whoever refuses it has shown that of this party.
                await ClientEndpoint.connect(address, keys=generate("preflight"), server=own, connect_deadline=SECONDS)
            except NotAdmittedError:
                continue
            except EndpointError as error:
                raise Caution(f"tell = {address!r} does not lead back here: {error}") from None
        return f"can listen at {endpoint.address}" + (f", reached at {', '.join(told)}" if told else "")


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


ADDRESS: Final = Check("address", address, needs=("key", "roster"))
