"""The audit of the dealer of private inference: what is wrong is found where it is opened, and lies in it are named.

Between real parties it is played in tests/parties/inference/test_audit.py.
"""

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tacit.parties.correlated.material import Dealing, Weight
from tacit.parties.inference.material import (
    AnyBlockRequest,
    Contraction,
    Fixed,
    Lookup,
    Matrix,
    Narrow,
    Products,
    Scores,
    Waves,
    encoded_correction,
    openable,
    recomputed,
)
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest
from tacit.protocol.inference.material import request_key
from tacit.protocol.inference.results import PassBegun
from tacit.simulate.world.inference import MODEL_OWNER, MemoryInference, data_owner_names, small_terms
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
HALF = 1 << 15
OTHER = b"\xff" * 32
AUDITED: list[AnyBlockRequest] = [
    Narrow((3,), 16, 2, None, 40),
    Matrix("matmul", (2, 3), (3, 2), words=40),
    Products(((2, 3), (3, 2)), (Contraction(0, 1, "ab,bc->ac"),)),
    Scores((2, 3), 40, 20, 20),
    Waves((3,), 2, 20, 40),
    Lookup((3,), index=4, slope=4),
]


@pytest.mark.threat("dealer/wrong-randomness")
def test_a_wrong_correction_of_any_kind_is_found_when_it_is_opened() -> None:
    """Keys of other requests are not needed for it, and tell nothing of the one that is opened."""
    keys = (os.urandom(32), os.urandom(32))
    dealing = Dealing(keys)
    for number, request in enumerate(AUDITED):
        assert openable(request)
        dealt = bytes(encoded_correction(request, dealing.correction(request, number)) or b"")
        opened = [request_key(key, number) for key in keys]
        assert recomputed(request, opened) == dealt
        for place in range(0, len(dealt), 7):
            assert recomputed(request, opened) != dealt[:place] + bytes([dealt[place] ^ 1]) + dealt[place + 1 :]
        assert recomputed(request, [opened[0], request_key(keys[1], number + 1)]) != dealt
    for request in (Weight(0, (2, 3)), Fixed(0, (4,), 0, (2, 3))):
        assert not openable(request)


def world() -> MemoryInference:
    return MemoryInference(
        {DATA_OWNER: InferenceRequest(images=1, batch=1, channels=1, side=4)},
        terms=small_terms(audited=HALF),
        policies={DATA_OWNER: InferencePolicy(audited=HALF)},
        requests=((24, 0), (0, 16), (8, 8), (8, 8)),
        seed=b"picks some",
    )


def saying(**fields: Any) -> Callable[[Parcel], list[Parcel]]:
    return lambda parcel: [altered(parcel, message=msgspec.structs.replace(parcel.message, **fields))]


def shorter(parcel: Parcel) -> list[Parcel]:
    return [altered(parcel, payload=bytes(parcel.packet.payload or b"")[:-1])]


@pytest.mark.threat("owner/lies-in-an-audit")
@cases(
    ("kind", "liar", "lie", "code"),
    [
        ("audit-coin", MODEL_OWNER, saying(contribution=OTHER), Code.SECRET),
        ("audit-commitment", MODEL_OWNER, saying(commitment=OTHER), Code.SECRET),
        ("audit-keys", DATA_OWNER, shorter, Code.VECTOR),
        ("audit-keys", MODEL_OWNER, shorter, Code.VECTOR),
    ],
)
def test_who_departs_from_the_audit_is_named(
    kind: str, liar: str, lie: Callable[[Parcel], list[Parcel]], code: Code
) -> None:
    run = world()
    run.say_instead(kind, liar, lie)
    assert run.run().verdicts() == {(code, liar)}
    assert not run.outcome(PassBegun)
