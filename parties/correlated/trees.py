"""Function secret sharing by trees: a point or a threshold that a dealer knows, in keys that tell neither owner of it.

Each owner draws a root seed. The dealer walks down both trees along the path of the secret number and publishes, for
every level, a correction that makes both trees equal off that path. The sum of both owners' words is the function's
value, modulo 2^64.

- Point: at the secret number the two words of its value, elsewhere zero. Both owners evaluate all leaves, which takes
  no message (Boyle, Gilboa, Ishai, CCS 2016, figure 1).
- Threshold: 1 below the secret number, 0 from there on; evaluated at public places (Boyle et al., Eurocrypt 2021,
  figure 1). Of its words the lowest bits are enough, if the sum is read modulo as many.

The generator is H_j(s) = AES_j(s) xor s with four fixed public keys: H_0 and H_1 are the seeds of the children on the
left and on the right, whose lowest bit is taken out as their control bit; H_2 and H_3 give words. Seeds are 128 bits in
two words, the lower first. Everything is for many trees at once, in NumPy's unsigned integers, where sums wrap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB

Words = np.ndarray[Any, np.dtype[np.uint64]]
Bits = np.ndarray[Any, np.dtype[np.uint8]]

_CIPHERS: Final = tuple(Cipher(AES128(sha256(b"tacit/1 tree %d" % number).digest()[:16]), ECB()) for number in range(4))
_LEAVES_AT_ONCE: Final = 1 << 15
"""Of point_words: so that what it works on stays in the cache of a core."""
_LOWEST: Final = np.uint64(1)
_REST: Final = ~_LOWEST
_SEED: Final = np.array([_REST, ~np.uint64(0)])
"""All bits of a seed but the lowest."""


@dataclass(frozen=True, repr=False)
class PointKeys:
    """What both owners are told of trees of `levels` levels."""

    seeds: Words
    """Corrections of seeds, [trees, levels, 2]."""
    controls: Bits
    """Corrections of control bits, [trees, levels]: bit 0 for the child on the left, bit 1 for that on the right."""
    values: Words
    """Words of the leaf, [trees, 2]."""


@dataclass(frozen=True, repr=False)
class ThresholdKeys:
    """The same for thresholds."""

    seeds: Words
    controls: Bits
    values: Words
    """Words of every level and of the leaf, [trees, levels + 1]."""


def point_keys(roots: tuple[Words, Words], points: Words, levels: int, values: Words) -> PointKeys:
    """The dealer's keys. roots: [trees, 2] of each owner; points: [trees] below 2^levels; values: [trees, 2]."""
    walk = _Walk(roots)
    told = [walk.step(_bit(points, levels, level)) for level in range(levels)]
    leaf = _words(walk.seeds)
    return PointKeys(
        np.stack([seeds for seeds, _ in told], 1) if told else np.zeros((len(points), 0, 2), np.uint64),
        np.stack([controls for _, controls in told], 1) if told else np.zeros((len(points), 0), np.uint8),
        _signed(values - leaf[0] + leaf[1], walk.flipped[:, None]),
    )


def point_words(rank: int, roots: Words, keys: PointKeys) -> Words:
    """An owner's words [trees, 2^levels, 2] of the values at all places."""
    trees, levels = keys.controls.shape
    words = np.empty((trees, 1 << levels, 2), np.uint64)
    at_once = max(_LEAVES_AT_ONCE >> levels, 1)
    for start in range(0, trees, at_once):
        part = slice(start, start + at_once)
        seeds, controls = _leaves(rank, roots[part], keys.seeds[part], keys.controls[part])
        found = _words(seeds)
        for word in range(2):
            np.add(found[..., word], controls & keys.values[part, word, None], words[part, :, word])
    return np.negative(words, out=words) if rank else words


def _leaves(rank: int, roots: Words, told: Words, sides: Bits) -> tuple[Words, Words]:
    """Seeds [trees, 2^levels, 2] and controls [trees, 2^levels] of an owner, the latter as words of equal bits."""
    trees, levels = sides.shape
    # What is told of a side: the seed, and in its lowest bit, which no seed has, that of the control.
    both = np.stack([told, told], 2)
    both[..., 0] |= np.stack([sides & 1, sides >> 1], 2)
    seeds = (roots & _SEED)[:, None]
    controls = np.full((trees, 1), -rank & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    for level in range(levels):
        children = np.empty((trees, 1 << level, 2, 2), np.uint64)  # [trees, nodes, sides, words].
        for side in range(2):
            plain = _hashed(side, seeds)
            for word in range(2):  # An inner axis of two words would be slow.
                corrected = controls & both[:, level, side, word, None]
                np.bitwise_xor(plain[..., word], corrected, children[:, :, side, word])
        seeds = children.reshape(trees, -1, 2)
        lowest = seeds[..., 0] & _LOWEST
        seeds[..., 0] ^= lowest
        controls = np.negative(lowest, out=lowest)
    return seeds, controls


def threshold_keys(roots: tuple[Words, Words], thresholds: Words, levels: int) -> ThresholdKeys:
    """The dealer's keys. thresholds: [trees], below 2^levels."""
    walk, total = _Walk(roots), np.zeros(len(thresholds), np.uint64)
    seeds, controls, values = [], [], []
    for level in range(levels):
        bit, flipped = _bit(thresholds, levels, level), walk.flipped
        words = [_hashed(key, walk.seeds)[..., 0] for key in (2, 3)]
        kept, lost = _sides(np.negative(bit), *words)
        value = _signed(lost[1] - lost[0] - total + bit, flipped)
        total = total - kept[1] + kept[0] + _signed(value, flipped)
        told = walk.step(bit)
        seeds.append(told[0])
        controls.append(told[1])
        values.append(value)
    last = _hashed(2, walk.seeds)[..., 0]
    values.append(_signed(last[1] - last[0] - total, walk.flipped))
    return ThresholdKeys(np.stack(seeds, 1), np.stack(controls, 1), np.stack(values, 1))


def below(rank: int, roots: Words, keys: ThresholdKeys, places: Words) -> Words:
    """An owner's words [trees, ...] of whether public places [trees, ...] are below the threshold."""
    trees, levels = keys.controls.shape
    places = places.reshape(trees, math.prod(places.shape[1:]))
    seeds = np.repeat((roots & _SEED)[:, None], places.shape[1], 1)
    controls, total = np.full(places.shape, rank, np.uint8), np.zeros(places.shape, np.uint64)
    for level in range(levels):
        right = _bit(places, levels, level)
        total += np.where(right == 1, _hashed(3, seeds)[..., 0], _hashed(2, seeds)[..., 0])
        total += controls * keys.values[:, level, None]
        following = np.where(right[..., None] == 1, _hashed(1, seeds), _hashed(0, seeds))
        bits = (following[..., 0] & _LOWEST).astype(np.uint8)
        bits ^= controls & (keys.controls[:, level, None] >> right.astype(np.uint8)) & 1
        following[..., 0] &= _REST
        following ^= keys.seeds[:, level, None] * controls[..., None]
        seeds, controls = following, bits
    total += _hashed(2, seeds)[..., 0] + controls * keys.values[:, levels, None]
    return -total if rank else total


class _Walk:
    """Both owners' trees along one path, as the dealer walks it."""

    def __init__(self, roots: tuple[Words, Words]) -> None:
        self.seeds = np.stack(roots) & _SEED
        """Of shape [owners, trees, 2]."""
        first = np.zeros(len(roots[0]), np.uint64)
        self._controls: Words = np.stack([first, ~first])
        """Of shape [owners, trees], as words of equal bits."""

    @property
    def flipped(self) -> Words:
        """The control bits of the second owner, where values are negative, as words of equal bits."""
        second: Words = self._controls[1]
        return second

    def step(self, bit: Words) -> tuple[Words, Bits]:
        """Down to the child on the right where the bit is set; the corrections of this level."""
        right = np.negative(bit)
        kept, lost = _sides(_pairs(right), _hashed(0, self.seeds), _hashed(1, self.seeds))
        # A child's lowest bit is its control: corrected, both owners' are equal on the side that is lost, and differ
        # on the one that is kept.
        told, bits = lost[0] ^ lost[1], kept[..., 0] & _LOWEST
        of_kept, of_lost = bits[0] ^ bits[1] ^ _LOWEST, told[:, 0] & _LOWEST
        self.seeds = (kept ^ (told & _pairs(self._controls))) & _SEED
        self._controls = np.negative(bits ^ (self._controls & of_kept))
        of_right, of_left = _sides(right, of_lost, of_kept)
        return told & _SEED, (of_left | (of_right << _LOWEST)).astype(np.uint8)


def _hashed(key: int, seeds: Words) -> Words:
    """H_key of seeds [..., 2]."""
    plain = np.ascontiguousarray(seeds, "<u8")
    room = np.empty(plain.size + 2, "<u8")
    # Memory views of no bytes at all cannot be cast, arrays can.
    octets = plain.reshape(-1).view(np.uint8)
    _CIPHERS[key].encryptor().update_into(octets.data, room.view(np.uint8).data)
    found: Words = room[: plain.size].reshape(plain.shape)
    found ^= plain
    return found


def _words(seeds: Words) -> Words:
    """The two words of a leaf."""
    return _hashed(2, seeds)


def _bit(numbers: Words, levels: int, level: int) -> Words:
    """The bits of numbers below 2^levels, the highest first."""
    return (numbers >> np.uint64(levels - 1 - level)) & _LOWEST


def _sides(choice: Words, left: Words, right: Words) -> tuple[Words, Words]:
    """The side on the right where all bits of the choice are set, that on the left where none is; and the other one."""
    change = (left ^ right) & choice
    return left ^ change, right ^ change


def _pairs(words: Words) -> Words:
    """Each word twice, along a new last axis: what NumPy broadcasts along so short an axis is slow."""
    return np.repeat(words, 2).reshape(*words.shape, 2)


def _signed(words: Words, negative: Words) -> Words:
    """Words, times -1 where all bits of the other are set."""
    return (words ^ negative) - negative
