"""Rounds of private inference and their bytes: counted by hand, and as docs/spec/inference.md fixes them."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.inference.schedule import (
    BlockForm,
    Pooling,
    Round,
    Sizes,
    block_rounds,
    layer_shapes,
    pass_rounds,
    ranking_rounds,
    weight_bytes,
)
from tests.protocol.inference.totals import by_operation

VIT_S: dict[str, Any] = {
    "side": 224, "channels": 3, "patch": 16, "width": 384, "heads": 6, "hidden": 1536, "blocks": 12, "classes": 1000
}  # fmt: skip


def test_the_targets_for_a_block_of_vit_s_are_declared() -> None:
    """12.8 MB of both parties for an image, 16 rounds. Counted by hand for one image: 75,648 elements of the stream,
    232,854 scores of 1,182 rows, 302,592 hidden values."""
    sizes = Sizes(**VIT_S)
    one = by_operation(block_rounds(sizes, 1, 0))
    assert one["qkv"] == (0, 605_184, 1)
    assert one["scores"] == (1_134_720, 1_134_720, 1)
    assert one["softmax"] == (475_164, 475_164, 1)
    # LayerNorm: 3 bytes of each element; of 197 tokens 4 for the variance, and 8 for its inverse root.
    assert one["layer norm 1"] == (229_308, 229_308, 3)
    assert sum(cost.data_owner_bytes for cost in one.values()) == 6_725_186 + 229_308 + 3 * 302_592
    for images in (1, 16):
        steps = block_rounds(sizes, images, 0)
        assert (
            sum(step.model_owner_bytes + step.data_owner_bytes for step in steps) == (11_034_364 + 6 * 302_592) * images
        )
        assert len(steps) == 16


def test_a_block_sends_more_where_it_squares_and_hidden_values_are_wide() -> None:
    """Counted by hand as above, with 3 bytes of each hidden value. The first division takes 5
    bytes of each score, others 4, and all 4 of each row, then 8 of each row; a squaring before it 3 of each score."""
    forms = [{"squarings": 3, "hidden_bits": 17}, *[{}] * 11]
    sizes = msgspec.convert(VIT_S | {"forms": forms}, Sizes)
    plain, one = (block_rounds(Sizes(**VIT_S), 1, 0), block_rounds(sizes, 1, 0))
    opened, *squared = [step.model_owner_bytes for step in one if step.operation == "softmax"]
    assert opened == 2 * 232_854 + 8 * 1_182
    assert squared == [1_168_998, 9_456, *[698_562, 936_144, 9_456] * 3]
    assert len(one) == len(plain) + 3 * 3 + 2
    assert by_operation(one)["gelu"] == (1_816_340, 1_816_340, 2)
    assert block_rounds(sizes, 1, 1) == plain
    assert pass_rounds(sizes, 1)[1 : len(one) + 1] == one


def test_a_pass_is_the_embedding_the_blocks_and_the_head() -> None:
    steps = pass_rounds(Sizes(**VIT_S), 2)
    # 2 images of 196 patches of 768 pixels, 5 bytes each; 2 class tokens of 384 values; 2 x 1,000 logits, 4 bytes each.
    assert steps[0] == Round("embedding", 0, 1_505_280)
    *rest, head, count, told, result = steps
    assert (head, count, told) == (Round("head", 0, 3_840), Round("count", 4, 4), Round("range", 8, 8))
    assert result == Round("result", 8_000, 0)
    assert tuple(rest[1:-3]) == block_rounds(Sizes(**VIT_S), 2, 0) * 12
    # 2 tokens of 384 values: 3 bytes; one variance each: 4 bytes; its inverse root: 8.
    assert [step[1:] for step in rest[-3:]] == [(2_304, 2_304), (8, 8), (16, 16)]


def test_layers_are_those_of_timms_model() -> None:
    shapes = layer_shapes(Sizes(**VIT_S))
    names = ["qkv", "proj", "fc1", "fc2"]
    assert list(shapes) == ["embedding", *(f"{block}.{name}" for block in range(12) for name in names), "head"]
    # vit_small_patch16_224 has 22,050,664 parameters: weights, and here 137,896 biases, norms, positions, class token.
    biases = 384 + 12 * (3 + 1 + 4 + 1 + 4) * 384 + 2 * 384 + 1000 + 197 * 384 + 384
    assert sum(rows * columns for rows, columns in shapes.values()) == 22_050_664 - biases
    assert weight_bytes(Sizes(**VIT_S)) == tuple(
        (8 if name.endswith("qkv") else 5) * rows * columns for name, (rows, columns) in shapes.items()
    )


def test_sizes_that_do_not_fit_are_refused() -> None:
    for change, reason in [
        *(({name: 0}, "at least 1|>= 1") for name in VIT_S),
        *(({name: 1 << 40}, "<=") for name in VIT_S),
        *(({name: 1.5}, "Expected `int`") for name in VIT_S),
        ({"patch": 15}, "patches share the side evenly"),
        ({"heads": 5}, "heads the width"),
        ({"channels": 65}, "16640 words in a patch are more than 16384"),
        ({"patch": 7}, "1025 tokens are more than 1024"),
        ({"patch": 7, "side": 217, "width": 396, "heads": 22}, "20359768 scores of an image are more than 16777216"),
        ({"blocks": 256, "width": 1536, "heads": 6}, "weights are more than 1073741824"),
        ({"extra": 1}, "unknown field"),
        ({"forms": [{}]}, "12 blocks have as many forms, not 1"),
        ({"forms": [{"squarings": 6}] * 12}, "<= 5"),
        ({"forms": [{"squarings": -1}] * 12}, ">= 0"),
        ({"forms": [{"hidden_bits": 15}] * 12}, ">= 16"),
        ({"forms": [{"hidden_bits": 25}] * 12}, "<= 24"),
    ]:
        with pytest.raises(ValueError, match=reason):
            msgspec.convert(VIT_S | change, Sizes)

    with pytest.raises(ValueError, match="sizes are at least 1"):
        Sizes(**VIT_S | {"classes": 0})


PAGE = (Path(__file__).parents[3] / "docs" / "spec" / "inference.md").read_text(encoding="utf-8")
Row = tuple[str, str, str, str]
ROWS: list[Row] = re.findall(
    r"^\| ([a-z0-9 ]+) \| ([^|]+) \| ([^|]+) \| ((?:once|every block).*?) \|$", PAGE, re.MULTILINE
)
RANKING = re.findall(r"^\| ranking \| ([^|]+) \| likewise \| every step, labels only(.*?) \|$", PAGE, re.MULTILINE)
POOLINGS = {
    name: (rows, words) for name, rows, words in re.findall(r"^\| `([a-z ]+)` \| ([^|]+) \| ([^|]+) \|", PAGE, re.M)
}
LAYERS = re.findall(r"`(\w+)` \(([^)]+)\)", PAGE[PAGE.index("The layers, in their order") :])


def value(formula: str, sizes: dict[str, int]) -> int:
    """What a formula of the page is: products and sums of numbers and letters."""
    assert re.fullmatch(r"[0-9A-Za-z*/+() -]+", formula)
    return int(eval(formula, {"__builtins__": {}}, sizes))


def rounds(rows: list[Row], letters: dict[str, int], squarings: int = 0) -> list[Round]:
    """Of these rows; those that stand for each squaring are repeated together."""
    found = []
    for each, group in groupby(rows, lambda row: "each squaring" in row[3]):
        part = [Round(name, value(ours, letters), value(theirs, letters)) for name, ours, theirs, _ in group]
        found += part * squarings if each else part
    return found


FORMS = st.builds(BlockForm, squarings=st.integers(0, 5), hidden_bits=st.integers(16, 24))


@settings(max_examples=20, deadline=None)
@given(
    patch=st.integers(1, 3), grid=st.integers(1, 4), channels=st.integers(1, 3), heads=st.integers(1, 3),
    head=st.integers(1, 5), hidden=st.integers(1, 20), forms=st.lists(FORMS, min_size=1, max_size=3),
    plain=st.booleans(), classes=st.integers(1, 9), images=st.integers(1, 5), prefix=st.integers(2, 6),
    norm_pre=st.booleans(), pooling=st.sampled_from(get_args(Pooling)),
)  # fmt: skip
def test_rounds_and_layers_of_the_page(
    patch: int, grid: int, channels: int, heads: int, head: int, hidden: int, forms: list[BlockForm], plain: bool,
    classes: int, images: int, prefix: int, norm_pre: bool, pooling: Pooling,
) -> None:  # fmt: skip
    assert len(ROWS) == 35
    blocks = len(forms)
    pooled = pooling == "attention"
    only = {
        "norm_pre only": norm_pre, "mean only": pooling == "mean", "attention only": pooled,
        "not attention": not pooled,
    }  # fmt: skip
    sizes = Sizes(
        side=patch * grid, channels=channels, patch=patch, width=heads * head, heads=heads, hidden=hidden,
        blocks=blocks, classes=classes, forms=() if plain else tuple(forms), prefix=prefix, norm_pre=norm_pre,
        pooling=pooling,
    )  # fmt: skip
    letters = {
        "N": images, "T": prefix + grid**2, "D": heads * head, "H": heads, "F": hidden, "P": grid**2,
        "X": patch**2 * channels, "K": classes,
    }  # fmt: skip
    for letter, formula in zip("RW", POOLINGS[pooling], strict=True):
        letters[letter] = value(re.sub(r"(\d) ([A-Z])", r"\1 * \2", formula), letters)
    parts: dict[str, list[Row]] = {"before": [], "block": [], "after": []}
    for row in ROWS:
        if all(there for condition, there in only.items() if condition in row[3]):
            part = "block" if row[3].startswith("every block") else "after" if parts["block"] else "before"
            parts[part].append(row)
    expected = rounds(parts["before"], letters)
    for form in [BlockForm()] * blocks if plain else forms:
        opened = {"h": -(-form.hidden_bits // 8)}
        there = [row for row in parts["block"] if form.squarings or "squarings only" not in row[3]]
        expected += rounds(there, letters | opened, form.squarings)
    assert list(pass_rounds(sizes, images)) == expected + rounds(parts["after"], letters)
    shapes = {}
    for name, shape in LAYERS:
        rows, columns = (re.sub(r"(\d) ([A-Z])", r"\1 * \2", side) for side in re.split(r",\s+", shape))
        shapes[name] = value(rows, letters), value(columns, letters)
    first, before, *block, last = shapes
    named = {first: shapes[first]} | ({before: shapes[before]} if norm_pre else {})
    named |= {f"{index}.{name}": shapes[name] for index in range(blocks) for name in block}
    if pooled:
        named |= {f"{blocks - 1}.{name}": (shapes[name][0], shapes[name][1] + 1) for name in ("proj", "fc2")}
    named |= {last: shapes[last]}
    assert list(layer_shapes(sizes).items()) == list(named.items())
    assert weight_bytes(sizes) == tuple(
        (8 if name.endswith("qkv") else 5) * rows * columns for name, (rows, columns) in named.items()
    )


@given(
    classes=st.one_of(st.integers(1, 300), st.integers(1, 1 << 16)), labels=st.integers(1, 20), images=st.integers(1, 3)
)
def test_rounds_of_a_ranking_on_the_page(classes: int, labels: int, images: int) -> None:
    steps, left = [], classes
    while left > 128 and left > 8 * labels:
        size = 8 * labels
        steps.append({"g": -(-left // size), "m": size, "c": 2})
        left = left // size * labels + min(left % size, labels)
    steps.append({"g": 1, "m": left, "c": 1})
    found = [
        value(formula, {"N": images, "q": labels, **step})
        for step in steps
        for formula, unless in RANKING
        if not unless or len(steps) > 1
    ]
    assert len(RANKING) == 3
    assert [Round("ranking", octets, octets) for octets in found] == list(ranking_rounds(classes, labels, images))
