"""How the parties of a computation agree on the keys of their streams.

Both ends of a link draw a fresh contribution from the operating system and tell each other over the encrypted link. A
party that comes back from a snapshot or a reconnection meets a peer with another contribution: it cannot get a used
keystream again, whatever it replays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from tacit.parties.correlated.streams import KEY_BYTES, Keystream, Purpose, derive
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
