"""Shamir's secret sharing (Communications of the ACM, 1979) for many 32-byte secrets at once (docs/spec/primitives.md).

The field is GF(65521). A product of two elements is below 2^32 and a float64 holds every integer up to 2^53, so matrix
products in float64 are exact for up to 2^20 terms: sharing and reconstruction of all secrets are one BLAS product each.
Reconstruction from wrong or too few shares gives elements that are no limbs, except with probability 2^-32.

Every refusal is a ValueError whose text begins with a fixed code, such as `share-range:`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.secagg.keystream import Usage, keystream
from tacit.secagg.work import WorkKind, work

PRIME = 65521
SECRET_BYTES = 32
LIMBS = 18
SHARE_BYTES = 2 * LIMBS
_LIMB_BITS = 15

Points = npt.NDArray[np.integer[Any]]
Shares = npt.NDArray[np.uint16]


@work(WorkKind.SHARING)
def share(secrets: Sequence[bytes], *, points: Points, threshold: int, seed: bytes) -> Shares:
    """Shares [points, secrets, 18] of 32-byte secrets; any `threshold` of them reconstruct, fewer disclose nothing.

    points: distinct integers in 1..65520, the holders' evaluation points.
    seed: 32 bytes of fresh entropy, never used for another call; all polynomial coefficients are drawn from it, uniform
    in the field by rejection. The limbs of all secrets stand in one row; the first accepted words are that row's
    coefficients of x, the next those of x^2, and so on up to x^(threshold-1)."""
    places = _checked_points(np.asarray(points), dimensions=1)
    if not 2 <= threshold <= len(places):
        raise ValueError(f"threshold-range: {threshold} shares of {len(places)}; 2 to {len(places)} are possible")
    constants = _to_limbs(secrets).reshape(-1)
    coefficients = _uniform(seed, (threshold - 1) * constants.size).reshape(threshold - 1, constants.size)
    powers = _powers(places, threshold)[:, 1:]
    values = (powers.astype(np.float64) @ coefficients.astype(np.float64) + constants) % PRIME
    return values.astype(np.uint16).reshape(len(places), len(secrets), LIMBS)


def lagrange_at_zero(points: Points) -> npt.NDArray[np.uint64]:
    """Lagrange coefficients [..., t] at zero for the points [..., t]: f(0) = sum of coefficient * f(point).

    coefficient i = prod over j != i of x_j / (x_j - x_i). Leading axes are independent sets of points.
    """
    places = _checked_points(np.asarray(points), dimensions=np.ndim(points))
    product = np.ones_like(places[..., :1])
    denominators = places.copy()
    for index in range(places.shape[-1]):
        place = places[..., index : index + 1]
        product = product * place % PRIME
        differences = place + PRIME - places
        differences[..., index] = 1
        denominators = denominators * differences % PRIME
    return product * _inverse(denominators) % PRIME


def reconstruct(shares: Shares, points: Points) -> list[bytes]:
    """The secrets of shares [t, secrets, 18] that were all made at the same points [t]."""
    _check_shares(shares, axis=0, points=points)
    coefficients = lagrange_at_zero(points).astype(np.float64)
    values = coefficients @ shares.reshape(len(coefficients), -1).astype(np.float64)
    return _from_limbs(values.reshape(shares.shape[1:]))


def reconstruct_each(shares: Shares, points: Points) -> list[bytes]:
    """The secrets of shares [secrets, t, 18], each with its own points [secrets, t]."""
    _check_shares(shares, axis=1, points=points)
    sets, own = np.unique(points, axis=0, return_inverse=True)
    coefficients = lagrange_at_zero(sets).astype(np.float64)[own.reshape(-1), np.newaxis]
    return _from_limbs((coefficients @ shares.astype(np.float64))[:, 0])


def encode_share(elements: Shares) -> bytes:
    """One share [18] as 36 bytes: little-endian uint16."""
    if elements.shape != (LIMBS,):
        raise ValueError(f"share-shape: a share has {LIMBS} elements, got shape {elements.shape}")
    _check_elements(elements)
    return elements.astype("<u2").tobytes()


def decode_share(encoded: bytes | bytearray | memoryview) -> Shares:
    """The share [18] in 36 bytes; refuses another length and elements outside the field."""
    length = memoryview(encoded).nbytes
    if length != SHARE_BYTES:
        raise ValueError(f"share-length: a share has {SHARE_BYTES} bytes, not {length}")
    elements = np.frombuffer(encoded, "<u2").astype(np.uint16)
    _check_elements(elements)
    return elements


def _checked_points(points: Points, *, dimensions: int) -> npt.NDArray[np.uint64]:
    if points.dtype.kind not in "iu" or points.ndim != dimensions or points.ndim == 0:
        raise ValueError(f"points-shape: expected integers, one axis per set, got {points.dtype} {points.shape}")
    if points.size and not 1 <= int(points.min()) <= int(points.max()) < PRIME:
        raise ValueError(f"points-range: points lie in 1..{PRIME - 1}, got {int(points.min())}..{int(points.max())}")
    ordered = np.sort(points, axis=-1)
    duplicate = ordered[..., 1:] == ordered[..., :-1]
    if duplicate.any():
        raise ValueError(f"points-duplicate: point {int(ordered[..., 1:][duplicate][0])} occurs twice")
    return points.astype(np.uint64)


def _check_shares(shares: Shares, *, axis: int, points: Points) -> None:
    if shares.ndim != 3 or shares.shape[-1] != LIMBS or shares.shape[: axis + 1] != np.shape(points):
        raise ValueError(f"share-shape: shares {shares.shape} do not belong to points {np.shape(points)}")
    if shares.shape[axis] < 2:
        raise ValueError(f"shares-few: a secret needs at least 2 shares, got {shares.shape[axis]}")
    _check_elements(shares)


def _check_elements(elements: Shares) -> None:
    if elements.dtype != np.uint16:
        raise ValueError(f"share-type: shares are uint16, not {elements.dtype}")
    if elements.size and int(elements.max()) >= PRIME:
        raise ValueError(f"share-range: an element is {int(elements.max())}, not below {PRIME}")


def _uniform(seed: bytes, count: int) -> npt.NDArray[np.uint16]:
    """`count` uniform field elements: the first keystream words below the prime."""
    drawn = count
    while True:
        words = np.frombuffer(keystream(seed, Usage.SHARE_COEFFICIENTS, 2 * drawn), "<u2")
        accepted = words[words < PRIME]
        if accepted.size >= count:
            return accepted[:count].astype(np.uint16)
        drawn += count - accepted.size


def _powers(places: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.uint64]:
    """places^0 .. places^(count-1), [places, count], by doubling the number of known columns."""
    powers = np.ones((len(places), 1), np.uint64)
    while powers.shape[1] < count:
        step = powers[:, -1:] * places[:, np.newaxis] % PRIME
        powers = np.hstack((powers, powers * step % PRIME))
    return powers[:, :count]


def _inverse(elements: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """elements^(PRIME-2), the inverse by Fermat's little theorem."""
    result = np.ones_like(elements)
    for bit in f"{PRIME - 2:b}":
        result = result * result % PRIME
        if bit == "1":
            result = result * elements % PRIME
    return result


def _to_limbs(secrets: Sequence[bytes]) -> npt.NDArray[np.uint16]:
    """Limbs [secrets, 18] of 32-byte secrets."""
    for secret in secrets:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"secret-length: a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    octets = np.frombuffer(b"".join(secrets), np.uint8).reshape(-1, SECRET_BYTES)
    bits = np.zeros((len(octets), LIMBS * _LIMB_BITS), np.uint16)
    bits[:, : 8 * SECRET_BYTES] = np.unpackbits(octets, axis=1, bitorder="little")
    return bits.reshape(-1, LIMBS, _LIMB_BITS) @ (1 << np.arange(_LIMB_BITS, dtype=np.uint16))


def _from_limbs(values: npt.NDArray[np.float64]) -> list[bytes]:
    """The secrets of unreduced limbs [secrets, 18]."""
    limbs = (values % PRIME).astype(np.uint16)
    if limbs.size and int(limbs.max()) >> _LIMB_BITS:
        raise ValueError("limb-range: the shares do not belong together, or are too few")
    bits = (limbs[..., np.newaxis] >> np.arange(_LIMB_BITS, dtype=np.uint16) & 1).astype(np.uint8)
    bits = bits.reshape(-1, LIMBS * _LIMB_BITS)
    if bits[:, 8 * SECRET_BYTES :].any():
        raise ValueError("secret-range: the shares do not belong together, or are too few")
    return [octets.tobytes() for octets in np.packbits(bits[:, : 8 * SECRET_BYTES], axis=1, bitorder="little")]
