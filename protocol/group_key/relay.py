"""The server's part in an agreement on a group key: it collects from all members, checks what it can, and passes on.

It waits in four phases for every member: commitments, contributions, confirmations, and the word that the key was
accepted. Nobody can be left out of a key, so the first member that breaks a rule, leaves or is late ends the attempt
and is named; the others are offered as the membership of the next one. The relay verifies every signature before it
passes a record on, so that members may blame it for those that do not verify.

It sees no contribution and no key. Whether a member that complains of another is right, it learns from the complaint:
with its channel key the relay opens what it was sent, computes the key of the failed attempt, and names one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tacit.protocol.core.codec import Packet
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.machine import Heard, Machine, Output, Report, Send, Step, Trigger
from tacit.protocol.core.members import split_records
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import AgreementKey
from tacit.protocol.group_key.agreement import KeyAgreed, KeyAgreement, KeyFailed
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
from tacit.protocol.group_key.tables import RELAY_TABLE, RelayState
from tacit.protocol.group_key.transcript import PACKET_BYTES, Transcript, channel_key_of, check_commits

Answer = TypeVar("Answer")


class GroupKeyRelay(Machine[RelayState], tables=(RELAY_TABLE,), outputs=Send | Report | KeyAgreed | KeyFailed):
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
        """A member is gone. Somebody who is no member of this attempt does not matter to it."""
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
        report = Report("refused", {"from": sender, "code": error.code.name, "detail": error.detail})
        return Step(self.state, (report,))

    def _place(self, sender: str) -> int:
        """Refuse who is no member: it came too late for this attempt, or left before it."""
        if sender not in self.agreement.places:
            raise RemoteProtocolError(Code.MEMBERS, f"it is no member of the group of epoch {self.agreement.epoch}")
        return self.agreement.places[sender]

    def _check_accused(self, accused: int, member: int, channel: AgreementKey) -> None:
        """Refuse a contribution to the complaining member, or a confirmation, that is wrong."""
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

        report = Report("opened", {"phase": state.value, "members": len(messages)})
        said = (report, *(Send(name, message) for name, message in messages.items()))
        return Step(state, said, commit, data=transcript, deadline=now + self.agreement.phase_seconds)

    def _failed(self, code: Code, detail: str, culprits: tuple[str, ...], *, gone: bool = False) -> Step[RelayState]:
        members, detail = self.agreement.members, detail[:DETAIL_LIMIT]
        remaining = tuple(name for name in members if name not in culprits)
        abort = Abort(code=code, detail=detail, culprit=culprits[0])
        sends = [Send(name, abort) for name in (remaining if gone else members)]
        failed = KeyFailed(self.agreement.epoch, code, detail, culprits, remaining)
        return Step(RelayState.ABORTED, (*sends, failed), self.waiting.clear)
