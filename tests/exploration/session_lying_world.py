"""One client of three and its host over sessions and rounds, alone against a server that lies.

The liar may begin sessions, as if it had been restarted or had lost what was said, in any order and again; start any
round in them as often as it likes, with three clients or without the third;
and again; and end, call off or leave alone anything. The client's link may break and come back, and its process may be
killed after any part of what it was about to do, and starts again from its disk. In the sums all clients share with
each other, and the others, who keep the rules, tell the liar what it asks for, over whatever survivors it likes; the
worlds of single sums lie about the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import Envelope, Frame, decode, encode, encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.machine import Output, Send
from tacit.protocol.core.messages import Abort, Chunk, Message, Resume
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.messages import MESSAGES, EndRound, StartRound, Welcome
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.agreement import Advert, Agreement, adverts_digest
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.messages import AdvertiseKeys, PeerKeys, PeerShares, ShareKeys, UnmaskRequest
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import VERSION, ClientState, SumLabel
from tests.exploration.machines import fingerprint
from tests.exploration.session import MODEL, SERVER, Clients, Entered, Event, Gave, Host, waits_forever
from tests.exploration.symbols import SymbolicEntropy


class SessionLyingWorld:
    """sessions, rounds: how many of each the liar may begin; starts: how often the client's process may start."""

    def __init__(self, clients: Clients, *, sessions: int, rounds: int, starts: int) -> None:
        self.clients = clients
        self._sessions = [sha256(f"session {number}".encode()).digest() for number in range(sessions)]
        self._rounds = range(1, rounds + 1)
        self._starts = starts
        self._name = clients.names[0]
        self._numbers: dict[Any, int] = {}
        self.hosts: list[Host] = []
        self._going_on: dict[Any, bool] = {}
        self._puppets = cache(self._played)
        size = len(clients.names)
        self._cohorts = [encode_members(range(members), size) for members in (size, size - 1)]

    def initial(self) -> int:
        return self._enter(self.clients.new_host(self._name))

    def moves(self, state: int) -> Iterator[tuple[str, int]]:
        for name, host in self._following(self.hosts[state]):
            following = self._enter(host)
            if following != state:
                yield name, following

    def faults(self, state: int) -> Iterator[str]:
        host = self.hosts[state]
        yield from (f"{self._name} {fact}" for fact in host.facts if isinstance(fact, str))
        if waits_forever(host.client):
            yield f"{self._name} waits without a deadline in {host.client.state.name}"
        if not self._can_go_on(host):
            yield f"{self._name} cannot be in a round of an honest server any more"

    def outcome(self, state: int) -> str:
        facts = self.hosts[state].facts
        opened = {fact.round for fact in facts if isinstance(fact, Gave)}
        return f"{sum(isinstance(fact, Entered) for fact in facts)} rounds entered, {len(opened)} opened"

    def _can_go_on(self, host: Host) -> bool:
        """Outside of rounds: every round leads there, on a word of the server or without one."""
        if host.client.state not in (TrainingState.AWAIT_ROUND, TrainingState.AWAIT_WELCOME):
            return True
        key = fingerprint(host.client)
        if key not in self._going_on:
            self._going_on[key] = self._completes(host)
        return self._going_on[key]

    def _welcome(self) -> Welcome:
        roster, configuration = self.clients.roster, self.clients.configuration
        return Welcome(roster=roster.hash, configuration=encode_structure(configuration), spent=b"")

    def _completes(self, host: Host) -> bool:
        """Whether from here a server that keeps the rules has a round with this client, to its end."""
        clients, everybody, number = self.clients, self._cohorts[0], len(self._rounds) + 1
        welcome = self._welcome()
        start = StartRound(cohort=everybody, model=announce(MODEL, SumLabel.MODEL))
        says: dict[TrainingState, tuple[Message, int, bytes | None]] = {
            TrainingState.AWAIT_WELCOME: (welcome, 0, None),
            TrainingState.AWAIT_ROUND: (start, number, None),
            TrainingState.FETCHING_MODEL: (Chunk(chunk=0), number, MODEL),
        }
        entered: set[TrainingState] = set()
        honest = sha256(b"honest").digest()
        while (state := host.client.state) is not TrainingState.ENDED:
            if state is TrainingState.AWAIT_ROUND and entered:
                return any(isinstance(fact, Gave) and fact.round[1] == number for fact in host.facts)
            named = host.client.session
            session = honest if named == NO_SESSION else named
            if host.client._link.asking:
                event: Event = _hearing(Resume(), session, 0, None)
            elif state is TrainingState.TRAINING:
                event = clients.contribute
            elif state is TrainingState.AGGREGATING and isinstance(host.client.sum, AggregationClient):
                event = _hearing(next(self._within(host.client.sum, host.said)), session, number, None)
            else:
                entered |= {state} - {TrainingState.AWAIT_WELCOME}
                message, round, payload = says[state]
                event = _hearing(message, session, round, payload)
            host = clients.after(host, event)
        return False

    def _enter(self, host: Host) -> int:
        number = self._numbers.setdefault(host.key(), len(self.hosts))
        if number == len(self.hosts):
            self.hosts.append(host)
        return number

    def _following(self, host: Host) -> Iterator[tuple[str, Host]]:
        for name, event in self._events(host):
            yield name, self.clients.after(host, event)
            if host.starts < self._starts:
                outputs = len(event(self.clients.copied(host.client)))
                for part in range(outputs + 1):
                    killed = self.clients.after(host, event, part=part)
                    yield f"{name}, killed after {part} of {outputs} outputs", killed

    def _events(self, host: Host) -> Iterator[tuple[str, Event]]:
        """What can happen to the client: what the liar says, its own deadline, its own work."""
        client = host.client
        if client.state is TrainingState.TRAINING:
            yield "its training is over", self.clients.contribute
        if client.next_deadline is not None:
            yield "its deadline passes", lambda client: client.expire(client.next_deadline or 0.0)
        yield "its link breaks and comes back", _flap
        for message, round, payload in self._said(host):
            sessions = self._sessions if client.state is TrainingState.AWAIT_WELCOME else (client.session,)
            for session in sessions:
                named = f"{message.TYPE} of round {round}" if round else f"{message.TYPE}, session {session[:2].hex()}"
                yield named, _hearing(message, session, round, payload)
        if client._link.asking:
            # So the client begins anew.
            yield "resume after nothing was received", _hearing(Resume(), client.session, 0, None, received=0)

    def _said(self, host: Host) -> Iterator[tuple[Message, int, bytes | None]]:
        """What the liar may say, with the round that it names, and what comes along."""
        client = host.client
        yield Abort(code=Code.LEFT, detail="", culprit=self._name), 0, None
        if client._link.asking:
            yield Resume(), 0, None
            return
        if client.state is TrainingState.AWAIT_WELCOME:
            yield self._welcome(), 0, None
            return
        for round in self._rounds:
            for cohort in self._cohorts:
                yield StartRound(cohort=cohort, model=announce(MODEL, SumLabel.MODEL)), round, None
        yield EndRound(code=None, detail=""), client.round, None
        if client.state is TrainingState.FETCHING_MODEL:
            yield Chunk(chunk=0), client.round, MODEL
        if isinstance(client.sum, AggregationClient):
            yield from ((message, client.round, None) for message in self._within(client.sum, host.said))

    def _within(self, client: AggregationClient, said: tuple[Message, ...]) -> Iterator[Message]:
        """What moves the sum that goes on: the others share, and everybody opens over any survivors."""
        agreement = client.agreement
        everybody = range(agreement.size)
        if client.state is ClientState.AWAIT_PEER_KEYS:
            yield self._puppets(agreement, said[0])[0]
        elif client.state is ClientState.AWAIT_PEER_SHARES:
            _, packets = self._puppets(agreement, said[0])
            (own,) = (message for message in said if isinstance(message, ShareKeys))
            bitmap = encode_members(everybody, agreement.size)
            own_packet = _packet_for(own, client.member, agreement.size)
            yield PeerShares(sharers=bitmap, owners=bitmap, packets=own_packet + packets, signatures=b"")
        elif client.state is ClientState.AWAIT_SURVIVORS:
            nobody = encode_members((), agreement.size)
            for survivors in (agreement.size, agreement.size - 1):
                bitmap = encode_members(range(survivors), agreement.size)
                yield UnmaskRequest(survivors=bitmap, signers=nobody, signatures=b"", answered=nobody, answers=b"")

    def _played(self, agreement: Agreement, advert: AdvertiseKeys) -> tuple[PeerKeys, bytes]:
        """The list of keys, and what the others seal for the client; they draw the same in the same sum."""
        context = agreement.context.hex()[:8]
        others = {
            member: AggregationClient(
                agreement,
                name,
                signing=self.clients.signing[name],  # type: ignore[arg-type]  # a stand-in
                entropy=SymbolicEntropy(f"{name} {context}"),
            )
            for member, name in enumerate(agreement.cohort)
            if name != self._name
        }
        keys = {0: advert} | {member: _only(other.start(0.0)) for member, other in others.items()}
        adverts = {
            member: Advert(key.channel_key, key.mask_key, key.choices, key.signature) for member, key in keys.items()
        }
        bitmap = encode_members(adverts, agreement.size)
        listed = PeerKeys(
            advertised=bitmap,
            digest=adverts_digest(agreement, adverts),
            included=bitmap,
            adverts=b"".join(one.record for one in adverts.values()),
        )
        packet = decode(_frames(listed, agreement.session, agreement.round, None), MESSAGES)
        shared = [_only(other.receive(SERVER, packet, 0.0)) for other in others.values()]
        return listed, b"".join(_packet_for(message, 0, agreement.size) for message in shared)


def _only(outputs: Sequence[Output]) -> Any:
    (sent,) = (output for output in outputs if isinstance(output, Send))
    return sent.message


def _packet_for(message: ShareKeys, holder: int, size: int) -> bytes:
    holders = decode_members(message.holders, size)
    place = holders.index(holder) * PACKET_BYTES if holder in holders else None
    return bytes(PACKET_BYTES) if place is None else message.packets[place : place + PACKET_BYTES]


def _frames(
    message: Message,
    session: bytes,
    round: int,
    payload: bytes | None,
    *,
    sequence: int = 0,
    link: int = 0,
    received: int = 0,
) -> list[Frame]:
    envelope = Envelope(
        version=VERSION,
        type=message.TYPE,
        session=session,
        round=round,
        sender=SERVER,
        sequence=sequence,
        link=link,
        received=received,
    )
    return encode(message, envelope, payload)


def _hearing(
    message: Message, session: bytes, round: int, payload: bytes | None, *, received: int | None = None
) -> Event:
    """The client hears it as the next message of its server, who has received so many of its own, or all of them."""

    def event(client: TrainingClient) -> Sequence[Output]:
        if client.sum is None and isinstance(message, StartRound):
            # What it draws in a sum is named after that, and no other process draws it.
            process: Any = client._entropy
            context = sha256(session + bytes([round]) + encode_structure(message))
            client._entropy = SymbolicEntropy(f"{process.party} of {context.hexdigest()[:8]}")
        link = client._link._link
        heard = link._sent if received is None else received
        frames = _frames(message, session, round, payload, sequence=link._received, link=link.number, received=heard)
        return client.feed(frames, 0.0)

    return event


def _flap(client: TrainingClient) -> Sequence[Output]:
    client.server_lost(0.0)
    return client.server_back()
