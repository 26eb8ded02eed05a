"""What private inference sends, from the sizes of a model alone: every round of a pass, in order, with its bytes.

A pass is: the patches' embedding, in some models with a LayerNorm, block after block, the head. Nobody knows the
residual stream. At the end the owners open whether all values were in range, and only then the data owner receives the
results: logits (or features) of so many bits, or the best labels. Both owners send at once in a round; a side that
sends nothing waits. Bytes are those of the words of shares, without headers.

The widths of the rings (in bits) are what the bytes follow from; tacit.parties.inference.scales says what is in them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

WORD_BITS: Final = 64
COARSE: Final = 16
"""Of scores and hidden values once they are narrow, the argument of a function."""
FINEST: Final = 24
"""Of hidden values, at most, where the period of their function is a part of their ring."""
ACTIVATED: Final = 24
"""Of the values behind GELU, before they are opened to have them modulo 2^STREAM."""
CENTRED: Final = 23
WEIGHTED: Final = 24
"""Of sums of values, weighted by exponentials."""
SHARES: Final = 40
"""Of the exponentials of a softmax by squarings, before they are divided by their sum."""
SQUARED: Final = 32
"""The same of squares."""
POOLED: Final = 24
"""Bits of tokens whose mean is taken, or that a pool leaves."""
VECTORS: Final = 36
STREAM: Final = 40
"""Of the residual stream, and of whatever is multiplied by a weight to become a part of it; of values and exponentials
as factors; of logits before they are cut."""
RESULT_BITS: Final = 32
"""Of logits that are told, once they are cut."""
LABEL_BITS: Final = 16
RANKED: Final = 24
"""Of logits that are compared with each other, and of the numbers of their classes."""
MOST_LABELS: Final = 16
RANKED_TOGETHER: Final = 128
"""Classes that are all compared with each other in one step."""
_GROUP: Final = 8
"""How many times fewer classes are left by a step, where there are more."""
PLACE: Final = 32
"""Of what is looked up, or compared with its bounds."""
THRESHOLD_LEVELS: Final = 16
"""Bits, the highest, of what is compared."""

RANGE: Final = "range"
"""The round in which both owners learn whether a pass is in range."""

LARGEST_PIXELS: Final = 1 << 14
"""Words in the row of a patch. Whoever names sizes cannot make others allocate more than these four allow."""
LARGEST_TOKENS: Final = 1 << 10
"""Tokens of an image, those without pixels among them."""
LARGEST_SCORES: Final = 1 << 24
"""Attention scores of an image, all heads of a layer."""
LARGEST_WEIGHTS: Final = 1 << 30
"""Weights of all layers together."""


def byte_width(bits: int) -> int:
    """Bytes that a word takes on the wire."""
    return -(-bits // 8)


Pooling = Literal["token", "two tokens", "mean", "mean of normalised", "attention"]
"""Tokens behind the blocks that the last LayerNorm takes: the first; the first two, whose results the head reads beside
each other; the mean of those of the patches; or all of these, whose results the head reads the mean of. With attention
there is no such LayerNorm: the last block is a pool, whose attention takes the place of what goes in. It leaves the
mean of a token's values beside them, which no LayerNorm takes away any more, and the head reads its first token."""


MOST_SQUARINGS: Final = 5


class BlockForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The variant of a block's functions, from the range of its values."""

    squarings: Annotated[int, Meta(ge=0, le=MOST_SQUARINGS)] = 0
    """L: the softmax squares and normalises that of scores / 2^L so often. 3 L + 2 rounds more, none for 0."""
    hidden_bits: Annotated[int, Meta(ge=COARSE, le=FINEST)] = COARSE
    """Bits of hidden values as they are opened: the lowest COARSE of them are one period of their function."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a vision transformer. ValueError for sizes that do not fit together, or the rings."""

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
    forms: tuple[BlockForm, ...] = ()
    """Of every block; none: all have the default."""
    prefix: Annotated[int, Meta(ge=0, le=1 << 10)] = 1
    """Tokens before those of the patches, without pixels: class token, distillation token, registers."""
    norm_pre: bool = False
    """Whether a LayerNorm stands before the first block: four rounds more."""
    pooling: Pooling = "token"
    whole: bool = False
    """Whether the weights of every layer are masked modulo 2^64, as CrypTen's tensors take them."""

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
    """What a data owner is told of an image: its best labels, or the logits of all. ValueError for both, or neither."""

    labels: Annotated[int, Meta(ge=0, le=1 << 16)]
    """How many, the best first; 0: logits."""
    bits: Annotated[int, Meta(ge=0, le=16)]
    """Fractional ones of logits; 0: labels."""

    def __post_init__(self) -> None:
        if (self.labels > 0) == (self.bits > 0):
            raise ValueError(
                f"{self.labels} labels, {self.bits} bits of logits: one of these is 0, and the other is not"
            )


LOGITS: Final = Results(labels=0, bits=12)


class RankingStep(NamedTuple):
    """One step from all classes to the best of them: within each group the best are found."""

    groups: int
    size: int
    """Classes of a group; the last group may have fewer."""
    kept: int

    @property
    def pairs(self) -> int:
        """Comparisons of a group: every class with every other."""
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
    """Exponentials and their sums; inverse sums; then for each squaring shares of their sum, squares and their sums,
    inverse sums."""
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
    """From logits to the bit that says whether all values were in range, and the results that the data owner is told if
    they were."""
    labels = results.labels
    told = byte_width(LABEL_BITS) * labels if labels else byte_width(RESULT_BITS) * classes
    ranking = ranking_rounds(classes, labels, images) if labels else ()
    return (*range_rounds(), *ranking, Round("result", images * told, 0))


def range_rounds() -> tuple[Round, ...]:
    """Whether all values were in range: a shared count is compared with zero, and the answer is opened."""
    return _both("count", byte_width(PLACE)), _both(RANGE, byte_width(WORD_BITS))


def ranking_steps(classes: int, labels: int) -> tuple[RankingStep, ...]:
    """From all classes to the best labels of them.

    Of up to RANKED_TOGETHER classes all are compared with each other at once. Of more, groups of _GROUP * labels keep
    their best, until so few are left: for one label, 1,000 classes take 11,250 comparisons in six rounds. All with all
    would take 499,500 in two, and halving 999 in twenty.
    """
    steps, left = [], classes
    while left > RANKED_TOGETHER and _GROUP * labels < left:
        steps.append(RankingStep(-(-left // (_GROUP * labels)), _GROUP * labels, labels))
        # A last group of fewer classes than are kept keeps all.
        left = left // steps[-1].size * labels + min(left % steps[-1].size, labels)
    return (*steps, RankingStep(1, left, labels))


def ranking_rounds(classes: int, labels: int, images: int) -> tuple[Round, ...]:
    """From logits to the numbers of the best classes, best first: comparisons, ranks within the group, and the kept
    picked out by products, each with its logit unless the step is the last; that of the first is picked locally if it
    is the only one.

    For one label of an image: 10 classes take 2 rounds and 220 bytes of each owner, 100 take 2 rounds and 20 kB, 1,000
    take 6 rounds and 59 kB; of the dealer's material both owners get 24 kB, 2.5 MB and 5.8 MB.
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
    """(in, out) of every layer by its name, in the order in which they are computed."""
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
    """Ring of the layer of this name, as of `layer_shapes`: of its input, its masked weights and its result. whole: of
    the sizes."""
    return WORD_BITS if whole or name.endswith("qkv") else STREAM


def weight_bytes(sizes: Sizes) -> tuple[int, ...]:
    """What the masked weight of every layer takes, in the order of `layer_shapes`."""
    shapes = layer_shapes(sizes).items()
    return tuple(byte_width(layer_bits(name, whole=sizes.whole)) * rows * columns for name, (rows, columns) in shapes)


def _norm_rounds(operation: str, rows: int, width: int) -> tuple[Round, ...]:
    widths = (byte_width(CENTRED) * rows * width, byte_width(PLACE) * rows, byte_width(WORD_BITS) * rows)
    return tuple(_both(operation, octets) for octets in widths)


def _both(operation: str, octets: int) -> Round:
    return Round(operation, octets, octets)
