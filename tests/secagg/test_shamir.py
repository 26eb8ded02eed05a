"""Sharing against a reference in plain Python integers."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.secagg import shamir
from tacit.secagg.keystream import Usage, keystream
from tacit.secagg.shamir import LIMBS, PRIME, decode_share, encode_share, lagrange_at_zero, reconstruct, share
from tests.cases import cases

SEED = bytes(range(32))
POINTS = np.arange(1, 6)
secret_bytes = st.binary(min_size=32, max_size=32) | st.sampled_from([bytes(32), b"\xff" * 32])


def reference_limbs(secret: bytes) -> list[int]:
    number = int.from_bytes(secret, "little")
    return [number >> 15 * index & 0x7FFF for index in range(LIMBS)]


def reference_share(secrets: list[bytes], points: list[int], threshold: int, seed: bytes) -> list[list[list[int]]]:
    stream = keystream(seed, Usage.SHARE_COEFFICIENTS, 4 * threshold * len(secrets) * LIMBS + 400)
    drawn = [int.from_bytes(stream[at : at + 2], "little") for at in range(0, len(stream), 2)]
    accepted = [word for word in drawn if word < PRIME]
    row = len(secrets) * LIMBS

    def value(place: int, secret: int, limb: int) -> int:
        at = secret * LIMBS + limb
        polynomial = [reference_limbs(secrets[secret])[limb]] + [accepted[j * row + at] for j in range(threshold - 1)]
        return sum(coefficient * place**power for power, coefficient in enumerate(polynomial)) % PRIME

    return [[[value(x, s, limb) for limb in range(LIMBS)] for s in range(len(secrets))] for x in points]


def reference_lagrange(points: list[int]) -> list[int]:
    coefficients = []
    for x in points:
        others = [y for y in points if y != x]
        numerator = denominator = 1
        for y in others:
            numerator = numerator * y % PRIME
            denominator = denominator * (y - x) % PRIME
        coefficients.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return coefficients


def limbs_as_share(limbs: list[int]) -> np.ndarray:
    """Two shares [2, 1, 18] on constant polynomials, which reconstruct to just these limbs."""
    return np.array([[limbs], [limbs]], np.uint16)


@st.composite
def sharing(draw: st.DrawFn) -> tuple[list[bytes], list[int], int]:
    points = draw(st.lists(st.integers(1, PRIME - 1) | st.sampled_from([1, PRIME - 1]), min_size=2, unique=True))
    return draw(st.lists(secret_bytes, max_size=3)), points, draw(st.integers(2, len(points)))


@settings(max_examples=40)
@given(sharing(), st.binary(min_size=32, max_size=32))
def test_shares_equal_the_reference(case: tuple[list[bytes], list[int], int], seed: bytes) -> None:
    secrets, points, threshold = case
    shares = share(secrets, points=np.array(points), threshold=threshold, seed=seed)
    assert shares.dtype == np.uint16
    assert shares.shape == (len(points), len(secrets), LIMBS)
    assert shares.tolist() == reference_share(secrets, points, threshold, seed)


@settings(max_examples=60)
@given(sharing(), st.data())
def test_any_threshold_of_shares_reconstruct(case: tuple[list[bytes], list[int], int], data: st.DataObject) -> None:
    secrets, points, threshold = case
    shares = share(secrets, points=np.array(points), threshold=threshold, seed=SEED)
    chosen = data.draw(st.permutations(range(len(points))))[: data.draw(st.integers(threshold, len(points)))]
    assert reconstruct(shares[chosen], np.array(points)[chosen]) == secrets


@settings(max_examples=40)
@given(sharing(), st.data())
def test_each_secret_may_have_its_own_points(case: tuple[list[bytes], list[int], int], data: st.DataObject) -> None:
    secrets, points, threshold = case
    shares = share(secrets, points=np.array(points), threshold=threshold, seed=SEED)
    chosen = np.array([data.draw(st.permutations(range(len(points))))[:threshold] for _ in secrets], int)
    chosen = chosen.reshape(len(secrets), threshold)
    own = shares[chosen, np.arange(len(secrets))[:, np.newaxis]]
    assert shamir.reconstruct_each(own, np.array(points)[chosen]) == secrets


def test_sizes_at_which_a_product_could_lose_bits() -> None:
    """Every subset for a hundred secrets; and 1,500 terms of nearly 2^32 each, which float32 or int32 gets wrong."""
    secrets = [bytes([index, 255 - index]) * 16 for index in range(100)]
    shares = share(secrets, points=POINTS, threshold=3, seed=SEED)
    for chosen in combinations(range(5), 3):
        assert reconstruct(shares[list(chosen)], POINTS[list(chosen)]) == secrets
    points = np.arange(PRIME - 1500, PRIME)
    secrets = [b"\xff" * 32, bytes(32)]
    assert reconstruct(share(secrets, points=points, threshold=1500, seed=SEED), points) == secrets


@cases("seed", [bytes([index] * 32) for index in range(3)])
def test_coefficients_are_uniform_in_the_field(seed: bytes) -> None:
    """t - 1 shares tell nothing: with t = 2 a single share of a fixed secret is uniform over the field. Fixed seeds."""
    secrets = [b"\xff" * 32] * 5000
    shares = share(secrets, points=np.array([7, 8]), threshold=2, seed=seed)[0].reshape(-1)
    stream = np.frombuffer(keystream(seed, Usage.SHARE_COEFFICIENTS, 2 * shares.size), "<u2")
    assert (stream >= PRIME).any()  # The rejection has been at work.
    edges = np.linspace(0, PRIME, 101)
    observed = np.histogram(shares, edges)[0]
    expected = np.diff(np.ceil(edges)) * shares.size / PRIME
    assert stats.chisquare(observed, expected).pvalue > 1e-6


def test_the_prime_itself_is_no_coefficient() -> None:
    """The first rejected value is rare: take a seed whose stream has it."""

    def stream(seed: bytes) -> np.ndarray:
        return np.frombuffer(keystream(seed, Usage.SHARE_COEFFICIENTS, 2 * 200 * LIMBS), "<u2")

    seed = next(seed for seed in (bytes([index] * 32) for index in range(256)) if (stream(seed) == PRIME).any())
    secrets = [SEED] * 200
    shares = share(secrets, points=POINTS[:2], threshold=2, seed=seed)
    assert shares.tolist() == reference_share(secrets, [1, 2], 2, seed)


@settings(max_examples=30)
@given(secret_bytes, secret_bytes)
def test_too_few_shares_are_consistent_with_any_secret(secret: bytes, other: bytes) -> None:
    """Whatever t - 1 shares of one secret are, one further share turns them into those of any other secret."""
    shares = share([secret], points=POINTS[:4], threshold=4, seed=SEED)[:3]
    coefficients = reference_lagrange(POINTS[:4].tolist())
    missing = [
        (limb - sum(coefficients[i] * int(shares[i, 0, at]) for i in range(3)))
        * pow(coefficients[3], -1, PRIME)
        % PRIME
        for at, limb in enumerate(reference_limbs(other))
    ]
    completed = np.concatenate((shares, np.array(missing, np.uint16).reshape(1, 1, LIMBS)))
    assert reconstruct(completed, POINTS[:4]) == [other]


@settings(max_examples=60)
@given(st.lists(st.integers(1, PRIME - 1), min_size=1, max_size=12, unique=True))
def test_lagrange_coefficients_equal_the_reference(points: list[int]) -> None:
    assert lagrange_at_zero(np.array(points)).tolist() == reference_lagrange(points)
    both = np.array([points, points[::-1]])
    assert lagrange_at_zero(both).tolist() == [reference_lagrange(points), reference_lagrange(points[::-1])]


def test_what_no_secret_has_is_noticed() -> None:
    shares = share([SEED] * 3, points=POINTS, threshold=4, seed=SEED)
    with pytest.raises(ValueError, match=r"^limb-range: .*too few"):
        reconstruct(shares[:3], POINTS[:3])
    shares = share([SEED], points=POINTS, threshold=3, seed=SEED)
    shares[0] ^= 1
    with pytest.raises(ValueError, match=r"^limb-range"):
        reconstruct(shares[:3], POINTS[:3])
    largest = [0x7FFF] * 17 + [1]
    assert reconstruct(limbs_as_share(largest), POINTS[:2]) == [b"\xff" * 32]
    with pytest.raises(ValueError, match=r"^secret-range"):
        reconstruct(limbs_as_share([0x7FFF] * 17 + [2]), POINTS[:2])
    with pytest.raises(ValueError, match=r"^limb-range"):
        reconstruct(limbs_as_share([0x8000] + [0] * 17), POINTS[:2])


@cases(
    ("points", "code"),
    [
        ([0, 1, 2], "points-range"),
        ([1, 2, PRIME], "points-range"),
        ([1, 2, -1], "points-range"),
        ([1, 2, 1], "points-duplicate: point 1"),
        ([1.0, 2.0, 3.0], "points-shape"),
        ([[1, 2, 3]], "points-shape"),
    ],
)
def test_refuses_unusable_points(points: list, code: str) -> None:
    with pytest.raises(ValueError, match=f"^{code}"):
        share([SEED], points=np.array(points), threshold=2, seed=SEED)


def test_refuses_unusable_points_when_reconstructing() -> None:
    shares = share([SEED], points=POINTS, threshold=2, seed=SEED)[:2]
    for points, code in (([1, 1], "points-duplicate"), ([0, 1], "points-range"), ([1.0, 2.0], "points-shape")):
        with pytest.raises(ValueError, match=f"^{code}"):
            reconstruct(shares, np.array(points))
        with pytest.raises(ValueError, match=f"^{code}"):
            shamir.reconstruct_each(shares.transpose(1, 0, 2), np.array([points]))
    with pytest.raises(ValueError, match=r"^points-shape"):
        lagrange_at_zero(np.array(3))


@cases(
    ("shares", "points", "code"),
    [
        (np.zeros((2, 1, LIMBS - 1), np.uint16), [1, 2], "share-shape"),
        (np.zeros((2, LIMBS), np.uint16), [1, 2], "share-shape"),
        (np.zeros((2, 1, LIMBS), np.uint16), [1, 2, 3], "share-shape"),
        (np.zeros((1, 1, LIMBS), np.uint16), [1], "shares-few"),
        (np.zeros((0, 1, LIMBS), np.uint16), np.zeros(0, int), "shares-few"),
        (np.zeros((2, 1, LIMBS), np.int64), [1, 2], "share-type"),
        (np.full((2, 1, LIMBS), PRIME, np.uint16), [1, 2], "share-range"),
    ],
)
def test_refuses_malformed_shares(shares: np.ndarray, points: list[int], code: str) -> None:
    with pytest.raises(ValueError, match=f"^{code}"):
        reconstruct(shares, np.array(points))
    with pytest.raises(ValueError, match=f"^{code}"):
        shamir.reconstruct_each(np.swapaxes(shares, 0, 1) if shares.ndim == 3 else shares, np.array([points]))


@given(st.lists(st.integers(0, PRIME - 1), min_size=LIMBS, max_size=LIMBS))
def test_encoded_shares_return(elements: list[int]) -> None:
    encoded = encode_share(np.array(elements, np.uint16))
    assert encoded == b"".join(element.to_bytes(2, "little") for element in elements)
    decoded = decode_share(encoded)
    assert decoded.tolist() == elements
    assert decoded.flags.writeable


def test_refusals_of_sharing_and_of_encodings() -> None:
    for threshold in (-1, 0, 1, 6):
        with pytest.raises(ValueError, match=r"^threshold-range: .*2 to 5"):
            share([SEED], points=POINTS, threshold=threshold, seed=SEED)
    for length in (0, 31, 33):
        with pytest.raises(ValueError, match=r"^secret-length"):
            share([SEED, bytes(length)], points=POINTS, threshold=2, seed=SEED)
        with pytest.raises(ValueError, match="32 bytes"):
            share([SEED], points=POINTS, threshold=2, seed=bytes(length))
    for length in (0, 35, 37, 72):
        with pytest.raises(ValueError, match=r"^share-length"):
            decode_share(bytes(length))
    for position in range(LIMBS):
        elements = np.zeros(LIMBS, np.uint16)
        elements[position] = PRIME
        with pytest.raises(ValueError, match=r"^share-range"):
            decode_share(elements.astype("<u2").tobytes())
        with pytest.raises(ValueError, match=r"^share-range"):
            encode_share(elements)
    with pytest.raises(ValueError, match=r"^share-shape"):
        encode_share(np.zeros((1, LIMBS), np.uint16))
