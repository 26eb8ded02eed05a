"""Computations of the arithmetic: keystreams, masks, shares, words, layouts, graphs and sets of members."""

from __future__ import annotations

from hashlib import shake_256
from itertools import count
from struct import unpack
from typing import Any, Final

from tacit.secagg.keystream import Usage, keystream
from tacit.secagg.shamir import PRIME
from tacit.simulate.conformance.computations import INVALID
from tests.vectors_corpus.script import Script, vectors_of


def drawn(name: str, length: int = 32) -> bytes:
    return shake_256(name.encode()).digest(length)


def flipped(data: bytes, place: int, bit: int = 1) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


vectors = vectors_of("secure sum")


@vectors("Keystreams of every label; the counter starts at 0.")
def keystreams(script: Script) -> None:
    for usage in Usage:
        for length in (0, 1, 16, 100):
            script.do("keystream", seed=drawn("seed"), usage=usage.decode(), length=length)
    # Beyond 256 blocks the last two bytes of the counter are in use.
    script.do("keystream", seed=bytes(32), usage=Usage.PAIRWISE_MASK.decode(), length=4096)


@vectors("A seed has 32 bytes, and a label is one of the known ones.")
def keystreams_bad_seed(script: Script) -> None:
    for length in (0, 31, 33):
        script.refuse(INVALID, "keystream", seed=bytes(length), usage=Usage.SELF_MASK.decode(), length=16)
    script.refuse(INVALID, "keystream", seed=bytes(32), usage="tacit/1 any mask", length=16)


@vectors("Masks added to and subtracted from packed words, in rings of all word sizes, from any block on.")
def masks(script: Script) -> None:
    pair = [
        {"seed": drawn("first"), "usage": Usage.SELF_MASK.decode(), "sign": 1},
        {"seed": drawn("second"), "usage": Usage.PAIRWISE_MASK.decode(), "sign": -1},
    ]
    for bits in (8, 12, 16, 20, 24, 32, 40, 63, 64):
        octets = -(-bits // 8)
        top = (1 << bits) - 1
        words = b"".join(word.to_bytes(octets, "little") for word in (0, 1, top, top // 2, top // 3))
        for start in (0, 16, 4096):
            script.do("mask", bits=bits, words=words, start=start, masks=pair)
    script.do("mask", bits=32, words=bytes(20), start=0, masks=[])


@vectors("A mask is entered at a whole block of the cipher only.")
def masks_bad_start(script: Script) -> None:
    mask = {"seed": drawn("first"), "usage": Usage.SELF_MASK.decode(), "sign": 1}
    for bits, start in ((8, 15), (16, 4), (32, 1), (32, 3), (64, 1), (32, -4)):
        script.refuse(INVALID, "mask", bits=bits, words=bytes(bits // 8), start=start, masks=[mask])


@vectors("Secrets shared and reconstructed, from every threshold, with points up to the largest.")
def shamir(script: Script) -> None:
    secrets = [bytes(32), b"\xff" * 32, drawn("secret"), bytes(range(32))]
    for points, threshold in (([1, 2], 2), ([1, 2, 3, 4, 5], 3), ([7, 1, PRIME - 1, 300], 4), ([5, 9, 10_000], 2)):
        shares = script.do("share", secrets=secrets, points=points, threshold=threshold, seed=drawn("polynomials"))
        script.do("reconstruct", shares=shares[:threshold], points=points[:threshold])
        script.do("reconstruct", shares=shares[-threshold:], points=points[-threshold:])
    # The words beyond the field are passed over, the prime itself among them.
    seed = next(seed for seed in map(drawn, map(str, count())) if PRIME in _first_words(seed))
    script.do("share", secrets=secrets[2:3], points=[1, 2, 3], threshold=3, seed=seed)


def _first_words(seed: bytes) -> tuple[int, ...]:
    """The first words from which coefficients of one secret would be taken."""
    words: tuple[int, ...] = unpack("<36H", keystream(seed, Usage.SHARE_COEFFICIENTS, 72))
    return words


def _shares() -> list[list[str]]:
    made: list[list[str]] = Script("secure sum", "").do(
        "share", secrets=[drawn("secret")], points=[1, 2, 3, 4], threshold=3, seed=drawn("polynomials")
    )
    return made


@vectors("Too few shares, shares of other points, and elements outside the field give no secret.")
def shamir_bad_shares(script: Script) -> None:
    shares = _shares()
    script.refuse(INVALID, "reconstruct", shares=shares[:2], points=[1, 2])
    script.refuse(INVALID, "reconstruct", shares=shares[:1], points=[1])
    script.refuse(INVALID, "reconstruct", shares=shares[:3], points=[1, 2, 4])
    changed = bytes.fromhex(shares[2][0])
    for place in (1, 17, 35):
        other = flipped(changed, place, 128)
        script.refuse(INVALID, "reconstruct", shares=[*shares[:2], [other]], points=[1, 2, 3])
    for element in (PRIME, 0xFFFF):
        outside = element.to_bytes(2, "little") + changed[2:]
        script.refuse(INVALID, "reconstruct", shares=[*shares[:2], [outside]], points=[1, 2, 3])
    for length in (0, 34, 35, 37):
        share = (changed + b"\0")[:length]
        script.refuse(INVALID, "reconstruct", shares=[*shares[:2], [share]], points=[1, 2, 3])


@vectors("Points are distinct and lie in 1..65520; a threshold is 2 up to their number.")
def shamir_bad_points(script: Script) -> None:
    shares = _shares()
    for points in ([1, 2, 2], [0, 1, 2], [1, 2, PRIME], [-1, 1, 2], [1, 2]):
        script.refuse(INVALID, "reconstruct", shares=shares[:3], points=points)
        if len(points) == 3:
            script.refuse(INVALID, "share", secrets=[bytes(32)], points=points, threshold=2, seed=bytes(32))
    for threshold in (0, 1, 4):
        script.refuse(INVALID, "share", secrets=[bytes(32)], points=[1, 2, 3], threshold=threshold, seed=bytes(32))
    for length in (31, 33):
        script.refuse(INVALID, "share", secrets=[bytes(length)], points=[1, 2, 3], threshold=2, seed=bytes(32))


@vectors("Random orders of members; who knows the seed knows the order.")
def ring_order(script: Script) -> None:
    for members in ([0, 1], list(range(20)), [3, 17, 4, 100, 9_999], list(range(0, 200, 3))):
        script.do("ring order", members=members, seed=drawn("ring"))
    script.do("ring order", members=list(range(20)), seed=drawn("another ring"))


PARAMETERS: Final[tuple[tuple[int, int, int, str, str], ...]] = (
    (2, 0, 0, "semi-honest", "auto"),
    (3, 0, 0, "active", "auto"),
    (5, 1, 1, "semi-honest", "complete"),
    (19, 6, 6, "semi-honest", "auto"),
    (100, 33, 33, "semi-honest", "auto"),
    (1000, 50, 50, "semi-honest", "auto"),
    (100, 29, 0, "semi-honest", "regular"),
    (100, 5, 5, "semi-honest", "complete"),
    (100, 80, 0, "semi-honest", "complete"),
    (100, 33, 33, "active", "auto"),
    (100, 5, 5, "active", "regular"),
    (1000, 50, 50, "active", "regular"),
    (10_000, 1000, 1000, "semi-honest", "regular"),
    (100, 50, 24, "active", "complete"),
    (10, 3, 3, "active", "auto"),
)


def _choice(clients: int, colluders: int, dropouts: int, mode: str, graph: str) -> dict[str, Any]:
    return {"clients": clients, "colluders": colluders, "dropouts": dropouts, "mode": mode, "graph": graph}


@vectors("Neighbours and thresholds of cohorts, in both modes and both graphs.")
def parameters(script: Script) -> None:
    for choice in PARAMETERS:
        script.do("parameters", **_choice(*choice))


@vectors("Cohorts for which there are no parameters.")
def parameters_bad_fractions(script: Script) -> None:
    for choice in (
        (1, 0, 0, "semi-honest", "complete"),
        (5, 1, 1, "semi-honest", "regular"),
        (100, 33, 33, "active", "regular"),
        (100, 100, 0, "active", "complete"),
        (100, 0, 100, "semi-honest", "regular"),
        (100, 46, 45, "semi-honest", "regular"),
        (100, 100, 0, "semi-honest", "complete"),
        (100, -10, 0, "semi-honest", "complete"),
    ):
        script.refuse(INVALID, "parameters", **_choice(*choice))


@vectors("Integers in two's complement as packed little-endian words, and back.")
def words(script: Script) -> None:
    for bits in (8, 12, 16, 24, 31, 32, 48, 64):
        half = 1 << bits - 1
        numbers = [0, 1, -1, half - 1, -half, -half + 1, half // 3]
        packed = script.do("pack", bits=bits, numbers=numbers)
        script.do("unpack", bits=bits, words=packed)


@vectors("Packed words that are no elements of the ring, or of no whole number of them.")
def words_bad_element(script: Script) -> None:
    for bits, octets in ((12, "0010"), (20, "000010"), (31, "00000080"), (33, "0000000002"), (63, "00" * 7 + "80")):
        script.refuse(INVALID, "unpack", bits=bits, words=octets)
    for bits, octets in ((16, "00"), (24, "00000000"), (64, "00" * 9)):
        script.refuse(INVALID, "unpack", bits=bits, words=octets)
    for bits in (7, 65):
        script.refuse(INVALID, "unpack", bits=bits, words="")


def _packing(form: str, **changes: Any) -> dict[str, Any]:
    # The bound of a weighted value is 127 and stands for the integer 127: what is whole needs no rounding.
    layout = {"clients": 5, "clip": 12.7, "value_bits": 8, "max_weight": 10, "form": form, "tensor_sizes": [3, 2]}
    return {**layout, "metrics": ["correct", "samples"], "ring_bits": None} | changes


CONTRIBUTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("scalar", 7),
    ("tensor", [10, 0]),
    ("coordinate", [1, 0, 10, 3, 2]),
)
METRICS: Final = {"correct": 41, "samples": (1 << 48) - 1}


@vectors("Layouts, contributions and sums with weights of all three forms; values clipped at the bound.")
def packing(script: Script) -> None:
    for form, weights in CONTRIBUTIONS:
        for ring_bits in (None, 32, 61):
            layout = _packing(form, ring_bits=ring_bits)
            script.do("layout", packing=layout)
            first = script.do(
                "write contribution",
                packing=layout,
                values=[1.0, -2.0, 127.0, -127.0, 0.0],
                weights=weights,
                metrics=METRICS,
            )
            script.do("read sum", packing=layout, words=first["words"], contributors=1)
            clipped = [200.0, -200.0, 0.0, 5.0, -5.0]
            script.do("write contribution", packing=layout, values=clipped, weights=weights, metrics=METRICS)
    widths: tuple[dict[str, Any], ...] = (
        {"clients": 127, "value_bits": 16, "max_weight": 1, "tensor_sizes": [1000]},
        {"clients": 10_000, "value_bits": 20, "max_weight": 1 << 10},
        {"clients": 1, "value_bits": 2, "max_weight": 1, "metrics": []},
    )
    for changes in widths:
        for form, _ in CONTRIBUTIONS:
            script.do("layout", packing=_packing(form, **changes))


@vectors("Layouts in which a sum could wrap.")
def packing_bad_width(script: Script) -> None:
    for form, ring_bits in (("scalar", 8), ("tensor", 10), ("coordinate", 16)):
        script.refuse(INVALID, "layout", packing=_packing(form, ring_bits=ring_bits))
    script.refuse(INVALID, "layout", packing=_packing("coordinate", clients=10_000, value_bits=32, max_weight=1 << 31))
    wrong: tuple[dict[str, Any], ...] = (
        {"value_bits": 1},
        {"value_bits": 33},
        {"tensor_sizes": [], "metrics": []},
        {"metrics": ["a", "a"]},
        {"clip": 0.0},
    )
    for changes in wrong:
        script.refuse(INVALID, "layout", packing=_packing("scalar", **changes))


@vectors("Sums that so many contributors cannot reach: a mask was left in.")
def packing_bad_sum(script: Script) -> None:
    layout = _packing("scalar")
    honest = script.do(
        "write contribution", packing=layout, values=[127.0] * 5, weights=10, metrics={"correct": 0, "samples": 0}
    )["words"]
    octets = len(honest) // 2 // script.do("layout", packing=layout)["length"]
    script.do("read sum", packing=layout, words=honest, contributors=1)
    for place, value in ((0, 128), (4 * octets, 0x8000), (5 * octets, 11)):
        raw = bytearray.fromhex(honest)
        raw[place : place + octets] = value.to_bytes(octets, "little")
        script.refuse(INVALID, "read sum", packing=layout, words=bytes(raw), contributors=1)
    for contributors in (0, 6):
        script.refuse(INVALID, "read sum", packing=layout, words=honest, contributors=contributors)
    script.refuse(INVALID, "read sum", packing=layout, words=honest[: -2 * octets], contributors=1)


@vectors("Sets of members as bitmaps.")
def members(script: Script) -> None:
    for size, chosen in ((1, [0]), (5, []), (8, [0, 7]), (9, [8]), (20, [0, 3, 9, 19]), (8, list(range(8)))):
        script.do("read members", bitmap=script.do("write members", members=chosen, size=size), size=size)


@vectors("Bitmaps of another length, or with bits that nobody owns.")
def members_bad_bits(script: Script) -> None:
    for bitmap, size in (("20", 5), ("80", 7), ("0002", 9), ("00", 9), ("0000", 8), ("", 1), ("ff", 0)):
        script.refuse("MEMBERS", "read members", bitmap=bitmap, size=size)
