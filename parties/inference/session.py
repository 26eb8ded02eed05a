"""One party's part of private inference: fixed weights, material, blocks, over its links to the peer and the dealer.

Both owners run the same code; what differs is what each of them has. The data owner opens the result alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from tacit.models.friendly.polynomials import goldschmidt_inverse_root
from tacit.parties.inference.block import BlockProgram
from tacit.parties.inference.material import Table
from tacit.parties.inference.operations import DATA, MODEL, FixedLinear, Party, Program
from tacit.parties.inference.ring import WORD_BITS, packed, signed, unpacked
from tacit.parties.inference.scales import FACTOR, NORMALISED_SCALE, Scales, Shape
from tacit.parties.inference.shell import Record, drive
from tacit.parties.inference.supply import BlockSupply, recorded
from tacit.parties.inference.weights import IntegerWeight, layer_shapes
from tacit.parties.mpc.link import Link
from tacit.parties.mpc.material import Weight
from tacit.parties.mpc.streams import KEY_BYTES, Keystream

WEIGHTS: Final = "masked weights"
READY: Final = "ready"
SHARE: Final = "input"

Layers = dict[str, FixedLinear]


class InferenceSession:
    """Made when the links are open. Every method is a call of both parties."""

    def __init__(self, rank: int, peer: Link, dealer: Link) -> None:
        self._rank = rank
        self._peer = peer
        self._supply = BlockSupply(rank, dealer)

    def mask(self, weights: Mapping[str, IntegerWeight] | None, shape: Shape) -> Layers:
        """The layers of one block, masked once for the session; the model owner gives their weights."""
        shapes = layer_shapes(shape)
        number = self._supply.fetch([Weight(MODEL, size) for size in shapes.values()])
        layers: Layers = {}
        for name, size in shapes.items():
            words = self._supply.party.take(Weight(MODEL, size))
            if weights is None:
                (octets,) = self._peer.receive(WEIGHTS, [(np.uint8, (size[0] * size[1], WORD_BITS // 8))])
                layers[name] = FixedLinear(number, unpacked(octets, WORD_BITS, size), None, WORD_BITS)
            else:
                weight = weights[name]
                if weight.words.shape != size:
                    raise ValueError(f"{name} is a weight of {tuple(weight.words.shape)}, not {size}")
                self._peer.send(WEIGHTS, [packed(weight.words - words[0], WORD_BITS)])
                layers[name] = FixedLinear(number, weight.words, weight.bias, weight.bits)
            number += 1
        return layers

    def prepare(self, shape: Shape, scales: Scales, layers: Layers, *, known: bool) -> BlockProgram:
        """One pass of one block, its material at hand."""

        def dry(party: Party) -> None:
            zeros = torch.zeros(shape.stream, dtype=torch.int64)
            program = BlockProgram(party, shape, scales, layers).run(zeros, zeros if known else None)
            exhaust(program)

        self._supply.fetch(recorded(dry, rank=self._rank))
        return BlockProgram(self._supply.party, shape, scales, layers)

    def wait(self) -> None:
        """Until the peer waits too: what follows can be timed."""
        self._peer.send(READY, [])
        self._peer.receive(READY, [])

    def share(self, x: torch.Tensor | None, shape: Shape, scales: Scales) -> torch.Tensor:
        """A share of the data owner's input [B, T, D], of floats; None at the model owner."""
        if x is None:
            (octets,) = self._peer.receive(SHARE, [(np.uint8, (math.prod(shape.stream), FACTOR // 8))])
            return unpacked(octets, FACTOR, shape.stream)
        mask = Keystream(os.urandom(KEY_BYTES)).draw(shape.stream)
        self._peer.send(SHARE, [packed(mask, FACTOR)])
        return encoded(x, scales.stream) - mask

    def run(
        self, block: BlockProgram, stream: torch.Tensor, normalised: torch.Tensor | None, record: Record
    ) -> torch.Tensor:
        """This party's share of a block's output, from its share of the input (see BlockProgram.run)."""
        return drive(block.run(stream, normalised), self._peer, record)

    def result(self, share: torch.Tensor, scales: Scales, record: Record) -> torch.Tensor | None:
        """The output in floats, at the data owner alone."""
        party = self._supply.party
        return drive(opened_result(party, share, scales), self._peer, record)

    def finish(self) -> None:
        """Tell the dealer that it is over."""
        self._supply.finish()


def opened_result(party: Party, share: torch.Tensor, scales: Scales) -> Program[torch.Tensor | None]:
    """The data owner learns the sum of both shares, in floats."""
    other = yield from party.tell("result", (share, FACTOR), to=DATA)
    return None if other is None else signed(share + other, FACTOR).double() / scales.stream


def encoded(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Floats as whole numbers, to the nearest."""
    return (x.double() * scale).round().long()


def known_input(x: torch.Tensor | None, shape: Shape, scales: Scales) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and normalised input as the program takes them where the data owner knows x; None at the model owner."""
    if x is None:
        zeros = torch.zeros(shape.stream, dtype=torch.int64)
        return zeros, zeros
    return encoded(x, scales.stream), encoded(normalised(x, scales.first_table), NORMALISED_SCALE)


def normalised(x: torch.Tensor, table: Table) -> torch.Tensor:
    """LayerNorm in the clear without scale and shift, by the polynomial of the table."""
    centred = x.double() - x.double().mean(-1, keepdim=True)
    variance = (centred.square().mean(-1, keepdim=True) + table.offset) / table.divisor
    inverse: torch.Tensor = goldschmidt_inverse_root(variance, table.steps) / math.sqrt(table.divisor)
    result: torch.Tensor = centred * inverse
    return result


def exhaust(program: Program[torch.Tensor]) -> None:
    """Run a program on nothing but zeros."""
    exchange = next(program)
    while True:
        try:
            exchange = program.send([torch.zeros(size, dtype=torch.int64) for size, _ in exchange.expected])
        except StopIteration:
            return
