"""Function secret sharing by trees: DPF and DCF keys of a point or a threshold, which hide it from either owner.

docs/spec/inference-material.md ("Trees") has the construction: points (DPF) after Boyle, Gilboa, Ishai (CCS 2016,
figure 1), thresholds (DCF) after Boyle et al. (Eurocrypt 2021, figure 1). All functions process many trees at once, in
NumPy's unsigned integers, whose sums wrap; seeds are 128 bits in two words, the lower first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import sha256
from threading import local
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB

Words = np.ndarray[Any, np.dtype[np.uint64]]
Bits = np.ndarray[Any, np.dtype[np.uint8]]

_CIPHERS: Final = tuple(Cipher(AES128(sha256(b"tacit/1 tree %d" % number).digest()[:16]), ECB()) for number in range(4))
_LEAVES_AT_ONCE: Final = 1 << 15
"""Chunk of point_words whose working set stays in the cache of a core."""
_LOWEST: Final = np.uint64(1)
_ONES: Final = 0xFFFF_FFFF_FFFF_FFFF
_REST: Final = ~_LOWEST
_SEED: Final = np.array([_REST, ~np.uint64(0)])
"""All bits of a seed but the lowest."""


@dataclass(frozen=True, repr=False)
class PointKeys:
    """The public part of DPF keys with `levels` levels, which both owners receive."""

    seeds: Words
    """Corrections of seeds, [trees, levels, 2]."""
    controls: Bits
    """Corrections of control bits, [trees, levels]: bit 0 for the child on the left, bit 1 for that on the right."""
    values: Words


@dataclass(frozen=True, repr=False)
class ThresholdKeys:
    seeds: Words
    controls: Bits
    values: Words
    """Words of every level and of the leaf, [trees, levels + 1]."""


def point_keys(roots: tuple[Words, Words], points: Words, levels: int, values: Words) -> PointKeys:
    """The dealer's DPF keys. roots: [trees, 2] of each owner; points: [trees] below 2^levels; values: [trees, 2]."""
    walk, trees = _Walk(roots, 2), len(points)
    seeds, controls = np.empty((trees, levels, 2), np.uint64), np.empty((trees, levels), np.uint8)
    for level in range(levels):
        walk.hash()
        seeds[:, level], controls[:, level] = walk.step(_bit(points, levels, level))
    leaf = _words(walk.seeds)
    return PointKeys(seeds, controls, _signed(values - leaf[0] + leaf[1], walk.flipped[:, None]))


def point_words(rank: int, roots: Words, keys: PointKeys) -> Words:
    """An owner's words [trees, 2^levels, 2] of the values at all positions."""
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


def _leaves(rank: int, roots: Words, corrections: Words, sides: Bits) -> tuple[Words, Words]:
    """Seeds [trees, 2^levels, 2] and controls [trees, 2^levels] of an owner, the latter as words of equal bits."""
    trees, levels = sides.shape
    # The correction of a side: the seed, and in its lowest bit, which no seed has, that of the control.
    both = np.stack([corrections, corrections], 2)
    both[..., 0] |= np.stack([sides & 1, sides >> 1], 2)
    seeds = (roots & _SEED)[:, None]
    controls = np.full((trees, 1), -rank & _ONES, np.uint64)
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
    """The dealer's DCF keys. thresholds: [trees], below 2^levels."""
    walk, trees = _Walk(roots, len(_CIPHERS)), len(thresholds)
    total = np.zeros(trees, np.uint64)
    seeds, controls = np.empty((trees, levels, 2), np.uint64), np.empty((trees, levels), np.uint8)
    values = np.empty((trees, levels + 1), np.uint64)
    for level in range(levels):
        bit = _bit(thresholds, levels, level)
        flipped = walk.flipped
        sides = walk.hash()
        # Excess of the second owner's words over the first's, on either side.
        left, right = (sides[key, 1, :, 0] - sides[key, 0, :, 0] for key in (2, 3))
        kept, lost = _sides(np.negative(bit), left, right)
        lost += bit
        values[:, level] = _signed(lost - total, flipped)
        # Both owners' sum so far, along the path.
        total = lost - kept
        seeds[:, level], controls[:, level] = walk.step(bit)
    last = _hashed(2, walk.seeds)[..., 0]
    values[:, levels] = _signed(last[1] - last[0] - total, walk.flipped)
    return ThresholdKeys(seeds, controls, values)


def below(rank: int, roots: Words, keys: ThresholdKeys, places: Words) -> Words:
    """An owner's words [trees, ...] of whether public positions [trees, ...] are below the threshold."""
    trees, levels = keys.controls.shape
    several = math.prod(places.shape[1:])
    # Trees are the inner axis: a tree's correction is the same at all of its positions.
    at = np.ascontiguousarray(places.reshape(trees, several).T)
    count, own = at.size, np.arange(at.size, dtype=np.intp).reshape(at.shape)
    seeds = np.repeat((roots & _SEED)[None], several, 0)
    controls, total = np.full(at.shape, -rank & _ONES, np.uint64), np.zeros(at.shape, np.uint64)
    hashes = _HashBuffer(len(_CIPHERS), count)
    for level in range(levels):
        right = _bit(at, levels, level)
        chosen = right.astype(np.intp)
        chosen *= count
        chosen += own
        sides = hashes.fill(seeds)
        following = sides[:2].view(np.complex128).reshape(-1).take(chosen).view(np.uint64).reshape(seeds.shape)
        total += sides[2:].reshape(-1)[::2].take(chosen)
        total += controls & keys.values[:, level]
        # The correction of the side: the seed, and in its lowest bit, which no seed has, that of the control.
        corrected = np.broadcast_to(keys.seeds[:, level], seeds.shape).copy()
        corrected[..., 0] |= (keys.controls[:, level].astype(np.uint64) >> right) & _LOWEST
        corrected &= _pairs(controls)
        following ^= corrected
        lowest = following[..., 0] & _LOWEST
        following[..., 0] ^= lowest
        seeds, controls = following, np.negative(lowest, out=lowest)
    total += _hashed(2, seeds)[..., 0]
    total += controls & keys.values[:, levels]
    found = np.ascontiguousarray(total.T).reshape(places.shape)
    return np.negative(found, out=found) if rank else found


class _Walk:
    """The dealer's walk along one path through both owners' trees; each step takes the hashes under so many keys."""

    def __init__(self, roots: tuple[Words, Words], keys: int) -> None:
        self.seeds = np.stack(roots) & _SEED
        """Shape [owners, trees, 2]."""
        trees = len(roots[0])
        first = np.zeros(trees, np.uint64)
        self._controls: Words = np.stack([first, ~first])
        """Shape [owners, trees], as words of equal bits."""
        self._hashes = _HashBuffer(keys, 2 * trees)
        self._own = np.arange(2 * trees, dtype=np.intp).reshape(2, trees)
        self._sides: Words

    @property
    def flipped(self) -> Words:
        """The control bits of the second owner, whose set bits make values negative, as words of equal bits."""
        second: Words = self._controls[1]
        return second

    def hash(self) -> Words:
        """Hash under every key, [keys, owners, trees, 2]; once ahead of each step."""
        sides = self._hashes.fill(self.seeds)
        self._sides = sides.reshape(len(sides), *self.seeds.shape)
        return self._sides

    def step(self, bit: Words) -> tuple[Words, Bits]:
        """Descend to the right child if the bit is set; returns the corrections of this level."""
        left, right = self._sides[0], self._sides[1]
        # A child's lowest bit is its control: after correction both owners' are equal on the side off the path, and
        # differ on the path.
        of_left, of_right = left[0] ^ left[1], right[0] ^ right[1]
        turned = np.negative(bit)
        correction = _sides(_pairs(turned), of_left, of_right)[1]
        left_bit, right_bit = (of_left[:, 0] ^ ~bit) & _LOWEST, (of_right[:, 0] ^ bit) & _LOWEST
        sent = correction & _SEED
        correction = sent.copy()
        correction[:, 0] |= _sides(turned, left_bit, right_bit)[0]
        kept = self._sides[:2].view(np.complex128).reshape(-1)
        chosen = self._own + bit.astype(np.intp) * self._own.size
        seeds = kept.take(chosen).view(np.uint64).reshape(self.seeds.shape)
        seeds ^= correction & _pairs(self._controls)
        lowest = seeds[..., 0] & _LOWEST
        seeds[..., 0] ^= lowest
        self.seeds, self._controls = seeds, np.negative(lowest, out=lowest)
        return sent, (left_bit | (right_bit << _LOWEST)).astype(np.uint8)


class _Contexts(local):
    """Per-thread cipher contexts by key: creating one takes longer than encrypting thousands of seeds."""

    def __init__(self) -> None:
        self.update_into = [cipher.encryptor().update_into for cipher in _CIPHERS]


_CONTEXTS: Final = _Contexts()


class _HashBuffer:
    """Buffer for hashes of many seeds under the first keys, which is reused."""

    def __init__(self, keys: int, seeds: int) -> None:
        # The cipher's interface requires a seed, less a byte, of space beyond the output: here the next key's.
        self._words = np.empty((keys * seeds + 1) * 2, "<u8")
        octets = self._words.view(np.uint8)
        self._outputs = [octets[16 * seeds * key : 16 * seeds * (key + 1) + 16].data for key in range(keys)]
        self._shape = (keys, seeds, 2)

    def fill(self, seeds: Words) -> Words:
        """[keys, seeds, 2], valid until the next call."""
        plain = np.ascontiguousarray(seeds, "<u8").reshape(-1)
        octets = plain.view(np.uint8).data
        for update_into, output in zip(_CONTEXTS.update_into, self._outputs, strict=False):
            update_into(octets, output)
        found: Words = self._words[:-2].reshape(self._shape)
        found ^= plain.reshape(self._shape[1:])
        return found


def _hashed(key: int, seeds: Words) -> Words:
    """H_key of seeds [..., 2]."""
    plain = np.ascontiguousarray(seeds, "<u8")
    room = np.empty(plain.size + 2, "<u8")
    # Empty memory views cannot be cast, arrays can.
    octets = plain.reshape(-1).view(np.uint8)
    _CONTEXTS.update_into[key](octets.data, room.view(np.uint8).data)
    found: Words = room[: plain.size].reshape(plain.shape)
    found ^= plain
    return found


def _words(seeds: Words) -> Words:
    return _hashed(2, seeds)


def _bit(numbers: Words, levels: int, level: int) -> Words:
    return (numbers >> np.uint64(levels - 1 - level)) & _LOWEST


def _sides(choice: Words, left: Words, right: Words) -> tuple[Words, Words]:
    """The right side if all bits of the choice are set, the left side if none is; and the other one."""
    change = (left ^ right) & choice
    return left ^ change, right ^ change


def _pairs(words: Words) -> Words:
    return np.repeat(words, 2).reshape(*words.shape, 2)


def _signed(words: Words, negative: Words) -> Words:
    """Words, times -1 if all bits of the other are set."""
    return (words ^ negative) - negative
