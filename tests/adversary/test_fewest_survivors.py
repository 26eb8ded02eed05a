"""A server that opens a sum over fewer clients than these count on."""

from __future__ import annotations

import os
from typing import Literal

import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.roster import new_keys
from tacit.protocol.session.one_sum import SumClient, SumResult, SumServer, SumSettings, make_roster
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tests.cases import cases


@cases("mode", ["active", "semi-honest"])
@cases(("dropout", "lost"), [(0.0, 1), (0.1, 2), (0.2, 3)])
@pytest.mark.threat("server/suppresses-clients", "server/plans-for-fewer")
def test_no_more_are_lost_than_are_tolerated(mode: str, dropout: float, lost: int) -> None:
    """Clients that draw weights together plan for so many. Before, the threshold alone was kept in a complete graph: of
    4000 coordinates 186 had one contributor, whose values the server read."""
    for gone, opened in ((lost, False), (lost - 1, True)):
        one = MemoryFederation(small_configuration(10, mode=mode, graph="complete", dropout=dropout), 10, rounds=1)
        one.idle = {f"client-{number}" for number in range(gone)}
        one.run()
        (done,) = one.outcome(RoundDone)
        assert (done.total is not None) == opened
        assert done.code is (None if opened else Code.THRESHOLD)


def held(
    clients: int, gone: int, settings: SumSettings, *, smallest_cohort: int = 3
) -> tuple[SumServer, dict[str, SumClient]]:
    """A sum of so many clients, the last of which never say a word, and those who do."""
    names = [f"c{number}" for number in range(clients)]
    keys = {name: new_keys(name, entropy=os.urandom) for name in ("server", *names)}
    roster = make_roster(keys["server"].member("server"), *(keys[name].member("client") for name in names))
    server = SumServer(settings, roster, now=0.0)
    there = {
        name: SumClient(settings, roster, keys[name], entropy=os.urandom, smallest_cohort=smallest_cohort)
        for name in names[: clients - gone]
    }
    said = [(name, one) for name, own in there.items() for one in [*own.start(0.0), *own.contribute([1.0] * 3, 0.0)]]
    answers = [answer for name in names[clients - gone :] for answer in server.drop(name, 0.0)]
    while said or answers:
        answers += [answer for name, one in said for answer in server.receive(name, one, 0.0)]
        said = [(name, one) for name, answer in answers if name in there for one in there[name].receive(answer, 0.0)]
        answers = []
    return server, there


@cases(("mode", "smallest"), [("active", 10), ("active", 8), ("semi-honest", 8)])
@pytest.mark.threat("server/suppresses-clients")
def test_a_client_of_one_sum_keeps_to_its_own_smallest_cohort(
    mode: Literal["active", "semi-honest"], smallest: int
) -> None:
    """The server withholds what three of ten say: a Flower client of smallest_cohort = 10 opened the sum of seven."""
    settings = SumSettings(length=3, clip=1.0, mode=mode)
    server, clients = held(10, 3, settings, smallest_cohort=smallest)
    for own in clients.values():
        assert isinstance(own.outcome, ClientAborted)
        assert own.outcome.code is Code.THRESHOLD
    assert not isinstance(server.outcome, SumResult)
    server, _ = held(10, 3, settings)
    assert isinstance(server.outcome, SumResult)


@pytest.mark.threat("server/suppresses-clients")
def test_two_clients_are_no_sum() -> None:
    """Of three in semi-honest mode one is lost: the threshold is 2, and each would know the other's vector."""
    server, _ = held(3, 1, SumSettings(length=3, clip=1.0, mode="semi-honest", dropout=0.34))
    assert isinstance(server.outcome, ServerAborted)
    assert server.outcome.code is Code.THRESHOLD
