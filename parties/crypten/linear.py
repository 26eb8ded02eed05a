"""Products with a fixed weight that one party owns: one message of the size of the input, in one direction.

CrypTen opens both factors of every product, the weight anew each time. Here the weight W is masked once and lasts:

1. Once for each weight: the owner draws V from its stream and sends the others F = W - V.
2. For each input x: the others draw R and Z from theirs, and the dealer gives the owner Z' = R V - Z.
3. The others send E = x_other - R. Their share of the product is R F + Z.
4. The owner's share is (x_owner + E) W + Z'.

The sum is x W. R and Z are new for every product. V masks one weight only, or the difference of two would be seen: so
the owner keeps the words that it masked, whatever becomes of the tensor that it was given, and the same weight (by
SHA-256) is masked once. The owner and the dealer together know x, the others and the dealer W.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from tacit.parties.correlated.material import Linear, Weight
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.provider import Arithmetic
from tacit.parties.crypten.supply import Supply

_NEW = -1


@dataclass(frozen=True, repr=False)
class FixedWeight:
    """A masked weight: the handle that every party holds."""

    owner: int
    number: int
    """Of the request for its mask."""
    words: torch.Tensor
    """int64 (columns in, columns out): the encoded weight at its owner, F elsewhere."""
    encoder: Any


class FixedWeights:
    """The weights that were masked in one session."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._by_number: dict[int, FixedWeight] = {}
        self._numbers: dict[bytes, int] = {}

    def mask(self, weight: torch.Tensor | None, shape: tuple[int, int], *, owner: int) -> FixedWeight:
        """The handle of a float weight (columns in, columns out), which only its owner gives; a call of all parties.

        ValueError for a weight of another shape or with values that are not finite.
        """
        communicator = crypten.communicator.get()
        encoder = crypten.encoder.FixedPointEncoder()
        own = self._supply.rank == owner
        words = torch.empty(shape, dtype=torch.int64)
        fingerprint = b""
        if own:
            if weight is None or weight.shape != shape or not bool(weight.isfinite().all()):
                raise ValueError(f"a fixed weight must have the shape {shape} and finite values")
            words = encoder.encode(weight.detach()).clone()
            fingerprint = hashlib.sha256(words.contiguous().numpy()).digest() + repr(shape).encode()
        known = communicator.broadcast(torch.tensor([self._numbers.get(fingerprint, _NEW)]), owner).item()
        if known != _NEW:
            handle = self._by_number.get(known)
            if handle is None or (handle.owner, handle.words.shape) != (owner, shape):
                party = self._supply.parties[owner]
                raise MpcError(party, "mask a weight", f"it names weight {known}, which is no such weight of its own")
            return handle
        number, masks = self._supply.take(Weight(owner, shape))
        opened = communicator.broadcast(words - masks[0] if own else words, owner)
        handle = FixedWeight(owner, number, words if own else opened, encoder)
        self._by_number[number] = handle
        if own:
            self._numbers[fingerprint] = number
        return handle

    def multiply(self, left: Any, weight: FixedWeight) -> Any:
        """left @ weight: an ArithmeticSharedTensor (..., columns in) to one (..., columns out), truncated."""
        communicator = crypten.communicator.get()
        rank = self._supply.rank
        share: torch.Tensor = left.share
        columns = (weight.words.shape[0], weight.words.shape[1])
        request = Linear(weight.owner, tuple(share.shape[:-1]), weight.number, columns)
        _, words = self._supply.take(request)
        if rank == weight.owner:
            for other in range(len(self._supply.parties)):
                if other != rank:
                    share = share + communicator.recv(torch.empty_like(share), other)
            product = share @ weight.words + words[0]
        else:
            communicator.send(share - words[0], weight.owner)
            product = words[0] @ weight.words + words[1]
        result = Arithmetic.from_shares(product)
        result.encoder = left.encoder if left.encoder.scale > 1 else weight.encoder
        return result.div_(weight.encoder.scale) if min(left.encoder.scale, weight.encoder.scale) > 1 else result
