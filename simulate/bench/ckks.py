"""One block of a distilled student on values encrypted by CKKS, as in Tastan and Nandakumar 2025, by desilofhe.

Three roles in one process. The data owner makes the keys, encrypts the tokens that enter the first block, and decrypts
what leaves it. The model owner has the block, in the clear, and what computes on ciphertexts, among it the key that
refreshes them (bootstrapping), so that the data owner is asked for nothing in between. Both are compared with the same
block in the clear.

desilofhe is the extra `ckks`, not ours to pass on: its licence allows use that is not commercial.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tacit.models.friendly.blocks import Block, with_parameters
from tacit.models.friendly.gauge import ActivationError
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.hosting.resources import available_memory
from tacit.parties.runs.served import read_student
from tacit.simulate.bench.encrypted_tensor import ClearWeight, EncryptedTensor, check_fits, from_slots, to_slots
from tacit.simulate.bench.ends import BenchmarkError
from tacit.simulate.bench.slots import LEVELS, SLOTS, Rehearsal, SlotMachine, Vector, refresh_bounds

TOLERANCE: Final = 1e-2
"""Of the block's output, relative to its norm."""
MEMORY: Final = 19_000_000_000
"""Bytes that it takes, nearly all of it keys, and of these the one that refreshes."""
_REHEARSALS: Final = 8
"""Training images from which the bounds of the refreshes come."""
_ERRORS: Final = (ValueError, RuntimeError, TypeError)
"""What the library raises."""


def measure(directory: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """The first block of the student of `tacit distill` in `directory`, for the first test image that it is calibrated
    for.

    Raises ValueError without desilofhe, for a student that ciphertexts cannot hold, or with too little memory, and as
    read_student() does; BenchmarkError when the library fails.
    """
    library = _library()
    student = read_student(directory)
    model = student.transformer.requires_grad_(False)
    block: Any = model.blocks[0]
    tokens_count, width = model.size
    check_fits(tokens_count, width, block.mlp.fc1.weight.shape[0], block.attn.heads)
    if (free := available_memory()) is not None and free < MEMORY:
        raise ValueError(
            f"the keys of CKKS take {MEMORY / 1e9:.0f} GB of memory, and {free / 1e9:.1f} GB are free here; free some, "
            "or take a larger machine"
        )
    progress("rehearsing in the clear")
    typical = _accepted(model, student.data.x_train, _REHEARSALS)
    bounds = refresh_bounds([rehearse(block, tokens)[1] for tokens, _ in typical])
    tokens, clear = _accepted(model, student.data.x_test, 1)[0]
    progress("making keys, minutes")
    began = time.monotonic()
    try:
        owner = DataOwner(library)
        machine = CkksMachine(owner.evaluation_keys(), bounds)
        keys_seconds = time.monotonic() - began
        began = time.monotonic()
        sent = owner.encrypt(to_slots(tokens))
        encryption_seconds = time.monotonic() - began
        progress("computing on ciphertexts, minutes")
        began = time.monotonic()
        result = machine.lowered(on_slots(block, machine, sent, tokens.shape).parts[0])
        seconds = time.monotonic() - began
        began = time.monotonic()
        found = from_slots(owner.decrypt(result), tokens_count, width)
        decryption_seconds = time.monotonic() - began
    except _ERRORS as reason:
        raise BenchmarkError(f"desilofhe: {reason}") from reason
    difference = found - clear
    error = (difference.norm() / clear.norm()).item()
    return {
        "tokens": tokens_count,
        "width": width,
        "seconds": seconds,
        "keys_seconds": keys_seconds,
        "encryption_seconds": encryption_seconds,
        "decryption_seconds": decryption_seconds,
        "relative_error": error,
        "within_tolerance": error <= TOLERANCE,
        "largest_difference": difference.abs().max().item(),
        "bytes_to_model_owner": sent.serialized_nbytes,
        "bytes_to_data_owner": result.serialized_nbytes,
        "keys_bytes": owner.keys_bytes,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "bootstraps": machine.refreshes,
        "asked_of_data_owner": 0,
        "levels": LEVELS,
        "per_operation": {
            name: {"count": machine.counts[name], "seconds": machine.seconds[name]} for name in sorted(machine.counts)
        },
    }


def rehearse(block: Block, tokens: torch.Tensor) -> tuple[torch.Tensor, Rehearsal]:
    """A calibrated block on tokens [1, T, D] in slots that are not encrypted: its output [1, T, D], float64, and what
    its refreshes hold."""
    machine = Rehearsal()
    result = on_slots(block, machine, machine.new(to_slots(tokens)), tokens.shape)
    return from_slots(machine.values(result.parts[0]), *tokens.shape[1:]), machine


def on_slots(block: Block, machine: SlotMachine, rows: Any, shape: Sequence[int]) -> EncryptedTensor:
    """The same block, with its parameters in the clear, on a ciphertext of tokens of this shape [1, T, D]."""
    clear = with_parameters(block, lambda name, value: ClearWeight(value) if value.dim() == 2 else value)
    result: EncryptedTensor = clear(EncryptedTensor(machine, [rows], tuple(shape), width=shape[-1]))
    return result


@dataclass(frozen=True, kw_only=True)
class EvaluationKeys:
    """What the data owner gives to the model owner: it computes with it and cannot decrypt."""

    engine: Any = field(repr=False)
    relinearization: Any = field(repr=False)
    conjugation: Any = field(repr=False)
    bootstrap: Any = field(repr=False)
    """It rotates, too."""


class DataOwner:
    """Has the secret key. What it decrypts is its own, and never leaves it: see docs/inference.md."""

    def __init__(self, library: Any) -> None:
        """Draws the secret key; library: desilofhe."""
        self._engine = library.Engine(mode="parallel", thread_count=torch.get_num_threads(), bootstrap=True)
        if self._engine.slot_count != SLOTS or self._engine.max_level != LEVELS:
            raise BenchmarkError(
                f"desilofhe has {self._engine.slot_count} slots and {self._engine.max_level} levels, not {SLOTS} and "
                f"{LEVELS}; install the version that the extra ckks names"
            )
        self._secret = self._engine.create_secret_key()
        self._public = self._engine.create_public_key(self._secret)
        self.keys_bytes = 0
        """Of everything that the model owner is given once."""

    def evaluation_keys(self) -> EvaluationKeys:
        """Minutes."""
        keys = EvaluationKeys(
            engine=self._engine,
            relinearization=self._engine.create_relinearization_key(self._secret),
            conjugation=self._engine.create_conjugation_key(self._secret),
            bootstrap=self._engine.create_bootstrap_key(self._secret),
        )
        self.keys_bytes = sum(key.nbytes for key in (keys.relinearization, keys.conjugation, keys.bootstrap))
        return keys

    def encrypt(self, slots: Vector) -> Any:
        """A ciphertext of slots [SLOTS]."""
        return self._engine.encrypt(slots, self._public)

    def decrypt(self, ciphertext: Any) -> Vector:
        """Its slots [SLOTS]."""
        return np.asarray(self._engine.decrypt(ciphertext, self._secret), np.float64)


class CkksMachine(SlotMachine):
    """desilofhe's operations, counted and timed."""

    def __init__(self, keys: EvaluationKeys, bounds: Sequence[int]) -> None:
        """bounds: what each refresh divides by, as refresh_bounds() gives them."""
        self._keys = keys
        self._engine = keys.engine
        self._bounds = bounds
        self.refreshes = 0
        self.counts: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, float] = defaultdict(float)

    def level(self, a: Any) -> int:
        return int(a.level)

    def add(self, a: Any, b: Any) -> Any:
        with self._timed("additions"):
            return self._engine.add(a, b)

    def shift(self, a: Any, by: Vector | float) -> Any:
        with self._timed("additions"):
            return self._engine.add(a, by)

    def multiply(self, a: Any, b: Any) -> Any:
        with self._timed("products"):
            return self._engine.multiply(a, b, self._keys.relinearization)

    def scale(self, a: Any, by: Vector | float) -> Any:
        with self._timed("products with what is public"):
            public = by if isinstance(by, float) else self._engine.encode_to_light_plaintext(by)
            return self._engine.multiply(a, public)

    def repeat(self, a: Any, times: int) -> Any:
        with self._timed("additions"):
            return self._engine.multiply(a, times)

    def rotate(self, a: Any, steps: int) -> Any:
        if steps % SLOTS == 0:
            return a
        with self._timed("rotations"):
            return self._engine.rotate(a, self._keys.bootstrap, steps)

    def refresh(self, a: Any) -> Any:
        bound = self._bounds[self.refreshes]
        self.refreshes += 1
        with self._timed("bootstraps"):
            small = a if bound == 1 else self._engine.multiply(a, 1 / bound)
            fresh = self._engine.bootstrap(
                small, self._keys.relinearization, self._keys.conjugation, self._keys.bootstrap
            )
            return fresh if bound == 1 else self._engine.multiply(fresh, bound)

    def lowered(self, a: Any) -> Any:
        """The same values without levels: less to send."""
        return self._engine.level_down(a, 0)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.counts[name] += 1
        self.seconds[name] += time.monotonic() - began


def _accepted(model: FriendlyTransformer, images: torch.Tensor, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens that enter and leave the first block, float32 [1, T, D], of the first images within the calibration."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for image in torch.split(images, 1):
        tokens = model.embed(model.patches(image))
        try:
            found.append((tokens, model.blocks[0](tokens)))
        except ActivationError:
            continue
        if len(found) == count:
            return found
    raise ValueError(f"fewer than {count} of the student's images are within its calibrated intervals; distil it again")


def _library() -> Any:
    try:
        import desilofhe
    except ImportError as error:
        raise ValueError(
            f"CKKS needs desilofhe, which is not installed ({error}): pip install 'tacit[ckks]'; its licence allows "
            "use that is not commercial"
        ) from error
    return desilofhe
