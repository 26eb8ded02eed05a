"""Operations that play a session of a federation: its server, its clients, or one of them alone."""

from __future__ import annotations

from typing import Any

import msgspec

from tacit.protocol.core.codec import decode_structure
from tacit.protocol.core.machine import Output, Report
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.outputs import Ended, Transmit
from tacit.protocol.core.primitives import Label, SigningKey, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.rounds import Accepted, Limit, NewModel, RoundDone, RoundOver, Train
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.session.tables import TrainingState
from tacit.protocol.sum.configuration import Configuration, Policy
from tacit.protocol.sum.results import Contribution, Journal
from tacit.secagg.counting import COUNTING_RING
from tacit.secagg.ring import Ring
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.primitive_operations import MemberInput, roster_of
from tacit.simulate.conformance.stage import Done, Stage, coded, entropy_of


class JournalEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A former contribution of a client."""

    session: Octets
    round: int
    model: Octets
    sharers: tuple[str, ...]
    threshold: int
    corrupt: int
    unmasked: bool

    def contribution(self) -> Contribution:
        """The same for the machine."""
        fields = msgspec.structs.asdict(self)
        return Contribution(**fields | {"session": bytes(self.session), "model": bytes(self.model)})


class SessionServer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The server, if it is played."""

    configuration: Octets
    """Encoded."""
    model: Octets
    """Little-endian float32."""
    entropy: Octets
    """The session's identifier."""
    smallest_cohort: int
    join_seconds: float
    grace: float


class SessionClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A client that is played."""

    name: str
    signing_private: Octets
    entropy: Octets
    """What it draws in its rounds, one after the other."""
    policy: Policy
    journal: tuple[JournalEntry, ...]
    patience: float
    grace: float


class SessionStage(Stage):
    """One session."""

    def __init__(self) -> None:
        super().__init__()
        self._roster: Roster
        self._ring: Ring
        self._server: TrainingServer | None = None
        self._clients: dict[str, TrainingClient] = {}

    def operations(self) -> Operations:
        """By the names that vectors use."""
        return {
            "begin session": self.begin_session,
            "hello": self.hello,
            "receive": self.receive,
            "contribute": self.contribute,
            "provide": self.provide,
            "next round": self.next_round,
            "finish": self.finish,
            "link lost": self.link_lost,
            "expire": self.expire,
        }

    def begin_session(
        self, *, roster: tuple[MemberInput, ...], clients: tuple[SessionClient, ...], server: SessionServer | None
    ) -> bytes:
        """Begin a session, of which these parties are played, at time 0. Returns the hash of the roster."""
        self._roster = roster_of(roster)
        if server is not None:
            configuration = decode_structure(bytes(server.configuration), Configuration, limit=BODY_LIMIT)
            self._ring = configuration.packing().ring
            self._server = TrainingServer(
                self._roster,
                configuration,
                bytes(server.model),
                entropy=entropy_of(server.entropy),
                smallest_cohort=server.smallest_cohort,
                join_seconds=server.join_seconds,
                grace=server.grace,
                now=0.0,
            )
        for client in clients:
            self._clients[client.name] = TrainingClient(
                client.name,
                self._roster,
                signing=SigningKey(client.signing_private),
                policy=client.policy,
                journal=[entry.contribution() for entry in client.journal],
                entropy=entropy_of(client.entropy),
                patience=client.patience,
                grace=client.grace,
            )
        return self._roster.hash

    def hello(self, *, party: str) -> Done:
        """A client says hello."""
        return self._done(party, self._client(party).start(0.0))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        if party == self._roster.server.name:
            return self._done(party, self._played_server().feed(sender, delivered, now))
        return self._done(party, self._client(party).feed(delivered, now))

    def contribute(self, *, party: str, round: int, words: Octets, now: float = 0.0) -> Done:
        """A client has trained: its update, or in the first of two stages its counts, as packed ring words."""
        client = self._client(party)
        counting = client.configuration.enforce == "clients" and client.state is TrainingState.TRAINING
        ring = COUNTING_RING if counting else client.configuration.packing().ring
        return self._done(party, client.contribute(round, ring.unpack(words), now))

    def provide(self, *, party: str, epoch: int, model: Octets, now: float = 0.0) -> Done:
        """A client has encrypted the model under the key of this epoch: little-endian float32."""
        return self._done(party, self._client(party).provide(epoch, bytes(model), now))

    def next_round(self, *, model: Octets, now: float = 0.0) -> Done:
        """The server goes on from this model."""
        return self._done(self._roster.server.name, self._played_server().next_round(bytes(model), now))

    def finish(self, *, model: Octets | None = None, now: float = 0.0) -> Done:
        """The server begins no more rounds; the last model matters where the clients encrypt it."""
        return self._done(self._roster.server.name, self._played_server().finish(bytes(model or b""), now))

    def link_lost(self, *, party: str, peer: str, now: float = 0.0) -> Done:
        """A party notices that its link to a peer is down; its grace begins."""
        if party == self._roster.server.name:
            self._played_server().link_lost(peer, now)
        else:
            self._client(party).server_lost(now)
        return self._done(party, [])

    def expire(self, *, party: str, now: float) -> Done:
        """A party is told the time, in seconds from the beginning of the session."""
        machine = self._played_server() if party == self._roster.server.name else self._client(party)
        return self._done(party, machine.expire(now))

    def _played_server(self) -> TrainingServer:
        if self._server is None:
            raise VectorError("the server is not played")
        return self._server

    def _client(self, party: str) -> TrainingClient:
        if party not in self._clients:
            raise VectorError(f"{party} is not played")
        return self._clients[party]

    def _done(self, party: str, outputs: list[Output]) -> Done:
        sends, events = [], []
        for output in outputs:
            if isinstance(output, Transmit):
                sends.append(self.sent(party, output.to, output.frames))
            else:
                events += self._event(output)
        machine = self._played_server() if party == self._roster.server.name else self._client(party)
        return Done(sends=tuple(sends), events=tuple(events), state=machine.state.name, deadline=machine.next_deadline)

    def _event(self, output: Output) -> list[dict[str, Any]]:
        match output:
            case Accepted():
                return [{"event": "accepted", "configuration": output.configuration.hash()}]
            case Train():
                key = {} if output.key is None else {"key": output.key.key, "transcript": output.key.transcript}
                return [{"event": "train", "round": output.round, "model": digest(Label.MODEL, output.model)} | key]
            case Limit():
                return [{"event": "limit", "round": output.round, "limits": output.limits}]
            case Reencrypt(key=key, former=former):
                return [
                    {
                        "event": "encrypt",
                        "source": output.source,
                        "model": output.model,
                        "key": key.key,
                        "former": None if former is None else former.key,
                    }
                ]
            case LastModel(key=key):
                return [{"event": "last model", "model": output.model, "key": key.key}]
            case NewModel():
                return [{"event": "new model", "model": output.model}]
            case Journal(contribution=entry):
                return [{"event": "journal", "sharers": entry.sharers, "unmasked": entry.unmasked}]
            case RoundOver():
                return [coded("round over", output.code, round=output.round)]
            case Ended():
                return [coded("ended", output.code)]
            case RoundDone():
                total = None if output.total is None else bytes(self._ring.pack(output.total))
                dropped = [coded("dropped", drop.code, member=drop.member, phase=drop.phase) for drop in output.dropped]
                return [
                    *dropped,
                    coded(
                        "round done",
                        output.code,
                        round=output.round,
                        words=total,
                        survivors=output.survivors,
                        culprit=output.culprit,
                    ),
                ]
            case Report(event="group-key" | "agreeing" | "agreed" | "key-failed" | "without-model", fields=fields):
                named = {"event": output.event.replace("-", " ")}
                return [named | {name: fields[name] for name in fields if name != "detail"}]
            case Report(event="joined" | "left" | "refused" | "complaint", fields=fields):
                return [{"event": output.event} | {name: fields[name] for name in fields if name != "detail"}]
            case Report():
                return []  # Figures for the log.
        raise TypeError(type(output).__name__)
