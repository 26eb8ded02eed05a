"""The policy of a client: one rule for every field of a proposal, and each rule on both sides of its limit."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from tacit.models.configuration import Architecture, ModelConfiguration, TrainingConfiguration
from tacit.parties.learning.policy import (
    STATISTICS_RULES,
    TASK_RULES,
    ClientPolicy,
    ProposedTask,
    rules,
    value_of,
)
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.learning.task import Task
from tacit.parties.protections.binary_weights import BinaryWeights, CoordinatedBinaryWeights
from tacit.parties.protections.catalogue import registered
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.fedrsm import FedRSM
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.protocol.core.errors import Code
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import CONFIGURATION_RULES
from tacit.simulate.world.federation import small_configuration
from tests.cases import cases

SECTIONS = {"model": Architecture, "training": TrainingConfiguration, "encryption": Encryption}


def fields_of_tasks() -> set[str]:
    fields = set(Task.__struct_fields__) - {*SECTIONS, "protection"} | {"protection.scheme"}
    for section, kind in SECTIONS.items():
        fields |= {f"{section}.{name}" for name in kind.__struct_fields__}
    for scheme in registered().values():
        if scheme.__module__.startswith("tacit."):
            fields |= {f"protection.{name}" for name in scheme.__struct_fields__}
    return fields


def test_every_field_of_a_proposal_has_a_rule_and_no_rule_is_left_over() -> None:
    assert set(CONFIGURATION_RULES) == set(Configuration.__struct_fields__)
    assert set(TASK_RULES) == fields_of_tasks()
    assert set(STATISTICS_RULES) == set(StatisticsTask.__struct_fields__)


def test_every_key_of_the_policy_decides_in_a_rule() -> None:
    """But the three that judge the state of the client itself: its budget's delta, the roster and the model."""
    deciding = {key for _, rule in rules() for key in rule.policy}
    assert deciding == set(ClientPolicy.__struct_fields__) - {"delta", "roster_changes", "tripwire"}


def test_what_is_no_matter_of_a_policy_is_a_fault_of_the_party_itself() -> None:
    assert {rule.code for _, rule in rules()} == {Code.POLICY, Code.LOCAL}
    assert all(rule.code is Code.POLICY for _, rule in rules() if rule.judge is not None)


PLAIN = Task(model=ModelConfiguration().architecture, training=TrainingConfiguration(), classes=3, channels=1)
SGD = TrainingConfiguration(algorithm="fedsgd", fedsgd_images=8)
SMALLEST = sum(values.numel() for values in structs.replace(PLAIN, classes=1, channels=1).build().parameters())
"""Parameters of the model for one class and one channel, the fewest that it may turn out to have."""


@cases(
    ("policy", "task", "proposal", "refused"),
    [
        ({}, {}, {}, ""),
        ({"largest_model": 10_000}, {}, {}, "model.name"),
        ({"largest_model": SMALLEST - 1}, {}, {}, "model.name"),
        ({"largest_model": SMALLEST}, {}, {}, ""),
        ({}, {"model": Architecture(factory="own.models:made")}, {}, "model.factory"),
        ({"factories": ("own.*",)}, {"model": Architecture(factory="own.models:made")}, {}, ""),
        ({}, {"training": TrainingConfiguration(factory="own.steps:step")}, {}, "training.factory"),
        ({}, {"training": SGD}, {}, ""),
        ({"least_images": 9}, {"training": SGD}, {}, "training.fedsgd_images"),
        ({"least_images": 9}, {"training": structs.replace(SGD, fedsgd_images=0)}, {}, ""),
        ({"protections": ("fixed-position",)}, {}, {}, "protection.scheme"),
        ({"least": {"dp_noise": 1.0}}, {}, {}, "protection.scheme"),
        ({"least": {"dp_noise": 1.0}}, {"protection": GaussianNoise(dp_noise=0.5)}, {}, "protection.dp_noise"),
        ({"least": {"dp_noise": 1.0}}, {"protection": GaussianNoise(dp_noise=1.0)}, {}, ""),
        ({"protections": ("dp-gaussian",)}, {"protection": GaussianNoise(dp_noise=0.5)}, {}, ""),
        ({"protections": ("dp-gaussian",)}, {"protection": GaussianNoise(dp_noise=0.0)}, {}, "protection.dp_noise"),
        ({}, {"protection": GaussianNoise(dp_noise=0.0)}, {}, ""),
        ({}, {"protection": BinaryWeights()}, {}, "protection.scheme"),
        ({}, {"protection": FedRSM()}, {}, "protection.scheme"),
        ({"modes": ("semi-honest",)}, {"protection": FedRSM()}, {"mode": "semi-honest"}, ""),
        ({"uncoordinated_weights": True}, {"protection": BinaryWeights()}, {}, ""),
        ({}, {"protection": CoordinatedBinaryWeights()}, {}, ""),
        ({}, {"protection": CoordinatedBinaryWeights(min_contributors=2)}, {}, "protection.min_contributors"),
        ({}, {"protection": CoordinatedBinaryWeights(min_contributors=1)}, {}, "protection.min_contributors"),
        ({}, {"protection": CoordinatedBinaryWeights()}, {"colluders": 2}, "protection.min_contributors"),
        ({}, {"protection": CoordinatedBinaryWeights(min_contributors=4)}, {"colluders": 2}, ""),
        ({"smallest_cohort": 4}, {"protection": CoordinatedBinaryWeights()}, {}, "protection.min_contributors"),
        ({"least_contributors": 4}, {"protection": CoordinatedBinaryWeights()}, {}, "protection.min_contributors"),
        ({"encryptions": ("none",)}, {"encryption": Encryption()}, {}, "encryption.matrix"),
        ({"encryptions": ("orthogonal",)}, {}, {}, "encryption.matrix"),
        ({"largest_epsilon": 8.0}, {}, {}, "protection.scheme"),
        ({"largest_epsilon": 8.0}, {"protection": GaussianNoise(dp_noise=4.0)}, {}, ""),
    ],
)
def test_tasks_on_both_sides_of_each_limit(
    policy: dict[str, Any], task: dict[str, Any], proposal: dict[str, Any], refused: str
) -> None:
    wanted = structs.replace(PLAIN, **task)
    proposed = ProposedTask(small_configuration(5, **proposal), 5, wanted=wanted)
    found = [field for field, _, _ in ClientPolicy(**policy).task_complaints(proposed)]
    assert found == ([refused] if refused else [])
    for field in found:
        assert value_of(wanted, field) is not None
