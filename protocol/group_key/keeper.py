"""The server and the group key of its clients: it starts the attempts, and holds the model under the key.

It relays what the members say to each other (group_key/relay.py) and learns no key. When a model is to be encrypted,
the first member that can do so gives it the model under the new key: made from the key itself, taken from the server in
the clear, or decrypted with the former key, which only those hold who stayed since then. The last model of a session is
fetched by the members, who alone can read it.

An attempt serves exactly its members. Whoever leaves, is late or breaks a rule ends it (KeyFailed names it), and the
key is used by nobody: EndKey tells the others, some of whom may hold it already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tacit.protocol.core.codec import Frame, Packet
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.machine import Machine, Output, Report, Send, Step, Trigger
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.model_transfer import NO_MODEL, IncomingModel, OutgoingModel, model_digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.agreement import KeyAgreed, KeyAgreement, KeyFailed
from tacit.protocol.group_key.messages import (
    EndKey,
    FetchKeyedModel,
    KeyedModel,
    KeyedModelChunk,
    ReencryptModel,
    StartKey,
)
from tacit.protocol.group_key.relay import GroupKeyRelay
from tacit.protocol.group_key.session_tables import ATTEMPT_TO_RELAY, KEEPER_TABLE, KeeperState
from tacit.protocol.sum.agreement import TRANSFER_LIMIT
from tacit.protocol.sum.configuration import Configuration


@dataclass(frozen=True)
class KeyReady:
    """Output: all members hold the key. model: the model under it, if it was not under it before."""

    members: tuple[str, ...]
    model: bytes | None = field(repr=False)


@dataclass(frozen=True)
class KeyLost:
    """Output: nobody is left who can read the model."""

    detail: str


@dataclass(frozen=True)
class Distributed:
    """Output: the members have the last model, or had their time."""

    without: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """Output: this member broke a rule when nothing depended on it."""

    member: str
    error: RemoteProtocolError


class GroupKeyKeeper(Machine[KeeperState]):
    """The keys of one session. Its outputs: Send, Report, KeyReady, KeyFailed, KeyLost, Distributed, Refused."""

    def __init__(self, roster: Roster, configuration: Configuration, session: bytes) -> None:
        super().__init__(KEEPER_TABLE, KeeperState.IDLE)
        self.members: tuple[str, ...] = ()
        """Who holds the latest key, while none of them has left."""
        self.transcript = b""
        """Identifies the latest key."""
        self._roster = roster
        self._configuration = configuration
        self._session = session
        self._agreement: KeyAgreement
        self._epoch = -1
        self._rounds = 0
        """Rounds begun under the latest key."""
        self._attempt: GroupKeyRelay | None = None
        self._model = b""
        self._model_epoch: int | None = None
        """The key that the model is under; None if it is under none."""
        self._readers: set[str] = set()
        self._provider = ""
        self._incoming: IncomingModel
        self._outgoing: dict[str, OutgoingModel] = {}

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`."""
        return self.deadline if self._attempt is None else self._attempt.deadline

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that the server waits for now."""
        if self._attempt is not None:
            return tuple(self._agreement.members[member] for member in sorted(self._attempt.waiting))
        if self.state in (KeeperState.AWAIT_MODEL, KeeperState.FETCHING_MODEL):
            return (self._provider,)
        return tuple(sorted(self._outgoing))

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

    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        if self._attempt is None or packet.kind not in ATTEMPT_TO_RELAY:
            return super().receive(sender, packet, now)
        try:
            epoch = self._epoch_of(packet)
        except RemoteProtocolError as error:
            return self.reject(sender, error, now)
        if epoch < self._epoch:
            # Said before this member knew that the attempt had ended.
            self.ignored += 1
            return []
        return self._relay(self._attempt.receive(sender, packet, now), now)

    def left(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """A member is gone: it holds no key any more, as far as the server knows."""
        self._readers.discard(member)
        if member in self.members:
            self.members = ()
        if self._attempt is not None:
            return self._relay(self._attempt.drop(member, code, detail, now), now)
        if self.state is KeeperState.IDLE or member not in self._agreement.places:
            return []
        return self.trigger(Trigger.DROP, now, member, code, detail)

    def expire(self, now: float) -> list[Output]:
        if self._attempt is not None:
            return self._relay(self._attempt.expire(now), now)
        return super().expire(now)

    def complete(self) -> bool:
        return not self._outgoing

    def late(self, sender: str, packet: Packet) -> bool:
        awaited = {KeeperState.DISTRIBUTING: self._outgoing.keys()}.get(self.state, (self._provider,))
        return sender not in awaited

    def on_agree(self, members: tuple[str, ...], model: bytes, now: float) -> Step[KeeperState]:
        clients, epoch = self._roster.clients, self._epoch + 1
        agreement = KeyAgreement(
            session=self._session,
            epoch=epoch,
            server=self._roster.server.name,
            members=members,
            signing_keys=tuple(self._roster.member(name).signing_public for name in members),
            roster=self._roster.hash,
            configuration=self._configuration.hash(),
            phase_seconds=self._configuration.phase_seconds,
        )
        bitmap = encode_members([clients.index(name) for name in members], len(clients))
        start = StartKey(epoch=epoch, members=bitmap)

        def commit() -> list[Output]:
            self._epoch, self._agreement, self._model, self._rounds = epoch, agreement, model, 0
            self.members = ()
            self._attempt = GroupKeyRelay(agreement, now)
            report = Report("agreeing", {"epoch": epoch, "members": list(members)})
            return [report, *(Send(name, start) for name in members)]

        return Step(KeeperState.AGREEING, (), commit)

    def on_key_over(self, result: KeyAgreed | KeyFailed, now: float) -> Step[KeeperState]:
        if isinstance(result, KeyFailed):
            return self._failed(result)
        agreed = Report("agreed", {"epoch": result.epoch, "members": list(result.members)})
        if not self._configuration.encrypted:
            return Step(KeeperState.IDLE, (agreed,), lambda: self._ready(None, result.transcript))
        readers = [name for name in result.members if self._model_epoch is None or name in self._readers]
        if not readers:
            lost = KeyLost("none of the clients that are left can read the model: those with its key have left")
            return Step(KeeperState.IDLE, (agreed, lost), self._forget_attempt)
        source: Literal["clients", "server", "key"] = "key"
        if self._model_epoch is None:
            source = self._configuration.initial_model
        order = ReencryptModel(
            epoch=self._epoch,
            source=source,
            former=self._model_epoch or 0,
            model=NO_MODEL if source == "clients" else model_digest(self._model),
            model_bytes=0 if source == "clients" else len(self._model),
        )

        outgoing = {} if source == "clients" else {readers[0]: OutgoingModel(self._model)}

        def commit() -> None:
            self._forget_attempt()
            self._provider, self._outgoing, self.transcript = readers[0], outgoing, result.transcript
            self.deadline = now + TRANSFER_LIMIT * self._configuration.phase_seconds

        return Step(KeeperState.AWAIT_MODEL, (agreed, Send(readers[0], order)), commit)

    def on_fetch_old(self, sender: str, message: FetchKeyedModel, payload: None, now: float) -> Step[KeeperState]:
        if sender not in self._outgoing:
            raise RemoteProtocolError(Code.MODEL, "it asks for a model where it was to make one")
        return self._hand_out(sender, message.chunk)

    def on_keyed_model(self, sender: str, message: KeyedModel, payload: None, now: float) -> Step[KeeperState]:
        expected = 4 * sum(self._configuration.tensor_sizes)
        if message.epoch != self._epoch or message.model_bytes != expected:
            raise RemoteProtocolError(Code.MODEL, "its model is under another key, or has another length")
        incoming = IncomingModel(message.model, expected)

        def commit() -> None:
            self._incoming, self._outgoing = incoming, {}

        return Step(KeeperState.FETCHING_MODEL, self._requests(incoming.first_requests()), commit)

    def on_chunk(self, sender: str, message: KeyedModelChunk, payload: Frame | None, now: float) -> Step[KeeperState]:
        following = self._incoming.take(message.chunk, payload)
        if not self._incoming.complete:
            return Step(KeeperState.FETCHING_MODEL, self._requests([] if following is None else [following]))
        return Step(KeeperState.IDLE, (), lambda: self._ready(self._incoming.data, self.transcript))

    def on_distribute(self, model: bytes, now: float) -> Step[KeeperState]:
        offer = KeyedModel(epoch=self._epoch, model=model_digest(model), model_bytes=len(model))
        offers = tuple(Send(name, offer) for name in self.readers)

        def commit() -> None:
            self._outgoing = {name: OutgoingModel(model) for name in self.readers}
            self.deadline = now + TRANSFER_LIMIT * self._configuration.phase_seconds

        return Step(KeeperState.DISTRIBUTING, offers, commit)

    def on_fetch_last(self, sender: str, message: FetchKeyedModel, payload: None, now: float) -> Step[KeeperState]:
        return self._hand_out(sender, message.chunk)

    def on_receiver_gone(self, member: str, code: Code, detail: str, now: float) -> Step[KeeperState]:
        def commit() -> None:
            self._outgoing.pop(member, None)

        return Step(self.state, (), commit)

    def on_distributed(self, now: float) -> Step[KeeperState]:
        without = tuple(sorted(self._outgoing))

        def commit() -> None:
            self._outgoing, self.deadline = {}, None

        return Step(KeeperState.IDLE, (Distributed(without),), commit)

    def on_expire(self, now: float) -> Step[KeeperState]:
        return self._failed_by(self._provider, Code.TIMEOUT, "the model under the new key did not come in time")

    def on_drop(self, member: str, code: Code, detail: str, now: float) -> Step[KeeperState]:
        return self._failed_by(member, code, detail)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[KeeperState]:
        if self.state is not KeeperState.DISTRIBUTING and sender in self._agreement.places:
            return self._failed_by(sender, error.code, error.detail)

        def commit() -> None:
            self._outgoing.pop(sender, None)

        return Step(self.state, (Refused(sender, error),), commit)

    def _epoch_of(self, packet: Packet) -> int:
        message: Any = packet.parse()
        if message.epoch > self._epoch:
            raise RemoteProtocolError(Code.SESSION, f"epoch {message.epoch} of the group key has not begun")
        return int(message.epoch)

    def _relay(self, outputs: list[Output], now: float) -> list[Output]:
        """Pass on what the attempt says, and leave it when it is over. Its Abort is told as EndKey."""
        relayed: list[Output] = []
        over: list[Output] = []
        for output in outputs:
            if isinstance(output, KeyAgreed | KeyFailed):
                over += self.trigger(Trigger.KEY_OVER, now, output)
            elif not (isinstance(output, Send) and isinstance(output.message, Abort)):
                relayed.append(output)
        return relayed + over

    def _failed_by(self, member: str, code: Code, detail: str) -> Step[KeeperState]:
        remaining = tuple(name for name in self._agreement.members if name != member)
        return self._failed(KeyFailed(self._epoch, code, f"{member}: {detail}"[:DETAIL_LIMIT], (member,), remaining))

    def _failed(self, failed: KeyFailed) -> Step[KeeperState]:
        end = EndKey(epoch=failed.epoch, code=failed.code, detail=failed.detail, culprit=failed.culprits[0])
        # The culprits are out of the session, and hear of that.
        told = tuple(Send(name, end) for name in failed.remaining)
        report = Report(
            "key-failed",
            {"epoch": failed.epoch, "code": failed.code.name, "detail": failed.detail, "by": list(failed.culprits)},
        )
        return Step(KeeperState.IDLE, (*told, report, failed), self._forget_attempt)

    def _ready(self, model: bytes | None, transcript: bytes) -> list[Output]:
        self._forget_attempt()
        self.members, self.transcript = self._agreement.members, transcript
        if model is not None:
            self._model_epoch, self._readers = self._epoch, set(self.members)
        return [KeyReady(self.members, model)]

    def _forget_attempt(self) -> None:
        self._attempt, self.deadline, self._model, self._outgoing = None, None, b"", {}

    def _hand_out(self, member: str, chunk: int) -> Step[KeeperState]:
        outgoing = self._outgoing[member]
        outgoing.check(chunk)

        def commit() -> list[Output]:
            if self.state is KeeperState.DISTRIBUTING and outgoing.is_last(chunk):
                del self._outgoing[member]
            return [Send(member, KeyedModelChunk(chunk=chunk), payload=outgoing.advance())]

        return Step(self.state, (), commit)

    def _requests(self, chunks: Iterable[int]) -> tuple[Send, ...]:
        return tuple(Send(self._provider, FetchKeyedModel(chunk=chunk)) for chunk in chunks)
