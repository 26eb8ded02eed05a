"""A cheating server in an audit: its cases with a live client, and its differences of sums that leave clients out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tacit.models.data import load, read
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.session.event_log import EventFile
from tacit.parties.session.events import ClientRoundEnded
from tacit.simulate.audit import cheating_server as module
from tacit.simulate.audit.adversaries import audit_plan
from tacit.simulate.audit.arms import default_experiment
from tacit.simulate.audit.cheating_server import (
    SUBTRACTION,
    differences,
    left_out,
    one_image_each,
    play_cases,
    subtraction_arms,
    why_skipped,
)
from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES
from tacit.simulate.federation.hosting import shares
from tacit.simulate.federation.processes import ProcessError, serve
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


@pytest.mark.parametrize(
    ("codes", "observed", "passed"),
    [
        (("MEMBERS", "MEMBERS"), "refuses MEMBERS, round over", (False, True)),
        ((None, None), "takes part", (True, False)),
        ((None, "MEMBERS"), "takes part, refuses MEMBERS, round over", (False, False)),
    ],
)
def test_what_clients_did_is_read_in_their_own_logs(
    tmp_path: Path, codes: tuple[str | None, ...], observed: str, passed: tuple[bool, bool]
) -> None:
    run = RunDirectory(tmp_path)
    clients = ("client-1", *(f"client-{number}" for number in range(2, 2 + len(codes))))
    for client, code in zip(clients[1:], codes, strict=True):
        path = run.events(client)
        path.parent.mkdir(exist_ok=True)
        with EventFile(path, client) as log:
            log.write(ClientRoundEnded(round=1, code=None, detail=""))
            log.write(ClientRoundEnded(round=2, code=code, detail=""))
    found = [left_out(arm, run, clients) for arm in (ALONE, GROUPS)]
    assert [one.observed for one in found] == [observed, observed]
    assert tuple(one.passed for one in found) == passed


@pytest.mark.end_to_end
def test_a_process_of_ours_refuses_what_it_is_to_refuse(tmp_path: Path) -> None:
    # With one that ends the session, after which the client joins again.
    cases = [
        case for case in CLIENT_CASES if case.name in ("honest", "both-kinds", "replayed-round", "split-survivors")
    ]
    announced: list[str] = []
    found = asyncio.run(play_cases(tmp_path / "live", announced.append, cases))
    assert [(one.case, one.expected, one.passed) for one in found] == [
        (case.name, case.expected, True) for case in cases
    ]
    assert [one.observed for one in found] == [case.expected for case in cases]
    assert announced == [f"the server {case.does}" for case in cases]


@pytest.mark.end_to_end
def test_a_client_that_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that is given what it does not take.
    monkeypatch.setattr(module, "live_client", serve)
    with pytest.raises(ProcessError, match="client-4, against which a server cheats, ended: TypeError"):
        asyncio.run(play_cases(tmp_path / "live", lambda text: None, CLIENT_CASES[:1]))


@pytest.mark.parametrize(
    ("modes", "said"), [(("none", "active"), ""), (("none",), ""), (("none", "semi-honest"), "in semi-honest mode")]
)
def test_only_active_mode_is_cheated(modes: tuple[str, ...], said: str) -> None:
    assert why_skipped(modes)[: len(said) or None] == said
