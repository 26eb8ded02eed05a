"""Clients alone against a server that lies: it may send anything that it can put together, to anybody, at any time.

The liar knows what clients sent. It lists the keys of any members, passes on the packets of any members that shared,
names any survivors, and encloses the signatures of any of these survivors, with groups of anybody (junk where it has
seen none over them). It cannot make up a signature or open a packet. A state is the clients' states: they tell what was
sent.

Left out is what a liar gains nothing by: that a client gives up without having said more, for it can as well leave it
alone; junk in the place of packets, for it can as well make their owner share first; and the contents of messages that
a client's table refuses unread, where one message stands for all of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from typing import Any

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import SIGNATURE_BYTES
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.agreement import Advert, adverts_digest, complaint_signed
from tacit.protocol.sum.messages import (
    FetchVector,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    Survivors,
    UnmaskRequest,
)
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import SumLabel
from tests.exploration.machines import Event
from tests.exploration.secure_sum import ClientRules, Cohort, Opened, Over, Shared, Signed, Told

LyingState = tuple[int, ...]
"""The state of every client."""
Move = tuple[str, int]
"""What is done to a client, and the state that it leads to."""


@dataclass(frozen=True)
class Standing:
    """What matters of a client's state, to the liar and to the rules."""

    shared: int | None
    """Its letter ShareKeys."""
    signed: tuple[Signed, ...]
    told: frozenset[Told]
    faults: tuple[str, ...]
    reads: frozenset[type[Message]]
    """What its table admits."""


class LyingWorld:
    """whole: whether the liar also lies about who advertised and who shared, or only about the survivors.

    corrupt: whether the last client signs complaints for the liar, of everybody.
    """

    def __init__(self, cohort: Cohort, *, whole: bool, corrupt: bool = False) -> None:
        self.cohort = cohort
        self._rules = ClientRules(cohort)
        self._everybody = tuple(range(cohort.agreement.size))
        self._lists = [*subsets(self._everybody)] if whole else [self._everybody]
        self._adverts: dict[int, Advert] = {}
        self._started = tuple(map(self._start, self._everybody))
        self._bitmap = cache(self._encoded)
        self._letters = self._composed(corrupt)
        self._requests = [
            (survivors, signers)
            for survivors in subsets(self._everybody)
            for signers in subsets(self._signers(survivors))
        ]
        self.standing = cache(self._standing)
        self.without_help = cache(self._without_help)
        self.with_packets = cache(self._with_packets)
        self.with_signatures = cache(self._with_signatures)

    def _signers(self, survivors: tuple[int, ...]) -> tuple[int, ...]:
        """Who may have signed these: with groups also members that are left out."""
        if not self.cohort.agreement.active:
            return ()
        return self._everybody if self.cohort.agreement.groups else survivors

    def initial(self) -> LyingState:
        return self._started

    def moves(self, state: LyingState) -> Iterator[tuple[str, LyingState]]:
        standings = [*map(self.standing, self._everybody, state)]
        shared = tuple([standing.shared for standing in standings])
        signed = tuple([standing.signed for standing in standings])
        for member, client in enumerate(state):
            moves = [*self.without_help(member, client)]
            if PeerShares in standings[member].reads:
                moves += self.with_packets(member, client, shared)
            if UnmaskRequest in standings[member].reads:
                moves += self.with_signatures(member, client, signed)
            for name, following in moves:
                yield name, (*state[:member], following, *state[member + 1 :])

    def faults(self, state: LyingState) -> Iterator[str]:
        standings = [*map(self.standing, self._everybody, state)]
        for standing in standings:
            yield from standing.faults
        told = tuple([standing.told for standing in standings])
        yield from self._rules.together(told, self.cohort.agreement.active)

    def outcome(self, state: LyingState) -> str:
        pasts = [past for member, client in enumerate(state) for past in self.standing(member, client).told]
        opened = sum(any(isinstance(fact, Opened) for fact in past) for past in pasts)
        return f"{opened} clients opened"

    def _start(self, member: int) -> int:
        state, ((_, letter),) = self.cohort.clients[member].after(0, Trigger.START, self.cohort.agreement.server)
        message: Any = self.cohort.post.letters[letter].message
        self._adverts[member] = Advert(message.channel_key, message.mask_key, message.choices, message.signature)
        return state

    def _standing(self, member: int, client: int) -> Standing:
        states = self.cohort.clients[member]
        machine, history = states.machine(client), states.histories[client]
        shared = [self.cohort.post.letter(fact.message) for fact in history if isinstance(fact, Shared)]
        return Standing(
            shared=shared[0] if shared else None,
            signed=tuple(fact for fact in history if isinstance(fact, Signed)),
            told=frozenset([self._rules.told(member, client)]),
            faults=self._rules.of_one(member, client),
            reads=frozenset(kind for kind in MESSAGES.values() if machine.admits(kind)),
        )

    def _without_help(self, member: int, client: int) -> list[Move]:
        """Messages for which the liar needs nothing but the adverts; and the client's own deadline and link."""
        reads = self.standing(member, client).reads
        letters = [
            letter
            for kind, all_of_kind in self._letters.items()
            for letter in (all_of_kind if kind in reads else all_of_kind[:1])
        ]
        return self._effects(member, client, *letters, Trigger.EXPIRE, Trigger.DROP)

    def _composed(self, corrupt: bool) -> dict[type[Message], list[int]]:
        """By kind, the letters that can be composed without anything that clients sent later than their adverts."""
        everything = [*subsets(self._everybody)]
        nobody = self._bitmap(())
        messages: list[Message] = [
            Abort(code=Code.LEFT, detail="", culprit=""),
            FetchVector(chunk=0),
            *(self._peer_keys(listed, included) for listed in self._lists for included in self._lists),
            PeerShares(sharers=nobody, owners=nobody, packets=b"", signatures=b""),
            *(Survivors(survivors=self._bitmap(survivors)) for survivors in everything),
            UnmaskRequest(survivors=nobody, signers=nobody, signatures=b"", answered=nobody, answers=b""),
            PeerComplaints(holders=self._bitmap(self._everybody), signatures=b""),
            *(self._complaints() if corrupt else ()),
        ]
        letters: dict[type[Message], list[int]] = {}
        for message in messages:
            letters.setdefault(type(message), []).append(self.cohort.post.letter(message))
        return letters

    def _complaints(self) -> Iterator[PeerComplaints]:
        """The last client's of everybody, where all advertised and shared; and of others, which nobody signed."""
        agreement, holder = self.cohort.agreement, len(self._everybody) - 1
        everybody = self._bitmap(self._everybody)
        sharing = agreement.sharing_digest(adverts_digest(agreement, self._adverts), everybody)
        signing: Any = self.cohort.clients[holder].machine(0)
        for owner in self._everybody[:-1]:
            parts = complaint_signed(sharing, owner=owner, holder=holder)
            signature = signing._signing.sign(SumLabel.SIGN_COMPLAINT, *parts)
            yield PeerComplaints(holders=self._bitmap((holder,)), signatures=signature)
        for holders in combinations(self._everybody, 1):
            yield PeerComplaints(holders=self._bitmap(holders), signatures=bytes(SIGNATURE_BYTES * len(holders)))

    def _with_packets(self, member: int, client: int, shared: tuple[int | None, ...]) -> list[Move]:
        lists = [sharers for sharers in self._lists if all(shared[sharer] is not None for sharer in sharers)]
        letter = self.cohort.post.letter
        return self._effects(member, client, *(letter(self._peer_shares(member, sharers, shared)) for sharers in lists))

    def _with_signatures(self, member: int, client: int, signed: tuple[tuple[Signed, ...], ...]) -> list[Move]:
        requests = [self._unmask_request(survivors, signers, signed) for survivors, signers in self._requests]
        return self._effects(member, client, *map(self.cohort.post.letter, requests))

    def _peer_keys(self, listed: tuple[int, ...], included: tuple[int, ...]) -> PeerKeys:
        adverts = {other: self._adverts[other] for other in included}
        return PeerKeys(
            advertised=self._bitmap(listed),
            digest=adverts_digest(self.cohort.agreement, adverts),
            included=self._bitmap(included),
            adverts=b"".join(advert.record for advert in adverts.values()),
        )

    def _peer_shares(self, member: int, sharers: tuple[int, ...], shared: tuple[int | None, ...]) -> PeerShares:
        packets, signatures, size = b"", b"", SIGNATURE_BYTES if self.cohort.agreement.active else 0
        for owner in sharers:
            message: Any = self.cohort.post.letters[shared[owner] or 0].message
            holders = decode_members(message.holders, self.cohort.agreement.size)
            if member not in holders:
                packets += bytes(PACKET_BYTES)
                signatures += bytes(size)
                continue
            place = holders.index(member)
            packets += message.packets[place * PACKET_BYTES : (place + 1) * PACKET_BYTES]
            signatures += message.signatures[place * size : (place + 1) * size]
        bitmap = self._bitmap(sharers)
        return PeerShares(sharers=bitmap, owners=bitmap, packets=packets, signatures=signatures)

    def _unmask_request(
        self, survivors: tuple[int, ...], signers: tuple[int, ...], signed: tuple[tuple[Signed, ...], ...]
    ) -> UnmaskRequest:
        signatures = [
            next(
                (fact.signature for fact in signed[signer] if fact.survivors == frozenset(survivors)),
                bytes(SIGNATURE_BYTES),
            )
            for signer in signers
        ]
        return UnmaskRequest(
            survivors=self._bitmap(survivors),
            signers=self._bitmap(signers),
            signatures=b"".join(signatures),
            answered=self._bitmap(()),
            answers=b"",
        )

    def _effects(self, member: int, client: int, *events: Event) -> list[Move]:
        """What letters and triggers do to the client, each effect once."""
        states, agreement = self.cohort.clients[member], self.cohort.agreement
        effects: dict[int, Event] = {}
        for event in events:
            following, _ = states.after(client, event, agreement.server)
            gave_up = states.ended(following) and states.histories[following] == (*states.histories[client], Over())
            if following != client and not gave_up:
                effects.setdefault(following, event)
        return [
            (f"{agreement.cohort[member]}: {self.cohort.post.name(event)}", following)
            for following, event in effects.items()
        ]

    def _encoded(self, members: tuple[int, ...]) -> bytes:
        return encode_members(members, self.cohort.agreement.size)


def subsets(members: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(members, count) for count in range(len(members) + 1))
