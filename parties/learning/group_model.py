"""What a client does with the group key: it encrypts and decrypts the model, and makes the first one.

The server's model is encrypted where protection.scheme says so (models/model_encryption.py). Its key follows from the
group key, so that all members have the same; it is drawn once for each group key, from a seed that is derived with the
byte 0, or where that gives an ill-conditioned matrix with 1, 2 and so on.

Without a model of the server the members make the first one from their key as well. Its embeddings come from a
keystream, never from torch's generator: the server sees all other weights, and from numbers of a Mersenne Twister one
can compute the rest. So these others are as good as public, and the embeddings are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from tacit.models.configuration import ProtectionConfiguration
from tacit.models.layout import Flat, Layout
from tacit.models.model_encryption import (
    PATCH_EMBEDDING,
    POSITION_EMBEDDING,
    IllConditionedError,
    ModelKey,
    random_bytes,
)
from tacit.protocol.core.primitives import Label
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.secagg.keystream import Usage, keystream

MOST_ATTEMPTS: Final = 8
"""At a chance of one in a hundred for an ill-conditioned matrix, nobody will see that many."""

POSITION_DEVIATION: Final = 0.02
"""Standard deviation of a fresh position embedding, as in timm."""


class GroupModel:
    """The model under group keys. first: makes the weights that are no secret, from a seed."""

    def __init__(self, layout: Layout, protection: ProtectionConfiguration, first: Callable[[int], Flat]) -> None:
        self._layout = layout
        self._protection = protection
        self._first = first
        self._drawn: dict[bytes, ModelKey] = {}

    def key(self, group_key: GroupKey) -> ModelKey:
        """The key of the model. ValueError for an ill-conditioned one."""
        if group_key.transcript not in self._drawn:
            drawn = self._draw(group_key)
            if len(self._drawn) > 1:
                # The former key is needed to encrypt a model anew, those before it are not.
                del self._drawn[next(iter(self._drawn))]
            self._drawn[group_key.transcript] = drawn
        return self._drawn[group_key.transcript]

    def _draw(self, group_key: GroupKey) -> ModelKey:
        for attempt in range(MOST_ATTEMPTS):
            with suppress(IllConditionedError):
                return self._attempt(group_key, attempt)
        return self._attempt(group_key, MOST_ATTEMPTS)

    def _attempt(self, group_key: GroupKey, attempt: int) -> ModelKey:
        seed = group_key.derive(Label.MODEL_KEY, bytes([attempt]))
        random = keystream(seed, Usage.MODEL_KEY, random_bytes(self._layout))
        return ModelKey.draw(self._layout, random, matrix=self._protection.matrix)

    def plain(self, model: bytes, group_key: GroupKey | None) -> Flat:
        """A model of the server, little-endian float32 bytes, in the clear: float32 [size]."""
        flat = np.frombuffer(model, "<f4").astype(np.float32, copy=False)
        return flat if group_key is None or not self._protection.encrypted else self.key(group_key).decrypt(flat)

    def reencrypt(self, order: Reencrypt) -> bytes:
        """What the order asks for, as little-endian float32 bytes."""
        plain = self.initial(order.key) if order.source == "clients" else self.plain(order.model, order.former)
        return self.key(order.key).encrypt(plain).astype("<f4").tobytes()

    def initial(self, group_key: GroupKey) -> Flat:
        """The first model, the same for all members: float32 [size]."""
        seed = group_key.derive(Label.INITIAL_MODEL)
        flat = self._first(int.from_bytes(group_key.derive(Label.INITIAL_MODEL, b"public")[:8], "little") >> 1)
        parts = self._layout.split(flat)
        kernel, positions = parts[PATCH_EMBEDDING], parts[POSITION_EMBEDDING]
        random = np.frombuffer(keystream(seed, Usage.INITIAL_MODEL, 4 * (kernel.size + positions.size)), "<u4")
        uniform = (random + np.float64(0.5)) / 2.0**31 - 1.0
        # As torch does it for a convolution: uniform within 1 / sqrt(values of a patch).
        kernel[...] = (uniform[: kernel.size] / math.sqrt(math.prod(kernel.shape[1:]))).reshape(kernel.shape)
        # Uniform too, of the standard deviation that timm uses.
        positions[...] = (uniform[kernel.size :] * POSITION_DEVIATION * math.sqrt(3.0)).reshape(positions.shape)
        return flat
