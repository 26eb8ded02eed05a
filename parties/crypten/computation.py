"""A computing party with a dealer: links, streams, material and CrypTen put together, in the order that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tacit.models.friendly.gauge import ActivationError
from tacit.parties.crypten.communicator import LinkCommunicator
from tacit.parties.crypten.key_agreement import agree_on_streams
from tacit.parties.crypten.linear import FixedWeights
from tacit.parties.crypten.link import PeerLink, errors_told
from tacit.parties.crypten.session import computing
from tacit.parties.crypten.supply import Supply
from tacit.parties.crypten.wiring import wired


@dataclass(frozen=True)
class Computation:
    """What a program uses beside CrypTen itself."""

    communicator: LinkCommunicator
    supply: Supply
    weights: FixedWeights


@contextmanager
def dealt_computation(
    own: str, *, parties: Sequence[str], links: Mapping[str, PeerLink], dealer: PeerLink
) -> Iterator[Computation]:
    """CrypTen is ready within the block; its random words come from the session's streams and the dealer.

    `parties` are the names of the computing parties in the order of their ranks, `links` leads to the others. MpcError
    names whoever is missing, late or out of step. How the block ends, with or without an error, is told to the others.
    """
    rank = parties.index(own)
    # That a value is beyond its interval is known to all parties (shared_model.py).
    with errors_told([*links.values(), dealer], ActivationError):
        streams = agree_on_streams(rank, {parties.index(peer): link for peer, link in links.items()})
        supply = Supply(rank, parties, dealer, streams)
        with (
            wired(supply, streams) as provider,
            computing(own, parties=parties, links=links, provider=provider) as communicator,
        ):
            yield Computation(communicator, supply, FixedWeights(supply))
            supply.finish()
