"""Model encryption (Aso et al. 2023): the embeddings of a vision transformer under a key that the server lacks.

The patch embedding E_pat [L, D], L = C P P values of a patch, becomes E_a E_pat (Eq. 3); the position embedding E_pos
becomes E_b E_pos (Eq. 7), with E_b a permutation of the rows of patches. Both maps are linear: one `encrypt` serves
models, differences and gradients. docs/spec/protections.md derives the key from random words.

Accuracy. A ciphertext is rounded to float32, so that decryption is off by at most 2^-24 k |w|, where k is the condition
number of E_a. A key beyond MAX_RELATIVE_ERROR is refused. An orthogonal E_a has k = 1; a Gaussian one exceeds x L for
one key in x / 2 (Edelman 1988), so that one in 109 keys for L = 768 is refused. An orthogonal E_a keeps inner products
and lengths of columns, so a server learns these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tacit.models.gaussian_noise import standard_normal
from tacit.models.layout import Flat, Layout

PATCH_EMBEDDING: Final = "patch_embed.proj.weight"
"""Name of that tensor in timm's vision transformers: a convolution's kernel [D, C, P, P]."""
POSITION_EMBEDDING: Final = "pos_embed"
"""Name of that tensor in timm's vision transformers: [1, rows, D]."""
_PREFIX_TOKENS: Final = ("cls_token", "dist_token", "reg_token")
"""Tokens before those of the patches, by timm's names: [1, tokens, D] each."""

MAX_RELATIVE_ERROR: Final = 0.01
"""Largest change of a patch-embedding column by encryption and decryption, relative to its norm."""
MAX_CONDITION: Final = MAX_RELATIVE_ERROR * 2**24

Matrix = Literal["orthogonal", "gaussian"]
Floats = npt.NDArray[np.float64]


def random_bytes(layout: Layout) -> int:
    """Return the number of uniform random bytes of a key for this model. Raises ValueError as `ModelKey.draw` does."""
    length, _, patches = _sizes(layout)
    pairs = -(-length * length // 2)
    return 8 * (2 * pairs + patches)


class IllConditionedError(ValueError):
    """A matrix that would lose too much precision; draw another one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelKey:
    """E_a and E_b for the models of one layout. The representation shows neither."""

    layout: Layout = field(repr=False)
    condition: float
    """Condition number of E_a in the Euclidean norm."""
    _matrix: Floats = field(repr=False)
    _inverse: Floats = field(repr=False)
    _order: npt.NDArray[np.intp] = field(repr=False)
    """Encrypted row i of the position embedding is plain row order[i]."""

    @classmethod
    def draw(cls, layout: Layout, random: bytes, *, matrix: Matrix) -> ModelKey:
        """Derive the key from `random_bytes(layout)` uniform bytes, which are as secret as the key.

        Raises ValueError for a model without patch and position embedding of timm's form and for another number of
        bytes, IllConditionedError for a Gaussian matrix beyond MAX_CONDITION.
        """
        length, prefix, patches = _sizes(layout)
        expected = random_bytes(layout)
        if len(random) != expected:
            raise ValueError(f"a key for this model takes {expected} random bytes, not {len(random)}")
        words = np.frombuffer(random, "<u8")
        order = np.concatenate([np.arange(prefix), prefix + np.argsort(words[-patches:], kind="stable")])
        normal: Floats = standard_normal(words[:-patches])[: length**2].reshape(length, length)
        if matrix == "orthogonal":
            basis, triangle = np.linalg.qr(normal)
            basis *= np.copysign(1.0, np.diagonal(triangle))
            rotation: Floats = basis.astype(np.float64, copy=False)
            return cls(layout=layout, condition=1.0, _matrix=rotation, _inverse=rotation.T, _order=order)
        normal /= math.sqrt(length)
        condition = _condition(normal)
        if condition > MAX_CONDITION:
            raise IllConditionedError(
                f"model encryption: the Gaussian matrix of this key has condition number {condition:.1e}; beyond "
                f"{MAX_CONDITION:.1e} decryption may be off by more than {MAX_RELATIVE_ERROR:.0%}; agree on another "
                'key, or choose the "orthogonal" matrix'
            )
        inverse: Floats = np.linalg.inv(normal).astype(np.float64, copy=False)
        return cls(layout=layout, condition=condition, _matrix=normal, _inverse=inverse, _order=order)

    @property
    def error_amplification(self) -> float:
        """Return the largest factor by which decryption can enlarge an absolute error of every coordinate.

        It is the largest absolute row sum of the inverse of E_a in the patch embedding, and one everywhere else.
        """
        return max(1.0, float(np.abs(self._inverse).sum(axis=1).max()))

    def encrypt(self, flat: Flat) -> Flat:
        """Encrypt a model, a difference or a gradient, float32 [size]. Raises ValueError for another dtype or size."""
        return self._transform(flat, self._matrix, self._order)

    def decrypt(self, flat: Flat) -> Flat:
        """Decrypt a result of `encrypt`, float32 [size]. Raises ValueError for another dtype or size."""
        return self._transform(flat, self._inverse, np.argsort(self._order))

    def _transform(self, flat: Flat, matrix: Floats, order: npt.NDArray[np.intp]) -> Flat:
        before = self.layout.split(flat)
        result = flat.copy()
        after = self.layout.split(result)
        # A kernel [D, C, P, P] is the transpose of E_pat: one row of L values for every feature.
        kernel = before[PATCH_EMBEDDING].reshape(-1, len(matrix))
        after[PATCH_EMBEDDING].reshape(kernel.shape)[...] = kernel.astype(np.float64) @ matrix.T
        after[POSITION_EMBEDDING][0] = before[POSITION_EMBEDDING][0, order]
        return result


def _sizes(layout: Layout) -> tuple[int, int, int]:
    """Return values of a patch, rows of the position embedding before the patches, rows of patches."""
    shapes = {entry.name: entry.shape for entry in layout.entries}
    kernel, positions = shapes.get(PATCH_EMBEDDING, ()), shapes.get(POSITION_EMBEDDING, ())
    for name, shape, dimensions in ((PATCH_EMBEDDING, kernel, 4), (POSITION_EMBEDDING, positions, 3)):
        if len(shape) != dimensions or 0 in shape:
            raise ValueError(
                f'model encryption: this model has no tensor "{name}" of {dimensions} dimensions; take one with patch '
                'and position embedding in the form of timm\'s vision transformers, as model.name = "vit" has'
            )
    # A square number of rows identifies models whose class token has no position (timm's no_embed_class).
    tokens = sum(shapes[name][1] for name in _PREFIX_TOKENS if name in shapes)
    rows = positions[1]
    prefix = 0 if rows <= tokens or (_is_square(rows) and not _is_square(rows - tokens)) else tokens
    return math.prod(kernel[1:]), prefix, rows - prefix


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def _condition(matrix: Floats) -> float:
    """Return the condition number, from the eigenvalues of the Gram matrix: twice as fast as singular values.

    Its relative error grows with its square times 2^-52; unresolvable ones are at least 2^26, beyond the limit.
    """
    eigenvalues = np.linalg.eigvalsh(matrix @ matrix.T)
    return math.sqrt(eigenvalues[-1] / max(eigenvalues[0], eigenvalues[-1] * 2.0**-52))
