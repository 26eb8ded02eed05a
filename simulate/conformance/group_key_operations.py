"""Operations on group keys: what its members compute, and playing one attempt: its relay, its members, or one alone."""

from __future__ import annotations

from typing import Any

import msgspec

from tacit.protocol.aggregation_results import ClientAborted
from tacit.protocol.errors import Code, RemoteProtocolError
from tacit.protocol.group_key_agreement import GroupKey, KeyAgreed, KeyAgreement, KeyFailed
from tacit.protocol.group_key_member import GroupKeyMember
from tacit.protocol.group_key_relay import GroupKeyRelay
from tacit.protocol.group_key_transcript import Transcript, commit_record
from tacit.protocol.link import Link, Traffic
from tacit.protocol.machine import Output, Report, Send
from tacit.protocol.primitives import AgreementKey, Label, SigningKey
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.stage import Done, Stage, coded, entropy_of


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
        return KeyAgreement(
            session=bytes(self.session),
            epoch=self.epoch,
            server=self.server,
            members=self.members,
            signing_keys=self.signing_keys,
            roster=bytes(self.roster),
            configuration=bytes(self.configuration),
            phase_seconds=self.phase_seconds,
        )


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
    contributions = {place: bytes(members[place].entropy[32:64]) for place in places}
    commits = {
        place: commit_record(
            agreement,
            place,
            signing[place],
            channel_key=channels[place].public,
            contribution=contributions[place],
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
    return GroupKey(0, bytes(key), (), bytes(transcript)).derive(Label(label.encode()), bytes(info))


class GroupKeyStage(Stage):
    """One attempt at a group key."""

    def __init__(self) -> None:
        super().__init__()
        self._agreement: KeyAgreement
        self._machines: dict[str, GroupKeyMember | GroupKeyRelay] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def operations(self) -> Operations:
        """By the names that vectors use."""
        return {
            "group key": group_key,
            "use group key": use_group_key,
            "begin group key": self.begin_group_key,
            "start": self.start,
            "receive": self.receive,
            "drop": self.drop,
            "expire": self.expire,
        }

    def begin_group_key(self, *, terms: KeyTerms, members: tuple[KeyMember, ...], server: bool) -> bytes:
        """Begin an attempt at a group key, of which these parties are played, at time 0. Returns its context."""
        self._agreement = agreement = terms.agreement()
        if server:
            self._machines[agreement.server] = GroupKeyRelay(agreement, 0.0)
        for member in members:
            self._machines[member.name] = GroupKeyMember(
                agreement,
                member.name,
                signing=SigningKey(member.signing_private),
                entropy=entropy_of(member.entropy),
            )
        traffic = Traffic()
        for name in agreement.members:
            for own, peer in ((name, agreement.server), (agreement.server, name)):
                self._links[own, peer] = Link(own, peer, agreement.session, traffic)
        return agreement.context

    def start(self, *, party: str) -> Done:
        """A member begins."""
        machine = self._machine(party)
        if not isinstance(machine, GroupKeyMember):
            raise VectorError(f"{party} is no member")
        return self._done(party, machine.start(0.0))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        machine = self._machine(party)
        try:
            packet = self._links[party, sender].packet(self.delivered(party, sender, message, frames))
        except RemoteProtocolError as error:
            return self._done(party, machine.reject(sender, error, now))
        return self._done(party, machine.receive(sender, packet, now))

    def drop(self, *, party: str, now: float = 0.0) -> Done:
        """The server learns that the link to a member is lost for good."""
        relay = self._machine(self._agreement.server)
        if not isinstance(relay, GroupKeyRelay):
            raise VectorError("the server is not played")
        return self._done(self._agreement.server, relay.drop(party, Code.LEFT, "its link was lost", now))

    def expire(self, *, party: str, now: float) -> Done:
        """A party is told the time, in seconds from the beginning of the attempt."""
        return self._done(party, self._machine(party).expire(now))

    def _machine(self, party: str) -> GroupKeyMember | GroupKeyRelay:
        if party not in self._machines:
            raise VectorError(f"{party} is not played")
        return self._machines[party]

    def _done(self, party: str, outputs: list[Output]) -> Done:
        sends, events = [], []
        for output in outputs:
            if isinstance(output, Send):
                frames = self._links[party, output.to].frames(output.message, round=0)
                sends.append(self.sent(party, output.to, frames))
            else:
                events += self._event(output)
        machine = self._machine(party)
        return Done(sends=tuple(sends), events=tuple(events), state=machine.state.name, deadline=machine.deadline)

    def _event(self, output: Output) -> list[dict[str, Any]]:
        match output:
            case GroupKey():
                return [{"event": "group key", "key": output.key, "transcript": output.transcript}]
            case KeyAgreed():
                return [{"event": "agreed", "transcript": output.transcript}]
            case KeyFailed():
                return [coded("failed", output.code, culprits=output.culprits, remaining=output.remaining)]
            case ClientAborted():
                return [coded("aborted", output.code, culprit=output.culprit)]
            case Report(event="refused", fields=fields):
                return [{"event": "refused"} | {name: fields[name] for name in fields if name != "detail"}]
            case Report():
                return []  # Figures for the log.
        raise TypeError(type(output).__name__)
