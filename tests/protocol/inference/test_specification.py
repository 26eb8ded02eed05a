"""The page docs/spec/inference.md fixes the rounds of a pass and the bytes of the weights; the code has the same."""

import re
from itertools import groupby
from pathlib import Path
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.inference.schedule import (
    BlockForm,
    Pooling,
    Round,
    Sizes,
    layer_shapes,
    pass_rounds,
    ranking_rounds,
    weight_bytes,
)

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
