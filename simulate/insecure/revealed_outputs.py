"""INSECURE: passes that reveal outputs of blocks to the data owner, as in Tastan and Nandakumar 2025.

None of it protects the model (docs/decisions/016-double-blind.md). Before an output is revealed, the model owner puts
images and labels into a fresh secret order on shares; the data owner also receives the paper's relative permutation,
and the labels with the last output. Then it takes a step of gradient descent in the clear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import SystemRandom

import numpy as np
import torch

from tacit.models.adapters.configuration import Reveal
from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import FinalNorm, StochasticBlocks
from tacit.parties.adaptation.fixed_point import PARAMETER
from tacit.parties.adaptation.learning_passes import Batch, LearningPasses
from tacit.parties.adaptation.rounds import mean_of, shares_of_known
from tacit.parties.adaptation.standing import Learnt
from tacit.parties.adaptation.step import flat
from tacit.parties.correlated.material import LARGEST_WORDS
from tacit.parties.inference.material import AnyBlockRequest, Matrix
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, MODEL, Communication, FixedLinear, MatrixValue, Party, Program
from tacit.parties.inference.passes import Course
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
from tacit.parties.inference.tables import LookedUp
from tacit.protocol.inference.schedule import (
    STREAM,
    WORD_BITS,
    Round,
    Sizes,
    block_rounds,
    byte_width,
    embedding_rounds,
    range_rounds,
)


def revealed_blocks(reveal: Reveal, blocks: int, *, session: bytes, number: int) -> tuple[bool, ...]:
    if reveal != "sampled":
        return (reveal == "all",) * blocks
    return tuple(StochasticBlocks().draw(blocks, np.random.default_rng([number, *session])).tolist())


def revealed_rounds(sizes: Sizes, images: int, revealed: Sequence[bool], *, enrolled: int = 0) -> tuple[Round, ...]:
    """Return the rounds of a pass that reveals these outputs. enrolled: images that it puts into one order before."""
    stream, label = (byte_width(STREAM) * images * words for words in (sizes.tokens * sizes.width, 1))
    found = [_order_round(enrolled, _enrolled_words(sizes))] if enrolled else []
    found += embedding_rounds(sizes, images)
    for block, reveals in enumerate(revealed):
        found += block_rounds(sizes, images, block)
        if reveals:
            order = byte_width(WORD_BITS) * images if any(revealed[:block]) else 0
            last = label if block + 1 == sizes.blocks else 0
            found += [_order_round(images, _revealed_words(sizes)), Round("result", stream + last + order, 0)]
    return (*found, *range_rounds())


def _order_round(rows: int, words: int) -> Round:
    octets = byte_width(STREAM) * rows * (rows + words)
    return Round("order", octets, octets)


def _revealed_words(sizes: Sizes) -> int:
    return sizes.tokens * sizes.width + 1


def _enrolled_words(sizes: Sizes) -> int:
    return sizes.patches * sizes.pixels + 1


@dataclass(frozen=True, repr=False, kw_only=True)
class Revealed(Carried):
    labels: torch.Tensor
    """Share modulo 2^STREAM, int64 [B], in the order of the stream; after the last output, the labels themselves at the
    data owner."""
    outputs: tuple[torch.Tensor, ...] = ()
    """At the data owner, int64 [B, T, D]: outputs revealed so far, each in its own order."""
    orders: tuple[torch.Tensor, ...] = ()
    """At the data owner, int64 [B] for each but the first: the row of the previous revealed output, for each row."""


def secret_order(party: Party, rows: int) -> torch.Tensor | None:
    """Draw a fresh uniformly random order of the model owner, int64 [rows]."""
    return torch.tensor(SystemRandom().sample(range(rows), rows)) if party.rank == MODEL else None


class SecretOrder:
    """Rows of shares in an order of the model owner: the product with its permutation matrix, on shares."""

    def __init__(self, party: Party, order: torch.Tensor | None, rows: int, words: int) -> None:
        self._party = party
        self._product = MatrixValue(party, (rows, rows), (rows, words), STREAM)
        matrix = torch.zeros(rows, rows, dtype=torch.int64)
        if order is not None:
            matrix[torch.arange(rows), order] = 1
        self._matrix = matrix.to(party.device)

    @staticmethod
    def request(rows: int, words: int) -> AnyBlockRequest:
        return Matrix("matmul", (rows, rows), (rows, words), words=STREAM)

    def run(self, share: torch.Tensor) -> Program[torch.Tensor]:
        product = self._product
        masked = product.masked_left(self._matrix), product.masked_right(share)
        return product.settle(*(yield from self._party.open("order", *masked)))


@dataclass(frozen=True)
class RevealedBlock:
    block: BlockStage
    first: bool
    """Whether no output is revealed before: its order stays secret."""

    @property
    def name(self) -> str:
        return self.block.name

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        words = _revealed_words(self.block.public.sizes)
        return (*self.block.requests(images, numbers), SecretOrder.request(images, words))

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """As in PassStage; the model owner draws the order."""
        computed = self.block.prepared(party, images, layers)
        order = secret_order(party, images)
        ordered = SecretOrder(party, order, images, _revealed_words(self.block.public.sizes))

        def run(carried: Carried) -> Program[Carried]:
            found = yield from computed(carried)
            assert isinstance(found, Revealed)
            rows = torch.cat([found.share.flatten(1), found.labels.to(party.device)[:, None]], 1)
            rows = yield from ordered.run(rows)
            return (yield from self._reveal(party, found, rows, order))

        return run

    def _reveal(
        self, party: Party, carried: Revealed, rows: torch.Tensor, order: torch.Tensor | None
    ) -> Program[Revealed]:
        """Reveal the rows and their relative order; those of the last block with their labels."""
        last = self.block.index + 1 == self.block.public.sizes.blocks
        opened = rows if last else rows[:, :-1]
        orders: Sequence[torch.Tensor] = ()
        if party.rank == DATA:
            expected = ((tuple(opened.shape), STREAM), *(() if self.first else (((len(rows),), WORD_BITS),)))
            received, *orders = yield Communication("result", (), expected)
            opened = signed(opened + received.to(party.device), STREAM)
        else:
            assert order is not None
            yield Communication("result", ((opened, STREAM), *(() if self.first else ((order, WORD_BITS),))), ())
            opened = torch.zeros_like(opened)
        size = carried.share[0].numel()
        stream = opened[:, :size].reshape(carried.share.shape)
        return replace(
            carried,
            share=stream,
            labels=opened[:, size] if last else rows[:, size],
            outputs=(*carried.outputs, stream) if party.rank == DATA else (),
            orders=(*carried.orders, *orders),
        )


@dataclass(frozen=True)
class RangeStage:
    """End of a pass: both owners learn whether all of it was in range."""

    name: str = "range"

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        return (COUNTED,)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        lookup = LookedUp(party, COUNTED)

        def run(carried: Carried) -> Program[Carried]:
            yield from in_range(party, carried.outside, lookup)
            return carried

        return run


def revealed_stages(public: PublicModel, revealed: Sequence[bool]) -> tuple[PassStage, ...]:
    found: list[PassStage] = [Embedding("embedding", public, ("embedding",))]
    for index, reveals in enumerate(revealed):
        block = block_stage(public, index)
        found.append(RevealedBlock(block, first=not any(revealed[:index])) if reveals else block)
    return (*found, RangeStage())


@dataclass(frozen=True, repr=False, kw_only=True)
class RevealedBatch:
    blocks: Sequence[bool]
    outputs: torch.Tensor
    """Outputs of all blocks, float64 [L, B, T, D], each in its own order; zeros if not revealed."""
    orders: Mapping[int, torch.Tensor]
    """Keyed by block number, for all revealed but the first, int64 [B]: the row of the previous revealed output, for
    each row."""
    labels: torch.Tensor
    """int64 [B], in the order of the last output."""

    @property
    def aligned(self) -> torch.Tensor:
        """Return the outputs [L, B, T, D], all in the order of the last one."""
        found, order = self.outputs.clone(), torch.arange(len(self.labels))
        for block in reversed(range(len(found))):
            found[block] = found[block, order]
            order = self.orders[block][order] if block in self.orders else order
        return found


def revealed_batch(carried: Revealed, public: PublicModel, revealed: Sequence[bool]) -> RevealedBatch:
    """Return the revealed batch at the data owner, after a pass in range."""
    blocks = [index for index, reveals in enumerate(revealed) if reveals]
    outputs = torch.zeros(len(revealed), *carried.share.shape, dtype=torch.float64)
    for index, words in zip(blocks, carried.outputs, strict=True):
        outputs[index] = words.cpu().double() / public.stream
    orders = {index: order.cpu() for index, order in zip(blocks[1:], carried.orders, strict=True)}
    return RevealedBatch(blocks=revealed, outputs=outputs, orders=orders, labels=carried.labels.cpu())


Keep = Callable[[Batch, RevealedBatch], None]
"""Receives a batch of a data owner, and the outputs revealed in its pass."""


def forget(batch: Batch, revealed: RevealedBatch) -> None:
    """A Keep that discards the batch."""


@dataclass(frozen=True)
class RevealedPasses(LearningPasses):
    """Passes that reveal outputs, and steps of the data owner in the clear. The data owner's share of its parameters is
    the whole, and the model owner's zero.

    revealed: for each block whether its output is, in the pass of this number.
    """

    rank: int
    revealed: Callable[[int], tuple[bool, ...]]
    keep: Keep = forget

    @property
    def course(self) -> Course:
        return lambda number: revealed_stages(self.learning.public, self.revealed(number))

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        labels = torch.zeros(len(batch.share), dtype=torch.int64) if batch.labels is None else batch.labels
        return Revealed(batch.share, labels=labels)

    def ended(self, batch: Batch, learnt: Learnt, found: Carried | None) -> Learnt:
        """See LearningPasses; found: None for a refused pass; both learn that."""
        if self.rank != DATA:
            return learnt
        if found is None:
            return replace(learnt, refused=learnt.refused + 1)
        assert isinstance(found, Revealed)
        revealed = revealed_batch(found, self.learning.public, self.revealed(batch.number))
        self.keep(batch, revealed)
        sizes, before = self.learning.sizes, mean_of(flat(learnt.parameters), 1, self.learning.sizes)
        norm = FinalNorm.plain(sizes.width, self.learning.epsilon)
        # The mean over a batch does not depend on its order.
        step = descent(before, norm, revealed.aligned, revealed.labels)
        # In the units of a step on shares (standing.py).
        loss = round(step.loss * sizes.images * 2.0 ** (2 * PARAMETER) * sizes.classes)
        return learnt.then(
            shares_of_known(stepped(before, step.gradient, batch.rate)),
            loss=torch.tensor(loss),
            correct=torch.tensor(step.correct),
            refused=torch.tensor(0),
        )


@dataclass(frozen=True, kw_only=True)
class EnrolledPasses(RevealedPasses):
    """The same, on batches that the model owner chooses: the next part of all images of the session, which the data
    owner brings to the first pass, in one secret order.

    images: of all passes.
    """

    images: int
    batches: list[Revealed] = field(default_factory=list, repr=False)
    """This owner's shares of them, once ordered."""

    @property
    def course(self) -> Course:
        usual = super().course

        def stages(number: int) -> Sequence[PassStage]:
            first, *rest = usual(number)
            return (Enrolling(self, first), *rest) if number == 1 else (first, *rest)

        return stages

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        if batch.number > 1:
            return self.batches[batch.number - 1]
        if self.rank == MODEL:
            batch = replace(batch, share=torch.zeros(self.images, *batch.share.shape[1:], dtype=torch.int64))
        return super().begun(batch, learnt)


@dataclass(frozen=True)
class Enrolling:
    """First stage of the first pass of a session, before which all its images are put into order."""

    passes: EnrolledPasses
    first: PassStage

    @property
    def name(self) -> str:
        return self.first.name

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        return (SecretOrder.request(*self._shape), *self.first.requests(images, numbers))

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        ordered = SecretOrder(party, secret_order(party, self.passes.images), *self._shape)
        begin = self.first.prepared(party, images, layers)

        def run(carried: Carried) -> Program[Carried]:
            assert isinstance(carried, Revealed)
            rows = torch.cat([carried.share.flatten(1), carried.labels[:, None]], 1).to(party.device)
            rows, size = (yield from ordered.run(rows)), self.passes.learning.batch
            batches = zip(torch.split(rows[:, :-1], size), torch.split(rows[:, -1], size), strict=True)
            shape = (-1, *carried.share.shape[1:])
            self.passes.batches.extend(Revealed(share.reshape(shape), labels=labels) for share, labels in batches)
            return (yield from begin(self.passes.batches[0]))

        return run

    @property
    def _shape(self) -> tuple[int, int]:
        return self.passes.images, _enrolled_words(self.passes.learning.public.sizes)


def check_enrolled(sizes: Sizes, images: int) -> None:
    """Raise ValueError for more images than one request of correlated randomness can put into order."""
    words = _enrolled_words(sizes)
    if images * (images + 2 * words) > LARGEST_WORDS:
        raise ValueError(
            f"{images} images of {words - 1} values cannot be put into one order: take fewer rounds or batches, or "
            'adaptation.selection = "data-owner"'
        )
