"""Tensors in slots of ciphertexts, with the operators that the layers of a friendly model (blocks.py) use.

*Rows*, [1, T, n] or by heads [1, H, T, n / H]: channel c of token t is in slot c S + t, where S is the smallest power
of two from T on. Channels repeat with period n over all slots, so that rotating them is rotating the whole vector, and
no mask is needed. Tokens from T to S repeat the first ones: they are computed like all, never leave the range of the
polynomials, and nothing else depends on them. What has one value for each token or head is there for each of its
channels, so that products need no alignment either.

*Scores*, [1, H, T, T]: all slots are blocks of n channels, and there are SLOTS / (S n) of them in a ciphertext. Score
(h, i, j) is in block j, token i, in every channel of head h. So the exponential takes one product a ciphertext, and its
product with the values, and the sums of rows, are sums over blocks.

Linear layers are sums of rotated inputs times diagonals of the weight (Halevi and Shoup 2014), with baby and giant
steps. Rotations are by powers of two where possible, since the library makes several of another one. A tensor whose
levels end is refreshed before the product that would need one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from tacit.simulate.bench.slots import SLOTS, SlotMachine, Vector

_LOWEST: Final = 2
"""Levels before a product: one for it, and one for the division before a refresh."""
_NARROW: Final = 15
"""Levels below which means and sums of rows are refreshed at once: the iteration for an inverse has two tensors at a
time, and would have to refresh both."""
_BABY: Final = 16
"""Rotations of the input of a linear layer."""


class EncryptedTensor:
    """One tensor, for one image. Shapes and operators are those of torch, where they exist; another one is an error."""

    def __init__(
        self, machine: SlotMachine, parts: list[Any], shape: tuple[int, ...], *, width: int, scores: bool = False
    ) -> None:
        """parts: ciphertexts; rows have one for each `width` channels, scores one for each SLOTS / (S width) tokens."""
        self.machine = machine
        self.parts = parts
        self.shape = shape
        self.width = width
        self.scores = scores

    @property
    def stride(self) -> int:
        """S: slots from one channel to the next."""
        tokens = self.shape[-2]
        return 1 << (tokens - 1).bit_length()

    def __add__(self, other: Any) -> EncryptedTensor:
        if isinstance(other, EncryptedTensor):
            return self._each(self.machine.add, other)
        if isinstance(other, torch.Tensor):
            chunks = other.double().numpy().reshape(len(self.parts), -1)
            shifted = [
                self.machine.shift(part, self._by_channel(chunk))
                for part, chunk in zip(self.parts, chunks, strict=True)
            ]
            return self._like(shifted)
        return self._like([self.machine.shift(part, float(other)) for part in self.parts])

    __radd__ = __add__

    def __neg__(self) -> EncryptedTensor:
        return self._like([self.machine.repeat(part, -1) for part in self.parts])

    def __sub__(self, other: EncryptedTensor) -> EncryptedTensor:
        return self + -other

    def __rsub__(self, other: float) -> EncryptedTensor:
        return -self + other

    def __mul__(self, other: Any) -> EncryptedTensor:
        if isinstance(other, EncryptedTensor):
            self._make_ready()
            other._make_ready()
            return self._each(self.machine.multiply, other)
        if isinstance(other, torch.Tensor):
            self._make_ready()
            return self._like([self.machine.scale(self.parts[0], self._by_channel(other.double().numpy()))])
        if isinstance(other, int):
            return self if other == 1 else self._like([self.machine.repeat(part, other) for part in self.parts])
        return self._scaled(float(other))

    def __truediv__(self, other: float) -> EncryptedTensor:
        return self if other == 1 else self._scaled(1 / other)

    def square(self) -> EncryptedTensor:
        """Elementwise."""
        return self * self

    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def mean(self, axis: int, keepdim: bool = True) -> EncryptedTensor:
        """Of rows, over the channels (-1) or over the tokens of heads (2)."""
        if axis == -1:
            part = self._summed(self._scaled(1 / self.shape[-1]).parts[0], self.stride, self.shape[-1])
            return self._narrow(part)
        tokens, stride = self.shape[2], self.stride
        self._make_ready()
        real = np.tile(np.where(np.arange(stride) < tokens, 1 / tokens, 0.0), SLOTS // stride)
        summed = self._summed(self.machine.scale(self.parts[0], real), 1, stride)
        # The sum in slot 0 goes to the last slot of the same channel.
        sums = self._like([self.machine.rotate(summed, (self.width - 1) * stride + 1)])
        sums._make_ready()
        last = np.tile((np.arange(stride) == stride - 1).astype(float), SLOTS // stride)
        return self._like([self._summed(self.machine.scale(sums.parts[0], last), 1, stride)])

    def sum(self, axis: int, keepdim: bool = True) -> EncryptedTensor:
        """Of the scores of a row."""
        blocks = self._blocks
        self._make_ready()
        parts = list(self.parts)
        if left := self.shape[-1] % blocks:
            # Blocks without a token hold scores too: those of zeros.
            real = np.repeat((np.arange(blocks) < left).astype(float), SLOTS // blocks)
            parts[-1] = self.machine.scale(parts[-1], real)
        return self._narrow(self._over_blocks(parts))

    def matmul(self, other: EncryptedTensor) -> EncryptedTensor:
        """Queries [1, H, T, d] times keys, transposed, to scores; or scores times values [1, H, T, d] to rows."""
        if self.scores:
            products = self * EncryptedTensor(
                self.machine, other._by_block(), self.shape, width=self.width, scores=True
            )
            return EncryptedTensor(self.machine, [self._over_blocks(products.parts)], other.shape, width=self.width)
        keys = EncryptedTensor(
            self.machine,
            other._by_block(),
            (*self.shape[:3], self.shape[2]),
            width=self.width,
            scores=True,
        )
        products = keys * self
        stride, depth = self.stride, self.shape[-1]
        summed = [self._summed(part, stride, depth) for part in products.parts]
        # The sum in the first channel of a head goes to the last one of the same head.
        sums = keys._like([self.machine.rotate(part, (1 - depth) * stride) for part in summed])
        sums._make_ready()
        last = np.tile(np.repeat((np.arange(depth) == depth - 1).astype(float), stride), SLOTS // (stride * depth))
        return keys._like([self._summed(self.machine.scale(part, last), stride, depth) for part in sums.parts])

    def transpose(self, first: int, second: int) -> EncryptedTensor:
        """Of keys; matmul knows what to do with them, and nothing else is done with them."""
        return self

    def reshape(self, *shape: int) -> EncryptedTensor:
        """Channels by heads, or back: the slots stay."""
        return EncryptedTensor(self.machine, self.parts, shape, width=self.width)

    def permute(self, *axes: int) -> EncryptedTensor:
        """The order of heads and tokens: the slots stay."""
        shape = tuple(self.shape[axis] for axis in axes)
        return EncryptedTensor(self.machine, self.parts, shape, width=self.width)

    def __getitem__(self, index: int) -> EncryptedTensor:
        """Queries, keys or values [1, H, T, d] of [3, 1, H, T, d]."""
        return EncryptedTensor(self.machine, [self.parts[index]], self.shape[1:], width=self.width)

    def linear(self, weight: torch.Tensor) -> EncryptedTensor:
        """Rows times the transpose of a weight [out, in]."""
        outputs, inputs = weight.shape
        self._make_ready()
        stride, matrix = self.stride, weight.double().numpy()
        # As many outputs at a time as repeat over the slots.
        chunk = outputs if (SLOTS // stride) % outputs == 0 else inputs
        period = min(inputs, chunk)
        baby = [self.parts[0]]
        while len(baby) < min(_BABY, period):
            baby.append(self.machine.rotate(baby[-1], stride))
        channels = np.arange(SLOTS // stride)
        parts = []
        for rows in matrix.reshape(-1, chunk, inputs):
            total = None
            for giant in reversed(range(0, period, _BABY)):
                inner = None if total is None else self.machine.rotate(total, _BABY * stride)
                for step, rotated in enumerate(baby[: period - giant]):
                    diagonal = rows[(channels - giant) % chunk, (channels + step) % inputs]
                    product = self.machine.scale(rotated, np.repeat(diagonal, stride))
                    inner = product if inner is None else self.machine.add(inner, product)
                total = inner
            parts.append(self._summed(total, chunk * stride, max(1, inputs // chunk)))
        return EncryptedTensor(self.machine, parts, (*self.shape[:-1], outputs), width=chunk)

    @property
    def _blocks(self) -> int:
        return SLOTS // (self.stride * self.width)

    def _by_block(self) -> list[Any]:
        """Rows of keys or values, each in a block of its own, for every token: ciphertexts as scores have them."""
        self._make_ready()
        tokens, stride, blocks = self.shape[2], self.stride, self._blocks
        parts = []
        # Each further step brings the next token into the last slot of its channel, from where it spreads over all.
        moved = self.machine.rotate(self.parts[0], (self.width - 1) * stride)
        for begin in range(0, tokens, blocks):
            total = None
            for block in range(min(blocks, tokens - begin)):
                mask = np.zeros((blocks, self.width, stride))
                mask[block, :, -1] = 1
                moved = self.machine.rotate(moved, 1)
                chosen = self.machine.scale(moved, mask.reshape(-1))
                total = chosen if total is None else self.machine.add(total, chosen)
            parts.append(self._summed(total, 1, stride))
        return parts

    def _over_blocks(self, parts: list[Any]) -> Any:
        total = parts[0]
        for part in parts[1:]:
            total = self.machine.add(total, part)
        return self._summed(total, self.width * self.stride, self._blocks)

    def _summed(self, part: Any, step: int, count: int) -> Any:
        """Slot i: the sum of slots i, i + step, ..., count of them, a power of two."""
        reached = 1
        while reached < count:
            part = self.machine.add(part, self.machine.rotate(part, reached * step))
            reached *= 2
        return part

    def _scaled(self, factor: float) -> EncryptedTensor:
        self._make_ready()
        return self._like([self.machine.scale(part, factor) for part in self.parts])

    def _each(self, operation: Any, other: EncryptedTensor) -> EncryptedTensor:
        theirs = other.parts * len(self.parts) if len(other.parts) == 1 else other.parts
        return self._like([operation(a, b) for a, b in zip(self.parts, theirs, strict=True)])

    def _like(self, parts: list[Any]) -> EncryptedTensor:
        return EncryptedTensor(self.machine, parts, self.shape, width=self.width, scores=self.scores)

    def _narrow(self, part: Any) -> EncryptedTensor:
        if self.machine.level(part) < _NARROW:
            part = self.machine.refresh(part)
        return EncryptedTensor(self.machine, [part], (*self.shape[:-1], 1), width=self.width)

    def _make_ready(self) -> None:
        # In place, so that a tensor that is used twice is refreshed once.
        self.parts = [
            part if self.machine.level(part) >= _LOWEST else self.machine.refresh(part) for part in self.parts
        ]

    def _by_channel(self, values: Vector) -> Vector:
        return np.tile(np.repeat(values, self.stride), SLOTS // (self.stride * len(values)))


class ClearWeight:
    """The weight of a linear layer, in the clear, for rows that are encrypted."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, x: EncryptedTensor) -> EncryptedTensor:
        return x.linear(self._weight)


def check_fits(tokens: int, width: int, hidden: int, heads: int) -> None:
    """ValueError for a block that the slots of a ciphertext cannot hold as above."""
    stride = 1 << (tokens - 1).bit_length()
    for name, value in {"width": width, "hidden width": hidden, "width of a head": width // heads}.items():
        if value & (value - 1):
            raise ValueError(f"the {name} {value} is no power of two; distil a model of another one for CKKS")
    if stride * max(width, hidden) > SLOTS:
        raise ValueError(
            f"{tokens} tokens of width {max(width, hidden)} take {stride * max(width, hidden)} slots, and a ciphertext "
            f"has {SLOTS}; distil a smaller model for CKKS"
        )


def to_slots(tokens: torch.Tensor) -> Vector:
    """Tokens [1, T, D] as the slots [SLOTS] of rows."""
    _, count, width = tokens.shape
    stride = 1 << (count - 1).bit_length()
    rows = tokens[0].double().numpy()[np.arange(stride) % count]
    return np.tile(rows.T.reshape(-1), SLOTS // (stride * width))


def from_slots(slots: Vector, tokens: int, width: int) -> torch.Tensor:
    """The tokens [1, T, D], float64, in the slots of rows."""
    stride = 1 << (tokens - 1).bit_length()
    return torch.from_numpy(slots[: stride * width].reshape(width, stride).T[:tokens].copy())[None]
