"""Requests for material, what owners draw and what the dealer corrects: docs/spec/inference-material.md."""

import math
import re
from itertools import product
from typing import Any

from constants import LARGEST_WORDS, REQUEST, Refused, require
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from encoding import Array, Integer, Map, Reader, Text, choice
from inference_trees import point_keys, threshold_keys
from inference_waves import rounded, wave
from primitives import derive

WORD = 2**64
MODEL_OWNER, DATA_OWNER = 0, 1
SIZE = Integer(0, LARGEST_WORDS)
SHAPE = Array(8, SIZE)
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


BITS = Integer(2, 64)
REQUESTS = {
    "Weight": tagged("Weight", owner=Integer(0, 1), shape=SHAPE),
    "Fixed": tagged(
        "Fixed", owner=Integer(0, 1), rows=Array(7, SIZE), weight=Integer(0, 2**63 - 1), weight_shape=SHAPE, words=BITS
    ),
    "Narrow": tagged("Narrow", shape=SHAPE, bits=BITS, degree=Integer(1, 16), factor=OrNil(SHAPE), words=BITS),
    "Matrix": tagged("Matrix", operation=choice("matmul"), left=SHAPE, right=SHAPE, arguments=NOTHING, words=BITS),
    "Products": tagged(
        "Products",
        operands=Array(32, SHAPE),
        products=Array(32, Map(left=Integer(0, 31), right=Integer(0, 31), letters=Text(32))),
        words=BITS,
    ),
    "Scores": tagged("Scores", shape=SHAPE, words=BITS, queries=Integer(1, 64), keys=Integer(1, 64)),
    "Waves": tagged(
        "Waves",
        shape=SHAPE,
        harmonics=Integer(1, 64),
        precision=Integer(1, 28),
        words=BITS,
        bits=Integer(16, 24),
    ),
    "Lookup": tagged(
        "Lookup",
        shape=SHAPE,
        domain=Integer(1, 32),
        index=Integer(0, 14),
        slope=Integer(0, 16),
        levels=Integer(1, 32),
        words=Integer(32, 64),
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
        require(fits(found), "INVALID")
        words = max(sum(math.prod(shape) for shape, _ in free(found, rank)) for rank in (MODEL_OWNER, DATA_OWNER))
        require(words + sum(math.prod(shape) for shape, _ in dependent(found)) <= LARGEST_WORDS, "INVALID")
        return found
    raise Refused("INVALID")


def fits(request: dict[str, Any]) -> bool:
    """What the fields of a request say of each other."""
    match request["type"]:
        case "Weight":
            return len(request["shape"]) == 2
        case "Fixed":
            return len(request["weight_shape"]) == 2
        case "Narrow":
            factor = request["factor"]
            wider = request["words"] > request["bits"]
            return wider and (factor is None or broadcasts(factor, request["shape"]))
        case "Matrix":
            left, right = request["left"], request["right"]
            fit = min(len(left), len(right)) >= 2 and left[-1] == right[-2]
            pairs = zip(left[-3::-1], right[-3::-1], strict=False)
            return fit and all(one == other or 1 in (one, other) for one, other in pairs)
        case "Products":
            count = len(request["operands"])
            return all(each["left"] < count and each["right"] < count for each in request["products"]) and all(
                contracts(each["letters"], *factors(request, each)) for each in request["products"]
            )
        case "Scores":
            return len(request["shape"]) >= 2
        case "Lookup":
            return bool(request["index"] + request["slope"] <= request["domain"])
        case _:
            return True


def broadcasts(shape: list[int], to: list[int]) -> bool:
    """Whether the dimensions of a shape, from the last one on, are those of another, or 1."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(one in (other, 1) for one, other in pairs)


def factors(request: dict[str, Any], each: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Shapes of both operands of a product."""
    return request["operands"][each["left"]], request["operands"][each["right"]]


def contracts(letters: str, left: list[int], right: list[int]) -> bool:
    """Whether the letters of a product are those of its operands, and of a result."""
    parts = re.fullmatch("([a-z]*),([a-z]*)->([a-z]*)", letters)
    if parts is None:
        return False
    one, other, result = parts.groups()
    distinct = all(len(set(part)) == len(part) for part in parts.groups())
    as_many = (len(one), len(other)) == (len(left), len(right))
    if not (distinct and as_many and all((one + other + result).count(letter) > 1 for letter in one + other + result)):
        return False
    sizes = dict(zip(one, left, strict=True))
    return all(sizes.get(letter, size) <= size for letter, size in zip(other, right, strict=True))


def sizes_of(letters: str, left: list[int], right: list[int]) -> tuple[str, str, str, dict[str, int]]:
    """Letters of both operands and of the result, and the size of each."""
    one, other, result = re.split(",|->", letters)
    return one, other, result, dict(zip(other + one, [*right, *left], strict=True))


def contracted(letters: str, left: list[int], right: list[int]) -> list[int]:
    _, _, result, sizes = sizes_of(letters, left, right)
    return [sizes[letter] for letter in result]


def contraction(request: dict[str, Any], each: dict[str, Any], masks: list[list[int]]) -> list[int]:
    """Every element of a result as the sum of products that its letters say."""
    shapes = factors(request, each)
    one, other, result, sizes = sizes_of(each["letters"], *shapes)
    inner = [letter for letter in one if letter not in result]
    found = []
    for at in product(*(range(sizes[letter]) for letter in result)):
        terms = 0
        for summed in product(*(range(sizes[letter]) for letter in inner)):
            place = dict(zip([*result, *inner], [*at, *summed], strict=True))
            left = element(masks[each["left"]], shapes[0], tuple(place[letter] for letter in one))
            terms += left * element(masks[each["right"]], shapes[1], tuple(place[letter] for letter in other))
        found.append(terms)
    return found


Draw = tuple[list[int], int]


def free(request: dict[str, Any], rank: int) -> list[Draw]:
    """Shapes and widths of what this owner draws first."""
    shape = request.get("shape", [])
    match request["type"]:
        case "Weight":
            return [(shape, 64)] if rank == request["owner"] else []
        case "Fixed":
            return [] if rank == request["owner"] else [([*request["rows"], request["weight_shape"][0]], 64)]
        case "Narrow":
            factor = request["factor"]
            return [(shape, request["bits"]), *([] if factor is None else [(factor, 64)])]
        case "Matrix":
            return [(request["left"], 64), (request["right"], 64)]
        case "Products":
            return [(operand, 64) for operand in request["operands"]]
        case "Scores":
            return [(shape, 64), (shape, 64)]
        case "Waves":
            return [(shape, request["bits"])]
        case _:
            return [(shape, 32), *[([*shape, 2], 64)] * (2 if request["index"] else 1)]


def broadcast(*shapes: list[int]) -> list[int]:
    longest = max(map(len, shapes))
    padded = [[1] * (longest - len(shape)) + list(shape) for shape in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True)]


def dependent(request: dict[str, Any]) -> list[Draw]:
    shape, words = request.get("shape", []), request.get("words", 64)
    match request["type"]:
        case "Weight":
            return []
        case "Fixed":
            return [([*request["rows"], request["weight_shape"][1]], words)]
        case "Narrow":
            count = request["degree"] + (request["factor"] is not None)
            quotient = (shape, words - request["bits"])
            return [quotient] + [(shape, words)] * (count - 1) + [quotient] * count
        case "Matrix":
            left, right = request["left"], request["right"]
            return [([*broadcast(left[:-2], right[:-2]), left[-2], right[-1]], words)]
        case "Products":
            return [(contracted(each["letters"], *factors(request, each)), words) for each in request["products"]]
        case "Scores":
            return [([*shape[:-1], shape[-2]], words), *[([2, *shape], 48)] * 2]
        case "Waves":
            checks = 3 if request["bits"] > 16 else 0
            return [(shape, words)] * (2 * request["harmonics"]) + [(shape, 56)] * (2 * checks)
        case _:
            levels, index = request["levels"], request["index"]
            threshold = [([*shape, levels, 2], 64), ([*shape, levels], 8), ([*shape, levels + 1], words)]
            point = [([*shape, index, 2], 64), ([*shape, index], 8), ([*shape, 2], 64)]
            return threshold + (point if index else [])


def receivers(request: dict[str, Any]) -> list[int]:
    if request["type"] == "Lookup":
        return [MODEL_OWNER, DATA_OWNER]
    return [request["owner"]] if request["type"] == "Fixed" else [DATA_OWNER]


class Stream:
    """The words of one key: AES-256 of the blocks 0, 1, ... of 16 bytes, big-endian."""

    def __init__(self, key: bytes) -> None:
        self.cipher, self.drawn = Cipher(AES(key), ECB()).encryptor(), 0

    def draw(self, shape: list[int], bits: int) -> list[int]:
        words = []
        for place in range(self.drawn, self.drawn + math.prod(shape)):
            encrypted = self.cipher.update((place // 2).to_bytes(16, "big"))
            half = encrypted[8:] if place % 2 else encrypted[:8]
            words.append(int.from_bytes(half, "little") % 2**bits)
        self.drawn += len(words)
        return words


def request_stream(key: bytes, number: int) -> Stream:
    return Stream(derive(key, REQUEST, b"", number.to_bytes(8, "big")))


def draw(request: dict[str, Any], rank: int, stream: Stream) -> list[list[int]]:
    shapes = free(request, rank)
    if rank not in receivers(request):
        shapes = shapes + [(shape, 64) for shape, _ in dependent(request)]
    return [stream.draw(shape, bits) for shape, bits in shapes]


def octets(words: list[int], bits: int = 64) -> bytes:
    return b"".join((word % 2**bits).to_bytes((bits + 7) // 8, "little") for word in words)


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
            sums = [total([words[place] for words in drawn]) for place in range(len(free(request, 0)))]
            return narrow(request, *sums)
        case "Matrix":
            left, right = (total([words[place] for words in drawn]) for place in (0, 1))
            return [matmul(left, request["left"], right, request["right"])]
        case "Products":
            masks = [total([words[place] for words in drawn]) for place in range(len(request["operands"]))]
            return [contraction(request, each, masks) for each in request["products"]]
        case "Scores":
            return scores(request, *(total([words[place] for words in drawn]) for place in (0, 1)))
        case "Waves":
            return waves(request, total([words[0] for words in drawn]))
        case _:
            return lookup(request, total([words[0] for words in drawn]), drawn)


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
    wraps = [(word - drawn) // 2**bits for word, drawn in zip(zero, sums, strict=True)]
    quotients = [[(b - a) // 2**bits for a, b in zip(*pair, strict=True)] for pair in zip(first, second, strict=True)]
    return [wraps, *first[1:], *quotients]


def scores(request: dict[str, Any], queries: list[int], keys: list[int]) -> list[list[int]]:
    *batch, rows, size = request["shape"]
    turned = [
        keys[(start * rows + row) * size + column]
        for start in range(math.prod(batch))
        for column in range(size)
        for row in range(rows)
    ]
    found = [matmul(queries, request["shape"], turned, [*batch, size, rows])]
    for words, bits in ((queries, request["queries"]), (keys, request["keys"])):
        places = [(word % 2**bits) * 2**16 // 2**bits for word in words]
        pairs = [wave(1, place) for place in places]
        found.append([rounded(pair[part], 20) for part in (0, 1) for pair in pairs])
    return found


def waves(request: dict[str, Any], sums: list[int]) -> list[list[int]]:
    bits = request["bits"]
    found = [
        [rounded(wave(number, word % 2**16)[part], request["precision"]) for word in sums]
        for number in range(1, request["harmonics"] + 1)
        for part in (0, 1)
    ]
    if bits > 16:
        places = [(word % 2**bits) * 2**16 // 2**bits for word in sums]
        found += [[rounded(wave(number, x)[part], 20) for x in places] for number in (1, 2, 3) for part in (0, 1)]
    return found


def lookup(request: dict[str, Any], sums: list[int], drawn: list[list[list[int]]]) -> list[list[int]]:
    domain, index, slope, levels = (request[name] for name in ("domain", "index", "slope", "levels"))
    trees = [[pairs(words) for words in own[1:]] for own in drawn]
    found: list[list[int]] = [[] for _ in dependent(request)]
    for tree, word in enumerate(sums):
        roots = [own[0][tree] for own in trees]
        keys = [threshold_keys(roots, word % 2**32 >> (32 - levels), levels)]
        if index:
            place = word % 2**domain >> (domain - index - slope)
            roots = [own[1][tree] for own in trees]
            keys.append(point_keys(roots, place >> slope, index, [1, place % 2**slope]))
        for number, key in enumerate(keys):
            found[3 * number] += [half for seed in key["seeds"] for half in (seed % WORD, seed // WORD)]
            found[3 * number + 1] += key["controls"]
            found[3 * number + 2] += key["values"]
    return found


def pairs(words: list[int]) -> list[int]:
    """Roots out of their two words, the lower one first."""
    return [low + WORD * high for low, high in zip(words[::2], words[1::2], strict=True)]


def read_correction(request: dict[str, Any], data: bytes) -> list[list[int]]:
    """What the dealer sent for a request, tensor after tensor."""
    found, start = [], 0
    for shape, bits in dependent(request):
        width = (bits + 7) // 8
        end = start + math.prod(shape) * width
        found.append([int.from_bytes(data[at : at + width], "little") for at in range(start, end, width)])
        start = end
    return found


def tree_keys(parts: list[list[int]], levels: int) -> list[dict[str, list[int]]]:
    """Keys of each tree."""
    seeds, controls, values = pairs(parts[0]), parts[1], parts[2]
    count = len(controls) // levels
    each = len(values) // count if count else 0
    return [
        {
            "seeds": seeds[tree * levels : (tree + 1) * levels],
            "controls": controls[tree * levels : (tree + 1) * levels],
            "values": values[tree * each : (tree + 1) * each],
        }
        for tree in range(count)
    ]


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
            weight = request_stream(keys[request["owner"]], request["weight"]).draw(request["weight_shape"], 64)
        shapes, to = dependent(request), receivers(request)
        if not shapes:
            found.append(None)
            continue
        drawn = [draw(request, rank, request_stream(key, number)) for rank, key in enumerate(keys)]
        words = solve(request, drawn, weight)
        for rank in (MODEL_OWNER, DATA_OWNER):
            if rank not in to:
                shares = drawn[rank][len(free(request, rank)) :]
                words = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(words, shares, strict=True)]
        parts = [octets(each, bits) for each, (_, bits) in zip(words, shapes, strict=True)]
        found.append({"to": to, "words": b"".join(parts)})
    return found
