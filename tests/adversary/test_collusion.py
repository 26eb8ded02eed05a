"""The collusion bound counts members of the roster: no choice of the server makes a third of it enough."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.binary_weights import BinaryWeights, CoordinatedBinaryWeights
from tacit.parties.protections.fedrsm import FedRSM
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.roster import encode_members
from tacit.protocol.session.messages import StartRound, Welcome
from tacit.protocol.session.rounds import RoundOver
from tacit.protocol.sum.policy import Policy
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases


@pytest.mark.threat("server/small-cohort", "server/threshold-below-floor")
@cases("clients", range(3, 13))
@cases("mode", ["active", "semi-honest"])
def test_two_honest_clients_are_in_every_sum_whatever_is_proposed(mode: Any, clients: int) -> None:
    """For rosters of 3 to 12: every cohort, number of colluders, threshold and dropout that a server may propose.

    Of those that a default client accepts, with all m colluders in the cohort: every sum that is opened has two others;
    the shares of the colluders do not open a secret; and against a server that lies, no two disjoint sets of honest
    clients have shares of both kinds, for which 2 t > n + m (Bonawitz et al. 2017, section 6.2).
    """
    policy, m = Policy(modes=(mode,)), 33 * clients // 100
    accepted = 0
    proposals = product(range(clients), range(clients + 1), (0.0, 0.1, 0.33, 0.5, 0.9), range(1, clients + 1))
    for colluders, threshold, dropout, largest in proposals:
        configuration = small_configuration(
            largest, mode=mode, colluders=colluders, threshold=threshold, dropout=dropout
        )
        try:
            policy.check(configuration, clients=clients)
        except RemoteProtocolError:
            continue
        for cohort in range(1, clients + 1):
            try:
                t = policy.check_cohort(configuration, cohort).threshold
            except RemoteProtocolError:
                continue
            accepted += 1
            fewest = max(policy.smallest_cohort, configuration.fewest_survivors(cohort), t)
            assert m + 2 <= fewest <= cohort
            assert t > m
            assert mode != "active" or 2 * t > cohort + m
    assert accepted


@pytest.mark.threat("server/small-cohort")
@cases(("roster", "cohort"), [(30, 3), (30, 10), (5, 2), (10, 4)])
def test_a_cohort_of_a_victim_and_its_colluders_is_refused(roster: int, cohort: int) -> None:
    one = MemoryFederation(small_configuration(roster), roster)

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is not StartRound:
            return [parcel]
        return [altered(parcel, message=replace(parcel.message, cohort=encode_members(range(cohort), roster)))]

    one.hook = hook
    one.start()
    (over,) = one.outcome(RoundOver, "client-0")
    assert over.code is Code.POLICY


@pytest.mark.threat("server/groups")
def test_the_size_of_groups_follows_from_the_roster_and_not_from_the_proposed_clients() -> None:
    """Three of twelve may collude for the victim's owner, so that a group of three is too small for it."""
    groups = tuple(1 + number // 3 for number in range(12))
    victim = Policy(least_corrupt=0.25)
    honest = small_configuration(12, colluders=1, dropout=0.33)
    for said in ({"clients": 6}, {"clients": 6, "colluders": 3}, {"colluders": 3}, {}):
        one = MemoryFederation(honest, 12, groups=groups, policies={"client-0": victim})
        lie = encode_structure(replace(honest, **said))

        def hook(parcel: Parcel, lie: bytes = lie) -> list[Parcel]:
            if parcel.packet.kind is not Welcome:
                return [parcel]
            return [altered(parcel, message=replace(parcel.message, configuration=lie))]

        one.hook = hook
        one.start()
        ended = one.ended("client-0")
        assert ended is not None
        assert ended.code is Code.POLICY, said


@pytest.mark.threat("server/few-contributors")
@cases(
    ("protection", "accepted"),
    [
        (CoordinatedBinaryWeights(), True),
        (CoordinatedBinaryWeights(min_contributors=2), False),
        (BinaryWeights(min_contributors=3), False),
        (FedRSM(min_contributors=3), False),
    ],
)
def test_sums_of_few_are_not_disclosed_by_weights(protection: Any, accepted: bool) -> None:
    task = Task(
        model=ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2).architecture,
        training=TrainingConfiguration(), protection=protection, classes=3, channels=1,
    )  # fmt: skip
    model = task.build()
    configuration = configure(small_configuration(5, value_bits=12), task, model)
    if accepted:
        ClientPolicy().check(configuration, clients=5)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        ClientPolicy().check(configuration, clients=5)
    assert caught.value.code is Code.POLICY
