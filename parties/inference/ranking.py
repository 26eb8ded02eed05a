"""The results of a pass: logits truncated on shares, or the best classes in order, and nothing more for the data owner.

Each owner truncates its own share of a logit. A revealed logit thus has a random error of at most one last bit, in an
interval with a random start: n requests for the same image narrow it about n times, which the quota limits.

Labels are computed from the logits truncated to RANKED bits; nobody learns a logit, a rank, or another class. Within
each group of classes of a step (protocol/inference/schedule.py) all pairs are compared at once, by a lookup of the
difference of two logits (tables.py). Sums of the outcomes are shares of ranks, which are looked up in turn: words that
select a class from its group. Of equal logits the first class wins in all steps, so the ranks of a group are distinct,
and the result is that of a stable sort. Each logit is within a quarter of its ring, so that no difference wraps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch.nn import functional

from tacit.parties.inference.material import Lookup, Matrix
from tacit.parties.inference.operations import DATA, MODEL, MatrixValue, Party, Program, together
from tacit.parties.inference.ring import shifted, signed
from tacit.parties.inference.tables import LookedUp, Range
from tacit.protocol.inference.schedule import (
    LABEL_BITS,
    MOST_LABELS,
    PLACE,
    RANKED,
    RESULT_BITS,
    STREAM,
    RankingStep,
    Results,
    ranking_steps,
)

_NOT_NEGATIVE: Final = Range(0, 1 << (RANKED - 1))

Requests = tuple[Lookup, Lookup, Matrix | None]


class Ranking:
    """Ranking of the logits of so many images; prepared ahead of them from `ranking_requests`, used once."""

    def __init__(self, party: Party, images: int, classes: int, labels: int) -> None:
        self._steps = [_StepProgram(party, step, requests) for step, requests in _planned(images, classes, labels)]
        self.images = images
        self._rank, self._shape = party.rank, (images, classes)

    def run(self, share: torch.Tensor) -> Program[torch.Tensor]:
        """Map shares of logits modulo 2^RANKED, [images, classes], to those of the numbers of the best classes."""
        numbers = torch.arange(self._shape[1], device=share.device).expand(self._shape)
        labels = numbers if self._rank == MODEL else torch.zeros_like(numbers)
        for step in self._steps:
            share, labels = yield from step.run(share, labels)
        return labels


def ranking_requests(images: int, classes: int, labels: int) -> tuple[Lookup | Matrix, ...]:
    planned = _planned(images, classes, labels)
    return tuple(request for _, requests in planned for request in requests if request is not None)


def _planned(images: int, classes: int, labels: int) -> Iterator[tuple[RankingStep, Requests]]:
    steps = ranking_steps(classes, labels)
    for step in steps:
        groups, bits = (images, step.groups), max((step.size - 1).bit_length(), 1)
        columns = 1 if step is steps[-1] else 2
        picked = Matrix("matmul", (*groups, step.kept, step.size), (*groups, step.size, columns), words=RANKED)
        comparisons = Lookup((*groups, step.pairs), levels=RANKED)
        ranks = Lookup((*groups, step.size), domain=bits, index=bits, levels=1)
        yield step, (comparisons, ranks, picked if len(steps) > 1 else None)


class _StepProgram:
    def __init__(self, party: Party, step: RankingStep, requests: Requests) -> None:
        comparisons, ranks, picked = requests
        self._party, self._step, self._columns = party, step, 0
        self._comparisons, self._ranks = LookedUp(party, comparisons), LookedUp(party, ranks)
        self._tables = torch.eye(1 << ranks.index, dtype=torch.int64)[: step.kept]
        if picked is not None:
            self._picked = MatrixValue(party, picked.left, picked.right, RANKED)
            self._columns = picked.right[-1]

    def run(self, share: torch.Tensor, labels: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        """Map logits and numbers of classes [images, n] to those of the best of each group."""
        (images, count), (groups, size, kept) = share.shape, self._step
        words = functional.pad(torch.stack([share, labels], -1), (0, 0, 0, groups * size - count))
        words = words.reshape(images, groups, size, 2)
        one_hot = yield from self._one_hot(words[..., 0], count)
        if self._columns:
            right = words[..., 2 - self._columns :]
            opened = yield from self._party.open(
                "ranking", self._picked.masked_left(one_hot), self._picked.masked_right(right)
            )
            best = self._picked.settle(opened[0], opened[1])
        else:  # In a single first step the position of each class is public.
            best = (one_hot * torch.arange(size, device=share.device)).sum(-1, keepdim=True)
        # Padding of the last group is at the end.
        last = min(count - (groups - 1) * size, kept)
        best = best.reshape(images, groups * kept, -1)[:, : (groups - 1) * kept + last]
        return best[..., 0], best[..., -1]

    def _one_hot(self, logits: torch.Tensor, count: int) -> Program[torch.Tensor]:
        """Map [images, groups, size], the first `count` of them no padding, to [images, groups, kept, size]: 1 at the
        class of this rank, 0 elsewhere."""
        size = self._step.size
        first, second = torch.triu_indices(size, size, 1, device=logits.device)
        difference = logits[..., first] - logits[..., second]
        (opened,) = yield from self._party.open("ranking", self._comparisons.masked(difference << (PLACE - RANKED)))
        self._comparisons.place(opened)
        smaller = self._comparisons.outside(_NOT_NEGATIVE)
        starts = torch.arange(self._step.groups, device=logits.device)[:, None] * size
        smaller = smaller.masked_fill(starts + second >= count, 0)
        larger = int(self._party.rank == MODEL) - smaller
        ranks = torch.zeros_like(logits).index_add_(-1, first, smaller).index_add_(-1, second, larger)
        (opened,) = yield from self._party.open("ranking", self._ranks.masked(ranks))
        self._ranks.place(opened)
        flat = torch.zeros_like(self._tables[0])
        return torch.stack([self._ranks.value(table, flat) for table in self._tables], -2)


_COMPARED: Final = 1 << 14


def check(scale: float, classes: int, results: Results) -> None:
    """ValueError for results that cannot be revealed of logits of so many classes, of this scale."""
    check_labels(classes, results.labels)
    cut_bits(scale, results)


def check_labels(classes: int, labels: int) -> None:
    """ValueError for more labels than can be revealed."""
    if labels > min(MOST_LABELS, classes - 1):
        raise ValueError(
            f"the {labels} best labels of {classes} classes cannot be told: at most {MOST_LABELS}, and fewer than "
            "there are classes"
        )


def cut_bits(scale: float, results: Results) -> int:
    """Number of bits to truncate from logits of this scale. ValueError if the rest does not fit the ring of results."""
    if results.labels:
        return STREAM - RANKED
    by = round(math.log2(scale)) - results.bits
    if not STREAM - RESULT_BITS <= by <= STREAM - 2 or scale != 2.0 ** round(math.log2(scale)):
        raise ValueError(f"logits of scale {scale:g} cannot be cut to {results.bits} fractional bits, of {RESULT_BITS}")
    return by


def result_requests(images: int, classes: int, results: Results) -> tuple[Lookup | Matrix, ...]:
    groups = _groups(images, classes, results)
    return tuple(request for group in groups for request in ranking_requests(group, classes, results.labels))


def rankings(party: Party, images: int, classes: int, results: Results) -> list[Ranking]:
    return [Ranking(party, group, classes, results.labels) for group in _groups(images, classes, results)]


def reduced(
    party: Party, share: torch.Tensor, scale: float, results: Results, ready: Sequence[Ranking] = ()
) -> Program[torch.Tensor]:
    """Reveal results to the data owner from shares of logits times the scale modulo 2^STREAM, [n, classes].

    Returns logits as integers, or the numbers of the best classes [n, labels]; zeros at the model owner. ready:
    `rankings`. ValueError as in cut_bits."""
    by = cut_bits(scale, results)
    cut, bits, read = shifted(share, STREAM, by), RESULT_BITS, STREAM - by
    if results.labels:
        parts = torch.split(cut, [ranking.images for ranking in ready])
        found = yield from together([ranking.run(part) for ranking, part in zip(ready, parts, strict=True)])
        cut, bits, read = torch.cat(found), LABEL_BITS, LABEL_BITS
    received = yield from party.tell("result", (cut, bits), to=DATA)
    if received is None:
        return torch.zeros_like(cut)
    revealed = signed(cut + received, read)
    return revealed & ((1 << LABEL_BITS) - 1) if results.labels else revealed


def logits(revealed: torch.Tensor, results: Results) -> torch.Tensor:
    """float64 [n, classes], from the revealed integers."""
    return revealed.cpu().double() / (1 << results.bits)


def _groups(images: int, classes: int, results: Results) -> list[int]:
    if not results.labels:
        return []
    most = max(1, _COMPARED // sum(step.groups * step.pairs for step in ranking_steps(classes, results.labels)))
    return [min(most, images - start) for start in range(0, images, most)]
