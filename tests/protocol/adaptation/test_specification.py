"""The page docs/spec/adaptation.md fixes the rounds of a pass, of learning and of prediction, what tells outputs, and
the length of a sum; the code has the same."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tacit.protocol.adaptation.schedule import adaptation_rounds, parameter_count, told_rounds
from tacit.protocol.inference.schedule import STREAM, Round, block_rounds, embedding_rounds, range_rounds, result_rounds
from tacit.simulate.world.adaptation import learning_terms

PAGE = (Path(__file__).parents[3] / "docs" / "spec" / "adaptation.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([a-z ]+) \| ([^|]+) \| (once|every adapter) \|$", PAGE, re.MULTILINE)
TOLD = re.findall(r"^\| (shuffle|result) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
(PARAMETERS,) = re.findall(r"^    P = (.+)$", PAGE, re.MULTILINE)


def value(formula: str, letters: dict[str, int]) -> int:
    """What a formula of the page is: products and sums of numbers and letters."""
    assert re.fullmatch(r"[0-9A-Za-z*/+() -]+", formula)
    return int(eval(formula, {"__builtins__": {}}, letters))


def _sizes(operations: tuple[str, ...], letters: dict[str, int]) -> list[tuple[str, int]]:
    """Rows of these operations, with their bytes."""
    return [(name, value(formula, letters)) for name, formula, _ in ROWS if name in operations]


@settings(max_examples=30, deadline=None)
@given(
    grid=st.integers(1, 3), width=st.integers(1, 5), blocks=st.integers(1, 3), learns=st.booleans(),
    rank=st.integers(1, 4), classes=st.integers(2, 6), cut=st.integers(1, STREAM - 2), gradient=st.integers(1, 64),
    images=st.integers(1, 4),
)  # fmt: skip
def test_rounds_and_parameters_of_the_page(
    grid: int, width: int, blocks: int, learns: bool, rank: int, classes: int, cut: int, gradient: int, images: int
) -> None:
    assert len(ROWS) == 34
    terms = learning_terms(
        side=grid, patch=1, width=width, heads=1, blocks=blocks, adapters=learns * blocks, rank=rank,
        classes=classes, cut=cut, gradient=gradient, batch=images,
    )  # fmt: skip
    sizes, adapters, tokens = terms.sizes, learns * blocks, 1 + grid**2
    letters = {
        "N": images, "T": tokens, "D": width, "A": adapters, "r": rank, "C": classes,
        "b": -(-(40 - cut) // 8), "g": -(-gradient // 8), "m": max(adapters, 1),
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
        ([0], ("parameters backwards",)),
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
    predicts = replace(terms, purpose="prediction", reveal="all")
    assert list(adaptation_rounds(predicts, images, session=bytes(32), number=1)) == [
        *embedding_rounds(sizes, images, known=False),
        *block_rounds(sizes, images, known=False) * blocks,
        *predicted,
        *result_rounds(classes, images, terms.results),
    ]
    assert list(adaptation_rounds(terms, images, session=bytes(32), number=1)) == [
        *embedding_rounds(sizes, images, known=False),
        *block_rounds(sizes, images, known=False) * blocks,
        *step,
        *range_rounds(),
    ]


@settings(max_examples=30, deadline=None)
@given(enrolled=st.integers(1, 9), grid=st.integers(1, 3), channels=st.integers(1, 3), patch=st.integers(1, 3))
def test_enrolment_of_the_page(enrolled: int, grid: int, channels: int, patch: int) -> None:
    (formulas,) = re.findall(r"the model owner sends\s(.+?) bytes and the data owner\s(.+?), for", PAGE, re.DOTALL)
    terms = learning_terms(
        side=grid * patch, patch=patch, channels=channels, adapters=0, reveal="all", selection="enrolment", batch=1
    )
    letters = {"E": enrolled, "T": terms.sizes.tokens, "p": channels * patch**2}
    model_owner, data_owner = (value(" ".join(formula.split()), letters) for formula in formulas)
    first, second = (
        adaptation_rounds(terms, 1, session=bytes(32), number=number, enrolled=enrolled) for number in (1, 2)
    )
    assert first == (Round("shuffle", model_owner, data_owner), *second)


@settings(max_examples=30, deadline=None)
@given(told=st.lists(st.booleans(), max_size=3), images=st.integers(1, 4), width=st.integers(1, 5))
def test_told_outputs_of_the_page(told: list[bool], images: int, width: int) -> None:
    told = [*told, True]
    sizes = learning_terms(side=2, patch=1, width=width, heads=1, blocks=len(told), adapters=0).sizes
    letters = {"N": images, "T": sizes.tokens, "D": width}
    shuffle, *results = [
        Round(name, value(model_owner, letters), value(data_owner, letters))
        for name, model_owner, data_owner, _ in TOLD
    ]
    assert len(results) == 4
    found = list(embedding_rounds(sizes, images, known=False))
    for block, tells in enumerate(told):
        rounds = block_rounds(sizes, images, known=False)
        found += [each for each in rounds if each.operation != "layer norm 1" or not (block and told[block - 1])]
        if tells:
            found += [shuffle, results[2 * (block + 1 == len(told)) + any(told[:block])]]
    assert (*found, *range_rounds()) == told_rounds(sizes, images, told)
