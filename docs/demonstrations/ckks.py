"""One block of a transformer on values encrypted by CKKS, as in Tastan and Nandakumar 2025: the row of
docs/inference.md.

    pip install "desilofhe==2.*"
    tacit distill --out runs/student
    python docs/demonstrations/ckks.py runs/student

takes minutes and 19 GB of memory; `make ckks` does all of it. desilofhe's licence allows use that is not commercial.

The data owner makes the keys, encrypts the tokens that enter the block, and decrypts the result. The model owner has
the block in the clear and the evaluation keys, among them the one that bootstraps. Bootstrapping is exact only within
-1 ... 1, so the values are divided by a public bound first. The bounds come from a rehearsal: the same computation in
the clear on typical images, which also counts levels as CKKS does.

Packing. *Rows*, [1, T, n] or by heads [1, H, T, n / H]: channel c of token t is in slot c S + t, where S is the
smallest power of two from T on. Channels repeat with period n over all slots, so that rotating them rotates the whole
vector, without masks. Tokens from T to S repeat the first ones, so that they stay in range. *Scores*, [1, H, T, T]: all
slots are blocks of n channels, and score (h, i, j) is in block j, token i, in every channel of head h; a ciphertext has
room for SLOTS / (S n) blocks. Linear layers are sums of rotated inputs times diagonals of the weight (Halevi and Shoup
2014), with baby steps and giant steps.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.models.friendly.polynomials import ActivationError
from tacit.models.friendly.transformer import with_parameters
from tacit.parties.hosting.folder import available_memory
from tacit.parties.runs.served import read_student

SLOTS, LEVELS = 32_768, 17  # Of a new ciphertext in a ring of dimension 65,536.
TOLERANCE = 1e-2  # Of the block's output, relative to its norm.
MEMORY = 19_000_000_000  # Bytes, nearly all of them the key that bootstraps.
MARGIN = 2  # How much larger a value may be than in the rehearsals.
REHEARSALS = 8
BABY = 16
LOWEST = 2  # Levels before a product: one for it, and one for the division before a bootstrap.
# Below so many levels means and sums are bootstrapped at once: the iteration for an inverse has two tensors at a time,
# and would have to bootstrap both.
NARROW = 15


@dataclass(frozen=True)
class Clear:
    """Slots in the clear, with the levels that a ciphertext would have left."""

    values: np.ndarray
    level: int

    def __post_init__(self) -> None:
        # One is left for the division before a bootstrap.
        assert self.level >= 1, "levels are overdrawn"


class ClearEngine:
    """The operations of desilofhe's engine, on slots in the clear."""

    def add(self, a: Clear, b: Any) -> Clear:
        return (
            Clear(a.values + b.values, min(a.level, b.level)) if isinstance(b, Clear) else Clear(a.values + b, a.level)
        )

    def multiply(self, a: Clear, b: Any, key: object = None) -> Clear:
        if isinstance(b, Clear):
            return Clear(a.values * b.values, min(a.level, b.level) - 1)
        return Clear(a.values * b, a.level - (not isinstance(b, int)))

    def encode_to_light_plaintext(self, values: np.ndarray) -> np.ndarray:
        return values

    def rotate(self, a: Clear, key: object, steps: int) -> Clear:
        return Clear(np.roll(a.values, -steps), a.level)


@dataclass
class Keys:
    """What the model owner is given once: it computes with them and cannot decrypt."""

    relinearization: Any = None
    conjugation: Any = None
    bootstrap: Any = None  # It rotates, too.


class Machine:
    """The model owner's operations on ciphertexts, counted and timed. Without bounds it rehearses: `largest` gets what
    every bootstrap would have to hold."""

    def __init__(self, engine: Any, keys: Keys, bounds: list[int] | None) -> None:
        self.engine, self.keys, self.bounds = engine, keys, bounds
        self.largest: list[float] = []
        self.counts: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()

    def add(self, a: Any, b: Any) -> Any:
        """b: another ciphertext, or public values."""
        return self._timed("additions", self.engine.add, a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        """Of two ciphertexts. Costs a level."""
        return self._timed("products", self.engine.multiply, a, b, self.keys.relinearization)

    def scale(self, a: Any, by: np.ndarray | float) -> Any:
        """By public values. Costs a level."""
        public = by if isinstance(by, float) else self.engine.encode_to_light_plaintext(by)
        return self._timed("products with public values", self.engine.multiply, a, public)

    def repeat(self, a: Any, times: int) -> Any:
        """a * times. Costs nothing."""
        return a if times == 1 else self._timed("additions", self.engine.multiply, a, times)

    def rotate(self, a: Any, steps: int) -> Any:
        """Slot i gets what slot i + steps has."""
        return a if steps % SLOTS == 0 else self._timed("rotations", self.engine.rotate, a, self.keys.bootstrap, steps)

    def summed(self, a: Any, step: int, count: int) -> Any:
        """Slot i: the sum of slots i, i + step, ..., `count` of them, a power of two."""
        reached = 1
        while reached < count:
            a = self.add(a, self.rotate(a, reached * step))
            reached *= 2
        return a

    def refresh(self, a: Any) -> Any:
        """The same values with all levels again."""
        if self.bounds is None:
            self.largest.append(float(np.abs(a.values).max()))
            return Clear(a.values, LEVELS)
        bound, keys = self.bounds[self.counts["bootstraps"]], self.keys
        small = a if bound == 1 else self.engine.multiply(a, 1 / bound)
        fresh = self._timed(
            "bootstraps", self.engine.bootstrap, small, keys.relinearization, keys.conjugation, keys.bootstrap
        )
        return self.repeat(fresh, bound)

    def _timed(self, name: str, act: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        result = act(*arguments)
        self.counts[name] += 1
        self.seconds[name] += time.monotonic() - began
        return result


class EncryptedTensor:
    """A tensor of one image in ciphertexts, with the operators that models/friendly/transformer.py uses.

    parts: rows have a ciphertext for each `width` channels, scores one for each SLOTS / (S width) tokens.
    """

    def __init__(self, machine: Machine, parts: list[Any], shape: Any, width: int, scores: bool = False) -> None:
        self.machine, self.parts, self.shape, self.width, self.scores = machine, parts, tuple(shape), width, scores

    @property
    def stride(self) -> int:
        """S: slots from one channel to the next."""
        return 1 << (self.shape[-2] - 1).bit_length()

    @property
    def blocks(self) -> int:
        """Of scores, in a ciphertext."""
        return SLOTS // (self.stride * self.width)

    def __add__(self, other: Any) -> EncryptedTensor:
        if isinstance(other, EncryptedTensor):
            return self._each(self.machine.add, other)
        if isinstance(other, torch.Tensor):
            chunks = other.numpy().reshape(len(self.parts), -1)
            public = [self._by_channel(chunk) for chunk in chunks]
        else:
            public = [float(other)] * len(self.parts)
        return self._like([self.machine.add(part, value) for part, value in zip(self.parts, public, strict=True)])

    __radd__ = __add__

    def __neg__(self) -> EncryptedTensor:
        return self * -1

    def __sub__(self, other: EncryptedTensor) -> EncryptedTensor:
        return self + -other

    def __rsub__(self, other: float) -> EncryptedTensor:
        return -self + other

    def __mul__(self, other: Any) -> EncryptedTensor:
        if isinstance(other, int):
            return self._like([self.machine.repeat(part, other) for part in self.parts])
        self._make_ready()
        if isinstance(other, EncryptedTensor):
            other._make_ready()
            return self._each(self.machine.multiply, other)
        by = self._by_channel(other.numpy()) if isinstance(other, torch.Tensor) else float(other)
        return self._like([self.machine.scale(part, by) for part in self.parts])

    def __truediv__(self, other: float) -> EncryptedTensor:
        return self if other == 1 else self * (1 / other)

    def square(self) -> EncryptedTensor:
        return self * self

    def dim(self) -> int:
        return len(self.shape)

    def mean(self, axis: int, keepdim: bool = True) -> EncryptedTensor:
        """Of rows, over the channels (-1) or over the tokens of heads (2)."""
        stride, machine = self.stride, self.machine
        if axis == -1:
            return self._narrow(machine.summed((self * (1 / self.shape[-1])).parts[0], stride, self.shape[-1]))
        tokens = self.shape[2]
        self._make_ready()
        real = np.tile(np.where(np.arange(stride) < tokens, 1 / tokens, 0.0), SLOTS // stride)
        summed = machine.summed(machine.scale(self.parts[0], real), 1, stride)
        # The sum in slot 0 goes to the last slot of the same channel, and from there to all.
        sums = self._like([machine.rotate(summed, (self.width - 1) * stride + 1)])
        last = np.tile((np.arange(stride) == stride - 1).astype(float), SLOTS // stride)
        return self._like([machine.summed(part, 1, stride) for part in sums._masked(last)])

    def sum(self, axis: int, keepdim: bool = True) -> EncryptedTensor:
        """Of the scores of a row."""
        self._make_ready()
        parts = list(self.parts)
        if left := self.shape[-1] % self.blocks:
            # Blocks without a token hold scores too: those of zeros.
            real = np.repeat((np.arange(self.blocks) < left).astype(float), SLOTS // self.blocks)
            parts[-1] = self.machine.scale(parts[-1], real)
        return self._narrow(self._over_blocks(parts))

    def matmul(self, other: EncryptedTensor) -> EncryptedTensor:
        """Queries times keys, transposed, to scores; or scores times values to rows."""
        shape = self.shape if self.scores else (*self.shape[:3], self.shape[2])
        spread = EncryptedTensor(self.machine, other._by_block(), shape, self.width, scores=True)
        if self.scores:
            return EncryptedTensor(self.machine, [self._over_blocks((self * spread).parts)], other.shape, self.width)
        products, stride, depth = (spread * self).parts, self.stride, self.shape[-1]
        summed = [self.machine.summed(part, stride, depth) for part in products]
        # The sum in the first channel of a head goes to the last one of the same head, and from there to all.
        sums = spread._like([self.machine.rotate(part, (1 - depth) * stride) for part in summed])
        last = np.tile(np.repeat((np.arange(depth) == depth - 1).astype(float), stride), SLOTS // (stride * depth))
        return spread._like([self.machine.summed(part, stride, depth) for part in sums._masked(last)])

    def linear(self, weight: torch.Tensor) -> EncryptedTensor:
        """Rows times the transpose of a weight [out, in]."""
        outputs, inputs = weight.shape
        self._make_ready()
        stride, machine = self.stride, self.machine
        # As many outputs at a time as repeat over the slots.
        chunk = outputs if (SLOTS // stride) % outputs == 0 else inputs
        period = min(inputs, chunk)
        baby = [self.parts[0]]
        while len(baby) < min(BABY, period):
            baby.append(machine.rotate(baby[-1], stride))
        channels = np.arange(SLOTS // stride)
        parts = []
        for rows in weight.numpy().reshape(-1, chunk, inputs):
            total = None
            for giant in reversed(range(0, period, BABY)):
                inner = None if total is None else machine.rotate(total, BABY * stride)
                for step, rotated in enumerate(baby[: period - giant]):
                    diagonal = rows[(channels - giant) % chunk, (channels + step) % inputs]
                    product = machine.scale(rotated, np.repeat(diagonal, stride))
                    inner = product if inner is None else machine.add(inner, product)
                total = inner
            parts.append(machine.summed(total, chunk * stride, max(1, inputs // chunk)))
        return EncryptedTensor(machine, parts, (*self.shape[:-1], outputs), chunk)

    def transpose(self, first: int, second: int) -> EncryptedTensor:
        """Of keys; matmul knows what to do with them."""
        return self

    def reshape(self, *shape: int) -> EncryptedTensor:
        return EncryptedTensor(self.machine, self.parts, shape, self.width)

    def permute(self, *axes: int) -> EncryptedTensor:
        return self.reshape(*(self.shape[axis] for axis in axes))

    def __getitem__(self, index: int) -> EncryptedTensor:
        """Queries, keys or values [1, H, T, d] of [3, 1, H, T, d]."""
        return EncryptedTensor(self.machine, [self.parts[index]], self.shape[1:], self.width)

    def _by_block(self) -> list[Any]:
        """Rows of keys or values, each in a block of its own, for every token: ciphertexts as scores have them."""
        self._make_ready()
        tokens, stride, blocks, machine = self.shape[2], self.stride, self.blocks, self.machine
        parts = []
        # Each further step brings the next token into the last slot of its channel, from where it spreads over all.
        moved = machine.rotate(self.parts[0], (self.width - 1) * stride)
        for begin in range(0, tokens, blocks):
            total = None
            for block in range(min(blocks, tokens - begin)):
                mask = np.zeros((blocks, self.width, stride))
                mask[block, :, -1] = 1
                moved = machine.rotate(moved, 1)
                chosen = machine.scale(moved, mask.reshape(-1))
                total = chosen if total is None else machine.add(total, chosen)
            parts.append(machine.summed(total, 1, stride))
        return parts

    def _over_blocks(self, parts: list[Any]) -> Any:
        total, *more = parts
        for part in more:
            total = self.machine.add(total, part)
        return self.machine.summed(total, self.width * self.stride, self.blocks)

    def _masked(self, mask: np.ndarray) -> list[Any]:
        self._make_ready()
        return [self.machine.scale(part, mask) for part in self.parts]

    def _each(self, operation: Any, other: EncryptedTensor) -> EncryptedTensor:
        theirs = other.parts * len(self.parts) if len(other.parts) == 1 else other.parts
        return self._like([operation(a, b) for a, b in zip(self.parts, theirs, strict=True)])

    def _like(self, parts: list[Any]) -> EncryptedTensor:
        return EncryptedTensor(self.machine, parts, self.shape, self.width, self.scores)

    def _narrow(self, part: Any) -> EncryptedTensor:
        part = self.machine.refresh(part) if part.level < NARROW else part
        return EncryptedTensor(self.machine, [part], (*self.shape[:-1], 1), self.width)

    def _make_ready(self) -> None:
        # In place, so that a tensor that is used twice is bootstrapped once.
        self.parts = [part if part.level >= LOWEST else self.machine.refresh(part) for part in self.parts]

    def _by_channel(self, values: np.ndarray) -> np.ndarray:
        return np.tile(np.repeat(values, self.stride), SLOTS // (self.stride * len(values)))


def to_slots(tokens: torch.Tensor) -> np.ndarray:
    """Tokens [1, T, D] as rows."""
    _, count, width = tokens.shape
    stride = 1 << (count - 1).bit_length()
    return np.tile(tokens[0].numpy()[np.arange(stride) % count].T.reshape(-1), SLOTS // (stride * width))


def from_slots(slots: np.ndarray, tokens: int, width: int) -> torch.Tensor:
    """The tokens [1, T, D] of rows."""
    stride = 1 << (tokens - 1).bit_length()
    return torch.from_numpy(slots[: stride * width].reshape(width, stride).T[:tokens].copy())[None]


def on_slots(block: Any, machine: Machine, rows: Any, shape: torch.Size) -> Any:
    """The ciphertext of the block's output, of the ciphertext of tokens of this shape [1, T, D]."""

    def layer(name: str, value: torch.Tensor) -> Any:
        return (lambda x: x.linear(value)) if value.dim() == 2 else value

    return with_parameters(block, layer)(EncryptedTensor(machine, [rows], shape, shape[-1])).parts[0]


def accepted(model: Any, images: torch.Tensor, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens [1, T, D] that enter and leave the first block, of the first images within the calibration."""
    found = []
    for image in torch.split(images.double(), 1):
        tokens = model.embed(model.patches(image))
        try:
            found.append((tokens, model.blocks[0](tokens)))
        except ActivationError:
            continue
        if len(found) == count:
            return found
    sys.exit(f"fewer than {count} images are within the calibrated intervals: distil the student again")


def check_fits(block: Any, tokens: int, width: int) -> None:
    hidden, stride = block.mlp.fc1.weight.shape[0], 1 << (tokens - 1).bit_length()
    if any(size & (size - 1) for size in (width, hidden, width // block.attn.heads)):
        sys.exit(f"widths {width}, {hidden} and {width // block.attn.heads}, of a head, have to be powers of two")
    if stride * max(width, hidden) > SLOTS:
        sys.exit(f"{tokens} tokens of width {max(width, hidden)} do not fit into the {SLOTS} slots of a ciphertext")


def rehearse(block: Any, examples: list[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    """The bound of every bootstrap: a whole number, so that the way back costs no level."""
    largest = []
    for tokens, clear in examples:
        machine = Machine(ClearEngine(), Keys(), None)
        found = on_slots(block, machine, Clear(to_slots(tokens), LEVELS), tokens.shape)
        # Sums in another order, in float64: 1e3 operations deep at most.
        assert (from_slots(found.values, *tokens.shape[1:]) - clear).abs().max() < 1e-9, "the packing is wrong"
        largest.append(machine.largest)
    return [int(np.ceil(MARGIN * max(values))) for values in zip(*largest, strict=True)]


def main(directory: Path) -> int:
    student = read_student(directory)
    model = student.transformer.double().requires_grad_(False)
    block: Any = model.blocks[0]
    check_fits(block, *model.size)
    bounds = rehearse(block, accepted(model, student.data.x_train, REHEARSALS))
    print(f"rehearsed: bootstraps by {bounds}", flush=True)
    ((tokens, clear),) = accepted(model, student.data.x_test, 1)
    free = available_memory()
    if free is not None and free < MEMORY:
        sys.exit(f"the keys of CKKS take {MEMORY / 1e9:.0f} GB of memory, and {free / 1e9:.1f} GB are free here")
    import desilofhe

    # Data owner.
    began = time.monotonic()
    engine = desilofhe.Engine(mode="parallel", thread_count=torch.get_num_threads(), bootstrap=True)
    assert (engine.slot_count, engine.max_level) == (SLOTS, LEVELS), "another version of desilofhe is needed"
    secret = engine.create_secret_key()
    keys = Keys(
        relinearization=engine.create_relinearization_key(secret),
        conjugation=engine.create_conjugation_key(secret),
        bootstrap=engine.create_bootstrap_key(secret),
    )
    size = sum(key.nbytes for key in vars(keys).values())
    print(f"keys for the model owner: {size / 1e9:.1f} GB in {time.monotonic() - began:.0f} s", flush=True)
    sent = engine.encrypt(to_slots(tokens), engine.create_public_key(secret))

    # Model owner. Without levels the result is less to send.
    machine = Machine(engine, keys, bounds)
    began = time.monotonic()
    result = engine.level_down(on_slots(block, machine, sent, tokens.shape), 0)
    print(f"block of {tokens.shape[1]} tokens of width {tokens.shape[2]}: {time.monotonic() - began:.0f} s, of it")
    for name, count in sorted(machine.counts.items()):
        print(f"    {count} {name}: {machine.seconds[name]:.1f} s")
    print(f"ciphertexts: {sent.serialized_nbytes / 1e6:.1f} MB, back {result.serialized_nbytes / 1e6:.1f} MB")

    # Data owner. What it decrypts must never go back: docs/inference.md.
    difference = from_slots(np.asarray(engine.decrypt(result, secret), np.float64), *tokens.shape[1:]) - clear
    error = (difference.norm() / clear.norm()).item()
    print(f"relative error {error:.1e}, largest difference {difference.abs().max().item():.1e}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.1f} GB")
    return 0 if error <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
