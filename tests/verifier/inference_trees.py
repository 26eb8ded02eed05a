"""Trees of secret places and thresholds, one at a time: docs/spec/inference-material.md, *Trees*.

A seed is 16 bytes; as a number it is read little-endian, so that its lowest bit is that of its first byte.
"""

from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

KEYS = (
    "4e6f448f8dd8e2fe4ec2101defc37160",
    "63cea806b3b6d5f831be5682c1d794bd",
    "d6b57f000befa8662103134e5c23772d",
    "2152d1327ee823c56f0e4905a6207499",
)
CIPHERS = [Cipher(AES(bytes.fromhex(key)), ECB()).encryptor() for key in KEYS]
EVEN = 2**128 - 2
WORD = 2**64


def hashed(key: int, seed: int) -> int:
    """H_key."""
    return int.from_bytes(CIPHERS[key].update(seed.to_bytes(16, "little")), "little") ^ seed


def words(seed: int) -> list[int]:
    found = hashed(2, seed)
    return [found % WORD, found // WORD]


def children(seed: int) -> tuple[list[int], list[int]]:
    """Seeds and control bits on both sides."""
    found = [hashed(side, seed) for side in (0, 1)]
    return [each & EVEN for each in found], [each & 1 for each in found]


def bits_of(number: int, levels: int) -> list[int]:
    return [number >> (levels - 1 - level) & 1 for level in range(levels)]


def signed(word: int, negative: int) -> int:
    return -word if negative else word


class Walk:
    """The dealer in both trees, on the path of the secret number."""

    def __init__(self, roots: list[int]) -> None:
        self.seeds, self.controls = [root & EVEN for root in roots], [0, 1]
        self.told_seeds: list[int] = []
        self.told_controls: list[int] = []

    def step(self, bit: int) -> None:
        (seeds, controls), (other_seeds, other_controls) = map(children, self.seeds)
        told_seed = seeds[1 - bit] ^ other_seeds[1 - bit]
        told = [controls[side] ^ other_controls[side] ^ (side == bit) for side in (0, 1)]
        self.seeds = [
            kept[bit] ^ (told_seed if control else 0)
            for kept, control in zip((seeds, other_seeds), self.controls, strict=True)
        ]
        self.controls = [
            kept[bit] ^ (told[bit] & control)
            for kept, control in zip((controls, other_controls), self.controls, strict=True)
        ]
        self.told_seeds.append(told_seed)
        self.told_controls.append(told[0] + 2 * told[1])


def point_keys(roots: list[int], place: int, levels: int, values: list[int]) -> dict[str, list[int]]:
    walk = Walk(roots)
    for bit in bits_of(place, levels):
        walk.step(bit)
    ends = zip(values, words(walk.seeds[0]), words(walk.seeds[1]), strict=True)
    told = [signed(value - one + other, walk.controls[1]) % WORD for value, one, other in ends]
    return {"seeds": walk.told_seeds, "controls": walk.told_controls, "values": told}


def threshold_keys(roots: list[int], threshold: int, levels: int) -> dict[str, list[int]]:
    walk, total, values = Walk(roots), 0, []
    for bit in bits_of(threshold, levels):
        one, other = ([hashed(2, seed) % WORD, hashed(3, seed) % WORD] for seed in walk.seeds)
        value = signed(other[1 - bit] - one[1 - bit] - total + bit, walk.controls[1]) % WORD
        total += one[bit] - other[bit] + signed(value, walk.controls[1])
        values.append(value)
        walk.step(bit)
    one, other = (hashed(2, seed) for seed in walk.seeds)
    values.append(signed(other - one - total, walk.controls[1]) % WORD)
    return {"seeds": walk.told_seeds, "controls": walk.told_controls, "values": values}


def descended(rank: int, root: int, keys: dict[str, Any], bits: list[int]) -> list[tuple[int, int]]:
    """Seed and control bit of every node on the way, the root's first."""
    seed, control = root & EVEN, rank
    found = [(seed, control)]
    for level, bit in enumerate(bits):
        seeds, controls = children(seed)
        seed = seeds[bit] ^ (keys["seeds"][level] if control else 0)
        control = controls[bit] ^ (keys["controls"][level] >> bit & 1 & control)
        found.append((seed, control))
    return found


def point_words(rank: int, root: int, keys: dict[str, Any], levels: int) -> list[list[int]]:
    """An owner's two words at each place."""
    found = []
    for place in range(2**levels):
        seed, control = descended(rank, root, keys, bits_of(place, levels))[-1]
        pair = zip(words(seed), keys["values"], strict=True)
        found.append([signed(word + control * value, rank) % WORD for word, value in pair])
    return found


def below(rank: int, root: int, keys: dict[str, Any], place: int, levels: int, words: int) -> int:
    """An owner's share, modulo 2^words, of whether a place is below the threshold."""
    bits = bits_of(place, levels)
    nodes = descended(rank, root, keys, bits)
    total = 0
    for bit, (seed, control), value in zip([*bits, 0], nodes, keys["values"], strict=True):
        total += hashed(2 + bit, seed) + control * value
    return signed(total, rank) % 2**words
