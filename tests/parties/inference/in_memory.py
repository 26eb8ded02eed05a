"""Both parties and the dealer in one process: material out of the real requests, programs driven message by message."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from tacit.parties.inference.operations import DATA, MODEL, Exchange, FixedLinear, Party, Program
from tacit.parties.inference.ring import byte_width, packed, unpacked
from tacit.parties.inference.weights import IntegerWeight
from tacit.parties.mpc.material import Linear, Request, Weight, correct, expand
from tacit.parties.mpc.streams import Keystream


@dataclass
class Pair:
    """Two parties that ask for the same requests in the same order."""

    keys: tuple[bytes, bytes] = field(default_factory=lambda: (os.urandom(32), os.urandom(32)))
    requests: list[Request] = field(default_factory=list)
    taken: list[int] = field(default_factory=lambda: [0, 0])
    sent: list[dict[str, int]] = field(default_factory=lambda: [{}, {}])
    """Bytes by operation, of each."""
    rounds: int = 0

    @property
    def parties(self) -> tuple[Party, Party]:
        return Party(MODEL, lambda request: self._take(MODEL, request)), Party(
            DATA, lambda request: self._take(DATA, request)
        )

    def _take(self, rank: int, request: Request) -> list[torch.Tensor]:
        number = self.taken[rank]
        self.taken[rank] += 1
        if number == len(self.requests):
            self.requests.append(request)
        assert self.requests[number] == request
        words = expand(request, rank, Keystream(self.keys[rank], number))
        if rank == request.receiver:
            weight = None
            if isinstance(request, Linear):
                weight = Keystream(self.keys[MODEL], request.weight).draw(request.weight_shape)
            words += correct(request, [Keystream(key, number) for key in self.keys], weight)
        return words

    def fixed(self, weight: IntegerWeight) -> tuple[FixedLinear, FixedLinear]:
        """The layer at both parties."""
        shape = (weight.words.shape[0], weight.words.shape[1])
        number = self.taken[MODEL]
        (mask,), _ = (party.take(Weight(MODEL, shape)) for party in self.parties)
        return FixedLinear(number, weight.words, weight.bias, weight.bits), FixedLinear(
            number, weight.words - mask, None, weight.bits
        )

    def run(self, *programs: Program[Any]) -> list[Any]:
        """Drive both to their ends; what they return."""
        results: list[Any] = [None, None]
        asked: list[Exchange | None] = [None, None]
        for rank, program in enumerate(programs):
            asked[rank] = self._step(results, rank, program, None)
        while any(asked):
            one, other = asked
            assert one is not None
            assert other is not None
            assert one.operation == other.operation
            self.rounds += 1
            arrived = [self._carried(other, one, DATA), self._carried(one, other, MODEL)]
            asked = [self._step(results, rank, program, arrived[rank]) for rank, program in enumerate(programs)]
        return results

    @staticmethod
    def _step(results: list[Any], rank: int, program: Program[Any], arrived: Any) -> Exchange | None:
        try:
            return program.send(arrived)
        except StopIteration as stop:
            results[rank] = stop.value
            return None

    def _carried(self, sender: Exchange, receiver: Exchange, rank: int) -> list[torch.Tensor]:
        assert [(tuple(words.shape), bits) for words, bits in sender.sent] == list(receiver.expected)
        counted = self.sent[rank]
        size = sum(words.numel() * byte_width(bits) for words, bits in sender.sent)
        counted[sender.operation] = counted.get(sender.operation, 0) + size
        return [unpacked(packed(words, bits), bits, tuple(words.shape)) for words, bits in sender.sent]


def shares(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Uniform additive shares modulo 2^64."""
    mask = Keystream(os.urandom(32)).draw(tuple(words.shape))
    return words - mask, mask
