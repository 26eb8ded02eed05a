"""What the explorations of the secure sum share: the parties, what is remembered of them, and the rules for clients.

The cohort uses the complete graph, with vectors of one 64-bit word that fit one chunk, and are there when their clients
start. Of a client's past the rules need what it signed, opened and shared; everything else that it sent follows from
its state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Heard, Machine, Output, Send, Step
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import decode_members, split_records
from tacit.protocol.sum.agreement import Agreement, packet_signed
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.messages import (
    AnswerComplaints,
    ConfirmSurvivors,
    MaskedInput,
    PeerKeys,
    ShareKeys,
    UnmaskShares,
)
from tacit.protocol.sum.server import AggregationServer
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import ClientState, ServerState, SumLabel
from tacit.secagg.graph import GraphParameters
from tacit.secagg.ring import Ring
from tacit.secagg.shamir import SHARE_BYTES
from tests.exploration.machines import History, PostOffice, States
from tests.exploration.symbols import SymbolicEntropy, SymbolicShare, SymbolicSigningKey


@dataclass(frozen=True)
class Shared:
    message: ShareKeys


@dataclass(frozen=True)
class Masked:
    sharers: frozenset[int]


@dataclass(frozen=True)
class Signed:
    survivors: frozenset[int]
    signature: bytes


@dataclass(frozen=True)
class Opened:
    """The client was asked to open the sum over `survivors`, and sent shares of these owners' seeds and mask keys."""

    survivors: frozenset[int]
    seeds: frozenset[int]
    keys: frozenset[int]


@dataclass(frozen=True)
class Answered:
    """The client told the server both shares of these holders, who complained."""

    holders: frozenset[int]


@dataclass(frozen=True)
class Over:
    """The client gave up."""


@dataclass(frozen=True)
class SpokeAfterwards:
    """The client gave up, and sent something after that."""


@dataclass(frozen=True)
class Sum:
    words: bytes
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class NoSum:
    """The server gave up, holding at most so many shares of any one secret."""

    code: str
    shares: int


@dataclass(frozen=True)
class Blamed:
    member: str
    code: str


class Cohort:
    """A secure sum's parties and their numbered states. To be used within `symbolic_cryptography`.

    groups: of members that are in the sum all or none, two of whom at least are in a sum; client, server: the machines;
    others than the real ones show that the rules can be broken; spoiler: who seals for the next member what that cannot
    open, and keeps the rules otherwise.
    """

    def __init__(
        self,
        size: int,
        threshold: int,
        *,
        active: bool,
        groups: tuple[tuple[int, ...], ...] = (),
        client: type[AggregationClient] = AggregationClient,
        server: type[AggregationServer] = AggregationServer,
        spoiler: str = "",
    ) -> None:
        names = tuple(f"c{member}" for member in range(size))
        signing = {name: SymbolicSigningKey(f"{name} signing key".encode()) for name in names}
        self.agreement = Agreement(
            session=sha256(b"session").digest(),
            round=0,
            server="server",
            cohort=names,
            signing_keys=tuple(key.public for key in signing.values()),
            active=active,
            regular=False,
            parameters=GraphParameters(size - 1, threshold),
            fewest_survivors=2 if groups else 0,
            groups=groups,
            ring=Ring(64),
            length=1,
            roster=sha256(b"roster").digest(),
            configuration=sha256(b"configuration").digest(),
            model=sha256(b"model").digest(),
            train_seconds=1.0,
            phase_seconds=1.0,
        )
        self.vectors = {name: np.frombuffer(sha256(name.encode()).digest()[:8], np.uint64) for name in names}
        self.post = PostOffice(self.agreement.session)
        self.server = States(server(self.agreement, 0.0), self.post, self._remember_server)
        self.clients = [
            States(
                (SealsBadly if name == spoiler else client)(
                    self.agreement,
                    name,
                    signing=signing[name],  # type: ignore[arg-type]  # a stand-in
                    entropy=SymbolicEntropy(name),
                ),
                self.post,
                self._remember_client,
                vector=self.vectors[name],
            )
            for name in names
        ]

    @property
    def threshold(self) -> int:
        return self.agreement.parameters.threshold

    def cuts(self, members: frozenset[int]) -> bool:
        """Whether some members of a group are among these, and others are not."""
        return any(0 < len(members.intersection(group)) < len(group) for group in self.agreement.groups)

    def members(self, bitmap: bytes) -> frozenset[int]:
        return frozenset(decode_members(bitmap, self.agreement.size))

    def plain_sum(self, names: Sequence[str]) -> bytes:
        total: npt.NDArray[Any] = np.zeros(1, np.uint64)
        for name in names:
            total += self.vectors[name]
        return total.tobytes()

    def _remember_server(
        self, history: History, output: Output, cause: Message | None, server: AggregationServer
    ) -> History:
        if isinstance(output, Summed):
            return (*history, Sum(output.total.tobytes(), output.survivors))
        if isinstance(output, ServerAborted):
            shares = Counter(owner for returned in server._returned.values() for owner in returned.owners)
            return (*history, NoSum(output.code.name, max(shares.values(), default=0)))
        if isinstance(output, ClientDropped) and output.code not in (Code.LEFT.name, Code.TIMEOUT.name):
            return (*history, Blamed(output.member, output.code))
        return history

    def _remember_client(
        self, history: History, output: Output, cause: Message | None, client: AggregationClient
    ) -> History:
        if isinstance(output, ClientAborted):
            return (*history, Over())
        if not isinstance(output, Send):
            return history
        if Over() in history:
            return (*history, SpokeAfterwards())
        fact = self._said(output.message, cause)
        return history if fact is None else (*history, fact)

    def _said(self, message: Message, cause: Any) -> Hashable:
        if isinstance(message, ShareKeys):
            return Shared(message)
        if isinstance(message, MaskedInput):
            return Masked(self.members(cause.sharers))
        if isinstance(message, ConfirmSurvivors):
            return Signed(self.members(cause.survivors), message.signature)
        if isinstance(message, AnswerComplaints):
            return Answered(self.members(cause.holders))
        if isinstance(message, UnmaskShares):
            owners: tuple[set[int], set[int]] = set(), set()
            for place, owner in enumerate(decode_members(message.owners, self.agreement.size)):
                owners[SymbolicShare.decode(message.shares[place * SHARE_BYTES :]).kind].add(owner)
            return Opened(self.members(cause.survivors), frozenset(owners[1]), frozenset(owners[0]))
        return None


Told = tuple[Opened | Answered, ...]


class SealsBadly(AggregationClient):
    """Its seal for the next member does not open; it signs that, and answers with what it committed to."""

    def on_peer_keys(self, heard: Heard[PeerKeys], now: float) -> Step[ClientState]:
        step = super().on_peer_keys(heard, now)
        (sent,) = (output for output in step.outputs if isinstance(output, Send))
        message: Any = sent.message
        holders = decode_members(message.holders, self.agreement.size)
        packets = split_records(message.packets, PACKET_BYTES, holders)
        signatures = self.agreement.split_signatures(message.signatures, holders)
        victim = (self.member + 1) % self.agreement.size
        if victim in packets:
            packet = packets[victim] = packets[victim][:-1] + b"!"
            parts = packet_signed(self.agreement, heard.message.digest, owner=self.member, holder=victim, packet=packet)
            signatures[victim] = self._sign(SumLabel.SIGN_SHARES, *parts)
        spoilt = structs.replace(message, packets=b"".join(packets.values()), signatures=b"".join(signatures.values()))
        return structs.replace(step, outputs=(structs.replace(sent, message=spoilt),))


def waits_forever(machine: Machine[Any]) -> Iterator[str]:
    ended = (ClientState.READY, ClientState.DONE, ClientState.ABORTED, ServerState.COMPLETED, ServerState.ABORTED)
    if machine.state not in ended and machine.deadline is None:
        yield f"waits without a deadline in {machine.state.name}"


class ClientRules:
    """What clients may never have done, each and together, whatever they were told."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self.of_one = cache(self._of_one)
        self.together = cache(self._together)

    def told(self, member: int, state: int) -> Told:
        """What the client opened and answered on its way to a state."""
        return tuple(
            fact for fact in self._cohort.clients[member].histories[state] if isinstance(fact, Opened | Answered)
        )

    def _of_one(self, member: int, state: int) -> tuple[str, ...]:
        states, name = self._cohort.clients[member], self._cohort.agreement.cohort[member]
        faults = [*waits_forever(states.machine(state)), *self._broken(member, states.histories[state])]
        return tuple(f"{name} {fault}" for fault in faults)

    def _broken(self, member: int, history: History) -> Iterator[str]:
        opened = [fact for fact in history if isinstance(fact, Opened)]
        signed = [fact.survivors for fact in history if isinstance(fact, Signed)]
        sharers = next((fact.sharers for fact in history if isinstance(fact, Masked)), frozenset())
        answered = sum(len(fact.holders) for fact in history if isinstance(fact, Answered))
        if answered > self._cohort.agreement.most_complaints:
            yield "answered more complaints than holders may lie"
        if SpokeAfterwards() in history:
            yield "spoke after it had given up"
        if len(opened) > 1:
            yield "opened twice"
        if len({*signed}) > 1:
            yield "signed two different sets of survivors"
        for survivors in [*signed, *(fact.survivors for fact in opened)]:
            if len(survivors) < self._cohort.agreement.fewest_summed:
                yield "accepted too few survivors"
            if self._cohort.cuts(survivors):
                yield "accepted survivors that cut a group in two"
            if not survivors <= sharers:
                yield "accepted survivors who never shared"
            if member not in survivors and not self._cohort.agreement.groups:
                yield "accepted survivors without itself"
        for fact in opened:
            if not fact.seeds <= fact.survivors or fact.keys & fact.survivors:
                yield "sent a share of the wrong kind"
            if self._cohort.agreement.active and fact.survivors not in signed:
                yield "opened a sum over survivors that it did not sign"

    def _together(self, told: tuple[frozenset[Told], ...], agree: bool) -> tuple[str, ...]:
        """The rules that clients broke together.

        told: for each, everything that it may have told by now; agree: whether all must have opened the same sum.
        """
        for combination in product(*told):
            opened = [[fact for fact in past if isinstance(fact, Opened)] for past in combination]
            facts = [fact for past in opened for fact in past]
            for owner in range(self._cohort.agreement.size):
                answered = {h for fact in combination[owner] if isinstance(fact, Answered) for h in fact.holders}
                seeds = {holder for holder, past in enumerate(opened) if any(owner in fact.seeds for fact in past)}
                keys = {holder for holder, past in enumerate(opened) if any(owner in fact.keys for fact in past)}
                if min(len(seeds | answered), len(keys | answered)) >= self._cohort.threshold:
                    return (f"shares that open both secrets of c{owner} left their holders",)
            if agree and len({fact.survivors for fact in facts}) > 1:
                return ("clients opened sums over different survivors",)
        return ()
