"""The kinds of material: what the parties hold satisfies the relation, and looks like nothing to each of them."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.parties.correlated.material import (
    Linear,
    Product,
    Request,
    Square,
    Truncation,
    Weight,
    check,
    correct,
    correction_words,
    expand,
    floor_quotient,
    request_stream,
)

RING = 1 << 64
NUMBER = 7
WEIGHT_NUMBER = 3


def keys_of(parties: int) -> list[bytes]:
    return [bytes([rank + 1]) * 32 for rank in range(parties)]


def assembled(request: Request, parties: int) -> list[list[torch.Tensor]]:
    """What every rank holds: its own expansion, and the receiver the correction behind it."""
    keys = keys_of(parties)
    weight = None
    if isinstance(request, Linear):
        weight = request_stream(keys[request.owner], request.weight).draw(request.weight_shape)
    held = [expand(request, rank, request_stream(key, NUMBER)) for rank, key in enumerate(keys)]
    correction = list(correct(request, [request_stream(key, NUMBER) for key in keys], weight))
    assert sum(words.numel() for words in correction) == correction_words(request)
    held[request.receiver] += correction
    return held


def whole(tensors: Any) -> np.ndarray:
    total = sum(tensor.numpy().astype(object) for tensor in tensors)
    return np.asarray(np.asarray(total, object) % RING, object)


def signed(words: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda word: int(word) - RING if word >= RING // 2 else int(word), otypes=[object])(words)


both = pytest.mark.parametrize("parties", [2, 3])


@both
@pytest.mark.parametrize(
    ("operation", "left", "right"),
    [("mul", (3, 1), (4,)), ("mul", (), (2, 0)), ("matmul", (2, 3, 4), (4, 5)), ("matmul", (4,), (4,))],
)
def test_product(operation: str, left: tuple[int, ...], right: tuple[int, ...], parties: int) -> None:
    a, b, c = map(whole, zip(*assembled(Product(operation, left, right), parties), strict=True))
    expected = np.asarray((a * b if operation == "mul" else a @ b) % RING, object)
    assert c.shape == expected.shape
    assert (c == expected).all()


@both
def test_square(parties: int) -> None:
    a, c = map(whole, zip(*assembled(Square((3, 4)), parties), strict=True))
    assert (c == a * a % RING).all()


@both
@pytest.mark.parametrize("divisor", [2, 3, 1 << 16, (1 << 62) - 1, 1 << 62])
def test_truncation(divisor: int, parties: int) -> None:
    r, low, high = map(whole, zip(*assembled(Truncation((100,), divisor), parties), strict=True))
    assert (signed(low) == -(signed(r) // divisor)).all()
    assert (signed(high) == -(signed(r ^ (1 << 63)) // divisor)).all()


@both
@pytest.mark.parametrize("owner", [0, 1])
def test_linear(owner: int, parties: int) -> None:
    weight = assembled(Weight(owner, (3, 4)), parties)
    assert [len(words) for words in weight] == [int(rank == owner) for rank in range(parties)]
    held = assembled(Linear(owner, (2, 5), WEIGHT_NUMBER, (3, 4)), parties)
    mask = request_stream(keys_of(parties)[owner], WEIGHT_NUMBER).draw((3, 4)).numpy().astype(object)
    inputs = whole(words[0] for rank, words in enumerate(held) if rank != owner)
    assert (whole(words[-1] for words in held) == inputs @ mask % RING).all()


WORDS = 1 << 12
KINDS: list[Request] = [
    Product("mul", (WORDS,), (WORDS,)),
    Product("matmul", (64, 16), (16, 64)),
    Square((WORDS,)),
    Truncation((WORDS,), 1 << 16),
    Linear(0, (64,), WEIGHT_NUMBER, (64, 64)),
]


@pytest.mark.parametrize("request_", KINDS, ids=lambda request: type(request).__name__)
def test_what_one_party_holds_is_uniform_and_independent(request_: Request) -> None:
    """Bytes of every tensor of every party, and the exclusive or and difference of every two of them, are uniform."""
    for words in assembled(request_, 2):
        tensors = [word.numpy().ravel() for word in words if word.unique().numel() > 2]
        pairs = [pair for pair in itertools.combinations(tensors, 2) if pair[0].size == pair[1].size]
        for view in [
            *tensors,
            *(first ^ second for first, second in pairs),
            *(first - second for first, second in pairs),
        ]:
            counts = np.bincount(view.view(np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-4


def test_numbers_do_not_share_words() -> None:
    words = [
        word
        for number in range(50)
        for rank, key in enumerate(keys_of(3))
        for tensor in expand(Product("mul", (20,), (20,)), rank, request_stream(key, number))
        for word in tensor.tolist()
    ]
    assert len(set(words)) == len(words)


def test_shapes_of_products_are_torchs() -> None:
    """All combinations of small shapes: the same shape, or both refuse."""
    sizes = [(), (1,), (2,), (3,), (2, 3), (3, 2), (1, 3), (2, 2, 3), (1, 3, 2), (3, 1, 1), (0, 3), (3, 0)]
    for operation, left, right in itertools.product(("mul", "matmul"), sizes, sizes):
        compare(Product(operation, left, right))


def compare(request: Product) -> None:
    left, right = (torch.zeros(shape, dtype=torch.int64) for shape in (request.left, request.right))
    try:
        expected = tuple(request.compute(left, right).shape)
    except RuntimeError:
        expected = None
    try:
        shape = request.dependent()[0].shape
    except ValueError:
        shape = None
    assert shape == expected, request


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Product("matmul", (2, 3), (2, 3)), "no such product"),
        (Product("mul", (2,), (3,)), "broadcast"),
        (Square((1 << 14, 1 << 14)), "take a smaller batch"),
        (Product("matmul", (1 << 20, 1), (1, 1 << 20)), "take a smaller batch"),
        (Weight(2, (1, 1)), "no rank 2 among 2"),
    ],
)
def test_what_cannot_be_met_is_refused(request_: Request, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(request_, 2)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 1 << 16, (1 << 62) - 1, 1 << 62])
def test_quotients_are_rounded_down(divisor: int) -> None:
    words = torch.tensor([0, 1, -1, divisor, -divisor, divisor - 1, 1 - divisor, (1 << 63) - 1, -(1 << 63)])
    assert floor_quotient(words, divisor).tolist() == [word // divisor for word in words.tolist()]
