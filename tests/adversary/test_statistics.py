"""The first sum, of pixels: a server that wants more of it, and a client that lies in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.models.datasets.samples import ArrayImages
from tacit.models.interruption import Proceed
from tacit.models.moments import Moments, moments
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.statistics import SCHEME, StatisticsKeeper, StatisticsTask, configure_statistics
from tacit.parties.session.event_log import read
from tacit.parties.session.events import (
    ClientRoundEnded,
    ConfigurationAccepted,
    ListeningStarted,
    RoundEnded,
    SessionEnded,
    StatisticsContributed,
    StatisticsSummed,
    TrainingFailed,
    UpdateComputed,
)
from tacit.parties.session.server import Evaluation, ServerParty, ServerSettings
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.events import ClientLeft, RoundStarted
from tacit.protocol.sum.configuration import Configuration

TASK = StatisticsTask(image_size=8, channels=1, classes=3, class_digest=b"c" * 32)
ATTEMPTS = 3
Octets = bytes
Own = Callable[[StatisticsTask, Proceed], Moments]


def images_of(name: str) -> ArrayImages:
    number = int(name[-1])
    return ArrayImages(np.random.default_rng(number).integers(0, 60 * number, (number, 8, 8, 1)).astype(np.uint8))


def own(name: str) -> Own:
    return lambda task, proceed: moments(images_of(name), channels=task.channels, image_size=task.image_size)


def proposal(federation: Any) -> Configuration:
    return configure_statistics(federation.configuration, TASK)


class BentKeeper(StatisticsKeeper):
    """Has a model of the size that its configuration says, whatever that is."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._state = bytes(configuration.state.size)

    @property
    def bytes(self) -> Octets:
        return self._state


async def listening(federation: Any, configuration: Configuration) -> tuple[StatisticsKeeper, asyncio.Task[Ended]]:
    settings = ServerSettings(
        address="tcp://127.0.0.1:*",
        keys=federation.keys["server"],
        roster=federation.roster,
        configuration=configuration,
        rounds=ATTEMPTS,
        completed=0,
        smallest_cohort=3,
        join_seconds=federation.seconds,
        grace=federation.grace,
    )
    keeper = BentKeeper(configuration)
    party = ServerParty(settings, keeper, federation.event_log("server"), on_round=lambda done, total: Evaluation())
    task = asyncio.create_task(party.run())
    await federation.event("server", ListeningStarted)
    federation.address = federation.events("server", ListeningStarted)[-1].address
    return keeper, task


@pytest.mark.threat("server/asks-for-statistics")
@pytest.mark.asyncio
async def test_the_server_learns_the_sums_of_all_and_logs_nothing_else(federation: Any) -> None:
    keeper, server = await listening(federation, proposal(federation))
    clients = [federation.join(name, moments=own(name)) for name in federation.clients]
    ended = await federation.all_of(server, *clients)
    assert [one.code for one in ended] == [None] * 5
    together = own("client-1")(TASK, lambda: None)
    for name in federation.clients[1:]:
        together += own(name)(TASK, lambda: None)
    mean, std = together.normalisation()
    found = keeper.found
    assert found is not None
    assert (found.clients, found.pixels, found.mean, found.std) == (4, together.pixels, mean, std)
    (told,) = federation.events("server", StatisticsSummed)
    assert told.survivors == list(federation.clients)
    for name in ("server", *federation.clients):
        events = list(read(federation.directory / f"{name}.events"))
        # It is none of the rounds of the run; and the session ended as it should, which is nothing to tell.
        assert {getattr(event, "round", 0) for event in events} == {0}
        of_rounds = RoundStarted | RoundEnded | ClientRoundEnded | UpdateComputed | SessionEnded
        assert not [event for event in events if isinstance(event, of_rounds)]
        if name != "server":
            assert [event.scheme for event in events if isinstance(event, ConfigurationAccepted)] == [SCHEME]
            assert sum(isinstance(event, StatisticsContributed) for event in events) == 1


@pytest.mark.threat("server/asks-for-statistics")
@pytest.mark.parametrize(
    "refusing",
    [{"schemes": ("fedavg", "fedsgd")}, {"largest_epsilon": 8.0}, {"protections": ("dp-gaussian", "fixed-position")}],
    ids=lambda refusing: next(iter(refusing)),
)
@pytest.mark.asyncio
async def test_a_client_that_accepts_no_such_sum_refuses_it_by_name(federation: Any, refusing: dict[str, Any]) -> None:
    counted: list[str] = []

    def counting(task: StatisticsTask, proceed: Proceed) -> Moments:
        counted.append("client-1")
        return own("client-1")(task, proceed)

    keeper, server = await listening(federation, proposal(federation))
    policy = ClientPolicy(**refusing)
    (ended,) = await federation.all_of(federation.join("client-1", policy=policy, moments=counting))
    assert ended.code is Code.POLICY
    assert "the server proposes scheme = statistics" in ended.detail
    await federation.event("server", ClientLeft)
    assert (counted, keeper.found) == ([], None)
    await federation.vanish(server)


@pytest.mark.threat("server/asks-for-statistics")
@pytest.mark.parametrize(
    "bent",
    [
        {"metrics": ("pixels", "sum-0", "squares-0", "brightest"), "ring_bits": 64},
        {"tensor_sizes": (64,), "ring_bits": 64},
        {"task": b"\x80"},
    ],
    ids=["another number", "room for pixels", "no task"],
)
@pytest.mark.asyncio
async def test_nothing_is_counted_for_other_numbers(federation: Any, bent: dict[str, Any]) -> None:
    counted: list[str] = []

    def counting(task: StatisticsTask, proceed: Proceed) -> Moments:
        counted.append("somebody")
        return Moments(64, (0,), (0,))

    configuration = msgspec.structs.replace(proposal(federation), **bent)
    keeper, server = await listening(federation, configuration)
    clients = [federation.join(name, moments=counting) for name in federation.clients]
    ended = await federation.all_of(server, *clients)
    # Whoever has not looked yet when too few are left hears that.
    codes = {name: one.code for name, one in zip(federation.clients, ended[1:], strict=True)}
    assert set(codes.values()) <= {Code.LOCAL, Code.THRESHOLD}
    refusing = [name for name in federation.clients if codes[name] is Code.LOCAL]
    assert len(refusing) >= 2
    for name in refusing:
        (said,) = federation.events(name, TrainingFailed)
        assert "contradicts itself" in said.detail or "StatisticsTask is malformed" in said.detail
    assert (counted, keeper.found) == ([], None)


@pytest.mark.threat("client/lies-in-statistics")
@pytest.mark.asyncio
async def test_sums_that_no_pixels_have_are_not_used(federation: Any) -> None:
    """One client lies once: the sum is tried anew, and is right."""
    lies = [Moments(64, (64 * 255 * 1000,), (0,))]

    def lying(task: StatisticsTask, proceed: Proceed) -> Moments:
        return lies.pop() if lies else own("client-1")(task, proceed)

    keeper, server = await listening(federation, proposal(federation))
    clients = [federation.join("client-1", moments=lying)]
    clients += [federation.join(name, moments=own(name)) for name in federation.clients[1:]]
    ended = await federation.all_of(server, *clients)
    assert [one.code for one in ended] == [None] * 5
    first, second = federation.events("server", StatisticsSummed)
    assert (first.status, first.code, second.status) == ("aborted", "VECTOR", "completed")
    assert "do not exist" in first.detail
    assert keeper.found is not None
    assert keeper.found.pixels == 64 * (1 + 2 + 3 + 4)
    for name in federation.clients:
        assert [fields.code for fields in federation.events(name, ClientRoundEnded)] == ["VECTOR"]


@pytest.mark.threat("client/lies-in-statistics")
@pytest.mark.asyncio
async def test_who_lies_for_ever_stops_the_first_sum_and_not_the_server(federation: Any) -> None:
    keeper, server = await listening(federation, proposal(federation))
    clients = [federation.join("client-1", moments=lambda task, proceed: Moments(64, (2**40,), (0,)))]
    clients += [federation.join(name, moments=own(name)) for name in federation.clients[1:]]
    await federation.all_of(server, *clients)
    assert keeper.found is None
    assert [fields.status for fields in federation.events("server", StatisticsSummed)] == ["aborted"] * ATTEMPTS
