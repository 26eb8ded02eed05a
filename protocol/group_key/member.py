"""A member of one agreement on a group key, which the server relays and never learns.

1. The member commits to 32 random bytes, its contribution, and to a fresh X25519 key. Nobody's contribution can depend
   on another's.
2. Told what all committed to, it sends its contribution to each other member, sealed end to end.
3. When it has opened the contributions of all and found them to be those committed to, it derives the group key and
   confirms it, by a tag that is bound to its name.
4. It accepts the key only when the confirmations of all members are right: so all derived the same key from the same
   transcript, which the server cannot have been part of, since everything is signed with the keys of the roster.

What a wrong record means is told apart by its signature. If the signature is wrong too, the server bent it or should
have refused it: the member ends with the server as culprit, and gives nothing away. If the signature is right, its
owner cheats: the member complains to the server and proves it with its own channel key of this attempt, from which the
server can see for itself. A server alone can never bring that about, and nobody honest accepts a key of that attempt:
after a bad contribution this member's confirmation never comes, and a wrong confirmation is wrong for everybody, unless
its owner made two and told the server the key anyway.

Not prevented: a member that sees the key before it confirms may end the attempt, and so have another key drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Heard, Report, Send, Step
from tacit.protocol.core.members import split_records
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import KEY_BYTES, AgreementKey, SigningKey
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreement
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    KeyAccepted,
    KeyCommit,
    KeyComplaint,
    KeyContribution,
    PeerKeyCommits,
    PeerKeyConfirmations,
    PeerKeyContributions,
)
from tacit.protocol.group_key.tables import MEMBER_TABLE, MemberState
from tacit.protocol.group_key.transcript import (
    COMMIT_BYTES,
    CONFIRMATION_BYTES,
    PACKET_BYTES,
    Transcript,
    check_commits,
    commit_record,
)
from tacit.protocol.sum.participant import Answering
from tacit.protocol.sum.results import ClientAborted


@dataclass(frozen=True)
class _Committed:
    """record: what the member said last, and what the server must have passed on of it."""

    channel: AgreementKey
    contribution: bytes = field(repr=False)
    record: bytes


@dataclass(frozen=True)
class _Contributed(_Committed):
    """key: once it has been derived."""

    transcript: Transcript
    key: bytes = field(default=b"", repr=False)


class GroupKeyMember(Answering[MemberState], tables=(MEMBER_TABLE,), outputs=Send | Report | GroupKey | ClientAborted):
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
        committed = _Committed(channel, contribution, record)
        return self._await(MemberState.AWAIT_PEER_COMMITS, key_commit, committed, now)

    def on_peer_commits(self, heard: Heard[PeerKeyCommits], now: float) -> Step[MemberState]:
        agreement, me, own = self.agreement, self.member, self.at(_Committed)
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
        contributed = _Contributed(own.channel, own.contribution, own.record, transcript)
        return self._await(MemberState.AWAIT_PEER_CONTRIBUTIONS, contribution, contributed, now)

    def on_peer_contributions(self, heard: Heard[PeerKeyContributions], now: float) -> Step[MemberState]:
        me, own = self.member, self.at(_Contributed)
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
        agreement, own = self.agreement, self.at(_Contributed)
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
            epoch=self.agreement.epoch, accused=accused, channel_private=self.at(_Contributed).channel.private
        )
        name = self.agreement.members[accused]
        return self._aborted(ClientAborted(error.code, f"{name}: {error.detail}", name), self._send(complaint))

    def _await(self, state: MemberState, message: Message, data: _Committed, now: float) -> Step[MemberState]:
        """Say this and wait for what the others say: one phase for the slowest member, one for the relay."""
        return Step(state, (self._send(message),), data=data, deadline=now + 2 * self.agreement.phase_seconds)
