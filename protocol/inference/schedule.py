"""What private inference sends, from the sizes of a model alone: every round of a pass, in order, with its bytes.

A pass is: the patches' embedding, block after block, the head. In the `known` mode the data owner is told the residual
stream after the embedding and after every block, and normalises it itself; otherwise nobody knows it, and normalising
takes four rounds. In both modes the data owner is told the logits at the end. Both owners send at once in a round; a
side that sends nothing waits. Bytes are those of the words of shares, without headers.

The widths of the rings (in bits) are what the bytes follow from; tacit.parties.inference.scales says what is in them.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

WORD_BITS: Final = 64
COARSE: Final = 16
"""Of scores and hidden values once they are narrow."""
FINE: Final = 24
"""Of exponentials, and of what is normalised."""
FACTOR: Final = 48
"""Of pixels, queries, keys, the residual stream, the input of the head, and logits."""
MIXING: Final = 46
"""Of exponentials and values as factors: two digits each, for up to 1,024 tokens."""
HIDDEN: Final = 40
SLOPE_BITS: Final = 8
"""Of a table's argument, below those of its intervals."""
TOTALS_INDEX_BITS: Final = 9
NORM_INDEX_BITS: Final = 11
"""Tables are linear in 2^INDEX_BITS intervals; there are fewer variances than sums, and they differ by more."""

LARGEST_PIXELS: Final = 1 << 14
"""Words in the row of a patch. Whoever names sizes cannot make others allocate more than these four allow."""
LARGEST_TOKENS: Final = 1 << 10
"""Tokens of an image, the class token among them."""
LARGEST_SCORES: Final = 1 << 24
"""Attention scores of an image, all heads of a layer."""
LARGEST_WEIGHTS: Final = 1 << 30
"""Weights of all layers together."""


def byte_width(bits: int) -> int:
    """Bytes that a word takes on the wire."""
    return -(-bits // 8)


class Sizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a vision transformer with a class token. ValueError for sizes that do not fit together, or the rings."""

    side: Annotated[int, Meta(ge=1, le=1 << 12)]
    """Pixels along an edge of the square images."""
    channels: Annotated[int, Meta(ge=1, le=1 << 8)]
    patch: Annotated[int, Meta(ge=1, le=1 << 12)]
    """Pixels along an edge of a patch."""
    width: Annotated[int, Meta(ge=1, le=1 << 12)]
    """Of a token."""
    heads: Annotated[int, Meta(ge=1, le=1 << 12)]
    hidden: Annotated[int, Meta(ge=1, le=1 << 14)]
    """Width of the layer between fc1 and fc2."""
    blocks: Annotated[int, Meta(ge=1, le=1 << 8)]
    classes: Annotated[int, Meta(ge=1, le=1 << 16)]

    def __post_init__(self) -> None:
        if min(msgspec.structs.astuple(self)) < 1 or self.side % self.patch or self.width % self.heads:
            raise ValueError(f"{self}: sizes are at least 1, patches share the side evenly, and heads the width")
        for name, count, limit in (
            ("words in a patch", self.pixels, LARGEST_PIXELS),
            ("tokens", self.tokens, LARGEST_TOKENS),
            ("scores of an image", self.heads * self.tokens**2, LARGEST_SCORES),
            ("weights", sum(rows * columns for rows, columns in layer_shapes(self).values()), LARGEST_WEIGHTS),
        ):
            if count > limit:
                raise ValueError(f"{self}: {count} {name} are more than {limit}; take a smaller model")

    @property
    def pixels(self) -> int:
        """Words in the row of a patch."""
        return self.channels * self.patch**2

    @property
    def tokens(self) -> int:
        """Patches, and the class token before them."""
        return 1 + (self.side // self.patch) ** 2


class Round(NamedTuple):
    """One exchange between the owners."""

    operation: str
    model_owner_bytes: int
    """What the model owner sends in it."""
    data_owner_bytes: int
    """What the data owner sends in it."""


def embedding_rounds(sizes: Sizes, images: int, *, known: bool) -> tuple[Round, ...]:
    """Of the patches of these images, to the residual stream."""
    patches = images * (sizes.tokens - 1) * sizes.pixels
    return Round("embedding", 0, byte_width(FACTOR) * patches), *_told_stream(sizes, images, known=known)


def block_rounds(sizes: Sizes, images: int, *, known: bool) -> tuple[Round, ...]:
    """Of one block."""
    rows = images * sizes.tokens
    stream, sums = rows * sizes.width, rows * sizes.heads
    scores, hidden = sums * sizes.tokens, rows * sizes.hidden
    word, factor, fine, coarse = (byte_width(bits) for bits in (WORD_BITS, FACTOR, FINE, COARSE))
    place = byte_width(TOTALS_INDEX_BITS + SLOPE_BITS)
    return (
        *(() if known else _norm_rounds("layer norm 1", rows, sizes.width)),
        Round("qkv", 0, word * stream),
        _both("scores", 2 * factor * stream),
        _both("softmax", coarse * scores),
        _both("softmax", fine * scores),
        _both("mixing", byte_width(MIXING) * (scores + stream) + place * sums),
        _both("mixing", fine * stream + word * sums),
        _both("mixing", fine * stream),
        Round("projection", 0, factor * stream),
        *_norm_rounds("layer norm 2", rows, sizes.width),
        Round("fc1", 0, byte_width(HIDDEN) * stream),
        _both("gelu", coarse * hidden),
        Round("fc2", 0, factor * hidden),
        *_told_stream(sizes, images, known=known),
    )


def head_rounds(sizes: Sizes, images: int, *, known: bool) -> tuple[Round, ...]:
    """Of the class tokens, to logits that the data owner is told."""
    return (
        *(() if known else _norm_rounds("final norm", images, sizes.width)),
        Round("head", 0, byte_width(FACTOR) * images * sizes.width),
        Round("result", byte_width(FACTOR) * images * sizes.classes, 0),
    )


def pass_rounds(sizes: Sizes, images: int, *, known: bool) -> tuple[Round, ...]:
    """Of a whole pass."""
    return (
        *embedding_rounds(sizes, images, known=known),
        *block_rounds(sizes, images, known=known) * sizes.blocks,
        *head_rounds(sizes, images, known=known),
    )


def layer_shapes(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """(in, out) of every layer by its name, in the order in which they are computed."""
    block = block_layer_shapes(sizes.width, sizes.hidden)
    return {
        "embedding": (sizes.pixels, sizes.width),
        **{f"{index}.{name}": shape for index in range(sizes.blocks) for name, shape in block.items()},
        "head": (sizes.width, sizes.classes),
    }


def block_layer_shapes(width: int, hidden: int) -> dict[str, tuple[int, int]]:
    """Those of one block."""
    return {"qkv": (width, 3 * width), "proj": (width, width), "fc1": (width, hidden), "fc2": (hidden, width)}


def weight_bytes(sizes: Sizes) -> tuple[int, ...]:
    """What the masked weight of every layer takes, in the order of `layer_shapes`."""
    return tuple(byte_width(WORD_BITS) * rows * columns for rows, columns in layer_shapes(sizes).values())


def _norm_rounds(operation: str, rows: int, width: int) -> tuple[Round, ...]:
    """Centred values, variances, their inverse roots, normalised values."""
    values = byte_width(FINE) * rows * width
    widths = (values, byte_width(NORM_INDEX_BITS + SLOPE_BITS) * rows, byte_width(WORD_BITS) * rows, values)
    return tuple(_both(operation, octets) for octets in widths)


def _told_stream(sizes: Sizes, images: int, *, known: bool) -> tuple[Round, ...]:
    told = Round("result", byte_width(FACTOR) * images * sizes.tokens * sizes.width, 0)
    return (told,) if known else ()


def _both(operation: str, octets: int) -> Round:
    return Round(operation, octets, octets)
