"""What a block costs online, by operation, from its shape alone; tests hold it to what is measured."""

from __future__ import annotations

from typing import NamedTuple

from tacit.parties.inference.material import SLOPE_BITS
from tacit.parties.inference.ring import WORD_BITS, byte_width
from tacit.parties.inference.scales import (
    COARSE,
    FACTOR,
    FINE,
    HIDDEN,
    MIXING,
    NORM_INDEX_BITS,
    TOTALS_INDEX_BITS,
    Shape,
)


class Declared(NamedTuple):
    """One operation of one block."""

    model_owner_bytes: int
    """Sent by the model owner; words of shares, without headers."""
    data_owner_bytes: int
    rounds: int


def declared(shape: Shape, *, known: bool) -> dict[str, Declared]:
    """The operations of a block in their order, up to shares of its output."""
    rows = shape.images * shape.tokens
    stream, sums = rows * shape.width, rows * shape.heads
    scores, hidden = sums * shape.tokens, rows * shape.hidden
    word, factor, fine, coarse = (byte_width(bits) for bits in (WORD_BITS, FACTOR, FINE, COARSE))
    norm = 2 * fine * stream + (byte_width(NORM_INDEX_BITS + SLOPE_BITS) + word) * rows
    mixing = byte_width(MIXING) * (scores + stream) + 2 * fine * stream
    mixing += (byte_width(TOTALS_INDEX_BITS + SLOPE_BITS) + word) * sums
    return {
        **({} if known else {"layer norm 1": Declared(norm, norm, 4)}),
        "qkv": Declared(0, word * stream, 1),
        "scores": Declared(2 * factor * stream, 2 * factor * stream, 1),
        "softmax": Declared(2 * coarse * scores, 2 * coarse * scores, 2),
        "mixing": Declared(mixing, mixing, 3),
        "projection": Declared(0, factor * stream, 1),
        "layer norm 2": Declared(norm, norm, 4),
        "fc1": Declared(0, byte_width(HIDDEN) * stream, 1),
        "gelu": Declared(coarse * hidden, coarse * hidden, 1),
        "fc2": Declared(0, factor * hidden, 1),
    }
