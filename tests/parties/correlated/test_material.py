"""The kinds of material: what the parties hold satisfies the relation, and looks like nothing to each of them."""

import itertools
import random
from functools import reduce
from operator import xor
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.parties.correlated.material import (
    And,
    AnyRequest,
    Bit,
    Keystream,
    Linear,
    Permutation,
    Product,
    Square,
    Truncation,
    Weight,
    Wraps,
    check,
    correct,
    correction_words,
    drawn_order,
    expand,
    floor_quotient,
    request_stream,
)

RING = 1 << 64
NUMBER = 7
WEIGHT_NUMBER = 3


def keys_of(parties: int) -> list[bytes]:
    return [bytes([rank + 1]) * 32 for rank in range(parties)]


def assembled(request: AnyRequest, parties: int) -> list[list[torch.Tensor]]:
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
    """The sum modulo 2^64, as Python integers."""
    total = sum(tensor.numpy().astype(object) for tensor in tensors)
    return np.asarray(np.asarray(total, object) % RING, object)


def signed(words: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda word: int(word) - RING if word >= RING // 2 else int(word), otypes=[object])(words)


def exclusive(tensors: Any) -> np.ndarray:
    return reduce(xor, [tensor.numpy() for tensor in tensors])


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


CONVOLUTIONS = [
    Product("conv1d", (2, 3, 8), (4, 3, 3), (("padding", 1),)),
    Product("conv2d", (1, 4, 6, 5), (6, 2, 3, 2), (("stride", (2, 1)), ("groups", 2))),
    Product("conv_transpose1d", (2, 3, 4), (3, 2, 3), (("stride", 2), ("output_padding", 1))),
    Product("conv_transpose2d", (1, 2, 3, 3), (2, 3, 2, 2), (("dilation", (2, 1)),)),
]


@both
@pytest.mark.parametrize("request_", CONVOLUTIONS, ids=lambda request: request.operation)
def test_convolution(request_: Product, parties: int) -> None:
    a, b, c = zip(*assembled(request_, parties), strict=True)
    # Torch's own wrapping integers are the reference here; the products above are checked without them.
    expected = getattr(torch, request_.operation)(sum(a), sum(b), **dict(request_.arguments))
    assert torch.equal(sum(c), expected)


@both
def test_square(parties: int) -> None:
    a, c = map(whole, zip(*assembled(Square((3, 4)), parties), strict=True))
    assert (c == a * a % RING).all()


@both
def test_and(parties: int) -> None:
    a, b, c = map(exclusive, zip(*assembled(And((3, 1), (4,)), parties), strict=True))
    assert (c == a & b).all()


@both
def test_wraps_are_what_the_signed_sum_loses(parties: int) -> None:
    shares, wraps = zip(*assembled(Wraps((500,)), parties), strict=True)
    sum_of_integers = sum(share.numpy().astype(object) for share in shares)
    counts = signed(whole(wraps))
    assert (signed(whole(shares)) + RING * counts == sum_of_integers).all()
    assert len(set(counts)) == 3  # -1, 0 and 1 all occur.


@both
def test_bit(parties: int) -> None:
    held = assembled(Bit((200,)), parties)
    bits = exclusive(words[0] for words in held)
    assert set(bits) == {0, 1}
    assert (whole(words[1] for words in held) == bits).all()


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


@both
@pytest.mark.parametrize("owner", [0, 1])
def test_permutation(owner: int, parties: int) -> None:
    held = assembled(Permutation(owner, (6, 2)), parties)
    order = drawn_order(held[owner][0])
    assert sorted(order.tolist()) == list(range(6))
    rows = whole(words[0] for rank, words in enumerate(held) if rank != owner)
    assert (whole(words[-1] for words in held) == rows[order.numpy()]).all()


def test_orders_are_uniform() -> None:
    stream = Keystream(bytes(32))
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(24 * 50):
        counts[tuple(drawn_order(stream.draw((4,))).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4  # The key is fixed: this passes or fails for ever.


WORDS = 1 << 12
KINDS: list[AnyRequest] = [
    Product("mul", (WORDS,), (WORDS,)),
    Product("matmul", (64, 16), (16, 64)),
    Square((WORDS,)),
    And((WORDS,), (WORDS,)),
    Wraps((WORDS,)),
    Bit((WORDS,)),
    Truncation((WORDS,), 1 << 16),
    Linear(0, (64,), WEIGHT_NUMBER, (64, 64)),
    Permutation(0, (WORDS,)),
]


@pytest.mark.parametrize("request_", KINDS, ids=lambda request: type(request).__name__)
def test_what_one_party_holds_is_uniform_and_independent(request_: AnyRequest) -> None:
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
    choose = random.Random(5)
    for _ in range(400):
        dimensions = choose.choice((1, 2))
        transposed = choose.random() < 0.5
        channels, groups = choose.choice(((1, 1), (2, 1), (2, 2), (4, 2), (3, 2)))
        batch = choose.choice(((), (1,), (2,)))
        image = tuple(choose.randint(1, 6) for _ in range(dimensions))
        kernel = tuple(choose.randint(1, 4) for _ in range(dimensions))
        outer = (channels, choose.randint(1, 3)) if transposed else (choose.randint(1, 4), channels // groups)
        names = ["stride", "padding", "dilation", *(["output_padding"] if transposed else [])]
        arguments = {name: size(choose, dimensions, int(name in ("stride", "dilation"))) for name in names}
        chosen = choose.sample(sorted(arguments.items()), choose.randint(0, len(arguments)))
        operation = f"conv{'_transpose' * transposed}{dimensions}d"
        named = (*chosen, ("groups", groups))
        compare(Product(operation, (*batch, channels, *image), (*outer, *kernel), named))


def size(choose: random.Random, dimensions: int, least: int) -> int | tuple[int, ...]:
    values = tuple(choose.randint(least, 2) for _ in range(dimensions))
    return choose.choice((values, values[0]))


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
        (Product("conv2d", (1, 3, 8, 8), (4, 2, 3, 3)), "no such product"),
        (Square((1 << 14, 1 << 14)), "take a smaller batch"),
        (Product("matmul", (1 << 20, 1), (1, 1 << 20)), "take a smaller batch"),
        (Weight(2, (1, 1)), "no rank 2 among 2"),
        (Permutation(3, (4,)), "no rank 3 among 2"),
    ],
)
def test_what_cannot_be_met_is_refused(request_: AnyRequest, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(request_, 2)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 1 << 16, (1 << 62) - 1, 1 << 62])
def test_quotients_are_rounded_down(divisor: int) -> None:
    words = torch.tensor([0, 1, -1, divisor, -divisor, divisor - 1, 1 - divisor, (1 << 63) - 1, -(1 << 63)])
    assert floor_quotient(words, divisor).tolist() == [word // divisor for word in words.tolist()]
