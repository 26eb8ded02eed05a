"""A pass that tells the data owner outputs of blocks, as Tastan and Nandakumar 2025 have it: permuted, and all of them
or a sample. None of it protects the model (docs/decisions/016-double-blind.md).

The images are put into a fresh secret order of the model owner before each output that is told, and the labels with
them, on shares. The pass goes on in that order, so that the order of an output follows from that of the one told
before by the order drawn in between: the paper's relative permutation, which is told as well. What goes into the first
block is never told, it runs on shares, as does every block behind one whose output is not told; behind one that was,
the data owner's share is the output itself, and it normalises it itself.

The labels are opened beside the last output, in its order. That discloses this order up to the order within a class;
and, by the relative ones, so that of all outputs. A data owner is free to give any whole numbers in their place, and
nobody can check it: with the numbers of its images it learns the order itself, which is how it knows its predictions
apart.

    carried = Revealed(input_share(public, images, pixels), labels=labels)
    for stage in told_stages(public, told):
        carried = ... stage.prepared(party, images, layers)(carried) ...
    batch = told_batch(carried, public, told)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tacit.parties.adaptation.shuffled import ShuffledRows, checked_order, secret_order
from tacit.parties.inference.lookup import LookedUp
from tacit.parties.inference.material import AnyBlockRequest, Shuffle
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, MODEL, Communication, FixedLinear, Party, Program
from tacit.parties.inference.ring import signed
from tacit.parties.inference.stages import (
    COUNTED,
    BlockStage,
    Carried,
    Embedding,
    PassStage,
    Run,
    block_stage,
    in_range,
)
from tacit.protocol.adaptation.schedule import ROW
from tacit.protocol.inference.schedule import STREAM


@dataclass(frozen=True, repr=False, kw_only=True)
class Revealed(Carried):
    """What an owner carries through such a pass."""

    labels: torch.Tensor
    """Share modulo 2^STREAM, int64 [B], in the order of the stream; once the last output is told, the labels
    themselves at the data owner."""
    outputs: tuple[torch.Tensor, ...] = ()
    """At the data owner, int64 [B, T, D]: those told so far, each in its own order."""
    orders: tuple[torch.Tensor, ...] = ()
    """At the data owner, int64 [B] for each but the first: which row of the output told before each row is of."""


@dataclass(frozen=True)
class ToldBlock:
    """A block whose output is told in another order."""

    block: BlockStage
    first: bool
    """Whether no output is told before: its order stays secret."""

    @property
    def name(self) -> str:
        return self.block.name

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """As of ModelStage."""
        return (*self.block.requests(images, numbers), Shuffle(MODEL, self._rows(images), STREAM))

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """As of ModelStage; the model owner draws the order."""
        computed = self.block.prepared(party, images, layers)
        order = secret_order(images) if party.rank == MODEL else None
        shuffled = ShuffledRows(party, self._rows(images), STREAM, order)

        def run(carried: Carried) -> Program[Carried]:
            found = yield from computed(carried)
            assert isinstance(found, Revealed)
            rows = torch.cat([found.share.flatten(1), found.labels.to(party.device)[:, None]], 1)
            rows = yield from shuffled.run(rows)
            return (yield from self._told(party, found, rows, order))

        return run

    def _told(
        self, party: Party, carried: Revealed, rows: torch.Tensor, order: torch.Tensor | None
    ) -> Program[Revealed]:
        """Tell the rows, and how their order follows; those of the last block with their labels."""
        told = rows if self._last else rows[:, :-1]
        if party.rank == DATA:
            expected = ((tuple(told.shape), STREAM), *(() if self.first else (((len(rows),), ROW),)))
            received, *orders = yield Communication("result", (), expected)
            told = signed(told + received.to(party.device), STREAM)
            orders = [checked_order(words, len(rows)) for words in orders]
        else:
            assert order is not None
            yield Communication("result", ((told, STREAM), *(() if self.first else ((order, ROW),))), ())
            told, orders = torch.zeros_like(told), []
        size = carried.share[0].numel()
        stream = told[:, :size].reshape(carried.share.shape)
        return replace(
            carried,
            share=stream,
            labels=told[:, size] if self._last else rows[:, size],
            outputs=(*carried.outputs, stream) if party.rank == DATA else (),
            orders=(*carried.orders, *orders),
        )

    @property
    def _last(self) -> bool:
        return self.block.index + 1 == self.block.public.sizes.blocks

    def _rows(self, images: int) -> tuple[int, int]:
        """Of each image the stream, and its label."""
        sizes = self.block.public.sizes
        return images, sizes.tokens * sizes.width + 1


@dataclass(frozen=True)
class RangeStage:
    """The end of a pass: both owners learn whether all of it was in range."""

    name: str = "range"

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """As of ModelStage."""
        return (COUNTED,)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """As of ModelStage."""
        lookup = LookedUp(party, COUNTED)

        def run(carried: Carried) -> Program[Carried]:
            yield from in_range(party, carried.outside, lookup)
            return carried

        return run


def told_stages(public: PublicModel, told: Sequence[bool]) -> tuple[PassStage, ...]:
    """Those of a pass, in order; as many whatever is told. told: of which blocks the output is, as of told_rounds."""
    found: list[PassStage] = [Embedding("embedding", public, False, ("embedding",))]
    for index, tells in enumerate(told):
        block = block_stage(public, index, known=index > 0 and told[index - 1], told=False)
        found.append(ToldBlock(block, first=not any(told[:index])) if tells else block)
    return (*found, RangeStage())


@dataclass(frozen=True, repr=False, kw_only=True)
class ToldBatch:
    """What a data owner was told in a pass."""

    outputs: torch.Tensor
    """Of all blocks, float64 [L, B, T, D], each in its own order; zeros where it was not told."""
    orders: Mapping[int, torch.Tensor]
    """By the number of a block, for all told but the first, int64 [B]: which row of the output told before each row
    of this one is of."""
    labels: torch.Tensor
    """int64 [B], in the order of the last output."""

    @property
    def aligned(self) -> torch.Tensor:
        """The outputs [L, B, T, D], all in the order of the last one."""
        found, order = self.outputs.clone(), torch.arange(len(self.labels))
        for block in reversed(range(len(found))):
            found[block] = found[block, order]
            order = self.orders[block][order] if block in self.orders else order
        return found


def told_batch(carried: Revealed, public: PublicModel, told: Sequence[bool]) -> ToldBatch:
    """At the data owner, behind a pass that was in range."""
    blocks = [index for index, tells in enumerate(told) if tells]
    outputs = torch.zeros(len(told), *carried.share.shape, dtype=torch.float64)
    for index, words in zip(blocks, carried.outputs, strict=True):
        outputs[index] = words.cpu().double() / public.stream
    orders = {index: order.cpu() for index, order in zip(blocks[1:], carried.orders, strict=True)}
    return ToldBatch(outputs=outputs, orders=orders, labels=carried.labels.cpu())
