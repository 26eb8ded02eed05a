"""Both parties and the dealer in one process: material out of the real requests, programs driven message by message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.models.training import CPU
from tacit.parties.correlated.material import Keystream, Linear, Request, Weight, correct, expand, request_stream
from tacit.parties.inference.model import FittedModel, IntegerWeight, integer_model
from tacit.parties.inference.operations import DATA, MODEL, Communication, FixedLinear, Party, Program
from tacit.parties.inference.ring import packed, unpacked
from tacit.parties.inference.stages import Carried, ModelStage, input_share, stages
from tacit.protocol.inference.schedule import PLACE, RANGE, WORD_BITS, Round


@dataclass
class Pair:
    """Two parties that ask for the same requests in the same order."""

    keys: tuple[bytes, bytes] = field(default_factory=lambda: (os.urandom(32), os.urandom(32)))
    requests: list[Request] = field(default_factory=list)
    taken: list[int] = field(default_factory=lambda: [0, 0])
    device: torch.device = CPU
    log: list[Round] = field(default_factory=list)
    """What was exchanged,"""
    exchanges: list[tuple[Communication, Communication]] = field(default_factory=list)
    """and the words of it, the model owner's first."""
    _corrections: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """What the dealer has made for one party and the other has not taken yet."""

    @property
    def parties(self) -> tuple[Party, Party]:
        return Party(MODEL, lambda request: self._take(MODEL, request), self.device), Party(
            DATA, lambda request: self._take(DATA, request), self.device
        )

    def _take(self, rank: int, request: Request) -> list[torch.Tensor]:
        number = self.taken[rank]
        self.taken[rank] += 1
        if number == len(self.requests):
            self.requests.append(request)
        assert self.requests[number] == request
        words = expand(request, rank, request_stream(self.keys[rank], number))
        if rank in request.receivers:
            words += self._corrected(request, number)
        return words

    def _corrected(self, request: Request, number: int) -> list[torch.Tensor]:
        if number in self._corrections:
            return self._corrections.pop(number)
        weight = None
        if isinstance(request, Linear):
            weight = request_stream(self.keys[MODEL], request.weight).draw(request.weight_shape)
        made = list(correct(request, [request_stream(key, number) for key in self.keys], weight, device=self.device))
        if len(request.receivers) > 1:
            self._corrections[number] = [words.clone() for words in made]
        return made

    def fixed(self, weight: IntegerWeight) -> tuple[FixedLinear, FixedLinear]:
        shape = (weight.words.shape[0], weight.words.shape[1])
        number = self.taken[MODEL]
        (mask,), _ = (party.take(Weight(MODEL, shape)) for party in self.parties)
        return FixedLinear(number, weight.words, weight.bias, weight.bits), FixedLinear(
            number, weight.words - mask, None, weight.bits
        )

    def run(self, *programs: Program[Any]) -> list[Any]:
        results: list[Any] = [None, None]
        asked: list[Communication | None] = [None, None]
        for rank, program in enumerate(programs):
            asked[rank] = self._step(results, rank, program, None)
        while any(asked):
            one, other = asked
            assert one is not None
            assert other is not None
            assert one.operation == other.operation
            arrived = [_carried(other, one), _carried(one, other)]
            self.log.append(Round(one.operation, _size(one), _size(other)))
            self.exchanges.append((one, other))
            asked = [self._step(results, rank, program, arrived[rank]) for rank, program in enumerate(programs)]
        return results

    @staticmethod
    def _step(results: list[Any], rank: int, program: Program[Any], arrived: Any) -> Communication | None:
        try:
            return program.send(arrived)
        except StopIteration as stop:
            results[rank] = stop.value
            return None


class Pass:
    def __init__(
        self,
        friendly: FriendlyTransformer,
        fitted: FittedModel,
        pixels: torch.Tensor,
        *,
        device: str = "cpu",
    ) -> None:
        """pixels: [n, C, S, S]."""
        self.pair = Pair(device=torch.device(device))
        self.public, self.pixels = fitted.public, pixels
        self.stages = stages(self.public)
        weights = integer_model(friendly, self.public, fitted.balances)
        both = {name: self.pair.fixed(weight) for name, weight in weights.items()}
        self.layers: list[dict[str, FixedLinear]] = [
            {name: pair[rank].to(self.pair.device) for name, pair in both.items()} for rank in (MODEL, DATA)
        ]
        self.shares = [input_share(self.public, len(pixels), given) for given in (None, pixels)]
        self.counts = [torch.zeros((), dtype=torch.int64)] * 2

    def __iter__(self) -> Iterator[ModelStage]:
        images = len(self.pixels)
        for stage in self.stages:
            runs = [
                stage.prepared(party, images, layers)
                for party, layers in zip(self.pair.parties, self.layers, strict=True)
            ]
            carried = [Carried(*parts) for parts in zip(self.shares, self.counts, strict=True)]
            found = self.pair.run(*(run(part) for run, part in zip(runs, carried, strict=True)))
            self.shares, self.counts = [each.share for each in found], [each.outside for each in found]
            yield stage

    @property
    def outside(self) -> int:
        """How many values were out of range so far; after the head there is no such count."""
        return int(sum(self.counts)) % (1 << PLACE)

    def finish(self) -> bool:
        for _ in self:
            pass
        return self.in_range()

    def opened(self) -> int:
        ((one, other),) = (words for words in self.pair.exchanges if words[0].operation == RANGE)
        ((share, bits),), ((another, _),) = one.sent, other.sent
        assert bits == WORD_BITS
        return int(share + another) % (1 << WORD_BITS)

    def in_range(self) -> bool:
        return self.opened() == 0


def _carried(sender: Communication, receiver: Communication) -> list[torch.Tensor]:
    assert [(tuple(words.shape), bits) for words, bits in sender.sent] == list(receiver.expected)
    return [unpacked(packed(words, bits), bits, tuple(words.shape)) for words, bits in sender.sent]


def _size(sender: Communication) -> int:
    return sum(packed(words, bits).nbytes for words, bits in sender.sent)


def shares(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = Keystream(os.urandom(32)).draw(tuple(words.shape))
    return words - mask, mask
