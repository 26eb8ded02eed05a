"""Model encryption (Aso et al. 2023), beside any protection that works on encrypted updates.

The key of the model follows from the group key, and is drawn once for each, from a seed that is derived with the byte
0, or if that gives an ill-conditioned matrix with 1, 2 and so on. Without a model of the server the members make the
first one from their key as well. Its embeddings come from a keystream, never from torch's generator: the server sees
all other weights, and outputs of a Mersenne Twister determine the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Flat, Layout
from tacit.models.model_encryption import (
    PATCH_EMBEDDING,
    POSITION_EMBEDDING,
    IllConditionedError,
    Matrix,
    ModelKey,
    random_bytes,
)
from tacit.parties.protections.protection import Protection, RekeyEvery
from tacit.protocol.core.primitives import Label
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.protocol.sum.configuration import InitialModel, Proposal
from tacit.secagg.keystream import Usage, keystream

MOST_ATTEMPTS: Final = 8
"""One in a hundred matrices is ill-conditioned, so this many attempts are never needed."""

POSITION_DEVIATION: Final = 0.02
"""Standard deviation of a fresh position embedding, as in timm."""


class EncryptionLabel:
    MODEL_KEY: Final = Label(b"tacit/1 key of the model")
    INITIAL_MODEL: Final = Label(b"tacit/1 initial model")


class Encryption(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[encryption]: the server holds and updates a model whose embeddings are encrypted under a key of the clients."""

    matrix: Annotated[
        Matrix,
        Meta(
            description='Matrix that encrypts the patch embedding: "orthogonal" keeps lengths and angles, '
            '"gaussian" does not and loses precision.'
        ),
    ] = "orthogonal"
    initial_model: Annotated[
        InitialModel,
        Meta(
            description='Maker of the first model: "clients", from their key; "server", which then knows the '
            "plain model beside the encrypted one and can compute the key (see policy.accept_known_plaintext)."
        ),
    ] = "clients"
    rekey_every: RekeyEvery = 0

    def fits(self, layout: Layout) -> None:
        """Raise ValueError for a model that cannot be encrypted."""
        random_bytes(layout)


def check_together(
    protection: Protection, encryption: Encryption | None, terms: Proposal, training: TrainingConfiguration
) -> None:
    """Raise ValueError, naming key, value and remedy, for an unsupported combination."""
    protection.check(terms, training)
    if encryption is not None and training.buffers == "local":
        raise ValueError(
            'training.buffers = "local": with [encryption] one member evaluates and keeps the model for all; set it to '
            '"average", which the encryption leaves as they are'
        )
    if encryption is not None and training.server_optimizer != "none":
        raise ValueError(
            f'training.server_optimizer = "{training.server_optimizer}": with [encryption] the server sees neither '
            'model nor update, and every key begins anew; set it to "none"'
        )
    if encryption is not None and not protection.works_encrypted:
        raise ValueError(
            f'protection.scheme = "{protection.scheme}" works on updates in the clear, and [encryption] encrypts them; '
            "remove that section, or take another scheme"
        )


class GroupModel:
    """The model under group keys. first: makes the public weights, from a seed."""

    def __init__(self, layout: Layout, encryption: Encryption, first: Callable[[int], Flat]) -> None:
        self._layout = layout
        self._matrix = encryption.matrix
        self._first = first
        self._latest: tuple[bytes, ModelKey] | None = None
        """The last drawn key, with the transcript of its group key; earlier ones are discarded."""

    def key(self, group_key: GroupKey) -> ModelKey:
        """The key of the model. ValueError for an ill-conditioned one."""
        if self._latest is None or self._latest[0] != group_key.transcript:
            self._latest = group_key.transcript, self._draw(group_key)
        return self._latest[1]

    def _draw(self, group_key: GroupKey) -> ModelKey:
        for attempt in range(MOST_ATTEMPTS):
            with suppress(IllConditionedError):
                return self._attempt(group_key, attempt)
        return self._attempt(group_key, MOST_ATTEMPTS)

    def _attempt(self, group_key: GroupKey, attempt: int) -> ModelKey:
        seed = group_key.derive(EncryptionLabel.MODEL_KEY, bytes([attempt]))
        random = keystream(seed, Usage.MODEL_KEY, random_bytes(self._layout))
        return ModelKey.draw(self._layout, random, matrix=self._matrix)

    def plain(self, model: bytes, group_key: GroupKey | None) -> Flat:
        """Decrypt a model of the server, little-endian float32 bytes: float32 [size]. None: it is not encrypted."""
        flat = np.frombuffer(model, "<f4").astype(np.float32, copy=False)
        return flat if group_key is None else self.key(group_key).decrypt(flat)

    def reencrypt(self, order: Reencrypt) -> bytes:
        """The model under the order's new key, as little-endian float32 bytes."""
        plain = self.initial(order.key) if order.source == "clients" else self.plain(order.model, order.former)
        return self.key(order.key).encrypt(plain).astype("<f4").tobytes()

    def initial(self, group_key: GroupKey) -> Flat:
        """The first model, the same for all members: float32 [size]."""
        seed = group_key.derive(EncryptionLabel.INITIAL_MODEL)
        public = group_key.derive(EncryptionLabel.INITIAL_MODEL, b"public")
        flat = self._first(int.from_bytes(public[:8], "little") >> 1)
        parts = self._layout.split(flat)
        kernel, positions = parts[PATCH_EMBEDDING], parts[POSITION_EMBEDDING]
        random = np.frombuffer(keystream(seed, Usage.INITIAL_MODEL, 4 * (kernel.size + positions.size)), "<u4")
        uniform = (random + np.float64(0.5)) / 2.0**31 - 1.0
        # As torch initialises a convolution: uniform within 1 / sqrt(values of a patch).
        kernel[...] = (uniform[: kernel.size] / math.sqrt(math.prod(kernel.shape[1:]))).reshape(kernel.shape)
        # Uniform too, with timm's standard deviation.
        positions[...] = (uniform[kernel.size :] * POSITION_DEVIATION * math.sqrt(3.0)).reshape(positions.shape)
        return flat
