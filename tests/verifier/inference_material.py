"""Requests for material, what owners draw and what the dealer corrects: docs/spec/inference-material.md."""

import math
from itertools import product
from typing import Any

from constants import LARGEST_WORDS, Refused, require
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from encoding import Array, Integer, Map, Reader, Real, choice

WORD = 2**64
MODEL_OWNER, DATA_OWNER = 0, 1
SIZE = Integer(0, LARGEST_WORDS)
SHAPE = Array(8, SIZE)
POSITIVE = Real(lambda value: 2.0**-100 <= value <= 2.0**100)
OFFSET = Real(lambda value: 0.0 <= value <= 2.0**100)
CURVE = Map(steps=Integer(1, 16), unit=POSITIVE, offset=OFFSET, divisor=POSITIVE, scale=POSITIVE)
NOTHING = Array(0, SIZE)


class OrNil:
    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def read(self, reader: Reader) -> Any:
        if reader.data[reader.position : reader.position + 1] == b"\xc0":
            reader.take(1)
            return None
        return self.kind.read(reader)

    def write(self, value: Any) -> bytes:
        return b"\xc0" if value is None else bytes(self.kind.write(value))


def tagged(name: str, **fields: Any) -> Map:
    return Map(type=choice(name), **fields)


REQUESTS = {
    "Weight": tagged("Weight", owner=Integer(0, 1), shape=SHAPE),
    "Fixed": tagged(
        "Fixed", owner=Integer(0, 1), rows=Array(7, SIZE), weight=Integer(0, 2**63 - 1), weight_shape=SHAPE
    ),
    "Narrow": tagged("Narrow", shape=SHAPE, bits=Integer(2, 64), degree=Integer(1, 16), factor=OrNil(SHAPE)),
    "Matrix": tagged("Matrix", operation=choice("matmul"), left=SHAPE, right=SHAPE, arguments=NOTHING),
    "Table": tagged(
        "Table", shape=SHAPE, index_bits=Integer(1, 16), function=choice("inverse", "inverse root"), curve=CURVE
    ),
}


def write_requests(requests: list[dict[str, Any]]) -> bytes:
    assert len(requests) < 16
    return bytes([0x90 + len(requests)]) + b"".join(REQUESTS[request["type"]].write(request) for request in requests)


def read_requests(encoded: bytes) -> list[dict[str, Any]]:
    reader = Reader(encoded)
    try:
        require(0x90 <= encoded[0] <= 0x9F, "INVALID")
        reader.take(1)
        found = [read_request(reader) for _ in range(encoded[0] - 0x90)]
        require(reader.position == len(encoded), "INVALID")
    except Refused:
        raise Refused("INVALID") from None
    return found


def read_request(reader: Reader) -> dict[str, Any]:
    start = reader.position
    for kind in REQUESTS.values():
        reader.position = start
        try:
            found = kind.read(reader)
        except Refused:
            continue
        if found["type"] == "Matrix":
            left, right = found["left"], found["right"]
            require(min(len(left), len(right)) >= 2 and left[-1] == right[-2], "INVALID")
        words = max(sum(math.prod(shape) for shape, _ in free(found, rank)) for rank in (MODEL_OWNER, DATA_OWNER))
        require(words + sum(map(math.prod, dependent(found))) <= LARGEST_WORDS, "INVALID")
        return found
    raise Refused("INVALID")


def free(request: dict[str, Any], rank: int) -> list[tuple[list[int], int]]:
    """Shapes and widths of what this owner draws first."""
    match request["type"]:
        case "Weight":
            return [(request["shape"], 64)] if rank == request["owner"] else []
        case "Fixed":
            return [] if rank == request["owner"] else [([*request["rows"], request["weight_shape"][0]], 64)]
        case "Narrow":
            factor = request["factor"]
            return [(request["shape"], request["bits"]), *([] if factor is None else [(factor, 64)])]
        case "Matrix":
            return [(request["left"], 64), (request["right"], 64)]
        case _:
            return [(request["shape"], request["index_bits"] + 8)]


def broadcast(*shapes: list[int]) -> list[int]:
    longest = max(map(len, shapes))
    padded = [[1] * (longest - len(shape)) + list(shape) for shape in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True)]


def dependent(request: dict[str, Any]) -> list[list[int]]:
    match request["type"]:
        case "Weight":
            return []
        case "Fixed":
            return [[*request["rows"], request["weight_shape"][1]]]
        case "Narrow":
            return [request["shape"]] * (2 * (request["degree"] + (request["factor"] is not None)))
        case "Matrix":
            left, right = request["left"], request["right"]
            return [[*broadcast(left[:-2], right[:-2]), left[-2], right[-1]]]
        case _:
            return [[*request["shape"], 2 ** request["index_bits"]]] * 2


def receiver(request: dict[str, Any]) -> int:
    return int(request["owner"]) if request["type"] == "Fixed" else MODEL_OWNER


class Stream:
    """The words of one request: AES-256 of the blocks u64(number) || u64(0), u64(1), ..., all big-endian."""

    def __init__(self, key: bytes, number: int) -> None:
        self.cipher, self.number, self.drawn = Cipher(AES(key), ECB()).encryptor(), number, 0

    def draw(self, shape: list[int], bits: int) -> list[int]:
        words = []
        for place in range(self.drawn, self.drawn + math.prod(shape)):
            block = self.number.to_bytes(8, "big") + (place // 2).to_bytes(8, "big")
            encrypted = self.cipher.update(block)
            half = encrypted[8:] if place % 2 else encrypted[:8]
            words.append(int.from_bytes(half, "little") % 2**bits)
        self.drawn += len(words)
        return words


def draw(request: dict[str, Any], rank: int, stream: Stream) -> list[list[int]]:
    shapes = free(request, rank)
    if rank != receiver(request):
        shapes = shapes + [(shape, 64) for shape in dependent(request)]
    return [stream.draw(shape, bits) for shape, bits in shapes]


def octets(words: list[int]) -> bytes:
    return b"".join((word % WORD).to_bytes(8, "little") for word in words)


def element(words: list[int], shape: list[int], at: tuple[int, ...]) -> int:
    """Row-major; a dimension of one, or one that is missing, is repeated."""
    place = 0
    for size, index in zip(shape, at[len(at) - len(shape) :], strict=True):
        place = place * size + (0 if size == 1 else index)
    return words[place]


def matmul(left: list[int], left_shape: list[int], right: list[int], right_shape: list[int]) -> list[int]:
    batch = broadcast(left_shape[:-2], right_shape[:-2])
    rows, columns, inner = left_shape[-2], right_shape[-1], right_shape[-2]
    return [
        sum(
            element(left, left_shape, (*at, row, term)) * element(right, right_shape, (*at, term, column))
            for term in range(inner)
        )
        for *at, row, column in product(*map(range, (*batch, rows, columns)))
    ]


def total(words: list[list[int]]) -> list[int]:
    return [sum(pair) for pair in zip(*words, strict=True)]


def solve(request: dict[str, Any], drawn: list[list[list[int]]], weight: list[int]) -> list[list[int]]:
    """The dependent words, from what both owners draw."""
    match request["type"]:
        case "Fixed":
            other = 1 - request["owner"]
            rows = [math.prod(request["rows"]), request["weight_shape"][0]]
            return [matmul(drawn[other][0], rows, weight, request["weight_shape"])]
        case "Narrow":
            return narrow(
                request, *(total([words[place] for words in drawn]) for place in range(len(free(request, 0))))
            )
        case "Matrix":
            left, right = (total([words[place] for words in drawn]) for place in (0, 1))
            return [matmul(left, request["left"], right, request["right"])]
        case _:
            return table(request, total([words[0] for words in drawn]))


def narrow(request: dict[str, Any], sums: list[int], factor: list[int] | None = None) -> list[list[int]]:
    bits = request["bits"]
    one = [word % 2**bits for word in sums]
    zero = [word - 2**bits if word >> (bits - 1) else word for word in one]
    places = list(product(*map(range, request["shape"])))

    def of(mask: list[int]) -> list[list[int]]:
        found = [[word**power for word in mask] for power in range(1, request["degree"] + 1)]
        if factor is not None:
            values = [element(factor, request["factor"], at) for at in places]
            found.append([word * value for word, value in zip(mask, values, strict=True)])
        return found

    first, second = of(zero), of(one)
    return first + [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(first, second, strict=True)]


def inverse(x: float, steps: int) -> float:
    rest = 1 - x
    found = rest + 1
    for _ in range(steps):
        rest = rest * rest
        found = found * (rest + 1)
    return found


def inverse_root(x: float, steps: int) -> float:
    root, half = x, 0.5
    for _ in range(steps):
        factor = 1.5 - root * half
        root, half = root * factor, half * factor
    return half * 2


def table(request: dict[str, Any], sums: list[int]) -> list[list[int]]:
    curve, intervals = request["curve"], 2 ** request["index_bits"]
    compute, divisor = inverse, curve["divisor"]
    if request["function"] == "inverse root":
        compute, divisor = inverse_root, math.sqrt(curve["divisor"])
    factor = curve["scale"] / divisor

    def at(interval: int) -> float:
        x = max(interval * 256 * curve["unit"] + curve["offset"], 0.0) / curve["divisor"]
        return float(factor * compute(x, curve["steps"]))

    ends = [at(interval) for interval in range(-1, intervals + 1)]
    values = [round(end) for end in ends[1:-1]]
    slopes = [round((after - before) / 512) for before, after in zip(ends, ends[2:], strict=False)]
    turned_values, turned_slopes = [], []
    for word in sums:
        r = word % (256 * intervals)
        for place in range(intervals):
            interval = (place - r // 256) % intervals
            turned_values.append(values[interval] - slopes[interval] * (r % 256))
            turned_slopes.append(slopes[interval])
    return [turned_values, turned_slopes]


def corrections(keys: list[bytes], encoded: bytes) -> list[dict[str, Any] | None]:
    """For the first requests of a session: whom the dealer sends what."""
    weights: dict[int, dict[str, Any]] = {}
    found: list[dict[str, Any] | None] = []
    for number, request in enumerate(read_requests(encoded)):
        weight: list[int] = []
        if request["type"] == "Weight":
            weights[number] = request
        if request["type"] == "Fixed":
            masked = weights.get(request["weight"], {})
            expected = (request["owner"], request["weight_shape"])
            require((masked.get("owner"), masked.get("shape")) == expected, "INVALID")
            weight = Stream(keys[request["owner"]], request["weight"]).draw(request["weight_shape"], 64)
        shapes, to = dependent(request), receiver(request)
        if not shapes:
            found.append(None)
            continue
        drawn = [draw(request, rank, Stream(key, number)) for rank, key in enumerate(keys)]
        shares = drawn[1 - to][len(free(request, 1 - to)) :]
        words = solve(request, drawn, weight)
        of_receiver = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(words, shares, strict=True)]
        found.append({"to": to, "words": b"".join(map(octets, of_receiver))})
    return found
