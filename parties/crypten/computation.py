"""One computing party: CrypTen in this process, on our links, with a provider of correlated randomness or our dealer.

CrypTen keeps its communicator, provider and configuration in global variables, so a process is one party; it blocks, so
a party with an event loop runs it in a thread of its own, where it also opens the links.

CrypTen 0.4.1 draws zero sharings, shared random values and dropout masks from torch's generators, a Mersenne Twister,
and seeds them with 64 bits. Inside `wired` its random functions are replaced wherever a module has imported them, and
draw from the streams of the session; its truncation is replaced as well. At the end of `wired` everything is restored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch

from tacit.models.friendly.polynomials import ActivationError
from tacit.parties.correlated.material import WORD_BITS, Keystream
from tacit.parties.crypten.communicator import LinkCommunicator
from tacit.parties.crypten.compatibility import Replacement, corrected, crypten, replaced
from tacit.parties.crypten.linear import FixedWeights
from tacit.parties.crypten.link import PeerLink, errors_told
from tacit.parties.crypten.provider import Arithmetic, DealtProvider, check_device
from tacit.parties.crypten.supply import ComputationStreams, Supply, agree_on_streams

_CPU = torch.device("cpu")
_PROBABILITY_BITS = 24
"""A float32 has this many."""


@contextmanager
def wired(supply: Supply, streams: ComputationStreams) -> Iterator[DealtProvider]:
    """Let CrypTen, in this process, draw from these streams and from the dealer. Entered before crypten.init()
    (computation.py); gives the provider for it."""
    provider = DealtProvider(supply)
    gradients = crypten.gradients
    generators = {"prev": streams.previous, "next": streams.following, "local": streams.local, "global": streams.common}
    replacements: list[Replacement] = [
        (crypten, "_setup_prng", lambda: None),
        (crypten, "manual_seed", _refuse_seed),
        (crypten, "generators", {name: {_CPU: stream} for name, stream in generators.items()}),
        (Arithmetic, "div_", _division(provider)),
        (gradients.AutogradDropout, "forward", _dropout(streams.common, tuple)),
        (gradients.AutogradFeatureDropout, "forward", _dropout(streams.common, _features)),
        *_uses_of("generate_random_ring_element", _random_words),
        *_uses_of("generate_kbit_random_tensor", _random_bits),
    ]
    with replaced(replacements):
        yield provider


def _uses_of(name: str, ours: Callable[..., torch.Tensor]) -> list[Replacement]:
    original = getattr(crypten.common.rng, name)
    modules = [module for place, module in list(sys.modules.items()) if place.startswith("crypten.")]
    return [(module, name, ours) for module in modules if vars(module).get(name) is original]


def _random_words(
    size: Sequence[int], ring_size: int = 1 << WORD_BITS, generator: Keystream | None = None, device: Any = None
) -> torch.Tensor:
    """As crypten.common.rng.generate_random_ring_element, over the whole ring."""
    return _random_bits(size, (ring_size - 1).bit_length(), generator, device)


def _random_bits(
    size: Sequence[int], bitlength: int | None = None, generator: Keystream | None = None, device: Any = None
) -> torch.Tensor:
    """As crypten.common.rng.generate_kbit_random_tensor."""
    check_device(device)
    stream = crypten.generators["local"][_CPU] if generator is None else generator
    drawn: torch.Tensor = stream.draw(tuple(size), WORD_BITS if bitlength is None else bitlength)
    return drawn


def _division(provider: DealtProvider) -> Callable[[Any, Any], Any]:
    multiply_by_reciprocal = Arithmetic.div_

    def divided(share: torch.Tensor, divisor: int) -> torch.Tensor:
        if divisor == 0:
            raise ZeroDivisionError("a shared tensor is divided by 0")
        whole = provider.truncate(share, abs(divisor)) if abs(divisor) > 1 else share
        return -whole if divisor < 0 else whole

    def div_(self: Any, y: Any) -> Any:
        """Divide in place: by whole numbers through the dealer, one round for each that occurs in y; by others as
        CrypTen does, which multiplies by the reciprocal and divides by the scale."""
        if isinstance(y, float) and y.is_integer():
            y = int(y)
        if isinstance(y, torch.Tensor) and bool((y == y.round()).all()):
            divisors = y.long().expand_as(self.share)
            for divisor in sorted(set(divisors.flatten().tolist())):
                chosen = divisors == divisor
                self.share[chosen] = divided(self.share[chosen], divisor)
            return self
        if not isinstance(y, int):
            return multiply_by_reciprocal(self, y)
        self.share.copy_(divided(self.share, y))
        return self

    return div_


def _features(size: Sequence[int]) -> tuple[int, ...]:
    return (*size[:2], *(1 for _ in size[2:]))


def _dropout(common: Keystream, shape_of_mask: Callable[[Sequence[int]], tuple[int, ...]]) -> object:
    def forward(context: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        """As in crypten.gradients: the parties know the mask, which hides nothing; it regularises."""
        if not training:
            return input if inplace else input.clone()
        drawn = common.draw(shape_of_mask(input.size()), _PROBABILITY_BITS).float() / (1 << _PROBABILITY_BITS)
        kept = (drawn > p).float().expand(input.size())
        context.save_multiple_for_backward([kept, p])
        factor = kept.div(1.0 - p)
        return input.mul_(factor) if inplace else input.mul(factor)

    return staticmethod(forward)


def _refuse_seed(*_: Any, **__: Any) -> NoReturn:
    raise ValueError("a secure computation accepts no seed: its keys come from the operating system")


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
