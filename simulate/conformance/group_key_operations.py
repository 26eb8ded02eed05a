"""Operations on group keys: what its members compute, and playing one attempt: its relay, its members, or one alone."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tacit.protocol.core.machine import Output
from tacit.protocol.core.primitives import AgreementKey, Label, SigningKey
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreed, KeyAgreement, KeyFailed
from tacit.protocol.group_key.member import GroupKeyMember
from tacit.protocol.group_key.relay import GroupKeyRelay
from tacit.protocol.group_key.transcript import Transcript, commit_record
from tacit.protocol.sum.results import ClientAborted
from tacit.simulate.conformance.exchange_stage import ExchangeStage
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.stage import entropy_of, event


class KeyTerms(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all members of an attempt at a group key hold alike before its first message."""

    session: Octets
    epoch: int
    server: str
    members: tuple[str, ...]
    signing_keys: tuple[Octets, ...]
    """Ed25519 public keys of the members."""
    roster: Octets
    configuration: Octets
    phase_seconds: float

    def agreement(self) -> KeyAgreement:
        """The same for the machines; ValueError where no members can have it."""
        return KeyAgreement(**msgspec.structs.asdict(self))


class KeyMember(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A member that is played, or one whose secrets are known."""

    name: str
    signing_private: Octets
    entropy: Octets
    """Its private channel key, and its contribution."""


def group_key(*, terms: KeyTerms, members: tuple[KeyMember, ...]) -> dict[str, Any]:
    """What the secrets of all members lead to: every record that is sent, the transcript, and the key."""
    agreement = terms.agreement()
    places = range(agreement.size)
    signing = [SigningKey(member.signing_private) for member in members]
    channels = [AgreementKey(member.entropy[:32]) for member in members]
    contributions = {place: members[place].entropy[32:64] for place in places}
    commits = {
        place: commit_record(
            agreement, place, signing[place], channel_key=channels[place].public, contribution=contributions[place]
        )
        for place in places
    }
    transcript = Transcript(agreement, commits)
    key = transcript.group_key(contributions)
    return {
        "context": agreement.context,
        "commits": list(commits.values()),
        "transcript": transcript.digest,
        "packets": [
            [
                transcript.packet(channels[owner], signing[owner], contributions[owner], owner=owner, holder=holder)
                for holder in agreement.others(owner)
            ]
            for owner in places
        ],
        "key": key,
        "confirmations": [transcript.confirmation(key, signing[place], place) for place in places],
    }


def use_group_key(*, key: Octets, transcript: Octets, label: str, info: Octets) -> bytes:
    """The 32 bytes that all members have of a group key for one use."""
    return GroupKey(0, key, (), transcript).derive(Label(label.encode()), info)


class GroupKeyStage(ExchangeStage):
    """One attempt at a group key."""

    reports = ("refused",)

    def begin_group_key(self, *, terms: KeyTerms, members: tuple[KeyMember, ...], server: bool) -> bytes:
        """Begin an attempt at a group key, of which these parties are played, at time 0. Returns its context."""
        agreement = terms.agreement()
        if server:
            self._machines[agreement.server] = GroupKeyRelay(agreement, 0.0)
        for member in members:
            self._machines[member.name] = GroupKeyMember(
                agreement,
                member.name,
                signing=SigningKey(member.signing_private),
                entropy=entropy_of(member.entropy),
            )
        self._link(agreement.session, server=agreement.server, members=agreement.members, round=0)
        return agreement.context

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        match output:
            case GroupKey():
                return [event("group key", output, "key", "transcript")]
            case KeyAgreed():
                return [event("agreed", output, "transcript")]
            case KeyFailed():
                return [event("failed", output, "code", "culprits", "remaining")]
            case ClientAborted():
                return [event("aborted", output, "code", "culprit")]
        raise TypeError(type(output).__name__)


GROUP_KEY_OPERATIONS: Final[Operations] = {"group key": group_key, "use group key": use_group_key}
"""By the names that vectors use."""
