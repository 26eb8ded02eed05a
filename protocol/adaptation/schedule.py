"""Communication schedule of a training step on shares, and of a prediction, from the sizes alone: every round, in
order, with its bytes.

Both owners open the same number of bytes in every round; tacit.parties.adaptation explains the openings. Widths are in
bits. Byte counts are those of share words, without headers. A pass consists of the embedding and the blocks of private
inference, a training step or a prediction, the range check, and the results of a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tacit.protocol.adaptation.messages import AdaptationTerms, LearningSizes
from tacit.protocol.inference.schedule import (
    COARSE,
    PLACE,
    STREAM,
    WORD_BITS,
    Round,
    Sizes,
    backbone_rounds,
    byte_width,
    result_rounds,
)

LIFTED: Final = 32
"""Values before ring extension."""
CHECKED: Final = 28
"""Values before ring extension where up to 2^12 squares are summed."""
SLOPED: Final = 56
"""Derivatives multiplied by a slope."""
USED: Final = 21
ADAPTER_TENSORS: Final = ("channel_down", "channel_up", "token_down", "token_up", "scale")
HEAD_TENSORS: Final = ("weight", "bias")
"""Tensors of an adapter and of the head; each has its own range check."""

READ: Final = 1
"""Tokens that the head reads: the class token, which is the first."""

COUNTED: Final = ("loss", "correct", "refused", "weight")
"""Words summed over the data owners beside the parameters. The model owner reveals `refused` once, with the last round;
until then it is zero."""
REFUSED: Final = COUNTED.index("refused") - len(COUNTED)
"""Index of the refused batches, from the end."""


def parameter_count(sizes: Sizes, learning: LearningSizes) -> int:
    each = 2 * learning.rank * (sizes.tokens + sizes.width) + 1
    return learning.adapters * each + learning.classes * (sizes.width + 1)


def read_tokens(tokens: int, adapters: int) -> tuple[int, ...]:
    """Return the leading tokens read from each adapter's output: all by another adapter, its own by the head."""
    return (*(tokens for _ in range(adapters - 1)), READ)[:adapters]


def sum_words(sizes: Sizes, learning: LearningSizes) -> int:
    """Return the words of an owner's share of a round's sum: all parameters, and the counters."""
    return parameter_count(sizes, learning) + len(COUNTED)


def adaptation_rounds(terms: AdaptationTerms, images: int) -> tuple[Round, ...]:
    """Return the rounds of a training step on so many images with kept shares, or of a prediction. A pass whose shares
    are kept has the rounds of the blocks alone."""
    sizes, learning = terms.sizes, terms.learning
    if terms.purpose == "prediction":
        return (
            *backbone_rounds(sizes, images),
            *prediction_rounds(
                images=images,
                tokens=sizes.tokens,
                width=sizes.width,
                classes=learning.classes,
                adapters=learning.adapters,
                rank=learning.rank,
                cut=learning.cut,
            ),
            *result_rounds(learning.classes, images, terms.results),
        )
    return step_rounds(
        images=images,
        tokens=sizes.tokens,
        width=sizes.width,
        classes=learning.classes,
        adapters=learning.adapters,
        rank=learning.rank,
        cut=learning.cut,
        gradient=learning.gradient,
    )


def step_rounds(
    *,
    images: int,
    tokens: int,
    width: int,
    classes: int,
    adapters: int,
    rank: int,
    cut: int,
    gradient: int,
) -> tuple[Round, ...]:
    """Return the rounds of one step on a batch. cut: bits truncated from the outputs of blocks, which have STREAM bits;
    gradient: ring of the parameter gradients, in bits."""
    reads = reversed(read_tokens(tokens, adapters))
    parameters = _parameters(tokens, width, classes, adapters, rank)
    return (
        *_forward_rounds(images, tokens, width, classes, adapters, rank, cut, beside=1),
        *_head_rounds_backwards(images, width, classes),
        *(each for read in reads for each in _adapter_rounds_backwards(images, tokens, width, rank, read, gradient)),
        _both("parameters backwards", (gradient, parameters)),
        _both("parameters after", (CHECKED, parameters)),
        _both("parameters after", (PLACE, _checks(adapters))),
        _both("count", (PLACE, 1)),
        _both("choice", (WORD_BITS, parameters + 3)),
    )


def prediction_rounds(
    *, images: int, tokens: int, width: int, classes: int, adapters: int, rank: int, cut: int
) -> tuple[Round, ...]:
    """Return the rounds of one batch up to the logits; arguments like `step_rounds`."""
    return _forward_rounds(images, tokens, width, classes, adapters, rank, cut, beside=0)


def _parameters(tokens: int, width: int, classes: int, adapters: int, rank: int) -> int:
    return adapters * (2 * rank * (tokens + width) + 1) + classes * (width + 1)


def _checks(adapters: int) -> int:
    return adapters * len(ADAPTER_TENSORS) + len(HEAD_TENSORS)


def _forward_rounds(
    images: int, tokens: int, width: int, classes: int, adapters: int, rank: int, cut: int, *, beside: int
) -> tuple[Round, ...]:
    """beside: words of an adapter that only the backward pass needs."""
    parameters = _parameters(tokens, width, classes, adapters, rank)
    outputs = images * width * (adapters * tokens if adapters else READ)
    return (
        _both("lift", (STREAM - cut, outputs), (USED, parameters), (CHECKED, parameters)),
        _both("parameters", (PLACE, _checks(adapters))),
        *(
            each
            for read in read_tokens(tokens, adapters)
            for each in _adapter_rounds(images, tokens, width, rank, read, beside)
        ),
        *_head_rounds(images, width, classes),
    )


def _adapter_rounds(images: int, tokens: int, width: int, rank: int, read: int, beside: int) -> Iterator[Round]:
    rows, stream = images * tokens, images * tokens * width
    channels, reduced = rows * rank, images * rank * width
    down = rank * width
    for parts in (
        [(CHECKED, stream)],
        [(WORD_BITS, stream + down), (PLACE, rows)],
        [(CHECKED, channels)],
        [(WORD_BITS, channels + down), (PLACE, rows)],
        [(LIFTED, stream)],
        [(WORD_BITS, stream + rank * tokens)],
        [(CHECKED, reduced)],
        [(WORD_BITS, reduced + rank * read + beside), (PLACE, images * rank)],
        [(LIFTED, images * read * width), (WORD_BITS, 1)],
    ):
        yield _both("adapter", *parts)


def _adapter_rounds_backwards(
    images: int, tokens: int, width: int, rank: int, read: int, gradient: int
) -> Iterator[Round]:
    derivatives, small, mixed = images * read * width, rank * (read + width), images * rank**2
    channels, reduced = images * tokens * rank, images * rank * width
    for parts in (
        [(LIFTED, derivatives), (CHECKED, derivatives), (LIFTED, small + mixed)],
        [(WORD_BITS, derivatives + small + mixed), (PLACE, images)],
        [(LIFTED, reduced), (WORD_BITS, reduced), (gradient, small)],
        [(SLOPED, reduced), (WORD_BITS, small)],
        [(LIFTED, mixed)],
        [(WORD_BITS, mixed)],
        [(LIFTED, channels), (WORD_BITS, channels)],
        [(SLOPED, channels)],
    ):
        yield _both("adapter backwards", *parts)


def _head_rounds(images: int, width: int, classes: int) -> Iterator[Round]:
    tokens, weight = images * width, classes * width
    for name, parts in (
        ("norm", [(CHECKED, tokens)]),
        ("norm", [(PLACE, images)]),
        ("norm", [(WORD_BITS, images)]),
        ("norm", [(LIFTED, tokens)]),
        ("head", [(WORD_BITS, tokens + weight)]),
    ):
        yield _both(name, *parts)


def _head_rounds_backwards(images: int, width: int, classes: int) -> Iterator[Round]:
    tokens, logits, weight = images * width, images * classes, classes * width
    for name, parts in (
        ("softmax", [(COARSE, logits), (PLACE, logits), (WORD_BITS, 2 * logits)]),
        ("softmax", [(LIFTED, logits), (PLACE, images + logits)]),
        ("softmax", [(WORD_BITS, images), (PLACE, images)]),
        ("softmax", [(LIFTED, logits)]),
        ("head backwards", [(WORD_BITS, 2 * logits + tokens + weight)]),
        ("norm backwards", [(LIFTED, tokens), (WORD_BITS, tokens)]),
        ("norm backwards", [(LIFTED, 2 * images)]),
        ("norm backwards", [(WORD_BITS, images)]),
        ("norm backwards", [(LIFTED, tokens), (WORD_BITS, images)]),
    ):
        yield _both(name, *parts)


def _both(operation: str, *parts: tuple[int, int]) -> Round:
    octets = sum(byte_width(bits) * count for bits, count in parts)
    return Round(operation, octets, octets)
