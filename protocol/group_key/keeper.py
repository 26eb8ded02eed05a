"""The server and the group key of its clients: it starts the attempts, and holds the model under the key.

It relays what the members say to each other (group_key/relay.py) and learns no key. When a model is to be encrypted,
the first member that can do so gives it the model under the new key: made from the key itself, taken from the server in
the clear, or decrypted with the former key, which only those hold who stayed since then. The last model of a session is
fetched by the members, who alone can read it. In a session that goes on after an earlier one, whose keys are gone, the
members are asked one after the other who remembers the model after the last round; if nobody does, the one before.

An attempt serves exactly its members. Whoever leaves, is late or breaks a rule ends it (KeyFailed names it), and the
key is used by nobody: EndKey tells the others, some of whom may hold it already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from tacit.protocol.core.blob import NO_BLOB, IncomingBlob, OutgoingBlob, announce
from tacit.protocol.core.codec import Envelope, Packet
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.machine import Heard, Machine, Output, Report, Result, Send, Step, Trigger
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Abort, Blob, Chunk, Fetch
from tacit.protocol.core.primitives import Label
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.agreement import KeyAgreed, KeyAgreement, KeyFailed
from tacit.protocol.group_key.messages import EndKey, KeyedModel, ReencryptModel, StartKey
from tacit.protocol.group_key.relay import GroupKeyRelay
from tacit.protocol.group_key.tables import KEEPER_TABLE, KeeperState
from tacit.protocol.sum.agreement import TRANSFER_LIMIT
from tacit.protocol.sum.configuration import Configuration


@dataclass(frozen=True)
class KeyReady(Result):
    """All members hold the key. model: the model under it, if it was not under it before; round: after which round it
    was the model, where a member remembered it."""

    members: tuple[str, ...]
    model: bytes | None = field(repr=False)
    round: int | None = None


@dataclass(frozen=True)
class KeyLost(Result):
    """Nobody is left who can read the model."""

    detail: str


@dataclass(frozen=True)
class Distributed(Result):
    """The members have the last model, or had their time."""

    without: tuple[str, ...]


@dataclass(frozen=True)
class Refused(Result):
    """This member broke a rule when nothing depended on it."""

    member: str
    error: RemoteProtocolError


@dataclass(frozen=True)
class _Agreeing:
    """model: the server's, as it is now."""

    agreement: KeyAgreement
    model: bytes = field(repr=False)


@dataclass(frozen=True)
class _Encrypting:
    """asked: who gives the model under the new key, after which round, and who is asked next if that one remembers
    none; outgoing: what it fetches for that."""

    agreement: KeyAgreement
    transcript: bytes
    source: Literal["clients", "server", "key", "remembered"]
    asked: tuple[tuple[str, int], ...]
    outgoing: OutgoingBlob
    incoming: IncomingBlob

    @property
    def provider(self) -> str:
        """Who is asked now."""
        return self.asked[0][0]


class GroupKeyKeeper(
    Machine[KeeperState],
    tables=(KEEPER_TABLE,),
    outputs=Send | Report | KeyReady | KeyFailed | KeyLost | Distributed | Refused,
    contains={"attempt": (KeeperState.AGREEING,)},
):
    """The keys of one session."""

    attempt: GroupKeyRelay | None

    def __init__(self, roster: Roster, configuration: Configuration, session: bytes, *, completed: int = 0) -> None:
        super().__init__(KEEPER_TABLE, KeeperState.IDLE)
        self.members: tuple[str, ...] = ()
        """Who holds the latest key, while none of them has left."""
        self.transcript = b""
        """Identifies the latest key."""
        self._roster = roster
        self._configuration = configuration
        self._session = session
        self._completed = completed
        """Rounds of earlier sessions."""
        self._epoch = -1
        self._rounds = 0
        """Rounds begun under the latest key."""
        self._model_epoch: int | None = None
        """The key that the model is under; None if it is under none."""
        self._readers: set[str] = set()

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that the server waits for now."""
        if self.attempt is not None:
            return tuple(self.attempt.agreement.members[member] for member in sorted(self.attempt.waiting))
        if isinstance(self.data, _Encrypting):
            return (self.data.provider,)
        return tuple(sorted(self.data.awaited)) if isinstance(self.data, OutgoingBlob) else ()

    @property
    def readers(self) -> tuple[str, ...]:
        """Who can read the model, as far as the server knows."""
        return tuple(name for name in self._roster.clients if name in self._readers)

    def fits(self, cohort: tuple[str, ...]) -> bool:
        """Whether the latest key may be used for another round, with this cohort."""
        most = self._configuration.rekey_every
        return cohort == self.members and not 0 < most <= self._rounds

    def round_begun(self) -> None:
        """A round begins under the latest key."""
        self._rounds += 1

    def agree(self, members: tuple[str, ...], model: bytes, now: float) -> list[Output]:
        """Let these clients agree on a new key; model: the server's, as it is now."""
        return self.trigger(Trigger.AGREE, now, members, model)

    def distribute(self, model: bytes, now: float) -> list[Output]:
        """Let those who can read it fetch the last model."""
        return self.trigger(Trigger.DISTRIBUTE, now, model)

    def left(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """A member is gone: it holds no key any more, as far as the server knows."""
        self._readers.discard(member)
        if member in self.members:
            self.members = ()
        agreement = self._agreement
        if agreement is not None and member not in agreement.places:
            return []
        return self.trigger(Trigger.DROP, now, member, code, detail)

    def hears(self, sender: str, envelope: Envelope) -> bool:
        return self._configuration.group_key and envelope.round == 0

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        # That an attempt is over, its members hear by EndKey.
        return () if isinstance(send.message, Abort) else (send,)

    def complete(self) -> bool:
        return not self.waiting_for

    def late(self, sender: str, packet: Packet) -> bool:
        if self.state is not KeeperState.AGREEING:
            return sender not in self.waiting_for
        message: Any = packet.parse()
        if sender not in self.at(_Agreeing).agreement.places:
            return True
        if message.epoch > self._epoch:
            raise RemoteProtocolError(Code.SESSION, f"epoch {message.epoch} of the group key has not begun")
        # Said before this member knew that the attempt had ended.
        return bool(message.epoch < self._epoch)

    def on_agree(self, members: tuple[str, ...], model: bytes, now: float) -> Step[KeeperState]:
        clients, epoch = self._roster.clients, self._epoch + 1
        agreement = KeyAgreement.among(members, self._roster, self._configuration, session=self._session, epoch=epoch)
        bitmap = encode_members([clients.index(name) for name in members], len(clients))
        start = StartKey(epoch=epoch, members=bitmap)
        report = Report("agreeing", {"epoch": epoch, "members": list(members)})

        def commit() -> None:
            self._epoch, self._rounds, self.members = epoch, 0, ()
            self.attempt = GroupKeyRelay(agreement, now)

        said = (report, *(Send(name, start) for name in members))
        return Step(KeeperState.AGREEING, said, commit, data=_Agreeing(agreement, model))

    def on_agreed(self, result: KeyAgreed, now: float) -> Step[KeeperState]:
        agreed = Report("agreed", {"epoch": result.epoch, "members": list(result.members)})
        agreement, model = self.at(_Agreeing).agreement, self.at(_Agreeing).model
        if not self._configuration.encrypted:
            return self._ready(agreement, result.transcript, None, agreed)
        readers = [name for name in result.members if self._model_epoch is None or name in self._readers]
        if not readers:
            lost = KeyLost("none of the clients that are left can read the model: those with its key have left")
            return Step(KeeperState.IDLE, (agreed, lost))
        source: Literal["clients", "server", "key", "remembered"] = "key"
        asked: tuple[tuple[str, int], ...] = ((readers[0], 0),)
        if self._model_epoch is None:
            source = "remembered" if self._completed else self._configuration.initial_model
        if source == "remembered":
            asked = tuple((name, round) for round in (self._completed, self._completed - 1) for name in readers)
        outgoing = OutgoingBlob(model, () if source in ("clients", "remembered") else (readers[0],))
        encrypting = _Encrypting(
            agreement, result.transcript, source, asked, outgoing, IncomingBlob(NO_BLOB, Label.MODEL)
        )
        announced = announce(model, Label.MODEL) if outgoing.awaited else NO_BLOB
        return self._ask(encrypting, self._limit(now), agreed, model=announced)

    def _ask(
        self, encrypting: _Encrypting, deadline: float | None, *reports: Report, model: Blob = NO_BLOB
    ) -> Step[KeeperState]:
        provider, round = encrypting.asked[0]
        order = ReencryptModel(
            epoch=self._epoch, source=encrypting.source, former=self._model_epoch or 0, model=model, round=round
        )
        said = (*reports, Send(provider, order))
        return Step(KeeperState.AWAIT_MODEL, said, data=encrypting, deadline=deadline)

    def on_failed(self, failed: KeyFailed, now: float) -> Step[KeeperState]:
        end = EndKey(epoch=failed.epoch, code=failed.code, detail=failed.detail, culprit=failed.culprits[0])
        # The culprits are out of the session, and hear of that.
        told = tuple(Send(name, end) for name in failed.remaining)
        report = Report(
            "key-failed",
            {"epoch": failed.epoch, "code": failed.code.name, "detail": failed.detail, "by": list(failed.culprits)},
        )
        return Step(KeeperState.IDLE, (*told, report, failed))

    def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[KeeperState]:
        outgoing = self.data.outgoing if isinstance(self.data, _Encrypting) else self.at(OutgoingBlob)
        piece = outgoing.chunk(heard.sender, heard.message.chunk)
        answer = Send(heard.sender, Chunk(chunk=heard.message.chunk), payload=piece)
        return Step(self.state, (answer,), outgoing.sent(heard.sender))

    def on_keyed_model(self, heard: Heard[KeyedModel], now: float) -> Step[KeeperState]:
        encrypting, epoch, model = self.at(_Encrypting), heard.message.epoch, heard.message.model
        if encrypting.source == "remembered" and (epoch, model) == (self._epoch, NO_BLOB):
            rest = encrypting.asked[1:]
            if rest:
                return self._ask(replace(encrypting, asked=rest), self.deadline)
            wanted = f"after round {self._completed} or {self._completed - 1}"
            lost = KeyLost(f"no client that is here remembers the model {wanted}: start again when others are there")
            return Step(KeeperState.IDLE, (lost,))
        if epoch != self._epoch or model.size != 4 * sum(self._configuration.tensor_sizes):
            raise RemoteProtocolError(Code.MODEL, "its model is under another key, or has another length")
        return self._fetch(IncomingBlob(model, Label.MODEL))

    def on_chunk(self, heard: Heard[Chunk], now: float) -> Step[KeeperState]:
        encrypting = self.at(_Encrypting)
        incoming = encrypting.incoming.after(heard.message.chunk, heard.payload)
        if not incoming.complete:
            return self._fetch(incoming)
        if encrypting.source != "remembered":
            return self._ready(encrypting.agreement, encrypting.transcript, incoming.whole())
        provider, round = encrypting.asked[0]
        remembered = Report("remembered", {"member": provider, "round": round})
        return self._ready(encrypting.agreement, encrypting.transcript, incoming.whole(), remembered, round=round)

    def on_distribute(self, model: bytes, now: float) -> Step[KeeperState]:
        offer = KeyedModel(epoch=self._epoch, model=announce(model, Label.MODEL))
        offers = tuple(Send(name, offer) for name in self.readers)
        outgoing = OutgoingBlob(model, self.readers)
        return Step(KeeperState.DISTRIBUTING, offers, data=outgoing, deadline=self._limit(now))

    def on_receiver_gone(self, member: str, code: Code, detail: str, now: float) -> Step[KeeperState]:
        return Step(self.state, commit=lambda: self.at(OutgoingBlob).drop(member))

    def on_distributed(self, now: float) -> Step[KeeperState]:
        return Step(KeeperState.IDLE, (Distributed(self.waiting_for),))

    def on_expire(self, now: float) -> Step[KeeperState]:
        return self.on_drop(
            self.at(_Encrypting).provider, Code.TIMEOUT, "the model under the new key did not come in time", now
        )

    def on_drop(self, member: str, code: Code, detail: str, now: float) -> Step[KeeperState]:
        members = () if self._agreement is None else self._agreement.members
        remaining = tuple(name for name in members if name != member)
        detail = f"{member}: {detail}"[:DETAIL_LIMIT]
        return self.on_failed(KeyFailed(self._epoch, code, detail, (member,), remaining), now)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[KeeperState]:
        if self._agreement is not None and sender in self._agreement.places:
            return self.on_drop(sender, error.code, error.detail, now)
        commit = partial(self.data.drop, sender) if isinstance(self.data, OutgoingBlob) else None
        refused = Refused(sender, error)
        return Step(self.state, (refused,)) if commit is None else Step(self.state, (refused,), commit)

    @property
    def _agreement(self) -> KeyAgreement | None:
        """Of the key that is being made."""
        return self.data.agreement if isinstance(self.data, _Agreeing | _Encrypting) else None

    def _fetch(self, incoming: IncomingBlob) -> Step[KeeperState]:
        encrypting = replace(self.at(_Encrypting), incoming=incoming)
        requests = tuple(Send(encrypting.provider, fetch) for fetch in incoming.requests)
        # All of it has one time limit.
        return Step(KeeperState.FETCHING_MODEL, requests, data=encrypting, deadline=self.deadline)

    def _ready(
        self,
        agreement: KeyAgreement,
        transcript: bytes,
        model: bytes | None,
        *reports: Report,
        round: int | None = None,
    ) -> Step[KeeperState]:
        def commit() -> None:
            self.members, self.transcript = agreement.members, transcript
            if model is not None:
                self._model_epoch, self._readers = self._epoch, set(self.members)

        return Step(KeeperState.IDLE, (*reports, KeyReady(agreement.members, model, round)), commit)

    def _limit(self, now: float) -> float:
        return now + TRANSFER_LIMIT * self._configuration.phase_seconds
