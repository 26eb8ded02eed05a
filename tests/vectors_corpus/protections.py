"""Computations of what clients do to an update before it is summed."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any, Final

from tacit.simulate.conformance.computations import INVALID
from tests.vectors_corpus.primitives import drawn, flipped
from tests.vectors_corpus.script import Script, vectors_of

MEMBERS: Final = ("client-0", "client-1", "client-2", "client-3")


def group(members: tuple[str, ...] = MEMBERS) -> dict[str, Any]:
    return {"key": drawn("group key"), "transcript": drawn("transcript"), "members": members}


vectors = vectors_of("protection")


TENSORS: Final = (
    {"name": "cls_token", "shape": [1, 1, 2]},
    {"name": "pos_embed", "shape": [1, 5, 2]},
    {"name": "patch_embed.proj.weight", "shape": [2, 1, 2, 2]},
    {"name": "head.bias", "shape": [3]},
)


@vectors("Weights that members draw together: no coordinate has one contributor alone.")
def coordinated_weights(script: Script) -> None:
    for members, least, survivors, zero, layers in (
        (MEMBERS, 2, 4, 0.5, {}), (MEMBERS, 2, 3, 0.8, {"pos_embed": 0.2, "head.bias": 0.0}),
        (MEMBERS[:3], 1, 3, 0.5, {"cls_token": 0.99}), (MEMBERS[:2], 2, 2, 0.2, {}),
    ):  # fmt: skip
        for member in members:
            script.do(
                "coordinated weights", group=group(members), member=member, round=7, tensors=TENSORS,
                zero_probability=zero, layers=layers, min_contributors=least, survivors=survivors,
            )  # fmt: skip


@vectors("Too few members for so many contributors.")
def coordinated_weights_bad_number(script: Script) -> None:
    for least, survivors in ((5, 4), (4, 3)):
        script.refuse(
            INVALID, "coordinated weights", group=group(), member=MEMBERS[0], round=7, tensors=TENSORS,
            zero_probability=0.5, layers={}, min_contributors=least, survivors=survivors,
        )  # fmt: skip


def _numbers(*tensors: Sequence[float]) -> bytes:
    numbers = [number for tensor in tensors for number in tensor]
    return pack(f"<{len(numbers)}f", *numbers)


@vectors("Models under the group key; the kernel of ones at single places shows the matrix.")
def model_encryption(script: Script) -> None:
    positions = [float(number) for number in range(10)]
    for kernel in ([1, 0, 0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1], [1.5, -2, 0.25, 3, -1, 0, 7, 0.125]):
        model = _numbers([10, 11], positions, kernel, [1, 2, 3])
        for matrix in ("orthogonal", "gaussian"):
            script.do("encrypt model", group=group(), tensors=TENSORS, matrix=matrix, model=model)
    # L = 3 is odd, so that the last normal number is left over; here the class token has no position of its own.
    odd = (
        {"name": "patch_embed.proj.weight", "shape": [3, 3, 1, 1]},
        {"name": "pos_embed", "shape": [1, 4, 1]},
        {"name": "cls_token", "shape": [1, 1, 1]},
    )
    model = _numbers([1, 0, 0, 0, 1, 0, 0, 0, 1], [0, 1, 2, 3], [5])
    for matrix in ("orthogonal", "gaussian"):
        script.do("encrypt model", group=group(), tensors=odd, matrix=matrix, model=model)


@vectors("Models that have no embeddings to encrypt.")
def model_encryption_bad_layout(script: Script) -> None:
    for left_out in ("pos_embed", "patch_embed.proj.weight"):
        tensors = [tensor for tensor in TENSORS if tensor["name"] != left_out]
        script.refuse(INVALID, "encrypt model", group=group(), tensors=tensors, matrix="orthogonal", model=b"")


@vectors("The embeddings that clients begin with; all other tensors are left at zero here.")
def first_embeddings(script: Script) -> None:
    script.do("first embeddings", group=group(), tensors=TENSORS)
    script.do("first embeddings", group=group() | {"key": flipped(drawn("group key"), 0)}, tensors=TENSORS[::-1])
