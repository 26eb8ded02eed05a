"""The server's side of the group key: it starts attempts, relays and checks records, and holds the encrypted model.

No member can be excluded from a key: the first one that breaks a rule, leaves or is late ends the attempt and is named;
the others are offered as the membership of the next one. The relay verifies every signature before it passes a record
on, so that members may blame it for invalid ones. It sees no contribution and no key, except in a complaint, which
opens those of a failed attempt. docs/spec/group-key.md has the phases and the transfer of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, TypeVar

from tacit.protocol.core.blob import NO_BLOB, IncomingBlob, OutgoingBlob, announce
from tacit.protocol.core.codec import Envelope, Packet
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.machine import (
    IGNORE,
    Handler,
    Heard,
    Inside,
    Machine,
    Output,
    Result,
    Row,
    Send,
    Step,
    Table,
    Trigger,
)
from tacit.protocol.core.messages import Abort, Blob, Chunk, Fetch, Message
from tacit.protocol.core.primitives import AgreementKey
from tacit.protocol.core.roster import Roster, encode_members, split_records
from tacit.protocol.group_key.agreement import (
    PACKET_BYTES,
    KeyAgreed,
    KeyAgreement,
    KeyFailed,
    Transcript,
    channel_key_of,
    check_commits,
)
from tacit.protocol.group_key.events import (
    GroupKeyAgreed,
    KeyAgreementFailed,
    KeyAgreementStarted,
    KeyPhaseOpened,
    ModelRecovered,
)
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    EndKey,
    KeyAccepted,
    KeyCommit,
    KeyComplaint,
    KeyContribution,
    KeyedModel,
    PeerKeyCommits,
    PeerKeyConfirmations,
    PeerKeyContributions,
    ReencryptModel,
    StartKey,
)
from tacit.protocol.group_key.states import ATTEMPT_TO_RELAY, TO_KEEPER, KeeperState, KeyTrigger, RelayState
from tacit.protocol.sum.agreement import TRANSFER_LIMIT
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.states import SumLabel

Answer = TypeVar("Answer")


class GroupKeyRelay(Machine[RelayState], outputs=Send | Event | KeyAgreed | KeyFailed):
    """The relay of one attempt; `now` starts the first deadline. It ends with a KeyAgreed or a KeyFailed."""

    def __init__(self, agreement: KeyAgreement, now: float) -> None:
        super().__init__(RELAY_TABLE, RelayState.KEY_COMMIT)
        self.deadline = now + agreement.phase_seconds
        self.agreement = agreement
        self.waiting = set(range(agreement.size))
        """Members that this phase still waits for."""
        self._commits: dict[int, bytes] = {}
        self._packets: dict[int, dict[int, bytes]] = {}
        """By owner and holder."""
        self._confirmations: dict[int, bytes] = {}
        self._accepted: dict[int, KeyAccepted] = {}

    def drop(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """Drop a member. A name that is no member of this attempt has no effect."""
        if member not in self.agreement.places:
            return []
        return self.trigger(Trigger.DROP, now, member, code, detail)

    def late(self, sender: str, packet: Packet) -> bool:
        place = self.agreement.places.get(sender)
        return packet.kind not in (Abort, KeyComplaint) and place is not None and place not in self.waiting

    def complete(self) -> bool:
        return not self.waiting

    def on_commit(self, heard: Heard[KeyCommit], now: float) -> Step[RelayState]:
        message = heard.message
        member = self._place(heard.sender)
        record = message.channel_key + message.commitment + message.signature
        check_commits(self.agreement, {member: record})
        if message.channel_key in map(channel_key_of, self._commits.values()):
            raise RemoteProtocolError(Code.KEYS, "another member has the same channel key")
        return self._answered(member, self._commits, record)

    def close_commits(self, now: float) -> Step[RelayState]:
        transcript = Transcript(self.agreement, dict(sorted(self._commits.items())))
        commits = PeerKeyCommits(commits=b"".join(transcript.commits.values()))
        messages = dict.fromkeys(self.agreement.members, commits)
        return self._next(RelayState.KEY_CONTRIBUTE, messages, transcript, now)

    def on_contribution(self, heard: Heard[KeyContribution], now: float) -> Step[RelayState]:
        member = self._place(heard.sender)
        packets = split_records(heard.message.packets, PACKET_BYTES, self.agreement.others(member))
        for holder, packet in packets.items():
            self.at(Transcript).check_packet(packet, owner=member, holder=holder)
        return self._answered(member, self._packets, packets)

    def close_contributions(self, now: float) -> Step[RelayState]:
        agreement = self.agreement
        messages = {
            name: PeerKeyContributions(
                packets=b"".join(self._packets[owner][holder] for owner in agreement.others(holder))
            )
            for holder, name in enumerate(agreement.members)
        }
        return self._next(RelayState.KEY_CONFIRM, messages, self.at(Transcript), now)

    def on_confirmation(self, heard: Heard[ConfirmKey], now: float) -> Step[RelayState]:
        member = self._place(heard.sender)
        record = heard.message.tag + heard.message.signature
        self.at(Transcript).check_confirmation(record, member)
        return self._answered(member, self._confirmations, record)

    def close_confirmations(self, now: float) -> Step[RelayState]:
        records = [record for _, record in sorted(self._confirmations.items())]
        message = PeerKeyConfirmations(confirmations=b"".join(records))
        messages = dict.fromkeys(self.agreement.members, message)
        return self._next(RelayState.KEY_ACCEPT, messages, self.at(Transcript), now)

    def on_accepted(self, heard: Heard[KeyAccepted], now: float) -> Step[RelayState]:
        return self._answered(self._place(heard.sender), self._accepted, heard.message)

    def close_acceptance(self, now: float) -> Step[RelayState]:
        agreed = KeyAgreed(self.agreement.epoch, self.agreement.members, self.at(Transcript).digest)
        return Step(RelayState.COMPLETED, (agreed,), self.waiting.clear)

    def on_complaint(self, heard: Heard[KeyComplaint], now: float) -> Step[RelayState]:
        member = self._place(heard.sender)
        accused = heard.message.accused
        if accused not in self.agreement.others(member):
            raise RemoteProtocolError(Code.MEMBERS, f"it complains of member {accused}, and that is not another member")
        channel = AgreementKey(heard.message.channel_private)
        if channel.public != channel_key_of(self._commits[member]):
            raise RemoteProtocolError(Code.KEYS, "it complains with a channel key that is not its own")
        try:
            self._check_accused(accused, member, channel)
        except RemoteProtocolError as error:
            name = error.culprit or self.agreement.members[accused]
            return self._failed(error.code, f"{name}: {error.detail}", (name,))
        raise RemoteProtocolError(
            Code.SHARES, f"it complains of {self.agreement.members[accused]}, which said nothing wrong"
        )

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[RelayState]:
        self._place(heard.sender)
        return self._failed(
            Code.LEFT, f"{heard.sender}: it gave up: {heard.message.detail}", (heard.sender,), gone=True
        )

    def on_drop(self, member: str, code: Code, detail: str, now: float) -> Step[RelayState]:
        return self._failed(code, f"{member}: {detail}", (member,), gone=True)

    def on_expire(self, now: float) -> Step[RelayState]:
        names = tuple(self.agreement.members[member] for member in sorted(self.waiting))
        return self._failed(Code.TIMEOUT, f"no answer in {self.state.value} from {', '.join(names)}", names)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[RelayState]:
        if sender in self.agreement.places and self.state not in (RelayState.COMPLETED, RelayState.ABORTED):
            return self._failed(error.code, f"{sender}: {error.detail}", (sender,))
        report = MessageRefused(member=sender, code=error.code.name, detail=error.detail)
        return Step(self.state, (report,))

    def _place(self, sender: str) -> int:
        """Refuse a sender that is no member: it came too late for this attempt, or left before it."""
        if sender not in self.agreement.places:
            raise RemoteProtocolError(Code.MEMBERS, f"it is no member of the group of epoch {self.agreement.epoch}")
        return self.agreement.places[sender]

    def _check_accused(self, accused: int, member: int, channel: AgreementKey) -> None:
        """Refuse an invalid contribution to the complaining member, or an invalid confirmation."""
        transcript = self.at(Transcript)
        packet = self._packets[accused][member]
        given = transcript.contribution(packet, channel, accused, owner=accused, holder=member)
        if self.state is not RelayState.KEY_ACCEPT:
            return
        contributions = {accused: given}
        try:
            for owner in self.agreement.others(member):
                packet = self._packets[owner][member]
                contributions[owner] = transcript.contribution(packet, channel, owner, owner=owner, holder=member)
            packet = self._packets[member][accused]
            contributions[member] = transcript.contribution(packet, channel, accused, owner=member, holder=accused)
        except RemoteProtocolError as error:
            # It confirmed a key although it could not have one, or kept the accused from having it.
            raise error.blaming(self.agreement.members[member]) from None
        transcript.check_tag(self._confirmations[accused], transcript.group_key(contributions), accused)

    def _answered(self, member: int, answers: dict[int, Answer], answer: Answer) -> Step[RelayState]:
        def commit() -> None:
            answers[member] = answer
            self.waiting.discard(member)

        return Step(self.state, (), commit)

    def _next(
        self, state: RelayState, messages: Mapping[str, Message], transcript: Transcript, now: float
    ) -> Step[RelayState]:
        def commit() -> None:
            self.waiting = set(range(self.agreement.size))

        report = KeyPhaseOpened(phase=state.value, members=len(messages))
        said = (report, *(Send(name, message) for name, message in messages.items()))
        return Step(state, said, commit, data=transcript, deadline=now + self.agreement.phase_seconds)

    def _failed(self, code: Code, detail: str, culprits: tuple[str, ...], *, gone: bool = False) -> Step[RelayState]:
        members, detail = self.agreement.members, detail[:DETAIL_LIMIT]
        remaining = tuple(name for name in members if name not in culprits)
        abort = Abort(code=code, detail=detail, culprit=culprits[0])
        sends = [Send(name, abort) for name in (remaining if gone else members)]
        failed = KeyFailed(self.agreement.epoch, code, detail, culprits, remaining)
        return Step(RelayState.ABORTED, (*sends, failed), self.waiting.clear)


@dataclass(frozen=True)
class KeyReady(Result):
    """All members hold the key. model: the model under it, if it was not under it before; round: the round that made
    it, if a member persisted it."""

    members: tuple[str, ...]
    model: bytes | None = field(repr=False)
    round: int | None = None


@dataclass(frozen=True)
class KeyLost(Result):
    """No remaining client can read the model."""

    detail: str


@dataclass(frozen=True)
class Distributed(Result):
    """The members have the last model, or exceeded their time."""

    without: tuple[str, ...]


@dataclass(frozen=True)
class Refused(Result):
    """This member broke a rule when nothing depended on it."""

    member: str
    error: RemoteProtocolError


@dataclass(frozen=True)
class _AgreementData:
    """model: the server's present one."""

    agreement: KeyAgreement
    model: bytes = field(repr=False)


@dataclass(frozen=True)
class _EncryptionData:
    """asked: the member that provides the model under the new key, after which round, and the next candidates if it has
    none; outgoing: the model that it fetches for that."""

    agreement: KeyAgreement
    transcript: bytes
    source: Literal["clients", "server", "key", "remembered"]
    asked: tuple[tuple[str, int], ...]
    outgoing: OutgoingBlob
    incoming: IncomingBlob

    @property
    def provider(self) -> str:
        return self.asked[0][0]


class GroupKeyKeeper(
    Machine[KeeperState],
    outputs=Send | Event | KeyReady | KeyFailed | KeyLost | Distributed | Refused,
    contains={"attempt": (KeeperState.AGREEING,)},
):
    attempt: GroupKeyRelay | None

    def __init__(self, roster: Roster, configuration: Configuration, session: bytes, *, completed: int = 0) -> None:
        super().__init__(KEEPER_TABLE, KeeperState.IDLE)
        self.members: tuple[str, ...] = ()
        """Holders of the latest key, while none of them has left."""
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
        """Epoch of the model's key; None if it is not encrypted."""
        self._readers: set[str] = set()

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that the server waits for now."""
        if self.attempt is not None:
            return tuple(self.attempt.agreement.members[member] for member in sorted(self.attempt.waiting))
        if isinstance(self.data, _EncryptionData):
            return (self.data.provider,)
        return tuple(sorted(self.data.awaited)) if isinstance(self.data, OutgoingBlob) else ()

    @property
    def readers(self) -> tuple[str, ...]:
        """Clients that can read the model, as far as the server knows."""
        return tuple(name for name in self._roster.clients if name in self._readers)

    def fits(self, cohort: tuple[str, ...]) -> bool:
        """Whether the latest key may be used for another round, with this cohort."""
        most = self._configuration.rekey_every
        return cohort == self.members and not 0 < most <= self._rounds

    def round_begun(self) -> None:
        self._rounds += 1

    def agree(self, members: tuple[str, ...], model: bytes, now: float) -> list[Output]:
        """Let these clients agree on a new key; model: the server's present one."""
        return self.trigger(KeyTrigger.AGREE, now, members, model)

    def distribute(self, model: bytes, now: float) -> list[Output]:
        """Let the clients that can read it fetch the last model."""
        return self.trigger(KeyTrigger.DISTRIBUTE, now, model)

    def left(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """Remove a member, which holds no key any more, as far as the server knows."""
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
        # EndKey informs the members of a finished attempt.
        return () if isinstance(send.message, Abort) else (send,)

    def complete(self) -> bool:
        return not self.waiting_for

    def late(self, sender: str, packet: Packet) -> bool:
        if self.state is not KeeperState.AGREEING:
            return sender not in self.waiting_for
        message: Any = packet.parse()
        if sender not in self.at(_AgreementData).agreement.places:
            return True
        if message.epoch > self._epoch:
            raise RemoteProtocolError(Code.SESSION, f"epoch {message.epoch} of the group key has not begun")
        # Sent before this member knew that the attempt had ended.
        return bool(message.epoch < self._epoch)

    def on_agree(self, members: tuple[str, ...], model: bytes, now: float) -> Step[KeeperState]:
        clients, epoch = self._roster.clients, self._epoch + 1
        agreement = KeyAgreement.among(members, self._roster, self._configuration, session=self._session, epoch=epoch)
        bitmap = encode_members([clients.index(name) for name in members], len(clients))
        start = StartKey(epoch=epoch, members=bitmap)
        report = KeyAgreementStarted(epoch=epoch, members=list(members))

        def commit() -> None:
            self._epoch, self._rounds, self.members = epoch, 0, ()
            self.attempt = GroupKeyRelay(agreement, now)

        said = (report, *(Send(name, start) for name in members))
        return Step(KeeperState.AGREEING, said, commit, data=_AgreementData(agreement, model))

    def on_agreed(self, result: KeyAgreed, now: float) -> Step[KeeperState]:
        agreed = GroupKeyAgreed(epoch=result.epoch, members=list(result.members))
        agreement, model = self.at(_AgreementData).agreement, self.at(_AgreementData).model
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
        encrypting = _EncryptionData(
            agreement, result.transcript, source, asked, outgoing, IncomingBlob(NO_BLOB, SumLabel.MODEL)
        )
        announced = announce(model, SumLabel.MODEL) if outgoing.awaited else NO_BLOB
        return self._ask(encrypting, self._limit(now), agreed, model=announced)

    def _ask(
        self, encrypting: _EncryptionData, deadline: float | None, *reports: Event, model: Blob = NO_BLOB
    ) -> Step[KeeperState]:
        provider, round = encrypting.asked[0]
        order = ReencryptModel(
            epoch=self._epoch, source=encrypting.source, former=self._model_epoch or 0, model=model, round=round
        )
        said = (*reports, Send(provider, order))
        return Step(KeeperState.AWAIT_MODEL, said, data=encrypting, deadline=deadline)

    def on_failed(self, failed: KeyFailed, now: float) -> Step[KeeperState]:
        end = EndKey(epoch=failed.epoch, code=failed.code, detail=failed.detail, culprit=failed.culprits[0])
        # The culprits are out of the session, and are informed of that.
        ends = tuple(Send(name, end) for name in failed.remaining)
        report = KeyAgreementFailed(
            epoch=failed.epoch, code=failed.code.name, detail=failed.detail, by=list(failed.culprits)
        )
        return Step(KeeperState.IDLE, (*ends, report, failed))

    def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[KeeperState]:
        outgoing = self.data.outgoing if isinstance(self.data, _EncryptionData) else self.at(OutgoingBlob)
        piece = outgoing.chunk(heard.sender, heard.message.chunk)
        answer = Send(heard.sender, Chunk(chunk=heard.message.chunk), payload=piece)
        return Step(self.state, (answer,), outgoing.sent(heard.sender))

    def on_keyed_model(self, heard: Heard[KeyedModel], now: float) -> Step[KeeperState]:
        encrypting, epoch, model = self.at(_EncryptionData), heard.message.epoch, heard.message.model
        if encrypting.source == "remembered" and (epoch, model) == (self._epoch, NO_BLOB):
            rest = encrypting.asked[1:]
            if rest:
                return self._ask(replace(encrypting, asked=rest), self.deadline)
            wanted = f"after round {self._completed} or {self._completed - 1}"
            lost = KeyLost(f"no client that is here remembers the model {wanted}: start again when others are there")
            return Step(KeeperState.IDLE, (lost,))
        if epoch != self._epoch or model.size != self._configuration.state.size:
            raise RemoteProtocolError(Code.MODEL, "its model is under another key, or has another length")
        return self._fetch(IncomingBlob(model, SumLabel.MODEL, self._configuration.state))

    def on_chunk(self, heard: Heard[Chunk], now: float) -> Step[KeeperState]:
        encrypting = self.at(_EncryptionData)
        incoming = encrypting.incoming.after(heard.message.chunk, heard.payload)
        if not incoming.complete:
            return self._fetch(incoming)
        if encrypting.source != "remembered":
            return self._ready(encrypting.agreement, encrypting.transcript, incoming.whole())
        provider, round = encrypting.asked[0]
        remembered = ModelRecovered(member=provider, round=round)
        return self._ready(encrypting.agreement, encrypting.transcript, incoming.whole(), remembered, round=round)

    def on_distribute(self, model: bytes, now: float) -> Step[KeeperState]:
        offer = KeyedModel(epoch=self._epoch, model=announce(model, SumLabel.MODEL))
        offers = tuple(Send(name, offer) for name in self.readers)
        outgoing = OutgoingBlob(model, self.readers)
        return Step(KeeperState.DISTRIBUTING, offers, data=outgoing, deadline=self._limit(now))

    def on_receiver_gone(self, member: str, code: Code, detail: str, now: float) -> Step[KeeperState]:
        return Step(self.state, commit=lambda: self.at(OutgoingBlob).drop(member))

    def on_distributed(self, now: float) -> Step[KeeperState]:
        return Step(KeeperState.IDLE, (Distributed(self.waiting_for),))

    def on_expire(self, now: float) -> Step[KeeperState]:
        return self.on_drop(
            self.at(_EncryptionData).provider, Code.TIMEOUT, "the model under the new key did not come in time", now
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
        return self.data.agreement if isinstance(self.data, _AgreementData | _EncryptionData) else None

    def _fetch(self, incoming: IncomingBlob) -> Step[KeeperState]:
        encrypting = replace(self.at(_EncryptionData), incoming=incoming)
        requests = tuple(Send(encrypting.provider, fetch) for fetch in incoming.requests)
        # All of it has one time limit.
        return Step(KeeperState.FETCHING_MODEL, requests, data=encrypting, deadline=self.deadline)

    def _ready(
        self,
        agreement: KeyAgreement,
        transcript: bytes,
        model: bytes | None,
        *reports: Event,
        round: int | None = None,
    ) -> Step[KeeperState]:
        def commit() -> None:
            self.members, self.transcript = agreement.members, transcript
            if model is not None:
                self._model_epoch, self._readers = self._epoch, set(self.members)

        return Step(KeeperState.IDLE, (*reports, KeyReady(agreement.members, model, round)), commit)

    def _limit(self, now: float) -> float:
        return now + TRANSFER_LIMIT * self._configuration.phase_seconds


def _relay_table() -> Table[RelayState]:
    s = RelayState
    rows: list[tuple[RelayState, type[Message], Handler, Handler, RelayState]] = [
        (s.KEY_COMMIT, KeyCommit, GroupKeyRelay.on_commit, GroupKeyRelay.close_commits, s.KEY_CONTRIBUTE),
        (
            s.KEY_CONTRIBUTE,
            KeyContribution,
            GroupKeyRelay.on_contribution,
            GroupKeyRelay.close_contributions,
            s.KEY_CONFIRM,
        ),
        (s.KEY_CONFIRM, ConfirmKey, GroupKeyRelay.on_confirmation, GroupKeyRelay.close_confirmations, s.KEY_ACCEPT),
        (s.KEY_ACCEPT, KeyAccepted, GroupKeyRelay.on_accepted, GroupKeyRelay.close_acceptance, s.COMPLETED),
    ]
    table: dict[Any, Any] = {}
    past: list[type[Message]] = []
    for state, kind, handler, close, following in rows:
        table.update({(state, earlier): IGNORE for earlier in past})
        table[state, kind] = Row(handler, (state,))
        table[state, Trigger.COMPLETE] = Row(close, (following,))
        table[state, Abort] = Row(GroupKeyRelay.on_abort, (s.ABORTED,))
        table[state, Trigger.EXPIRE] = Row(GroupKeyRelay.on_expire, (s.ABORTED,))
        table[state, Trigger.DROP] = Row(GroupKeyRelay.on_drop, (s.ABORTED,))
        past.append(kind)
    for state in (s.KEY_CONFIRM, s.KEY_ACCEPT):
        table[state, KeyComplaint] = Row(GroupKeyRelay.on_complaint, (s.ABORTED,))
    for state in (s.COMPLETED, s.ABORTED):
        table.update({(state, cause): IGNORE for cause in (*past, KeyComplaint, Abort, Trigger.DROP)})
    return table


def _keeper_table() -> Table[KeeperState]:
    s = KeeperState
    table: dict[Any, Any] = {
        (s.IDLE, KeyTrigger.AGREE): Row(GroupKeyKeeper.on_agree, (s.AGREEING,)),
        (s.IDLE, KeyTrigger.DISTRIBUTE): Row(GroupKeyKeeper.on_distribute, (s.DISTRIBUTING,)),
        (s.IDLE, Trigger.DROP): IGNORE,
        **{(s.AGREEING, cause): Inside("attempt") for cause in (*ATTEMPT_TO_RELAY, Trigger.DROP)},
        (s.AGREEING, KeyAgreed): Row(GroupKeyKeeper.on_agreed, (s.AWAIT_MODEL, s.IDLE)),
        (s.AGREEING, KeyFailed): Row(GroupKeyKeeper.on_failed, (s.IDLE,)),
        (s.AWAIT_MODEL, Fetch): Row(GroupKeyKeeper.on_fetch, (s.AWAIT_MODEL,)),
        (s.AWAIT_MODEL, KeyedModel): Row(GroupKeyKeeper.on_keyed_model, (s.FETCHING_MODEL, s.AWAIT_MODEL, s.IDLE)),
        (s.FETCHING_MODEL, Chunk): Row(GroupKeyKeeper.on_chunk, (s.FETCHING_MODEL, s.IDLE)),
        (s.DISTRIBUTING, Fetch): Row(GroupKeyKeeper.on_fetch, (s.DISTRIBUTING,)),
        (s.DISTRIBUTING, Trigger.COMPLETE): Row(GroupKeyKeeper.on_distributed, (s.IDLE,)),
        (s.DISTRIBUTING, Trigger.EXPIRE): Row(GroupKeyKeeper.on_distributed, (s.IDLE,)),
        (s.DISTRIBUTING, Trigger.DROP): Row(GroupKeyKeeper.on_receiver_gone, (s.DISTRIBUTING,)),
    }
    for state in (s.AWAIT_MODEL, s.FETCHING_MODEL):
        table[state, Trigger.EXPIRE] = Row(GroupKeyKeeper.on_expire, (s.IDLE,))
        table[state, Trigger.DROP] = Row(GroupKeyKeeper.on_drop, (s.IDLE,))
    # Messages sent before an attempt, or the transfer of a model, was abandoned.
    for state in s:
        for kind in TO_KEEPER:
            table.setdefault((state, kind), IGNORE)
    return table


RELAY_TABLE: Final = _relay_table()
KEEPER_TABLE: Final = _keeper_table()
