"""What clients do to an update: docs/spec/protections.md."""

import math
import struct
from typing import Any

from constants import BINARY_WEIGHTS, COORDINATED_WEIGHTS, INITIAL_MODEL, MODEL_KEY, require
from primitives import derive, keystream, u8, u32

KERNEL, POSITIONS = "patch_embed.proj.weight", "pos_embed"
PREFIX = ("cls_token", "dist_token", "reg_token")
Matrix = list[list[float]]


def sizes(tensors: list[dict[str, Any]]) -> list[int]:
    return [math.prod(tensor["shape"]) for tensor in tensors]


# Model encryption.


def is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


class ModelKey:
    def __init__(self, key: bytes, transcript: bytes, tensors: list[dict[str, Any]], matrix: str) -> None:
        shapes = {tensor["name"]: tensor["shape"] for tensor in tensors}
        kernel, positions = shapes.get(KERNEL, []), shapes.get(POSITIONS, [])
        require(len(kernel) == 4 and len(positions) == 3, "INVALID")
        self.length = length = math.prod(kernel[1:])
        tokens = sum(shapes[name][1] for name in PREFIX if name in shapes)
        rows = positions[1]
        unplaced = rows <= tokens or (is_square(rows) and not is_square(rows - tokens))
        self.prefix = 0 if unplaced else tokens
        pairs = -(-length * length // 2)
        count = 2 * pairs + rows - self.prefix
        stream = keystream(derive(key, MODEL_KEY, transcript, u8(0)), MODEL_KEY, 8 * count)
        words = struct.unpack(f"<{count}Q", stream)
        uniform = [(word // 2**11 + 0.5) / 2**53 for word in words[: 2 * pairs]]
        normal = [
            math.sqrt(-2 * math.log(u)) * wave(2 * math.pi * v)
            for wave in (math.cos, math.sin)
            for u, v in zip(uniform[:pairs], uniform[pairs:], strict=True)
        ]
        self.matrix: Matrix = [normal[length * row : length * (row + 1)] for row in range(length)]
        if matrix == "gaussian":
            self.matrix = [[number / math.sqrt(length) for number in row] for row in self.matrix]
        else:
            self.matrix = orthogonal(self.matrix)
        keys = words[2 * pairs :]
        behind = sorted(range(len(keys)), key=lambda place: keys[place])
        self.order = [*range(self.prefix), *(self.prefix + place for place in behind)]

    def encrypt(self, tensors: list[dict[str, Any]], model: list[float]) -> list[float]:
        result: list[float] = []
        for tensor, size in zip(tensors, sizes(tensors), strict=True):
            part = model[len(result) : len(result) + size]
            if tensor["name"] == KERNEL:
                rows = [part[at : at + self.length] for at in range(0, size, self.length)]
                part = [
                    sum(number * factor for number, factor in zip(row, line, strict=True))
                    for row in rows
                    for line in self.matrix
                ]
            elif tensor["name"] == POSITIONS:
                width = tensor["shape"][2]
                part = [number for row in self.order for number in part[width * row : width * (row + 1)]]
            result += part
        return result


def orthogonal(matrix: Matrix) -> Matrix:
    """Q of matrix = Q U with a positive diagonal, by orthogonalising the columns one after the other, twice over."""
    columns: Matrix = []
    for column in map(list, zip(*matrix, strict=True)):
        for _ in range(2):
            for other in columns:
                share = math.fsum(a * b for a, b in zip(column, other, strict=True))
                column = [a - share * b for a, b in zip(column, other, strict=True)]
        norm = math.sqrt(math.fsum(a * a for a in column))
        columns.append([a / norm for a in column])
    return [list(row) for row in zip(*columns, strict=True)]


def first_embeddings(key: bytes, transcript: bytes, tensors: list[dict[str, Any]]) -> bytes:
    shapes = {tensor["name"]: tensor["shape"] for tensor in tensors}
    kernel, positions = math.prod(shapes[KERNEL]), math.prod(shapes[POSITIONS])
    count = kernel + positions
    stream = keystream(derive(key, INITIAL_MODEL, transcript, b""), INITIAL_MODEL, 4 * count)
    uniform = [(word + 0.5) / 2**31 - 1 for word in struct.unpack(f"<{count}I", stream)]
    drawn = {
        KERNEL: [x / math.sqrt(math.prod(shapes[KERNEL][1:])) for x in uniform[:kernel]],
        POSITIONS: [x * 0.02 * math.sqrt(3) for x in uniform[kernel:]],
    }
    numbers: list[float] = []
    for tensor, size in zip(tensors, sizes(tensors), strict=True):
        numbers += drawn.get(tensor["name"], [0.0] * size)
    return struct.pack(f"<{len(numbers)}f", *numbers)


# Coordinated weights.


def table(n: int, f: int, z: int) -> list[int]:
    q = 65536 - z
    chances = {c: math.comb(n, c) * q**c * z ** (n - c) for c in range(f, n + 1)}
    whole_sum, mean = sum(chances.values()), sum(c * chance for c, chance in chances.items())
    m = min(max(n * q * whole_sum // mean, q), n * q // f)
    entries: list[int] = []
    up_to = 0
    for c, chance in chances.items():
        up_to += chance
        end = (2 * m * up_to + whole_sum) // (2 * whole_sum)
        entries += [c] * (end - len(entries))
    while sum(entries) != n * q:
        lacks = n * q - sum(entries)
        movable = [place for place, c in enumerate(entries) if (c < n if lacks > 0 else c > f)]
        for place in movable[: abs(lacks)]:
            entries[place] += 1 if lacks > 0 else -1
    return entries + [0] * (65536 - len(entries))


def coordinated_weights(
    key: bytes,
    transcript: bytes,
    members: list[str],
    member: str,
    round_number: int,
    tensors: list[dict[str, Any]],
    zeros: list[float],
    least: int,
    survivors: int,
) -> list[int]:
    n, me = len(members), members.index(member)
    f = least + n - survivors
    require(1 <= f <= n, "INVALID")
    counts_of = sizes(tensors)
    total = sum(counts_of)
    length = 4 * n * len(tensors) + 2 * total
    seed = derive(key, COORDINATED_WEIGHTS, transcript, u32(round_number))
    words = struct.unpack(f"<{length}H", keystream(seed, BINARY_WEIGHTS, 2 * length))
    keys = [sum(words[4 * at + part] << 16 * part for part in range(4)) for at in range(n * len(tensors))]
    choices, starts = words[4 * n * len(tensors) :][:total], words[length - total :]
    weights: list[int] = []
    for number, (size, zero) in enumerate(zip(counts_of, zeros, strict=True)):
        own = keys[n * number : n * (number + 1)]
        position = sorted(range(n), key=lambda place: own[place])[me]
        entries = table(n, f, min(round(zero * 65536), 65535))
        for place in range(len(weights), len(weights) + size):
            ahead = (position - starts[place] * n // 65536) % n
            weights.append(int(ahead < entries[choices[place]]))
    return weights
