"""One computing party: CrypTen in this process, on our links, with a provider of correlated randomness or our dealer.

CrypTen keeps its communicator, provider and configuration in global variables, so a process is one party; it blocks, so
a party with an event loop runs it in a thread of its own, where it also opens the links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tacit.models.friendly.gauge import ActivationError
from tacit.parties.crypten.communicator import LinkCommunicator
from tacit.parties.crypten.compatibility import corrected, crypten, replaced
from tacit.parties.crypten.key_agreement import agree_on_streams
from tacit.parties.crypten.linear import FixedWeights
from tacit.parties.crypten.link import PeerLink, errors_told
from tacit.parties.crypten.supply import Supply
from tacit.parties.crypten.wiring import wired

_PROVIDER: Final = "TACIT"


@contextmanager
def computing(
    own: str, *, parties: Sequence[str], links: Mapping[str, PeerLink], provider: Any
) -> Iterator[LinkCommunicator]:
    """CrypTen is ready within the block, and corrected: all of its calls go over the links, to the parties in the order
    of their rank.

    provider: a crypten.mpc.provider.provider.TupleProvider. CrypTen's own are for tests alone: with them, one party
    knows all masks. Raises RuntimeError when this process already computes, and what the links raise.
    """
    if crypten.communicator.is_initialized():
        raise RuntimeError("this process already takes part in a computation: CrypTen allows one party per process")
    providers = vars(crypten.mpc)["__SUPPORTED_PROVIDERS"]
    before = crypten.cfg.mpc.provider
    communicator = LinkCommunicator(own=own, parties=parties, links=links)
    LinkCommunicator.prepared = communicator
    providers[_PROVIDER] = provider
    crypten.cfg.mpc.provider = _PROVIDER
    try:
        with replaced([(crypten.communicator, "DistributedCommunicator", LinkCommunicator)]), corrected():
            crypten.init()
            yield communicator
    finally:
        LinkCommunicator.shutdown()
        crypten.cfg.mpc.provider = before
        del providers[_PROVIDER]


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
