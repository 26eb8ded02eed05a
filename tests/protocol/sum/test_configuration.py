"""What a server may propose and a policy may say: both sides of each limit, and every refusal by name."""

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import Blob
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy
from tacit.secagg.graph import GraphParameters, choose_parameters
from tacit.secagg.packing import WeightForm
from tacit.simulate.world.federation import small_configuration
from tests.cases import cases

KNOWN_PLAINTEXT = {"encrypted": True, "group_key": True, "initial_model": "server"}


def test_the_default_policy_accepts_the_default_federation() -> None:
    Policy().check(small_configuration(5), clients=5)
    assert Policy().check_cohort(small_configuration(5), 5) == GraphParameters(neighbours=4, threshold=4)


@cases(
    ("policy", "proposal", "refusal"),
    [
        ({}, {"mode": "semi-honest"}, "mode = semi-honest; this client's policy accepts one of active"),
        ({"modes": ("semi-honest",)}, {}, "mode = active; this client's policy accepts one of semi-honest"),
        ({"schemes": ("fedsgd",)}, {}, "scheme = fedavg; this client's policy accepts one of fedsgd"),
        (
            {"least_contributors": 2},
            {"form": WeightForm.TENSOR, "min_contributors": 1},
            "min_contributors = 1; this client's policy accepts at least 2",
        ),
        ({}, {"clip": 1.5}, "clip = 1.5; this client's policy accepts at most 1.0"),
        ({"largest_clip": 0.5}, {}, "clip = 1.0; this client's policy accepts at most 0.5"),
        ({}, {"colluders": 0}, "colluders = 0; this client's policy accepts at least 1 of the 5 clients of its roster"),
        ({"least_corrupt": 0.6}, {"colluders": 2}, "colluders = 2; this client's policy accepts at least 3 of the 5"),
        ({}, {"dropout": 0.51}, "dropout = 0.51; this client's policy accepts at most 0.5"),
        ({}, {"dropout": 0.4}, "of 5 clients 2 may be lost (dropout = 0.4), and 4 must answer so that 1 may collude"),
        ({}, {"clients": 2}, "clients = 2; this client's policy accepts at least 3"),
        ({"largest_model": 9}, {}, "tensor_sizes = (10,); this client's policy accepts at most 9"),
        ({}, {"phase_seconds": 3601.0}, "phase_seconds = 3601.0; this client's policy accepts at most 3600.0"),
        ({"longest_train": 60.0}, {}, "train_seconds = 100.0; this client's policy accepts at most 60.0"),
        ({}, {"mode": "none"}, "mode = none; this client's policy accepts one of active"),
        ({"least_contributors": 3}, {"form": WeightForm.COORDINATE, "max_weight": 1,
          "value_bits": 12, "min_contributors": 2}, "min_contributors = 2; this client's policy accepts at least 3"),
        ({"least_contributors": 3}, {"form": WeightForm.TENSOR, "min_contributors": 2},
         "min_contributors = 2; this client's policy accepts at least 3"),
        ({}, {"form": WeightForm.COORDINATE, "max_weight": 1, "value_bits": 12},
         "min_contributors = 0; this client's policy accepts at least 1"),
        ({"modes": ("none",)}, {**KNOWN_PLAINTEXT, "mode": "none"}, "initial_model = server; this client's policy"),
        ({}, {"ring_bits": 16}, "the configuration has no room for its sum: ring_bits = 16 is too small"),
        ({}, {"value_bits": 32, "max_weight": 2**31, "ring_bits": 64, "clients": 10_000, "form": WeightForm.COORDINATE,
          "min_contributors": 1},
         "the configuration has no room for its sum"),
        ({}, {"tensor_sizes": ()}, "the configuration has no room for its sum: tensor_sizes"),
        ({"largest_model": 10}, {"state": StateLayout(type="uint64", count=6)},
         "accepts at most 40 bytes"),
        ({"largest_model": 10}, {"fixed": Blob(digest=bytes(32), size=44)}, "accepts at most 40 bytes"),
        ({}, {"metrics": ("loss", "loss")}, "the configuration has no room for its sum: a metric is named twice"),
    ],
)  # fmt: skip
def test_proposals_below_the_policy(policy: dict[str, Any], proposal: dict[str, Any], refusal: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Policy(**policy).check(small_configuration(5, **proposal), clients=5)
    assert caught.value.code is Code.POLICY
    assert refusal in caught.value.detail


@cases(
    ("policy", "proposal"),
    [
        ({"modes": ("active", "semi-honest")}, {"mode": "semi-honest"}),
        ({"largest_clip": 1.5}, {"clip": 1.5}),
        ({"least_corrupt": 0.19}, {"colluders": 0}),
        # There is neither a clip nor a share to bound.
        ({"modes": ("none",)}, {"mode": "none", "colluders": 0, "dropout": 0.9, "clip": 9.0}),
        ({}, KNOWN_PLAINTEXT),
        ({"modes": ("none",), "accept_known_plaintext": True}, {**KNOWN_PLAINTEXT, "mode": "none"}),
        ({}, {"scheme": "fedsgd"}),
        ({"largest_model": 10}, {}),
        ({"largest_model": 10}, {"fixed": Blob(digest=bytes(32), size=40)}),
        ({"least_contributors": 3}, {}),
        ({"least_contributors": 3}, {"form": WeightForm.TENSOR, "min_contributors": 3}),
    ],
)
def test_proposals_within_the_policy(policy: dict[str, Any], proposal: dict[str, Any]) -> None:
    Policy(**policy).check(small_configuration(5, **proposal), clients=5)


@cases(
    ("policy", "proposal", "cohort", "refusal"),
    [
        ({}, {}, 2, "cohort = 2; this client's policy accepts 3 to 5 clients"),
        ({"smallest_cohort": 5}, {}, 4, "cohort = 4; this client's policy accepts 5 to 5 clients"),
        ({}, {}, 6, "cohort = 6; this client's policy accepts 3 to 5 clients"),
        ({}, {"threshold": 3}, 5, "threshold = 3; this client's policy accepts 4 to 5 of 5 clients"),
        ({}, {"threshold": 6}, 5, "threshold = 6; this client's policy accepts 4 to 5 of 5 clients"),
        ({"threshold_floor": 5}, {}, 5, "threshold = 4; this client's policy accepts 5 to 5 of 5 clients"),
        ({"modes": ("semi-honest",)}, {"mode": "semi-honest", "threshold": 2}, 5, "accepts 3 to 5 of 5 clients"),
        ({}, {"colluders": 2}, 3, "cohort = 3; this client's policy accepts 4 to 5 clients"),
        ({}, {"graph": "regular", "dropout": 0.6}, 5, "no regular graph of 5 clients"),
    ],
)
def test_cohorts_below_the_policy(policy: dict[str, Any], proposal: dict[str, Any], cohort: int, refusal: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Policy(**policy).check_cohort(small_configuration(5, **proposal), cohort)
    assert caught.value.code is Code.POLICY
    assert refusal in caught.value.detail


@cases("mode", ["active", "semi-honest"])
@cases("floor", range(7))
def test_the_higher_of_floor_and_rule_counts(mode: Any, floor: int) -> None:
    """For every threshold that a server may propose."""
    policy, rule = Policy(modes=(mode,), threshold_floor=floor), small_configuration(5, mode=mode).parameters(5)
    for threshold in range(1, 7):
        configuration = small_configuration(5, mode=mode, threshold=threshold)
        if max(floor, rule.threshold) <= threshold <= 5:
            assert policy.check_cohort(configuration, 5).threshold == threshold
        else:
            with pytest.raises(RemoteProtocolError, match=f"the server proposes threshold = {threshold}; "):
                policy.check_cohort(configuration, 5)


CONFIGURATIONS = st.builds(
    small_configuration,
    st.integers(1, 10_000),
    mode=st.sampled_from(("active", "semi-honest")),
    graph=st.sampled_from(("auto", "complete")),
    colluders=st.integers(0, 10_000),
    dropout=st.floats(0, 1, exclude_max=True),
    threshold=st.integers(0, 10_000),
    clip=st.floats(0, exclude_min=True, allow_infinity=False),
    value_bits=st.integers(2, 32),
    max_weight=st.integers(1, 2**31),
    ring_bits=st.integers(8, 64),
    form=st.sampled_from(WeightForm),
    tensor_sizes=st.lists(st.integers(1, 2**40), max_size=3).map(tuple),
    metrics=st.lists(st.text(max_size=3), max_size=3).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(CONFIGURATIONS, st.integers(0, 200))
def test_whatever_is_proposed_is_accepted_or_refused_with_a_code(configuration: Configuration, cohort: int) -> None:
    policy = Policy(modes=("active", "semi-honest"), smallest_cohort=2, least_corrupt=0.0, largest_clip=1e6)
    try:
        policy.check(configuration, clients=10_000)
        parameters = policy.check_cohort(configuration, cohort)
    except RemoteProtocolError as error:
        if error.code is not Code.POLICY:
            raise
        return
    assert 2 <= cohort <= configuration.clients
    assert configuration.packing().needed_bits <= configuration.ring_bits
    if parameters.neighbours == cohort - 1:
        colluders = configuration.colluders
        most = max(2 * cohort // 3, (cohort + colluders) // 2) if configuration.active else max(colluders, cohort // 2)
        assert cohort >= colluders + 2
        assert most < parameters.threshold <= cohort


def test_a_regular_graph_cannot_have_a_threshold_above_its_neighbours() -> None:
    regular = small_configuration(100, graph="regular", colluders=5, dropout=0.05)
    assert regular.parameters(100) == GraphParameters(16, 11)
    for threshold, accepted in ((16, True), (17, False)):
        configuration = small_configuration(100, graph="regular", colluders=5, dropout=0.05, threshold=threshold)
        if accepted:
            assert Policy().check_cohort(configuration, 100).threshold == threshold
        else:
            with pytest.raises(RemoteProtocolError, match="threshold = 17; this client's policy accepts 11 to 16 of"):
                Policy().check_cohort(configuration, 100)


@cases(("threshold", "accepted"), [(2, True), (3, False), (4, False)])
def test_a_graph_that_lacks_one_neighbour_is_regular(threshold: int, accepted: bool) -> None:
    """Four clients on a ring: nobody holds a share of its own, or of who stands opposite."""
    settings: dict[str, Any] = {"graph": "regular", "mode": "semi-honest", "colluders": 0, "dropout": 0.0}
    configuration = small_configuration(4, **settings, threshold=threshold)
    assert configuration.parameters(4).neighbours == 2
    policy = Policy(modes=("semi-honest",), least_corrupt=0.0)
    if accepted:
        assert policy.check_cohort(configuration, 4) == GraphParameters(2, 2)
    else:
        with pytest.raises(RemoteProtocolError, match=f"threshold = {threshold}; this client's policy accepts 2 to 2"):
            policy.check_cohort(configuration, 4)


def test_who_must_survive_follows_the_fraction() -> None:
    """0.29 of 100 are 29, though the product of floating-point numbers is less; two more than collude survive."""
    configuration = small_configuration(100, colluders=2, dropout=0.29)
    assert (configuration.fewest_survivors(100), configuration.fewest_survivors(4)) == (71, 4)


@given(st.integers(3, 60))
def test_parameters_follow_the_rule_unless_a_threshold_is_set(cohort: int) -> None:
    settings: dict[str, Any] = {"colluders": 2, "dropout": 0.05}
    configuration = small_configuration(60, **settings)
    rule = choose_parameters(cohort, colluders=2, dropouts=cohort // 20, active=True, graph="auto")
    assert configuration.parameters(cohort) == rule
    assume(rule.threshold < cohort)
    higher = small_configuration(60, **settings, threshold=rule.threshold + 1)
    assert higher.parameters(cohort) == GraphParameters(rule.neighbours, rule.threshold + 1)


def test_the_hash_depends_on_every_field() -> None:
    other: dict[str, Any] = {
        "scheme": "fedsgd", "min_contributors": 2, "mode": "semi-honest",
        "graph": "complete", "colluders": 2, "dropout": 0.1, "threshold": 5, "clients": 6, "clip": 0.5,
        "value_bits": 17, "max_weight": 101, "ring_bits": 40, "form": WeightForm.TENSOR, "tensor_sizes": (5, 5),
        "metrics": ("loss",), "layout": bytes(31) + b"x", "task": b"x", "train_seconds": 99.0, "phase_seconds":
        9.0, "group_key": True, "rekey_every": 3, "initial_model": "clients",
        "state": StateLayout(type="uint64", count=10), "encrypted": True,
        "spending": True,
        "fixed": Blob(digest=bytes(31) + b"x", size=4),
    }  # fmt: skip
    assert {*other, "single_vectors"} == set(Configuration.__struct_fields__)
    base = {"form": WeightForm.COORDINATE, "min_contributors": 1}
    keyed = base | {"group_key": True}
    assert (
        small_configuration(5, **keyed, encrypted=other.pop("encrypted")).hash()
        != small_configuration(5, **keyed).hash()
    )
    hashes = {small_configuration(5, **(base | {field: value})).hash() for field, value in other.items()}
    assert len(hashes | {small_configuration(5, **base).hash()}) == len(other) + 1
    plain = {"form": WeightForm.TENSOR, "mode": "none"}
    assert small_configuration(5, **plain).hash() != small_configuration(5, **plain, single_vectors=True).hash()
    assert small_configuration(5).hash() == small_configuration(5).hash()


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
