"""Operations that play a session of a federation: its server, its clients, or one of them alone."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from tacit.protocol.core.codec import decode_structure
from tacit.protocol.core.machine import Ended, Output
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.primitives import Label, SigningKey, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.rounds import (
    Accepted,
    FixedPart,
    GroupEntry,
    Journal,
    JournalEntry,
    NewModel,
    RosterChanged,
    RoundDone,
    RoundOver,
    Train,
)
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy
from tacit.secagg.ring import Ring
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.primitive_operations import MemberInput, roster_of
from tacit.simulate.conformance.stage import Done, Stage, entropy_of, event


class EnteredRound(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A round that a client entered before."""

    session: Octets
    round: int


class SessionServerInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
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
    completed: int = 0
    """Rounds of earlier sessions."""
    fixed: Octets | None = None
    """The fixed part of the model, if it has one."""


class SessionClientInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A client that is played."""

    name: str
    signing_private: Octets
    entropy: Octets
    """What it draws in its rounds, one after the other."""
    policy: Policy
    journal: tuple[EnteredRound, ...]
    group: Octets | None = None
    """The group that its journal has, empty if that says that it was in none; without it, none is written."""
    patience: float
    grace: float


class SessionStage(Stage):
    """One session."""

    reports = (
        "group-key", "agreeing", "agreed", "key-failed", "without-model", "joined", "left", "refused", "complaint",
    )  # fmt: skip
    plain_events: ClassVar = {
        NewModel: ("new model", "model", "round"),
        RoundOver: ("round over", "code", "round"),
        Ended: ("ended", "code"),
    }

    def __init__(self) -> None:
        super().__init__()
        self._roster: Roster
        self._ring: Ring

    def begin_session(
        self,
        *,
        roster: tuple[MemberInput, ...],
        clients: tuple[SessionClientInput, ...],
        server: SessionServerInput | None,
        version: int = 0,
        operator: Octets | None = None,
        lineage: Octets | None = None,
    ) -> bytes:
        """Begin a session, of which these parties are played, at time 0. Returns the hash of the roster; where it has
        versions, operator is the private key of who signs them."""
        self._roster = roster_of(roster, version, operator, lineage)
        if server is not None:
            configuration = decode_structure(server.configuration, Configuration, limit=BODY_LIMIT)
            self._ring = configuration.packing().ring if configuration.secure else Ring(64)
            self._machines[self._roster.server.name] = TrainingServer(
                self._roster,
                configuration,
                server.model,
                fixed=server.fixed or b"",
                entropy=entropy_of(server.entropy),
                smallest_cohort=server.smallest_cohort,
                join_seconds=server.join_seconds,
                grace=server.grace,
                now=0.0,
                completed=server.completed,
            )
        for client in clients:
            self._machines[client.name] = TrainingClient(
                client.name,
                self._roster,
                signing=SigningKey(client.signing_private),
                policy=client.policy,
                journal=[
                    *(JournalEntry(**msgspec.structs.asdict(entry)) for entry in client.journal),
                    *((GroupEntry(group=client.group),) if client.group is not None else ()),
                ],
                entropy=entropy_of(client.entropy),
                patience=client.patience,
                grace=client.grace,
            )
        return self._roster.hash

    def hello(self, *, party: str) -> Done:
        """A client says hello."""
        return self.did(party, lambda client: client.start(0.0))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        if party == self._roster.server.name:
            return self.did(party, lambda server: server.feed(sender, delivered, now))
        return self.did(party, lambda client: client.feed(delivered, now))

    def contribute(self, *, party: str, round: int, words: Octets, now: float = 0.0) -> Done:
        """A client has trained: its update, as packed ring words."""
        return self.did(
            party,
            lambda client: client.contribute(round, client.configuration.packing().ring.unpack(words), now),
        )

    def provide(self, *, party: str, epoch: int, model: Octets, now: float = 0.0) -> Done:
        """A client has encrypted the model under the key of this epoch: little-endian float32; empty if it remembers
        none as was asked for."""
        return self.did(party, lambda client: client.provide(epoch, model, now))

    def next_round(self, *, model: Octets, unusable: str = "", now: float = 0.0) -> Done:
        """The server goes on from this model. unusable: why the sum of the last round was not applied."""
        return self.did(self._roster.server.name, lambda server: server.next_round(model, now, unusable=unusable))

    def finish(self, *, model: Octets | None = None, unusable: str = "", now: float = 0.0) -> Done:
        """The server begins no more rounds; the last model matters where the clients encrypt it."""
        last = model or b""
        return self.did(self._roster.server.name, lambda server: server.finish(last, now, unusable=unusable))

    def change_roster(
        self,
        *,
        roster: tuple[MemberInput, ...],
        version: int,
        operator: Octets,
        lineage: Octets,
        model: Octets | None = None,
        now: float = 0.0,
    ) -> Done:
        """The server ends the session for this version of the roster; the last model matters where the clients encrypt
        it."""
        later = roster_of(roster, version, operator, lineage)
        return self.did(self._roster.server.name, lambda server: server.change_roster(later, model or b"", now))

    def link_lost(self, *, party: str, peer: str, now: float = 0.0) -> Done:
        """A party notices that its link to a peer is down; its grace begins."""

        def lose(machine: TrainingServer | TrainingClient) -> list[Output]:
            if isinstance(machine, TrainingServer):
                machine.link_lost(peer, now)
            else:
                machine.server_lost(now)
            return []

        return self.did(party, lose)

    def link_back(self, *, party: str, peer: str, now: float = 0.0) -> Done:
        """A party notices that the link is up again, whose loss it has noticed."""

        def find(machine: TrainingServer | TrainingClient) -> list[Output]:
            if isinstance(machine, TrainingServer):
                machine.link_back(peer)
            else:
                return machine.server_back()
            return []

        return self.did(party, find)

    def expire(self, *, party: str, now: float) -> Done:
        """A party is told the time, in seconds from the beginning of the session."""
        return self.did(party, lambda machine: machine.expire(now))

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        match output:
            case Journal(entry=GroupEntry() as entry):
                return [event("journal group", entry, "group")]
            case Journal(entry=entry):
                return [event("journal", entry, "round")]
            case Accepted():
                return [{"event": "accepted", "configuration": output.configuration.hash()}]
            case FixedPart(data=data):
                return [{"event": "fixed part", "digest": digest(Label.FIXED, data)}]
            case Train(key=key):
                keyed = {} if key is None else {"key": key.key, "transcript": key.transcript}
                return [{"event": "train", "round": output.round, "model": digest(Label.MODEL, output.model), **keyed}]
            case Reencrypt(key=key, former=former):
                keys = {"key": key.key, "former": None if former is None else former.key}
                return [event("encrypt", output, "source", "model", "round") | keys]
            case LastModel(key=key):
                return [event("last model", output, "model") | {"key": key.key}]
            case RosterChanged(roster=later, difference=found):
                return [{"event": "roster changed", "roster": later.hash, **msgspec.to_builtins(found)}]
            case RoundDone():
                words = {"words": None if output.total is None else self._ring.pack(output.total)}
                dropped = [event("dropped", drop, "code", "member", "phase") for drop in output.dropped]
                done = event("round done", output, "code", "round") | words
                return [*dropped, done | {"survivors": output.survivors, "culprit": output.culprit}]
        return super()._events(party, output)
