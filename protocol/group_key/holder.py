"""The client's side of the group key: it agrees on keys, which the server relays and never learns, and keeps them.

docs/spec/group-key.md has the exchange. The signature of a wrong record identifies the party at fault. If the signature
is wrong too, the server altered the record or should have refused it: the member ends with the server as culprit. If it
is right, the record's owner cheats: the member complains, and proves it with its own channel key of this attempt. A
server alone can never cause that, and no honest member accepts a key of that attempt.

Not prevented: a member that sees the key before it confirms may end the attempt, and so have another key drawn.

Between rounds a key that every member confirmed is held until the server reports that the attempt failed after all. It
is used only with exactly the members it was agreed with, for as many rounds as the configuration allows. Keys under
which the server's model may still be encrypted are kept; older ones are erased as soon as a round begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tacit.protocol.core.blob import NO_BLOB, IncomingBlob, OutgoingBlob, announce
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import (
    IGNORE,
    Entropy,
    Handler,
    Heard,
    Inside,
    Machine,
    Output,
    Row,
    Send,
    Step,
    Table,
    Trigger,
)
from tacit.protocol.core.messages import Abort, Blob, Chunk, Fetch, Message
from tacit.protocol.core.primitives import KEY_BYTES, AgreementKey, SigningKey
from tacit.protocol.core.roster import Roster, decode_members, split_records
from tacit.protocol.group_key.agreement import (
    COMMIT_BYTES,
    CONFIRMATION_BYTES,
    PACKET_BYTES,
    GroupKey,
    KeyAgreement,
    Transcript,
    check_commits,
    commit_record,
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
from tacit.protocol.group_key.states import ATTEMPT_TO_MEMBER, HolderState, MemberState
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.exchange import Answering, ClientAborted
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.states import SumLabel


@dataclass(frozen=True)
class _CommitData:
    """record: the member's last message, and the content that the server must have relayed."""

    channel: AgreementKey
    contribution: bytes = field(repr=False)
    record: bytes


@dataclass(frozen=True)
class _ContributionData(_CommitData):
    transcript: Transcript
    key: bytes = field(default=b"", repr=False)


class GroupKeyMember(Answering[MemberState], outputs=Send | Event | GroupKey | ClientAborted):
    """One member in one attempt. It ends with a GroupKey or a ClientAborted."""

    ends = (MemberState.ACCEPTED, MemberState.ABORTED)

    def __init__(self, agreement: KeyAgreement, name: str, *, signing: SigningKey, entropy: Entropy) -> None:
        super().__init__(MEMBER_TABLE, MemberState.READY, agreement.server)
        self.agreement = agreement
        self.name = name
        self.member = agreement.places[name]
        self._signing = signing
        self._entropy = entropy

    def on_start(self, now: float) -> Step[MemberState]:
        channel, contribution = AgreementKey(self._entropy(KEY_BYTES)), self._entropy(KEY_BYTES)
        record = commit_record(
            self.agreement, self.member, self._signing, channel_key=channel.public, contribution=contribution
        )
        key_commit = KeyCommit(
            epoch=self.agreement.epoch,
            channel_key=record[:KEY_BYTES],
            commitment=record[KEY_BYTES : 2 * KEY_BYTES],
            signature=record[2 * KEY_BYTES :],
        )
        committed = _CommitData(channel, contribution, record)
        return self._await(MemberState.AWAIT_PEER_COMMITS, key_commit, committed, now)

    def on_peer_commits(self, heard: Heard[PeerKeyCommits], now: float) -> Step[MemberState]:
        agreement, me, own = self.agreement, self.member, self.at(_CommitData)
        commits = split_records(heard.message.commits, COMMIT_BYTES, list(range(agreement.size)))
        if commits[me] != own.record:
            raise RemoteProtocolError(Code.KEYS, "the list of commitments has another one for this member than it sent")
        check_commits(agreement, commits)
        transcript = Transcript(agreement, commits)
        packets = b"".join(
            transcript.packet(own.channel, self._signing, own.contribution, owner=me, holder=other)
            for other in agreement.others(me)
        )
        contribution = KeyContribution(epoch=agreement.epoch, packets=packets)
        contributed = _ContributionData(own.channel, own.contribution, own.record, transcript)
        return self._await(MemberState.AWAIT_PEER_CONTRIBUTIONS, contribution, contributed, now)

    def on_peer_contributions(self, heard: Heard[PeerKeyContributions], now: float) -> Step[MemberState]:
        me, own = self.member, self.at(_ContributionData)
        transcript = own.transcript
        packets = split_records(heard.message.packets, PACKET_BYTES, self.agreement.others(me))
        contributions = {me: own.contribution}
        for owner, packet in packets.items():
            transcript.check_packet(packet, owner=owner, holder=me)
            try:
                contributions[owner] = transcript.contribution(packet, own.channel, owner, owner=owner, holder=me)
            except RemoteProtocolError as error:
                return self._complain(owner, error)
        key = transcript.group_key(contributions)
        record = transcript.confirmation(key, self._signing, me)

        confirm = ConfirmKey(epoch=self.agreement.epoch, tag=record[:KEY_BYTES], signature=record[KEY_BYTES:])
        return self._await(MemberState.AWAIT_PEER_CONFIRMATIONS, confirm, replace(own, record=record, key=key), now)

    def on_peer_confirmations(self, heard: Heard[PeerKeyConfirmations], now: float) -> Step[MemberState]:
        agreement, own = self.agreement, self.at(_ContributionData)
        records = split_records(heard.message.confirmations, CONFIRMATION_BYTES, list(range(agreement.size)))
        if records[self.member] != own.record:
            raise RemoteProtocolError(Code.SECRET, "the list of confirmations has another one for this member")
        for member, record in records.items():
            own.transcript.check_confirmation(record, member)
            try:
                own.transcript.check_tag(record, own.key, member)
            except RemoteProtocolError as error:
                return self._complain(member, error)
        outputs = (
            GroupKey(agreement.epoch, own.key, agreement.members, own.transcript.digest),
            self._send(KeyAccepted(epoch=agreement.epoch)),
        )
        return Step(MemberState.ACCEPTED, outputs)

    def _complain(self, accused: int, error: RemoteProtocolError) -> Step[MemberState]:
        complaint = KeyComplaint(
            epoch=self.agreement.epoch, accused=accused, channel_private=self.at(_ContributionData).channel.private
        )
        name = self.agreement.members[accused]
        return self._aborted(ClientAborted(error.code, f"{name}: {error.detail}", name), self._send(complaint))

    def _await(self, state: MemberState, message: Message, data: _CommitData, now: float) -> Step[MemberState]:
        """Send this and await the others' messages: one phase for the slowest member, one for the relay."""
        return Step(state, (self._send(message),), data=data, deadline=now + 2 * self.agreement.phase_seconds)


@dataclass(frozen=True)
class Reencrypt(Output):
    """Encrypt this model under the key and call `provide`.

    source: "clients", make the initial model from the key; "server", `model` is in the clear; "key", it is under
    `former`; "remembered", take the one after this `round` of an earlier session or a later one, and provide b"" if
    there is none. model: little-endian float32 bytes, empty for "clients" and "remembered"."""

    source: Literal["clients", "server", "key", "remembered"]
    key: GroupKey
    former: GroupKey | None
    model: bytes = field(repr=False)
    round: int = 0


@dataclass(frozen=True)
class LastModel(Output):
    """The model after the last round, under this key, as little-endian float32 bytes."""

    key: GroupKey
    model: bytes = field(repr=False)


@dataclass(frozen=True)
class _FetchData:
    incoming: IncomingBlob
    order: ReencryptModel | None


class GroupKeyHolder(
    Machine[HolderState],
    outputs=Send | Event | GroupKey | Reencrypt | LastModel | ClientAborted,
    contains={"attempt": (HolderState.AGREEING,)},
):
    """The keys of one client in one session."""

    attempt: GroupKeyMember | None

    def __init__(
        self,
        name: str,
        roster: Roster,
        configuration: Configuration,
        *,
        session: bytes,
        policy: Policy,
        signing: SigningKey,
        entropy: Entropy,
    ) -> None:
        super().__init__(HOLDER_TABLE, HolderState.NO_KEY)
        self.name = name
        self._roster = roster
        self._server = roster.server.name
        self._configuration = configuration
        self._session = session
        self._policy = policy
        self._signing = signing
        self._entropy = entropy
        self._epoch = -1
        """Epoch of the latest attempt that this client took part in."""
        self._keys: dict[int, GroupKey] = {}
        self._rounds = 0
        """Rounds begun under the latest key."""

    def for_round(self, cohort: tuple[str, ...]) -> GroupKey:
        """The key for a round with this cohort. Refuses a round without one."""
        if self.state is not HolderState.KEYED:
            raise RemoteProtocolError(Code.KEYS, "a round begins, and the clients have not agreed on a group key")
        key = self._keys[self._epoch]
        if cohort != key.members:
            raise RemoteProtocolError(Code.KEYS, "the group key was agreed with other members than those of the round")
        if 0 < self._configuration.rekey_every <= self._rounds:
            raise RemoteProtocolError(Code.KEYS, f"the group key was used in {self._rounds} rounds and must be renewed")
        return key

    def round_begun(self) -> None:
        """A round begins under the latest key: no model under an older one will occur again."""
        self._keys = {self._epoch: self._keys[self._epoch]}
        self._rounds += 1

    def provide(self, epoch: int, model: bytes, now: float) -> list[Output]:
        """Submit the model under the key of this epoch; without effect if the server does not want it any more.

        model: b"" if the requested one is not available."""
        wanted = self.state is HolderState.ENCRYPTING and epoch == self._epoch
        return self.trigger(Trigger.PROVIDE, now, model) if wanted else []

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        # An aborted attempt ends the session, which sends the reason itself.
        return () if isinstance(send.message, Abort) else (send,)

    def forget(self) -> None:
        super().forget()
        self._keys = {}

    def on_start_key(self, heard: Heard[StartKey], now: float) -> Step[HolderState]:
        epoch = heard.message.epoch
        if epoch <= self._epoch:
            raise RemoteProtocolError(Code.SESSION, f"epoch {epoch} of the group key is begun a second time")
        clients = self._roster.clients
        members = tuple(clients[index] for index in decode_members(heard.message.members, len(clients)))
        if self.name not in members:
            raise RemoteProtocolError(Code.MEMBERS, "this client is not a member of the group that it is asked to join")
        self._roster.check_whole(members)
        self._policy.check_cohort(self._configuration, len(members))
        agreement = KeyAgreement.among(members, self._roster, self._configuration, session=self._session, epoch=epoch)
        attempt = GroupKeyMember(agreement, self.name, signing=self._signing, entropy=self._entropy)

        def commit() -> list[Output]:
            self._epoch, self._rounds, self.attempt = epoch, 0, attempt
            return self.relay(attempt, attempt.start(now), now)

        return Step(HolderState.AGREEING, (), commit)

    def on_key(self, key: GroupKey, now: float) -> Step[HolderState]:
        def commit() -> None:
            self._keys[key.epoch] = key

        return Step(HolderState.KEYED, (key,), commit)

    def on_attempt_aborted(self, aborted: ClientAborted, now: float) -> Step[HolderState]:
        # A member that complained continues: the server ends the attempt. Any other failure is the server's.
        if aborted.culprit != self._server:
            return Step(HolderState.NO_KEY)
        return self._aborted(aborted)

    def on_end_key(self, heard: Heard[EndKey], now: float) -> Step[HolderState]:
        epoch = heard.message.epoch
        if epoch != self._epoch:
            raise RemoteProtocolError(Code.SESSION, f"epoch {epoch} of the group key is not the latest one")

        def commit() -> None:
            self._keys.pop(epoch, None)

        return Step(HolderState.NO_KEY, (), commit)

    def on_reencrypt(self, heard: Heard[ReencryptModel], now: float) -> Step[HolderState]:
        order = heard.message
        self._check_encrypted()
        made_here = order.source in ("clients", "remembered")
        if order.epoch != self._epoch or order.model.size != (0 if made_here else self._model_bytes):
            raise RemoteProtocolError(Code.MODEL, "a model is to be encrypted for another key, or has another length")
        if order.source == "key" and order.former not in self._keys:
            raise RemoteProtocolError(Code.KEYS, f"this client does not hold the key of epoch {order.former}")
        if order.source in ("clients", "server") and order.source != self._configuration.initial_model:
            raise RemoteProtocolError(Code.MODEL, f"the first model is to come from {order.source}")
        if made_here:
            return self._encrypt(order, b"")
        return self._fetch(HolderState.FETCHING_MODEL, _FetchData(self._incoming(order.model), order), now)

    def on_last_model(self, heard: Heard[KeyedModel], now: float) -> Step[HolderState]:
        self._check_encrypted()
        if heard.message.epoch != self._epoch or heard.message.model.size != self._model_bytes:
            raise RemoteProtocolError(Code.MODEL, "the last model is under another key, or has another length")
        return self._fetch(HolderState.FETCHING_LAST, _FetchData(self._incoming(heard.message.model), None), now)

    def on_chunk(self, heard: Heard[Chunk], now: float) -> Step[HolderState]:
        fetching = self.at(_FetchData)
        incoming = fetching.incoming.after(heard.message.chunk, heard.payload)
        if not incoming.complete:
            return self._fetch(self.state, replace(fetching, incoming=incoming), now)
        if fetching.order is not None:
            return self._encrypt(fetching.order, incoming.whole())
        return Step(HolderState.KEYED, (LastModel(self._keys[self._epoch], incoming.whole()),))

    def on_provide(self, model: bytes, now: float) -> Step[HolderState]:
        if not model and self.at(ReencryptModel).source == "remembered":
            return Step(HolderState.KEYED, (self._send(KeyedModel(epoch=self._epoch, model=NO_BLOB)),))
        if len(model) != self._model_bytes:
            raise LocalProtocolError(f"a model of {len(model)} bytes does not fit the layout")
        offer = KeyedModel(epoch=self._epoch, model=announce(model, SumLabel.MODEL))
        outgoing = OutgoingBlob(model, (self._server,))
        return Step(HolderState.PROVIDING, (self._send(offer),), data=outgoing, deadline=self._patience(now))

    def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[HolderState]:
        outgoing, chunk = self.at(OutgoingBlob), heard.message.chunk
        answer = self._send(Chunk(chunk=chunk), outgoing.chunk(heard.sender, chunk))
        if outgoing.is_last(chunk):
            return Step(HolderState.KEYED, (answer,))
        commit = outgoing.sent(heard.sender)
        return Step(HolderState.PROVIDING, (answer,), commit, deadline=self._patience(now))

    def on_expire(self, now: float) -> Step[HolderState]:
        detail = f"no word from {self._server}: still to {self.state.value}"
        return self._aborted(ClientAborted(Code.TIMEOUT, detail, self._server))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[HolderState]:
        return self._aborted(ClientAborted(error.code, error.detail, error.culprit or sender))

    @property
    def _model_bytes(self) -> int:
        return self._configuration.state.size

    def _incoming(self, model: Blob) -> IncomingBlob:
        return IncomingBlob(model, SumLabel.MODEL, self._configuration.state)

    def _check_encrypted(self) -> None:
        if not self._configuration.encrypted:
            raise RemoteProtocolError(Code.UNEXPECTED, "the models of this federation are not encrypted")

    def _encrypt(self, order: ReencryptModel, model: bytes) -> Step[HolderState]:
        former = self._keys[order.former] if order.source == "key" else None
        wanted = Reencrypt(order.source, self._keys[order.epoch], former, model, order.round)
        return Step(HolderState.ENCRYPTING, (wanted,), data=order)

    def _fetch(self, state: HolderState, fetching: _FetchData, now: float) -> Step[HolderState]:
        requests = tuple(self._send(fetch) for fetch in fetching.incoming.requests)
        return Step(state, requests, data=fetching, deadline=self._patience(now))

    def _patience(self, now: float) -> float:
        return now + 2 * self._configuration.phase_seconds

    def _aborted(self, outcome: ClientAborted) -> Step[HolderState]:
        return Step(HolderState.NO_KEY, (outcome,), self.forget)

    def _send(self, message: Message, payload: memoryview | None = None) -> Send:
        return Send(self._server, message, payload)


def _member_table() -> Table[MemberState]:
    s = MemberState
    rows: list[tuple[MemberState, type[Message], Handler, MemberState]] = [
        (s.AWAIT_PEER_COMMITS, PeerKeyCommits, GroupKeyMember.on_peer_commits, s.AWAIT_PEER_CONTRIBUTIONS),
        (
            s.AWAIT_PEER_CONTRIBUTIONS,
            PeerKeyContributions,
            GroupKeyMember.on_peer_contributions,
            s.AWAIT_PEER_CONFIRMATIONS,
        ),
        (s.AWAIT_PEER_CONFIRMATIONS, PeerKeyConfirmations, GroupKeyMember.on_peer_confirmations, s.ACCEPTED),
    ]
    table: dict[Any, Any] = {(s.READY, Trigger.START): Row(GroupKeyMember.on_start, (s.AWAIT_PEER_COMMITS,))}
    for state, kind, handler, following in rows:
        # A member that complains of another ends the attempt; nobody can complain before there are contributions.
        table[state, kind] = Row(handler, (following,) if state is s.AWAIT_PEER_COMMITS else (following, s.ABORTED))
        table[state, Abort] = Row(GroupKeyMember.on_abort, (s.ABORTED,))
        table[state, Trigger.EXPIRE] = Row(GroupKeyMember.on_expire, (s.ABORTED,))
    table[s.ACCEPTED, Abort] = IGNORE
    # Messages sent before this member gave up.
    table.update({(s.ABORTED, kind): IGNORE for kind in (Abort, *ATTEMPT_TO_MEMBER)})
    return table


def _holder_table() -> Table[HolderState]:
    s = HolderState
    table: dict[Any, Any] = {
        **{(s.AGREEING, kind): Inside("attempt") for kind in ATTEMPT_TO_MEMBER},
        (s.AGREEING, GroupKey): Row(GroupKeyHolder.on_key, (s.KEYED,)),
        (s.AGREEING, ClientAborted): Row(GroupKeyHolder.on_attempt_aborted, (s.NO_KEY,)),
        (s.KEYED, ReencryptModel): Row(GroupKeyHolder.on_reencrypt, (s.FETCHING_MODEL, s.ENCRYPTING)),
        (s.KEYED, KeyedModel): Row(GroupKeyHolder.on_last_model, (s.FETCHING_LAST,)),
        (s.FETCHING_MODEL, Chunk): Row(GroupKeyHolder.on_chunk, (s.FETCHING_MODEL, s.ENCRYPTING)),
        (s.ENCRYPTING, Trigger.PROVIDE): Row(GroupKeyHolder.on_provide, (s.PROVIDING, s.KEYED)),
        (s.PROVIDING, Fetch): Row(GroupKeyHolder.on_fetch, (s.PROVIDING, s.KEYED)),
        (s.FETCHING_LAST, Chunk): Row(GroupKeyHolder.on_chunk, (s.FETCHING_LAST, s.KEYED)),
    }
    # No deadline while encrypting: that waits for this client itself, and the server's limit covers all of it.
    for state in (s.FETCHING_MODEL, s.PROVIDING, s.FETCHING_LAST):
        table[state, Trigger.EXPIRE] = Row(GroupKeyHolder.on_expire, (s.NO_KEY,))
    for state in s:
        if state is not s.FETCHING_LAST:
            table[state, EndKey] = Row(GroupKeyHolder.on_end_key, (s.NO_KEY,))
        if state in (s.NO_KEY, s.KEYED):
            table[state, StartKey] = Row(GroupKeyHolder.on_start_key, (s.AGREEING,))
    # Messages sent before this client complained of another, or had its attempt ended.
    table.update({(s.NO_KEY, kind): IGNORE for kind in ATTEMPT_TO_MEMBER})
    return table


MEMBER_TABLE: Final = _member_table()
HOLDER_TABLE: Final = _holder_table()
