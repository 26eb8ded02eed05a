"""Correlated randomness: relations between the parties' words, keystreams, and keys of DPFs and DCFs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.parties.correlated.material import (
    Keystream,
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
from tacit.parties.correlated.trees import PointKeys, ThresholdKeys, below, point_keys, point_words, threshold_keys

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


KEY = bytes(range(32))


def reference(key: bytes, words: int) -> list[int]:
    """The stream's definition: AES of every counter block, read as signed little-endian words."""
    blocks = b"".join(block.to_bytes(16, "big") for block in range(-(-words // 2)))
    return [int(word) for word in np.frombuffer(Cipher(AES256(key), ECB()).encryptor().update(blocks), "<i8")[:words]]


def test_a_long_draw_is_the_same_as_short_ones() -> None:
    words = 3 * (1 << 14) + 5  # More than two blocks of zeros.
    short = Keystream(KEY)
    pieces = [short.draw((size,)) for size in (1, 1 << 14, words - 1 - (1 << 14))]
    assert torch.equal(Keystream(KEY).draw((words,)), torch.cat(pieces))


@pytest.mark.parametrize("bits", [1, 16, 63])
def test_fewer_bits_are_the_low_ones(bits: int) -> None:
    assert Keystream(KEY).draw((50,), bits).tolist() == [word % (1 << bits) for word in reference(KEY, 50)]


@pytest.mark.parametrize("key", [KEY[:31], KEY + b"x"])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Keystream(key)


Words = np.ndarray[Any, np.dtype[np.uint64]]


def drawn(seed: int, *shape: int) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 64, shape, dtype=np.uint64)


def points(seed: int, places: Words, levels: int, values: Words) -> tuple[PointKeys, list[Words]]:
    roots = drawn(seed, len(places), 2), drawn(seed + 1, len(places), 2)
    keys = point_keys(roots, places, levels, values)
    return keys, [point_words(rank, roots[rank], keys) for rank in range(2)]


def thresholds(seed: int, secrets: Words, levels: int, places: Words) -> list[Words]:
    roots = drawn(seed, len(secrets), 2), drawn(seed + 1, len(secrets), 2)
    keys = threshold_keys(roots, secrets, levels)
    return [below(rank, roots[rank], keys, places) for rank in range(2)]


@pytest.mark.parametrize("levels", range(7))
def test_a_point_is_its_value_at_its_place_and_zero_elsewhere(levels: int) -> None:
    size = 1 << levels
    secrets = np.tile(np.arange(size, dtype=np.uint64), 2)
    values = drawn(7, len(secrets), 2)
    values[:size] = np.array([1, 0], np.uint64)
    _, (one, other) = points(levels, secrets, levels, values)
    expected = np.zeros((len(secrets), size, 2), np.uint64)
    expected[np.arange(len(secrets)), secrets.astype(int)] = values
    assert one.shape == expected.shape
    assert (one + other == expected).all()


@pytest.mark.parametrize("levels", range(1, 7))
def test_a_threshold_is_one_below_and_zero_from_there_on(levels: int) -> None:
    size = 1 << levels
    secrets = np.arange(size, dtype=np.uint64)
    places = np.tile(secrets, (size, 1))
    one, other = thresholds(levels, secrets, levels, places)
    assert (one + other == (places < secrets[:, None])).all()


@settings(max_examples=30, deadline=None)
@given(levels=st.integers(7, 12), seed=st.integers(0, 2**32), data=st.data())
def test_points_of_larger_trees(levels: int, seed: int, data: st.DataObject) -> None:
    numbers = st.lists(st.integers(0, (1 << levels) - 1), min_size=1, max_size=5)
    secrets = np.array(data.draw(numbers), np.uint64)
    values = drawn(seed + 2, len(secrets), 2)
    _, (one, other) = points(seed, secrets, levels, values)
    total = one + other
    assert (total[np.arange(len(secrets)), secrets.astype(int)] == values).all()
    total[np.arange(len(secrets)), secrets.astype(int)] = 0
    assert not total.any()


@settings(max_examples=40, deadline=None)
@given(levels=st.integers(7, 40), seed=st.integers(0, 2**32), data=st.data())
def test_thresholds_of_larger_trees(levels: int, seed: int, data: st.DataObject) -> None:
    number = st.integers(0, (1 << levels) - 1)
    secrets = np.array(data.draw(st.lists(number, min_size=1, max_size=4)), np.uint64)
    beside = [0, (1 << levels) - 1, *data.draw(st.lists(number, min_size=1, max_size=4))]
    near = [secrets, np.maximum(secrets, 1) - np.uint64(1), np.minimum(secrets + np.uint64(1), (1 << levels) - 1)]
    places = np.concatenate([np.stack(near, 1), np.tile(np.array(beside, np.uint64), (len(secrets), 1))], 1)
    places = places.astype(np.uint64)
    one, other = thresholds(seed, secrets, levels, places)
    assert (one + other == (places < secrets[:, None])).all()


@pytest.mark.parametrize("bits", [32, 45, 63])
def test_the_lowest_bits_of_the_words_of_thresholds_are_enough(bits: int) -> None:
    """For sums modulo as many bits, whatever stands above them."""
    secrets, lowest = np.arange(8, dtype=np.uint64), np.uint64((1 << bits) - 1)
    roots = drawn(1, 8, 2), drawn(2, 8, 2)
    keys = threshold_keys(roots, secrets, 3)
    places = np.tile(secrets, (8, 1))
    for above in (np.zeros_like(keys.values), drawn(3, *keys.values.shape) & ~lowest):
        cut = ThresholdKeys(keys.seeds, keys.controls, keys.values & lowest | above)
        one, other = (below(rank, roots[rank], cut, places) for rank in range(2))
        assert ((one + other) & lowest == (places < secrets[:, None])).all()


def test_many_trees_are_as_each_alone() -> None:
    for trees in (1, 63, 64, 65, 1000):
        secrets = drawn(3, trees) & np.uint64(31)
        roots = drawn(4, trees, 2), drawn(5, trees, 2)
        keys = point_keys(roots, secrets, 5, drawn(6, trees, 2))
        found = point_words(1, roots[1], keys)
        last = PointKeys(keys.seeds[-1:], keys.controls[-1:], keys.values[-1:])
        assert (found[-1:] == point_words(1, roots[1][-1:], last)).all()


def test_no_trees_have_no_words() -> None:
    none = np.zeros(0, np.uint64)
    keys, (one, _) = points(1, none, 3, np.zeros((0, 2), np.uint64))
    assert keys.seeds.shape == (0, 3, 2)
    assert one.shape == (0, 8, 2)
    assert thresholds(1, none, 3, np.zeros((0, 2), np.uint64))[0].shape == (0, 2)


@pytest.mark.parametrize("place", [0, 9, 15])
def test_keys_and_the_words_of_one_owner_look_alike_for_every_secret(place: int) -> None:
    """What an owner has of a point is uniform, whatever the point: bytes of corrections, control bits, words."""
    trees, levels = 4096, 4
    secrets = np.full(trees, place, np.uint64)
    keys, words = points(11 + place, secrets, levels, np.tile(np.array([1, 0], np.uint64), (trees, 1)))
    seeds = keys.seeds.copy()
    assert not (seeds[..., 0] & np.uint64(1)).any()  # The control bit has been taken out, of no more than one word.
    seeds[..., 0] |= drawn(2, trees, levels) & np.uint64(1)
    for view in (seeds, keys.values, *words):
        counts = np.bincount(np.ascontiguousarray(view).view(np.uint8).reshape(-1), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4  # Seeds are fixed: this passes or fails for ever.
    for level in range(levels):
        assert stats.chisquare(np.bincount(keys.controls[:, level], minlength=4)).pvalue > 1e-4
    for part in range(2):
        lowest = np.bincount((keys.values[:, part] & np.uint64(1)).astype(int), minlength=2)
        assert stats.chisquare(lowest).pvalue > 1e-4


@pytest.mark.parametrize("threshold", [0, 9, 15])
def test_keys_of_thresholds_look_alike_for_every_secret(threshold: int) -> None:
    trees, levels = 4096, 4
    roots = drawn(21, trees, 2), drawn(22 + threshold, trees, 2)
    keys = threshold_keys(roots, np.full(trees, threshold, np.uint64), levels)
    for level in range(levels + 1):
        octets = np.ascontiguousarray(keys.values[:, level].astype("<u8")).view(np.uint8)
        assert stats.chisquare(np.bincount(octets, minlength=256)).pvalue > 1e-4
        lowest = np.bincount((keys.values[:, level] & np.uint64(1)).astype(int), minlength=2)
        assert stats.chisquare(lowest).pvalue > 1e-4
