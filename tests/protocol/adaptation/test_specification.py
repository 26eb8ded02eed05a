"""The page docs/spec/adaptation.md fixes the rounds of a pass, of learning and of prediction, and the length of a sum;
the code has the same."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tacit.protocol.adaptation.schedule import adaptation_rounds, parameter_count
from tacit.protocol.inference.schedule import STREAM, BlockForm, Round, backbone_rounds, result_rounds
from tacit.simulate.world.adaptation import learning_terms

PAGE = (Path(__file__).parents[3] / "docs" / "spec" / "adaptation.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([a-z ]+) \| ([^|]+) \| (once|every adapter) \|$", PAGE, re.MULTILINE)
(PARAMETERS,) = re.findall(r"^    P = (.+)$", PAGE, re.MULTILINE)


def value(formula: str, letters: dict[str, int]) -> int:
    """What a formula of the page is: products and sums of numbers and letters."""
    assert re.fullmatch(r"[0-9A-Za-z*/+() -]+", formula)
    return int(eval(formula, {"__builtins__": {}}, letters))


def _sizes(operations: tuple[str, ...], letters: dict[str, int]) -> list[tuple[str, int]]:
    return [(name, value(formula, letters)) for name, formula, _ in ROWS if name in operations]


@settings(max_examples=30, deadline=None)
@given(
    grid=st.integers(1, 3), width=st.integers(1, 5), blocks=st.integers(1, 3), learns=st.booleans(),
    rank=st.integers(1, 4), classes=st.integers(2, 6), cut=st.integers(1, STREAM - 2), gradient=st.integers(1, 64),
    images=st.integers(1, 4), squarings=st.integers(0, 5), hidden_bits=st.integers(16, 24),
)  # fmt: skip
def test_rounds_and_parameters_of_the_page(
    grid: int, width: int, blocks: int, learns: bool, rank: int, classes: int, cut: int, gradient: int, images: int,
    squarings: int, hidden_bits: int,
) -> None:  # fmt: skip
    assert len(ROWS) == 38
    terms = learning_terms(
        side=grid, patch=1, width=width, heads=1, blocks=blocks, adapters=learns * blocks, rank=rank,
        classes=classes, cut=cut, gradient=gradient, batch=images,
    )  # fmt: skip
    forms = (BlockForm(squarings=squarings, hidden_bits=hidden_bits),) * blocks
    terms = replace(terms, sizes=replace(terms.sizes, forms=forms))
    sizes, adapters, tokens = terms.sizes, learns * blocks, 1 + grid**2
    letters = {
        "N": images, "T": tokens, "D": width, "A": adapters, "r": rank, "C": classes,
        "b": -(-(40 - cut) // 8), "g": -(-gradient // 8), "m": adapters * tokens or 1,
    }  # fmt: skip
    product = re.sub(r"(?<=[A-Za-z0-9)]) (?=[A-Za-z0-9(])", " * ", PARAMETERS)
    letters["P"] = value(product, letters)
    assert letters["P"] == parameter_count(sizes, terms.learning)
    step: list[Round] = []
    predicted: list[Round] = []
    read = [tokens] * (adapters - 1) + [1] * min(adapters, 1)
    for reads, operations in (
        ([0], ("lift", "parameters")),
        (read, ("adapter",)),
        ([0], ("norm", "head", "softmax", "head backwards", "norm backwards")),
        (read[::-1], ("adapter backwards",)),
        ([0], ("parameters backwards", "parameters after", "count", "choice")),
    ):
        of_step, of_prediction = (
            [
                Round(name, octets, octets)
                for each in reads
                for name, octets in _sizes(operations, letters | {"s": s, "R": each})
            ]
            for s in (1, 0)
        )
        step += of_step
        forward = ("lift", "parameters", "adapter", "norm", "head")
        predicted += [row for row in of_prediction if row.operation in forward]
    predicts = replace(terms, purpose="prediction")
    assert list(adaptation_rounds(predicts, images)) == [
        *backbone_rounds(sizes, images),
        *predicted,
        *result_rounds(classes, images, terms.results),
    ]
    assert list(adaptation_rounds(terms, images)) == step
