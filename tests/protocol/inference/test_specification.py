"""The page docs/spec/inference.md fixes the rounds of a pass and the bytes of the weights; the code has the same."""

import re
from pathlib import Path
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.inference.schedule import (
    Pooling,
    Round,
    Sizes,
    layer_shapes,
    pass_rounds,
    ranking_rounds,
    weight_bytes,
)

PAGE = (Path(__file__).parents[3] / "docs" / "spec" / "inference.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([a-z0-9 ]+) \| ([^|]+) \| ([^|]+) \| ((?:once|every block).*?) \|$", PAGE, re.MULTILINE)
RANKING = re.findall(r"^\| ranking \| ([^|]+) \| likewise \| every step, labels only(.*?) \|$", PAGE, re.MULTILINE)
POOLINGS = {
    name: (rows, words) for name, rows, words in re.findall(r"^\| `([a-z ]+)` \| ([^|]+) \| ([^|]+) \|", PAGE, re.M)
}
LAYERS = re.findall(r"`(\w+)` \(([^)]+)\)", PAGE[PAGE.index("The layers, in their order") :])


def value(formula: str, sizes: dict[str, int]) -> int:
    """What a formula of the page is: products and sums of numbers and letters."""
    assert re.fullmatch(r"[0-9A-Za-z*/+() -]+", formula)
    return int(eval(formula, {"__builtins__": {}}, sizes))


@settings(max_examples=20, deadline=None)
@given(
    patch=st.integers(1, 3), grid=st.integers(1, 4), channels=st.integers(1, 3), heads=st.integers(1, 3),
    head=st.integers(1, 5), hidden=st.integers(1, 20), blocks=st.integers(1, 3), classes=st.integers(1, 9),
    images=st.integers(1, 5), far=st.booleans(), prefix=st.integers(2, 6), norm_pre=st.booleans(),
    pooling=st.sampled_from(get_args(Pooling)),
)  # fmt: skip
def test_rounds_and_layers_of_the_page(
    patch: int, grid: int, channels: int, heads: int, head: int, hidden: int, blocks: int, classes: int, images: int,
    far: bool, prefix: int, norm_pre: bool, pooling: Pooling,
) -> None:  # fmt: skip
    assert len(ROWS) == 32
    pooled = pooling == "attention"
    only = {
        "far only": far, "norm_pre only": norm_pre, "mean only": pooling == "mean", "attention only": pooled,
        "not attention": not pooled,
    }  # fmt: skip
    sizes = Sizes(
        side=patch * grid, channels=channels, patch=patch, width=heads * head, heads=heads, hidden=hidden,
        blocks=blocks, classes=classes, far=far, prefix=prefix, norm_pre=norm_pre, pooling=pooling,
    )  # fmt: skip
    letters = {
        "N": images, "T": prefix + grid**2, "D": heads * head, "H": heads, "F": hidden, "P": grid**2,
        "X": patch**2 * channels, "K": classes,
    }  # fmt: skip
    for letter, formula in zip("RW", POOLINGS[pooling], strict=True):
        letters[letter] = value(re.sub(r"(\d) ([A-Z])", r"\1 * \2", formula), letters)
    parts: dict[str, list[Round]] = {"before": [], "block": [], "after": []}
    for operation, ours, theirs, where in ROWS:
        if not all(there for condition, there in only.items() if condition in where):
            continue
        part = "block" if where.startswith("every block") else "after" if parts["block"] else "before"
        parts[part].append(Round(operation, value(ours, letters), value(theirs, letters)))
    expected = [*parts["before"], *parts["block"] * blocks, *parts["after"]]
    assert list(pass_rounds(sizes, images)) == expected
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
    assert weight_bytes(sizes) == tuple(8 * rows * columns for rows, columns in named.values())


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
