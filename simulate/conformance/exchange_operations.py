"""Operations of one exchange of a server with its members: playing a secure sum, or an attempt at a group key.

Of a group key also what its members compute, without machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Output, Send, Transmit, Trigger
from tacit.protocol.core.primitives import AgreementKey, Label, SigningKey
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreed, KeyAgreement, KeyFailed, Transcript, commit_record
from tacit.protocol.group_key.holder import GroupKeyMember
from tacit.protocol.group_key.keeper import GroupKeyRelay
from tacit.protocol.session.rounds import sum_client, sum_server
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.exchange import ClientAborted, Contributed, ServerAborted, Summed
from tacit.secagg.ring import Ring, Words
from tacit.simulate.conformance.exchange import hear, links
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.primitive_operations import SumTerms
from tacit.simulate.conformance.stage import Done, Stage, entropy_of


class ExchangeStage(Stage):
    """Plays some of the machines of one exchange. Subclasses make them, and say what they report."""

    def __init__(self) -> None:
        super().__init__()
        self._server = ""
        self._round = 0
        self._links: Mapping[tuple[str, str], Link] = {}

    def _link(self, session: bytes, *, server: str, members: Iterable[str], round: int) -> None:
        """Give every member its link with the server."""
        self._server, self._round = server, round
        self._links = links(session, server, members, Traffic())

    def start(self, *, party: str) -> Done:
        """A member begins."""
        if party == self._server:
            raise VectorError(f"{party} is no member")
        return self.did(party, lambda machine: machine.trigger(Trigger.START, 0.0))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        return self.did(party, lambda machine: hear(machine, self._links[party, sender], delivered, now))

    def drop(self, *, party: str, now: float = 0.0) -> Done:
        """The server learns that the link to a member is lost for good."""
        return self.did(self._server, lambda server: server.drop(party, Code.LEFT, "its link was lost", now))

    def expire(self, *, party: str, now: float) -> Done:
        """A party is told the time, in seconds from the beginning of the exchange."""
        return self.did(party, lambda machine: machine.expire(now))

    def _transmit(self, party: str, output: Output) -> Output:
        if not isinstance(output, Send):
            return output
        frames = self._links[party, output.to].frames(output.message, round=self._round, payload=output.payload)
        return Transmit(output.to, frames, output.message.PHASE)


class SummedClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A client that is played."""

    name: str
    signing_private: Octets
    vector: Octets
    """Packed ring words."""
    entropy: Octets
    """What it draws, one after the other; docs/spec says in which order."""


class SumStage(ExchangeStage):
    """One secure sum."""

    reports = ("dropped", "complaint", "refused")
    plain_events: ClassVar = {
        ClientAborted: ("aborted", "code", "culprit"),
        ServerAborted: ("aborted", "code", "culprit"),
    }

    def __init__(self) -> None:
        super().__init__()
        self._agreement: Agreement
        self._vectors: dict[str, Words] = {}

    def begin_sum(self, *, terms: SumTerms, clients: tuple[SummedClient, ...], server: bool) -> bytes:
        """Begin a secure sum, of which these parties are played, at time 0. Returns its context."""
        self._agreement = agreement = terms.agreement()
        if server:
            self._machines[agreement.server] = sum_server(agreement, 0.0)
        for client in clients:
            self._machines[client.name] = sum_client(
                agreement,
                client.name,
                signing=SigningKey(client.signing_private),
                entropy=entropy_of(client.entropy),
            )
            self._vectors[client.name] = agreement.ring.unpack(client.vector)
        self._link(agreement.session, server=agreement.server, members=agreement.cohort, round=agreement.round)
        return agreement.context

    def start(self, *, party: str) -> Done:
        """A member begins, or in the mode `none` the server."""
        if self._agreement.secure:
            return super().start(party=party)
        return self.did(party, lambda machine: machine.start(0.0))

    def give_vector(self, *, party: str, now: float = 0.0) -> Done:
        """A client has made its vector."""
        return self.did(party, lambda client: client.contribute(self._vectors[party], now))

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        match output:
            case Contributed():
                return []  # Its state says so.
            case Summed():
                ring = self._agreement.ring if self._agreement.secure else Ring(64)
                words = ring.pack(output.total)
                return [{"event": "sum", "words": words, "survivors": output.survivors}]
        return super()._events(party, output)


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
    plain_events: ClassVar = {
        GroupKey: ("group key", "key", "transcript"),
        KeyAgreed: ("agreed", "transcript"),
        KeyFailed: ("failed", "code", "culprits", "remaining"),
        ClientAborted: ("aborted", "code", "culprit"),
    }

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


GROUP_KEY_OPERATIONS: Final[Operations] = {"group key": group_key, "use group key": use_group_key}
"""By the names that vectors use."""
