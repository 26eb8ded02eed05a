"""A server in an audit that leaves clients out, and its differences of sums."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tacit.models.data import load, read
from tacit.simulate.audit.adversaries import audit_plan
from tacit.simulate.audit.arms import default_experiment
from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.audit.subtraction import (
    SUBTRACTION,
    differences,
    one_image_each,
    subtraction_arms,
)
from tacit.simulate.federation.hosting import shares
from tacit.simulate.federation.recording import OpenedSum

ALONE, GROUPS = subtraction_arms(default_experiment())


def in_mode(mode: str) -> list[int]:
    base = default_experiment()
    aggregation = msgspec.structs.replace(base.aggregation, mode=mode)
    policy = msgspec.structs.replace(base.policy, modes=("active", "semi-honest", "none"))
    arms = subtraction_arms(msgspec.structs.replace(base, aggregation=aggregation, policy=policy))
    return [arm.experiment.federation.group_size for arm in arms]


def test_it_is_played_where_there_is_a_secure_sum_and_groups_where_they_bind_a_server() -> None:
    assert (in_mode("active"), in_mode("semi-honest"), in_mode("none")) == ([0, 2], [0], [])
    # Everybody; then each client, or with groups one client in vain, and each group.
    assert [arm.experiment.federation.rounds for arm in (ALONE, GROUPS)] == [1 + 10, 1 + 1 + 5]
    assert all(arm.subtracts for arm in (ALONE, GROUPS))


@pytest.mark.parametrize(
    ("adversaries", "attacks", "played"),
    [
        ((), (), True),
        (("client", "server"), (SUBTRACTION,), True),
        (("server+client-2",), (), False),
        ((), ("closed-form",), False),
    ],
)
def test_it_is_played_for_who_asks_for_the_server_and_the_attack(
    tmp_path: Path, adversaries: tuple[str, ...], attacks: tuple[str, ...], played: bool
) -> None:
    plan = audit_plan(
        None, adversaries=adversaries, attacks=attacks, images=2, data=None, full=False, seed=0, out=tmp_path
    )
    assert [arm.name for arm in plan.arms if arm.subtracts] == [ALONE.name, GROUPS.name] * played


def test_every_client_has_one_image_and_everything_else_is_as_it_was(tmp_path: Path) -> None:
    base = default_experiment()
    small = one_image_each(ALONE.experiment, tmp_path / "new" / "images.npz", 3)
    source, before = read(small.data), read(base.data)
    assert [len(share) for share in shares(small, source, 3)] == [1] * 10
    assert len(source.class_names) == len(before.class_names)
    known = {image.tobytes() for image in before.train.images.pixels(np.arange(len(before.train.labels)), size=32)}
    assert {image.tobytes() for image in source.train.images.pixels(np.arange(10), size=32)} <= known
    one, other = (load(of.data, image_size=32).normalisation for of in (small, base))
    np.testing.assert_allclose(one, other, rtol=1e-6)
    again = one_image_each(ALONE.experiment, tmp_path / "again.npz", 4)
    assert (read(again.data).train.images.pixels(np.arange(10), size=32) != source.train.images.array).any()


def test_a_difference_is_the_mean_of_those_who_were_left_out(tmp_path: Path) -> None:
    subject = AuditedRun.of(one_image_each(GROUPS.experiment, tmp_path / "images.npz", 0), 0)
    names, size = subject.terms.clients, sum(subject.terms.configuration.packing().tensor_sizes)
    updates = {name: np.random.default_rng(place).normal(size=size) for place, name in enumerate(names)}

    def opened(round: int, survivors: tuple[str, ...]) -> OpenedSum:
        values = np.sum([updates[name] for name in survivors], axis=0)
        return OpenedSum(round, survivors, values, np.array(len(survivors)))

    left, *more = differences([opened(1, names), opened(2, names), opened(4, names[2:])], subject.terms)
    assert (left.clients, left.round, more) == (names[:2], 1, [])
    np.testing.assert_allclose(left.mean, (updates[names[0]] + updates[names[1]]) / 2, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(left.model, subject.terms.keeper().flat)
    # Every round was aborted.
    assert list(differences([], subject.terms)) == []
