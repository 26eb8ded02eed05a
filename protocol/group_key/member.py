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

from typing import NamedTuple

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Machine, Output, Report, Send, Step, Trigger
from tacit.protocol.core.messages import Abort, Message
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
    split_records,
)
from tacit.protocol.sum.results import ClientAborted


class _Secrets(NamedTuple):
    channel: AgreementKey
    contribution: bytes
    key: bytes = b""

    def __repr__(self) -> str:
        return "_Secrets(<secret>)"


class GroupKeyMember(Machine[MemberState]):
    """One member in one attempt. It ends with a GroupKey or a ClientAborted."""

    def __init__(self, agreement: KeyAgreement, name: str, *, signing: SigningKey, entropy: Entropy) -> None:
        super().__init__(MEMBER_TABLE, MemberState.READY)
        self.agreement = agreement
        self.name = name
        self.member = agreement.places[name]
        self._signing = signing
        self._entropy = entropy
        self._commit = b""
        self._confirmation = b""
        self._transcript: Transcript
        self._secrets: _Secrets

    def start(self, now: float) -> list[Output]:
        """Commit to a contribution."""
        return self.trigger(Trigger.START, now)

    def drop(self, detail: str, now: float) -> list[Output]:
        """The link to the relay is lost for good."""
        return self.trigger(Trigger.DROP, now, detail)

    def on_start(self, now: float) -> Step[MemberState]:
        secrets = _Secrets(AgreementKey(self._entropy(KEY_BYTES)), self._entropy(KEY_BYTES))
        record = commit_record(
            self.agreement,
            self.member,
            self._signing,
            channel_key=secrets.channel.public,
            contribution=secrets.contribution,
        )

        def commit() -> None:
            self._commit, self._secrets = record, secrets
            self._wait(now)

        key_commit = KeyCommit(
            epoch=self.agreement.epoch,
            channel_key=record[:KEY_BYTES],
            commitment=record[KEY_BYTES : 2 * KEY_BYTES],
            signature=record[2 * KEY_BYTES :],
        )
        return Step(MemberState.AWAIT_PEER_COMMITS, (self._send(key_commit),), commit)

    def on_peer_commits(self, sender: str, message: PeerKeyCommits, payload: None, now: float) -> Step[MemberState]:
        agreement, me = self.agreement, self.member
        commits = split_records(message.commits, COMMIT_BYTES, list(range(agreement.size)))
        if commits[me] != self._commit:
            raise RemoteProtocolError(Code.KEYS, "the list of commitments has another one for this member than it sent")
        check_commits(agreement, commits)
        transcript = Transcript(agreement, commits)
        secrets = self._secrets
        packets = b"".join(
            transcript.packet(secrets.channel, self._signing, secrets.contribution, owner=me, holder=other)
            for other in agreement.others(me)
        )

        def commit() -> None:
            self._transcript = transcript
            self._wait(now)

        return Step(
            MemberState.AWAIT_PEER_CONTRIBUTIONS,
            (self._send(KeyContribution(epoch=agreement.epoch, packets=packets)),),
            commit,
        )

    def on_peer_contributions(
        self, sender: str, message: PeerKeyContributions, payload: None, now: float
    ) -> Step[MemberState]:
        transcript, me, secrets = self._transcript, self.member, self._secrets
        packets = split_records(message.packets, PACKET_BYTES, self.agreement.others(me))
        contributions = {me: secrets.contribution}
        for owner, packet in packets.items():
            transcript.check_packet(packet, owner=owner, holder=me)
            try:
                contributions[owner] = transcript.contribution(packet, secrets.channel, owner, owner=owner, holder=me)
            except RemoteProtocolError as error:
                return self._complain(owner, error)
        key = transcript.group_key(contributions)
        record = transcript.confirmation(key, self._signing, me)

        def commit() -> None:
            self._confirmation, self._secrets = record, secrets._replace(key=key)
            self._wait(now)

        confirm = ConfirmKey(epoch=self.agreement.epoch, tag=record[:KEY_BYTES], signature=record[KEY_BYTES:])
        return Step(MemberState.AWAIT_PEER_CONFIRMATIONS, (self._send(confirm),), commit)

    def on_peer_confirmations(
        self, sender: str, message: PeerKeyConfirmations, payload: None, now: float
    ) -> Step[MemberState]:
        agreement, transcript, key = self.agreement, self._transcript, self._secrets.key
        records = split_records(message.confirmations, CONFIRMATION_BYTES, list(range(agreement.size)))
        if records[self.member] != self._confirmation:
            raise RemoteProtocolError(Code.SECRET, "the list of confirmations has another one for this member")
        for member, record in records.items():
            transcript.check_confirmation(record, member)
            try:
                transcript.check_tag(record, key, member)
            except RemoteProtocolError as error:
                return self._complain(member, error)
        outputs = (
            GroupKey(agreement.epoch, key, agreement.members, transcript.digest),
            self._send(KeyAccepted(epoch=agreement.epoch)),
        )
        return Step(MemberState.ACCEPTED, outputs, self.forget)

    def on_abort(self, sender: str, message: Abort, payload: None, now: float) -> Step[MemberState]:
        return self._aborted(ClientAborted(message.code, message.detail, message.culprit))

    def on_expire(self, now: float) -> Step[MemberState]:
        detail = f"no word from {self.agreement.server}: still to {self.state.value}"
        return self._aborted(ClientAborted(Code.TIMEOUT, detail, self.agreement.server))

    def on_drop(self, detail: str, now: float) -> Step[MemberState]:
        return self._aborted(ClientAborted(Code.LEFT, detail, self.agreement.server))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[MemberState]:
        if self.state in (MemberState.ACCEPTED, MemberState.ABORTED):
            report = Report("refused", {"from": sender, "code": error.code.name, "detail": error.detail})
            return Step(self.state, (report,))
        culprit = error.culprit or sender
        abort = self._send(Abort(code=error.code, detail=error.detail, culprit=culprit))
        return self._aborted(ClientAborted(error.code, error.detail, culprit), abort)

    def forget(self) -> None:
        """Drop every secret of this attempt."""
        self.deadline = None
        self.__dict__.pop("_secrets", None)

    def _complain(self, accused: int, error: RemoteProtocolError) -> Step[MemberState]:
        complaint = KeyComplaint(
            epoch=self.agreement.epoch, accused=accused, channel_private=self._secrets.channel.private
        )
        name = self.agreement.members[accused]
        return self._aborted(ClientAborted(error.code, f"{name}: {error.detail}", name), self._send(complaint))

    def _aborted(self, outcome: ClientAborted, *sends: Send) -> Step[MemberState]:
        return Step(MemberState.ABORTED, (*sends, outcome), self.forget)

    def _send(self, message: Message) -> Send:
        return Send(self.agreement.server, message)

    def _wait(self, now: float) -> None:
        # One phase for the slowest member, one for the relay.
        self.deadline = now + 2 * self.agreement.phase_seconds
