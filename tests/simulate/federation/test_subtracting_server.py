"""What a server that leaves clients out has in the end: with groups, sums of groups; without them, every update."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tacit.simulate.world.federation as world
from tacit.protocol.core.errors import Code
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train
from tacit.simulate.federation.cheats import SubtractingServer, schedule
from tacit.simulate.world.federation import MemoryFederation, small_configuration

CLIENTS = 6


class Stubborn(MemoryFederation):
    def draw(self, name: str, round: int) -> npt.NDArray[Any]:
        if (name, 1) not in self.vectors:
            super().draw(name, 1)
        self.vectors[name, round] = self.vectors[name, 1]
        return self.vectors[name, 1]


def played(monkeypatch: pytest.MonkeyPatch, groups: Sequence[int]) -> Stubborn:
    monkeypatch.setattr(world, "TrainingServer", SubtractingServer)
    configuration = small_configuration(CLIENTS, colluders=0, dropout=0.34 if any(groups) else 0.33)
    one = Stubborn(configuration, CLIENTS, rounds=1 + (1 + len(set(groups)) if any(groups) else CLIENTS), groups=groups)
    one.run()
    return one


def differences(one: Stubborn) -> list[tuple[RoundDone, npt.NDArray[Any]]]:
    first, *others = one.outcome(RoundDone)
    ring, found = one.configuration.packing().ring, []
    for done in others:
        words = first.total.copy()
        if done.total is not None:
            ring.subtract_into(words, done.total)
            found.append((done, words))
    return found


def check_models(one: Stubborn) -> None:
    models = [np.frombuffer(train.model, "<f4") for train in one.outcome(Train, "client-5")]
    assert len(models) > 2
    for model in models[1:]:
        bound = np.spacing(np.abs(models[0]))
        assert (np.abs(model - models[0]) <= bound).all()
    assert any((before != after).any() for before, after in pairwise(models))


def test_without_groups_it_has_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    one = played(monkeypatch, (0,) * CLIENTS)
    check_models(one)
    for (_, words), name in zip(differences(one), one.roster.clients, strict=True):
        np.testing.assert_array_equal(words, one.vectors[name, 1])


def test_with_groups_it_has_sums_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    one = played(monkeypatch, (1, 1, 2, 2, 3, 3))
    check_models(one)
    assert schedule(one.roster)[1:] == (("client-0",), *one.roster.groups)
    # Nobody helps to open the sum without one of a group.
    assert one.outcome(RoundDone)[1].total is None
    assert {one.outcome(RoundOver, name)[1].code for name in one.roster.clients[1:]} == {Code.MEMBERS}
    ring = one.configuration.packing().ring
    for (_, words), group in zip(differences(one), one.roster.groups, strict=True):
        expected = np.zeros_like(words)
        for name in group:
            ring.add_into(expected, one.vectors[name, 1])
        np.testing.assert_array_equal(words, expected)
