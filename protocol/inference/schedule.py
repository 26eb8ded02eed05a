"""Communication schedule of private inference: every round of a pass, in order, with its bytes, from the sizes alone.

A pass consists of the patch embedding, in some models with a LayerNorm, the blocks, and the head. Neither owner learns
the residual stream. At the end the owners open the range check, and only if it passes the data owner receives the
results: logits (or features) rounded to some bits, or the best labels. Both owners send at once in a round; a side that
sends nothing waits. Byte counts are those of share words, without headers.

Byte counts follow from the ring widths below, in bits; tacit.parties.inference.scales explains the values in them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

WORD_BITS: Final = 64
COARSE: Final = 16
"""Scores and hidden values after truncation; the argument of a function."""
FINEST: Final = 24
"""Largest ring of hidden values, where the period of their function is a part of their ring."""
ACTIVATED: Final = 24
"""Activations, before they are opened for extension to the ring of STREAM bits."""
CENTRED: Final = 23
WEIGHTED: Final = 24
"""Sums of values weighted by exponentials."""
SHARES: Final = 40
"""Exponentials of a softmax by squarings, before division by their sum."""
SQUARED: Final = 32
"""Squares of a softmax by squarings, before division by their sum."""
POOLED: Final = 24
"""Tokens before their mean is taken, or after attention pooling."""
VECTORS: Final = 36
STREAM: Final = 40
"""The residual stream, and factors of products that join it; values and exponentials as factors; untruncated logits."""
RESULT_BITS: Final = 32
"""Revealed logits after truncation."""
LABEL_BITS: Final = 16
RANKED: Final = 24
"""Compared logits, and the indices of their classes."""
MOST_LABELS: Final = 16
RANKED_TOGETHER: Final = 128
"""Largest number of classes compared pairwise in one step."""
_GROUP: Final = 8
"""Factor by which a step reduces the number of classes, where there are more."""
PLACE: Final = 32
"""Arguments of lookups and range checks."""
THRESHOLD_LEVELS: Final = 16
"""Compared bits, the most significant ones."""

RANGE: Final = "range"
"""Round in which both owners learn whether a pass is in range."""

LARGEST_PIXELS: Final = 1 << 14
"""Words in a patch row. These four limits bound the memory that announced sizes can make a peer allocate."""
LARGEST_TOKENS: Final = 1 << 10
"""Tokens of an image, including those without pixels."""
LARGEST_SCORES: Final = 1 << 24
"""Attention scores of an image, over all heads of a layer."""
LARGEST_WEIGHTS: Final = 1 << 30
"""Weights of all layers together."""


def byte_width(bits: int) -> int:
    """Return the bytes of a word on the wire."""
    return -(-bits // 8)


Pooling = Literal["token", "two tokens", "mean", "mean of normalised", "attention"]
"""Input of the last LayerNorm: the first token; the first two, whose results the head reads side by side; the mean of
the patch tokens; or all patch tokens, of whose results the head reads the mean. Attention pooling has no such
LayerNorm: the last block is a pool whose attention replaces its input. It appends the mean of a token's values, and the
head reads its first token."""


MOST_SQUARINGS: Final = 5


class BlockForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variant of a block's functions, chosen by the range of its values."""

    squarings: Annotated[int, Meta(ge=0, le=MOST_SQUARINGS)] = 0
    """L: the softmax takes scores / 2^L, then squares and normalises L times, in 3 L + 2 extra rounds; 0: none."""
    hidden_bits: Annotated[int, Meta(ge=COARSE, le=FINEST)] = COARSE
    """Bits of hidden values as they are opened: the lowest COARSE of them are one period of their function."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a vision transformer. Raises ValueError for sizes that do not fit together, or the rings."""

    side: Annotated[int, Meta(ge=1, le=1 << 12)]
    """Pixels along an edge of the square images."""
    channels: Annotated[int, Meta(ge=1, le=1 << 8)]
    patch: Annotated[int, Meta(ge=1, le=1 << 12)]
    """Pixels along an edge of a patch."""
    width: Annotated[int, Meta(ge=1, le=1 << 12)]
    """Values per token."""
    heads: Annotated[int, Meta(ge=1, le=1 << 12)]
    hidden: Annotated[int, Meta(ge=1, le=1 << 14)]
    """Width of the MLP's hidden layer, between fc1 and fc2."""
    blocks: Annotated[int, Meta(ge=1, le=1 << 8)]
    classes: Annotated[int, Meta(ge=1, le=1 << 16)]
    forms: tuple[BlockForm, ...] = ()
    """Form of every block; empty: the default form for all."""
    prefix: Annotated[int, Meta(ge=0, le=1 << 10)] = 1
    """Tokens without pixels that precede the patch tokens: class token, distillation token, registers."""
    norm_pre: bool = False
    """Whether a LayerNorm precedes the first block; it takes four extra rounds."""
    pooling: Pooling = "token"
    whole: bool = False
    """Whether the weights of every layer are masked modulo 2^64, as CrypTen's tensors require."""

    def __post_init__(self) -> None:
        numbers = (self.side, self.channels, self.patch, self.width, self.heads, self.hidden, self.blocks, self.classes)
        if min(numbers) < 1 or self.side % self.patch or self.width % self.heads:
            raise ValueError(f"{self}: sizes are at least 1, patches share the side evenly, and heads the width")
        if len(self.forms) not in (0, self.blocks):
            raise ValueError(f"{self}: {self.blocks} blocks have as many forms, not {len(self.forms)}")
        if self.tokens < 2:
            raise ValueError(f"{self}: attention needs at least two tokens, and this model has {self.tokens}")
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
    def patches(self) -> int:
        return (self.side // self.patch) ** 2

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    @property
    def normed(self) -> int:
        found = {"token": 1, "two tokens": 2, "mean": 1, "mean of normalised": self.patches, "attention": 0}
        return found[self.pooling]

    @property
    def read(self) -> int:
        return {"two tokens": 2 * self.width, "attention": self.width + 1}.get(self.pooling, self.width)

    def form(self, block: int) -> BlockForm:
        return self.forms[block] if self.forms else BlockForm()

    def is_pool(self, block: int) -> bool:
        return self.pooling == "attention" and block == self.blocks - 1


class Results(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Results revealed per image: the best labels, or all logits. Raises ValueError for both or neither."""

    labels: Annotated[int, Meta(ge=0, le=1 << 16)]
    """Number of labels, best first; 0: logits instead."""
    bits: Annotated[int, Meta(ge=0, le=16)]
    """Fractional bits of logits; 0: labels instead."""

    def __post_init__(self) -> None:
        if (self.labels > 0) == (self.bits > 0):
            raise ValueError(
                f"{self.labels} labels, {self.bits} bits of logits: one of these is 0, and the other is not"
            )


LOGITS: Final = Results(labels=0, bits=12)


class RankingStep(NamedTuple):
    """One step of the reduction from all classes to the best: each group keeps its best."""

    groups: int
    size: int
    """Classes of a group; the last group may have fewer."""
    kept: int

    @property
    def pairs(self) -> int:
        """Comparisons in a group: every class with every other."""
        return self.size * (self.size - 1) // 2


class Round(NamedTuple):
    """One exchange between the owners."""

    operation: str
    model_owner_bytes: int
    data_owner_bytes: int


def embedding_rounds(sizes: Sizes, images: int) -> tuple[Round, ...]:
    patches, rows = images * sizes.patches * sizes.pixels, images * sizes.tokens
    embedded = Round("embedding", 0, byte_width(STREAM) * patches)
    if not sizes.norm_pre:
        return (embedded,)
    normed = Round("norm pre", 0, byte_width(STREAM) * rows * sizes.width)
    return embedded, *_norm_rounds("norm pre", rows, sizes.width), normed


def block_rounds(sizes: Sizes, images: int, block: int) -> tuple[Round, ...]:
    form = sizes.form(block)
    rows = images * sizes.tokens
    stream, sums = rows * sizes.width, rows * sizes.heads
    scores, hidden = sums * sizes.tokens, rows * sizes.hidden
    word, weighted, vectors, factor, place = (
        byte_width(bits) for bits in (WORD_BITS, WEIGHTED, VECTORS, STREAM, PLACE)
    )
    return (
        *_norm_rounds("layer norm 1", rows, sizes.width),
        Round("qkv", 0, word * stream),
        _both("scores", (2 * vectors + factor) * stream),
        _both("softmax", byte_width(COARSE) * scores + 2 * place * sums),
        *_squaring_rounds(form.squarings, scores, sums),
        _both("mixing", factor * scores + place * sums),
        _both("mixing", weighted * stream + word * sums),
        Round("projection", 0, factor * stream),
        *_norm_rounds("layer norm 2", rows, sizes.width),
        Round("fc1", 0, factor * stream),
        _both("gelu", byte_width(form.hidden_bits) * hidden),
        _both("gelu", byte_width(ACTIVATED) * hidden + place * rows),
        Round("fc2", 0, factor * hidden),
    )


def backbone_rounds(sizes: Sizes, images: int) -> tuple[Round, ...]:
    blocks = [each for block in range(sizes.blocks) for each in block_rounds(sizes, images, block)]
    return (*embedding_rounds(sizes, images), *blocks)


def _squaring_rounds(squarings: int, scores: int, sums: int) -> tuple[Round, ...]:
    """Rounds of the exponentials and their sums and of the inverse sums; then for each squaring, of the normalised
    shares, their squares and sums, and the inverse sums."""
    if not squarings:
        return ()
    exponentials, squares = (
        (
            _both("softmax", byte_width(bits) * scores + byte_width(PLACE) * sums),
            _both("softmax", byte_width(WORD_BITS) * sums),
        )
        for bits in (SHARES, SQUARED)
    )
    return exponentials + (_both("softmax", byte_width(WEIGHTED) * scores), *squares) * squarings


def head_rounds(sizes: Sizes, images: int, *, results: Results = LOGITS) -> tuple[Round, ...]:
    pooled = {"mean": sizes.patches * sizes.width, "attention": sizes.read}.get(sizes.pooling, 0)
    return (
        *((_both("pooling", byte_width(POOLED) * images * pooled),) if pooled else ()),
        *(_norm_rounds("final norm", images * sizes.normed, sizes.width) if sizes.normed else ()),
        Round("head", 0, byte_width(STREAM) * images * sizes.read),
        *result_rounds(sizes.classes, images, results),
    )


def result_rounds(classes: int, images: int, results: Results) -> tuple[Round, ...]:
    """Return the rounds from logits to the opening of the range check, and the results that follow a pass in range."""
    labels = results.labels
    told = byte_width(LABEL_BITS) * labels if labels else byte_width(RESULT_BITS) * classes
    ranking = ranking_rounds(classes, labels, images) if labels else ()
    return (*range_rounds(), *ranking, Round("result", images * told, 0))


def range_rounds() -> tuple[Round, ...]:
    """Return the rounds of the range check: compare a shared count with zero, then open the answer."""
    return _both("count", byte_width(PLACE)), _both(RANGE, byte_width(WORD_BITS))


def ranking_steps(classes: int, labels: int) -> tuple[RankingStep, ...]:
    """Return the steps that reduce all classes to the best labels.

    Up to RANKED_TOGETHER classes are compared pairwise at once. Larger sets are split into groups of _GROUP * labels,
    each keeping its best, until few enough are left: for one label, 1,000 classes take 11,250 comparisons in six
    rounds. All pairs would take 499,500 in two, and halving 999 in twenty.
    """
    steps, left = [], classes
    while left > RANKED_TOGETHER and _GROUP * labels < left:
        steps.append(RankingStep(-(-left // (_GROUP * labels)), _GROUP * labels, labels))
        # A last group with fewer classes than are kept keeps all.
        left = left // steps[-1].size * labels + min(left % steps[-1].size, labels)
    return (*steps, RankingStep(1, left, labels))


def ranking_rounds(classes: int, labels: int, images: int) -> tuple[Round, ...]:
    """Return the rounds from logits to the indices of the best classes, best first: comparisons, ranks within the
    group, and selection by products, each with its logit unless the step is the last. The first step selects locally if
    it is the only one.

    For one label per image, 10 classes take 2 rounds and 220 bytes from each owner, 100 take 2 rounds and 20 kB, 1,000
    take 6 rounds and 59 kB; their preprocessing takes 24 kB, 2.5 MB and 5.8 MB for both owners.
    """
    rounds, steps = [], ranking_steps(classes, labels)
    for step in steps:
        last = step is steps[-1]
        groups, columns = images * step.groups, 1 if last else 2
        rounds.append(_both("ranking", byte_width(PLACE) * groups * step.pairs))
        rounds.append(_both("ranking", byte_width(PLACE) * groups * step.size))
        if len(steps) > 1:
            rounds.append(_both("ranking", byte_width(RANKED) * groups * step.size * (step.kept + columns)))
    return tuple(rounds)


def pass_rounds(sizes: Sizes, images: int, *, results: Results = LOGITS) -> tuple[Round, ...]:
    return (
        *backbone_rounds(sizes, images),
        *head_rounds(sizes, images, results=results),
    )


def layer_shapes(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return (in, out) of every layer by name, in order of computation."""
    blocks = [block_layer_shapes(sizes.width, sizes.hidden, pool=sizes.is_pool(index)) for index in range(sizes.blocks)]
    return {
        "embedding": (sizes.pixels, sizes.width),
        **({"norm_pre": (sizes.width, sizes.width)} if sizes.norm_pre else {}),
        **{f"{index}.{name}": shape for index, block in enumerate(blocks) for name, shape in block.items()},
        "head": (sizes.read, sizes.classes),
    }


def block_layer_shapes(width: int, hidden: int, *, pool: bool = False) -> dict[str, tuple[int, int]]:
    left = width + pool
    return {"qkv": (width, 3 * width), "proj": (width, left), "fc1": (width, hidden), "fc2": (hidden, left)}


def layer_bits(name: str, *, whole: bool = False) -> int:
    """Return the ring, in bits, of a layer's input, masked weights and result. name: from `layer_shapes`; whole: from
    the sizes."""
    return WORD_BITS if whole or name.endswith("qkv") else STREAM


def weight_bytes(sizes: Sizes) -> tuple[int, ...]:
    """Return the bytes of every layer's masked weights, in the order of `layer_shapes`."""
    shapes = layer_shapes(sizes).items()
    return tuple(byte_width(layer_bits(name, whole=sizes.whole)) * rows * columns for name, (rows, columns) in shapes)


def _norm_rounds(operation: str, rows: int, width: int) -> tuple[Round, ...]:
    widths = (byte_width(CENTRED) * rows * width, byte_width(PLACE) * rows, byte_width(WORD_BITS) * rows)
    return tuple(_both(operation, octets) for octets in widths)


def _both(operation: str, octets: int) -> Round:
    return Round(operation, octets, octets)
