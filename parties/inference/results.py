"""What a data owner is told of the logits, and nothing more: they are reduced on shares before it is told.

Logits are cut to so many fractional bits: each owner cuts its own share, so a told logit is off by at most one last
bit, at random. The interval that the two cut shares leave begins at random too: who asks about the same image n times
narrows it about n times, which the model owner's quota limits.

Labels are the best of these cut logits, of RANKED bits in all, as a stable sort has them (ranking.py). So one that is
told may be another one than that of the logits only where these differ by at most two last bits, and by chance then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

from tacit.parties.inference.material import Lookup, Matrix
from tacit.parties.inference.operations import DATA, Party, Program, together
from tacit.parties.inference.ranking import Ranking, ranking_requests
from tacit.parties.inference.ring import shifted, signed
from tacit.protocol.inference.schedule import (
    LABEL_BITS,
    MOST_LABELS,
    RANKED,
    RESULT_BITS,
    STREAM,
    Results,
    ranking_steps,
)

_COMPARED: Final = 1 << 14
"""Pairs of classes of images that are ranked together."""


def check(scale: float, classes: int, results: Results) -> None:
    """ValueError for what cannot be told of logits of so many classes, of this scale."""
    check_labels(classes, results.labels)
    cut_bits(scale, results)


def check_labels(classes: int, labels: int) -> None:
    """ValueError for more labels than can be told."""
    if labels > min(MOST_LABELS, classes - 1):
        raise ValueError(
            f"the {labels} best labels of {classes} classes cannot be told: at most {MOST_LABELS}, and fewer than "
            "there are classes"
        )


def cut_bits(scale: float, results: Results) -> int:
    """How many bits logits of this scale are cut by. ValueError where that does not bring them into the ring of
    results."""
    if results.labels:
        return STREAM - RANKED
    by = round(math.log2(scale)) - results.bits
    if not STREAM - RESULT_BITS <= by <= STREAM - 2 or scale != 2.0 ** round(math.log2(scale)):
        raise ValueError(f"logits of scale {scale:g} cannot be cut to {results.bits} fractional bits, of {RESULT_BITS}")
    return by


def result_requests(images: int, classes: int, results: Results) -> tuple[Lookup | Matrix, ...]:
    """What `rankings` asks the party for, in this order."""
    groups = _groups(images, classes, results)
    return tuple(request for group in groups for request in ranking_requests(group, classes, results.labels))


def rankings(party: Party, images: int, classes: int, results: Results) -> list[Ranking]:
    """What `reduced` takes for labels, made ahead; nothing for logits."""
    return [Ranking(party, group, classes, results.labels) for group in _groups(images, classes, results)]


def reduced(
    party: Party, share: torch.Tensor, scale: float, results: Results, ready: Sequence[Ranking] = ()
) -> Program[torch.Tensor]:
    """From shares of logits times the scale modulo 2^STREAM, [n, classes], what the data owner is told: logits as
    whole numbers, or the numbers of the best classes [n, labels]; zeros at the model owner. ready: `rankings`.
    ValueError as of cut_bits."""
    by = cut_bits(scale, results)
    cut, bits, read = shifted(share, STREAM, by), RESULT_BITS, STREAM - by
    if results.labels:
        parts = torch.split(cut, [ranking.images for ranking in ready])
        found = yield from together([ranking.run(part) for ranking, part in zip(ready, parts, strict=True)])
        cut, bits, read = torch.cat(found), LABEL_BITS, LABEL_BITS
    received = yield from party.tell("result", (cut, bits), to=DATA)
    if received is None:
        return torch.zeros_like(cut)
    told = signed(cut + received, read)
    return told & ((1 << LABEL_BITS) - 1) if results.labels else told


def logits(told: torch.Tensor, results: Results) -> torch.Tensor:
    """Float64 [n, classes], from what the data owner was told."""
    return told.cpu().double() / (1 << results.bits)


def _groups(images: int, classes: int, results: Results) -> list[int]:
    """Images that are ranked together."""
    if not results.labels:
        return []
    most = max(1, _COMPARED // sum(step.groups * step.pairs for step in ranking_steps(classes, results.labels)))
    return [min(most, images - start) for start in range(0, images, most)]
