"""The limits of what a server may propose and a policy may say: both sides of each, and what goes together."""

from typing import Any

import msgspec
import pytest

from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy
from tacit.secagg.graph import GraphParameters
from tacit.simulate.world.federation import small_configuration
from tests.cases import cases


def accepted(kind: type[Any], **changes: Any) -> bool:
    """Whether a configuration or a policy, as it is read from bytes or a file, may have these values."""
    whole = small_configuration(5) if kind is Configuration else Policy()
    fields = msgspec.to_builtins(whole, builtin_types=(bytes,)) | changes
    try:
        msgspec.convert(fields, kind, builtin_types=(bytes,))
    except msgspec.ValidationError:
        return False
    return True


@cases(
    ("kind", "field", "smallest", "largest"),
    [
        (Configuration, "threshold", 0, 10_000),
        (Configuration, "clients", 1, 10_000),
        (Configuration, "value_bits", 2, 32),
        (Configuration, "max_weight", 1, 2**31),
        (Configuration, "min_contributors", 0, 10_000),
        (Configuration, "rekey_every", 0, 100_000),
        (Configuration, "ring_bits", 8, 64),
        (Policy, "least_contributors", 1, 10_000),
        (Policy, "smallest_cohort", 2, 10_000),
        (Policy, "threshold_floor", 0, 10_000),
    ],
)
def test_whole_numbers(kind: type[Any], field: str, smallest: int, largest: int) -> None:
    for number in (smallest - 1, smallest, largest, largest + 1):
        assert accepted(kind, **{field: number}) is (smallest <= number <= largest)


def test_both_sides_of_every_limit() -> None:
    for kind, field, inside, outside in [
        (Configuration, "colluders", (0, 10_000), (-1, 10_001)),
        (Configuration, "dropout", (0.0, 0.999), (-0.001, 1.0)),
        (Configuration, "clip", (0.001, 1e9), (0.0,)),
        (Configuration, "train_seconds", (0.001, 86_400.0), (0.0, 86_400.5)),
        (Configuration, "phase_seconds", (0.001, 86_400.0), (0.0, 86_400.5)),
        (Policy, "least_corrupt", (0.0, 0.999), (-0.001, 1.0)),
        (Policy, "largest_clip", (0.001, 1e6), (0.0, 1e6 + 1)),
    ]:
        assert [accepted(kind, **{field: number}) for number in inside] == [True] * len(inside)
        assert [accepted(kind, **{field: number}) for number in outside] == [False] * len(outside)

    for kind, field, inside, outside in [
        (Configuration, "tensor_sizes", ([1], [2**40], [1] * 100_000), ([0], [2**40 + 1], [1] * 100_001)),
        (Configuration, "metrics", (["x" * 32], ["x"] * 32), (["x" * 33], ["x"] * 33)),
        (Policy, "modes", (["none"],), ([],)),
        (Policy, "schemes", (["fedsgd"],), ([],)),
    ]:
        assert [accepted(kind, **{field: values}) for values in inside] == [True] * len(inside)
        assert [accepted(kind, **{field: values}) for values in outside] == [False] * len(outside)


@cases("kind", [Configuration, Policy])
def test_what_nobody_knows_is_refused(kind: type[Any]) -> None:
    assert accepted(kind)
    assert not accepted(kind, other=1)


def test_defaults() -> None:
    assert Policy() == Policy(
        modes=("active",),
        schemes=("fedavg", "fedsgd", "statistics"),
        least_contributors=1,
        smallest_cohort=3,
        threshold_floor=0,
        least_corrupt=0.33,
        largest_dropout=0.5,
        accept_known_plaintext=False,
        largest_clip=1.0,
        largest_model=10**9,
        longest_train=86_400.0,
        longest_phase=3_600.0,
    )
    assert small_configuration(5) == small_configuration(
        5,
        min_contributors=0,
        group_key=False,
        rekey_every=0,
        encrypted=False,
        initial_model="server",
        single_vectors=False,
    )


@cases(
    ("changes", "text"),
    [
        ({"encrypted": True}, "an encrypted model needs a group key"),
        ({"single_vectors": True}, "which secure aggregation hides from it"),
        ({"single_vectors": True, "mode": "semi-honest"}, "which secure aggregation hides from it"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        small_configuration(5, **changes)


def test_without_secure_aggregation_one_vector_is_a_sum() -> None:
    assert small_configuration(5, mode="none").parameters(4) == GraphParameters(neighbours=3, threshold=1)
