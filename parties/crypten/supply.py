"""A computing party's correlated randomness: keys of its streams, and the dealer's corrections, fetched ahead of use.

Both ends of a link draw a fresh contribution from the operating system and send it to each other over the encrypted
link. A party that comes back from a snapshot or a reconnection meets a peer with another contribution: it cannot get a
used keystream again, whatever it replays.

Requests are numbered from 0, in the order of the program, and number n expands stream n of the party's key. A party
announces requests in segments: their kinds and shapes, and how far its zero-sharing streams have come. The dealer waits
for the same segment from every party and compares them, so a party that is out of step, whether it missed a call or
came back from a snapshot, is named instead of computing nonsense. Then it sends the segment's corrections, one message
for each receiver, and takes the next segment; nobody waits for an answer that is not on its way already.

A program that is run again and again is recorded once, and from then on its plan is announced before it runs:

    with supply.recorded() as plan:
        run(first)
    supply.announce(plan)           # the dealer works from here on
    run(second)                     # finds its corrections waiting

At most AHEAD segments are under way, so that memory is bounded and neither side's queue fills up. Their borders follow
from the plan alone, so that all parties announce the same ones. The requests of a plan must be used, in order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Final, NoReturn

import msgspec
import torch
from msgspec import Meta

from tacit.parties.correlated.material import (
    KEY_BYTES,
    AnyRequest,
    Keystream,
    Purpose,
    Weight,
    check,
    correction_words,
    derive,
    expand,
    request_stream,
)
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import PeerLink


class LinkContribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each end of a link brings to the secrets of a session; fresh for every link."""

    pair: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    common: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    """For what all computing parties share; empty towards the dealer."""

    def __repr__(self) -> str:
        return "LinkContribution(...)"


@dataclass(frozen=True, repr=False)
class ComputationStreams:
    """The streams of one computing party that its peers, not the dealer, draw from as well."""

    computation: bytes
    """32 bytes that name this computation, the same at every party and never the same twice; not secret."""
    previous: Keystream
    """Zero sharing with the previous rank."""
    following: Keystream
    """Zero sharing with the next rank."""
    common: Keystream
    local: Keystream


def agree(link: PeerLink, *, first: bool, common: bytes = b"") -> tuple[bytes, bytes]:
    """The 32-byte secret of this end and its peer, and what the peer brought to the common secret.

    `first` says which of the two this end is; they must not agree on that.
    """
    own = LinkContribution(pair=os.urandom(KEY_BYTES), common=common)
    link.send_fields("agree on keys", own)
    other = link.receive_fields("agree on keys", LinkContribution)
    secrets = own.pair + other.pair if first else other.pair + own.pair
    return derive(secrets, Purpose.PAIR, salt=link.binding), other.common


def agree_on_streams(rank: int, links: Mapping[int, PeerLink]) -> ComputationStreams:
    """Make the streams of this rank with its peers; `links` leads to every other rank. MpcError: who is missing."""
    parties = len(links) + 1
    contributions = {rank: os.urandom(KEY_BYTES)}
    secrets: dict[int, bytes] = {}
    for peer, link in sorted(links.items()):
        secrets[peer], contributions[peer] = agree(link, first=rank < peer, common=contributions[rank])
    common = b"".join(contributions[party] for party in range(parties))
    previous = (rank - 1) % parties
    return ComputationStreams(
        computation=derive(common, Purpose.COMPUTATION),
        previous=Keystream(derive(secrets[previous], Purpose.ZERO_SHARING, rank=previous)),
        following=Keystream(derive(secrets[(rank + 1) % parties], Purpose.ZERO_SHARING, rank=rank)),
        common=Keystream(derive(common, Purpose.COMMON)),
        local=Keystream(os.urandom(KEY_BYTES)),
    )


AHEAD: Final = 12
"""Segments that may be announced and not begun. A link queues 16 messages."""
SEGMENT_REQUESTS: Final = 64
SEGMENT_WORDS: Final = 1 << 20
"""Words of correction after which a segment ends; a single request may have more."""

JOIN: Final = "join the dealer"
ANNOUNCE: Final = "announce requests"
FINISHED: Final = "finished"


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A party's first message to the dealer."""

    rank: Annotated[int, Meta(ge=0, le=254)]
    parties: Annotated[int, Meta(ge=2, le=255)]
    computation: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Announcement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment of requests. Without any it is the last one: the party is done."""

    first: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """Number of the first request."""
    requests: Annotated[tuple[AnyRequest, ...], Meta(max_length=SEGMENT_REQUESTS)]
    previous: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """Words drawn for the zero sharing with the previous rank."""
    following: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """Words drawn for the zero sharing with the next rank."""


class Supply:
    """The material of one party in one session. One thread uses it, the one that opened the link to the dealer."""

    def __init__(self, rank: int, parties: Sequence[str], dealer: PeerLink, streams: ComputationStreams) -> None:
        """Join the dealer; MpcError names it when it does not answer. `parties` are names in the order of the ranks."""
        self.rank = rank
        self.parties = tuple(parties)
        self._dealer = dealer
        self._streams = streams
        self._begun: deque[tuple[AnyRequest, list[torch.Tensor]]] = deque()
        self._segments: deque[tuple[AnyRequest, ...]] = deque()
        self._planned: deque[tuple[AnyRequest, ...]] = deque()
        self._recordings: list[list[AnyRequest]] = []
        self._announced = 0
        self._taken = 0
        dealer.send_fields(JOIN, Join(rank=rank, parties=len(parties), computation=streams.computation))
        secret, _ = agree(dealer, first=True)
        self._key = derive(secret, Purpose.MATERIAL, rank=rank)

    def take(self, request: AnyRequest) -> tuple[int, list[torch.Tensor]]:
        """The number of this request and this party's words for it: free ones, then shares of the dependent ones.

        MpcError when an announced plan has another request here, or when the dealer does not deliver; ValueError for a
        request that cannot be met.
        """
        if not self._begun:
            self._begin_segment(request)
        expected, correction = self._begun[0]
        if request != expected:
            self._refuse(f"the program asks for {request} where the announced plan has {expected}")
        self._begun.popleft()
        number = self._taken
        self._taken += 1
        for recording in self._recordings:
            recording.append(request)
        return number, expand(request, self.rank, request_stream(self._key, number)) + correction

    @contextmanager
    def recorded(self) -> Iterator[list[AnyRequest]]:
        """The list that every request of the block is added to, but for the masks of fixed weights: made once, they
        are not asked for again when the program is run again."""
        plan: list[AnyRequest] = []
        self._recordings.append(plan)
        try:
            yield plan
        finally:
            self._recordings.remove(plan)
            plan[:] = [request for request in plan if not isinstance(request, Weight)]

    def announce(self, plan: Sequence[AnyRequest]) -> None:
        """Let the dealer work ahead for a run of this plan. Every party announces the same plans at the same points."""
        segment: list[AnyRequest] = []
        words = 0
        for request in plan:
            check(request, len(self.parties))
            if segment and (len(segment) == SEGMENT_REQUESTS or words + correction_words(request) > SEGMENT_WORDS):
                self._planned.append(tuple(segment))
                segment, words = [], 0
            segment.append(request)
            words += correction_words(request)
        if segment:
            self._planned.append(tuple(segment))
        self._send_ahead()

    def finish(self) -> None:
        """Tell the dealer that this party asks for nothing more, and wait until all parties have said so: nothing that
        is under way is lost then. MpcError when a plan is not used up."""
        if self._begun or self._segments or self._planned:
            self._refuse("the program has ended before the announced plan")
        self._send(())
        self._dealer.receive(FINISHED, [])

    def _begin_segment(self, request: AnyRequest) -> None:
        if not self._segments:
            check(request, len(self.parties))
            self._planned.append((request,))
            self._send_ahead()
        segment = self._segments.popleft()
        self._send_ahead()
        mine = [wanted for wanted in segment if wanted.receiver == self.rank]
        draws = [draw for wanted in mine for draw in wanted.dependent()]
        received: Iterator[torch.Tensor] = iter(())
        if draws:
            operation = corrections_of(self._taken, len(segment))
            arrays = self._dealer.receive(operation, [(torch.int64, draw.shape) for draw in draws])
            received = map(torch.from_numpy, arrays)
        for wanted in segment:
            missing = wanted.dependent() if wanted.receiver == self.rank else ()
            self._begun.append((wanted, [next(received) for _ in missing]))

    def _send_ahead(self) -> None:
        while self._planned and len(self._segments) < AHEAD:
            segment = self._planned.popleft()
            self._send(segment)
            self._segments.append(segment)
            self._announced += len(segment)

    def _send(self, requests: tuple[AnyRequest, ...]) -> None:
        announcement = Announcement(
            first=self._announced,
            requests=requests,
            previous=self._streams.previous.drawn,
            following=self._streams.following.drawn,
        )
        self._dealer.send_fields(ANNOUNCE, announcement)

    def _refuse(self, reason: str) -> NoReturn:
        raise MpcError(
            self.parties[self.rank],
            f"request {self._taken}",
            f"{reason}; record and announce a plan for every shape of input",
        )


def corrections_of(first: int, count: int) -> str:
    """The name of the operation that carries the corrections of a segment."""
    return f"corrections of requests {first} to {first + count - 1}"
