"""Whole federations in memory: clients join late, leave, and come back; links break, and servers fall silent."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import Chunk
from tacit.protocol.session.events import ClientLeft
from tacit.protocol.session.messages import EndRound, Finish, Welcome
from tacit.protocol.session.rounds import RoundDone, RoundOver
from tacit.protocol.session.states import SessionState, TrainingState
from tacit.protocol.sum.messages import PeerShares
from tacit.simulate.world.federation import GRACE, JOIN_SECONDS, PATIENCE, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases


def federation(*, clients: int = 5, rounds: int = 1, **changes: object) -> MemoryFederation:
    return MemoryFederation(small_configuration(clients, **changes), clients, rounds=rounds)


def silence(kind: type | None) -> Callable[[Parcel], list[Parcel]]:
    """A hook by which a server is not heard any more from its first message of this type on."""
    silent: set[str] = set()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is kind:
            silent.add(parcel.receiver)
        return [] if parcel.receiver in silent else [parcel]

    return hook


def check_sums(done: list[RoundDone], one: MemoryFederation) -> None:
    for round in done:
        assert round.total is not None
        np.testing.assert_array_equal(round.total, one.plain_sum(round))


def test_a_late_client_joins_the_next_round() -> None:
    one = federation(rounds=2)
    one.start(*one.roster.clients[:4])
    one.idle = {"client-0"}
    one.settle(until=JOIN_SECONDS + 1)
    assert one.server.state is SessionState.IN_ROUND
    one.start_client("client-4")
    one.advance()
    assert one.clients["client-4"].state is TrainingState.AWAIT_ROUND
    one.idle = set()
    vector = one.draw("client-0", 1)
    one.emit("client-0", one.clients["client-0"].contribute(1, vector, one.now))
    one.settle()
    first, second = one.outcome(RoundDone)
    assert first.survivors == one.roster.clients[:4]
    assert second.survivors == one.roster.clients
    assert [over.round for over in one.outcome(RoundOver, "client-4")] == [2]
    check_sums([first, second], one)


@cases("away", ["killed", "gave up"])
def test_a_client_comes_back_with_a_new_hello(away: str) -> None:
    """It is out of the round, is not told of its end, and is in the next."""
    one = federation(rounds=2)
    one.idle = {"client-0", "client-1"}
    one.start()
    if away == "gave up":
        one.emit("client-1", one.clients["client-1"].give_up("restart", one.now))
        one.advance()
    one.start_client("client-1")
    one.advance()
    left = [event.detail for event in one.outcome(ClientLeft)]
    assert left == ["it started again" if away == "killed" else "it gave up: restart"]
    one.idle = set()
    one.emit("client-0", one.clients["client-0"].contribute(1, one.draw("client-0", 1), one.now))
    one.settle()
    first, second = one.outcome(RoundDone)
    assert first.survivors == tuple(name for name in one.roster.clients if name != "client-1")
    assert [(dropped.member, dropped.code) for dropped in first.dropped] == [("client-1", Code.LEFT)]
    assert second.survivors == one.roster.clients
    assert one.ended("client-1") == Ended(None, "the federation is finished")
    check_sums([first, second], one)


@cases("returns", [True, False])
def test_a_lost_link(returns: bool) -> None:
    one = federation()
    one.idle = {"client-0"}
    one.start()
    one.lose_link("client-3")
    assert one.server.next_deadline == one.clients["client-3"].next_deadline == GRACE
    one.settle(until=GRACE - 1)
    assert one.server.waiting_for == ("client-0",)
    if returns:
        one.restore_link("client-3")
    one.settle(until=GRACE + 1)
    one.emit("client-0", one.clients["client-0"].contribute(1, one.draw("client-0", 1), one.now))
    one.settle()
    (done,) = one.outcome(RoundDone)
    check_sums([done], one)
    ended = one.ended("client-3")
    assert ended is not None
    if returns:
        assert done.survivors == one.roster.clients
        assert ended.code is None
    else:
        assert [(dropped.member, dropped.code) for dropped in done.dropped] == [("client-3", Code.LEFT)]
        assert "its link was lost for 10 s" in done.dropped[0].detail
        assert (ended.code, one.clients["client-3"].next_deadline) == (Code.LEFT, None)


def test_who_is_cut_off_while_gathering_is_waited_for_if_it_was_there() -> None:
    one = federation()
    one.start(*one.roster.clients[:4])
    one.server.link_lost("client-0", one.now)
    one.start_client("client-4")
    one.advance()
    assert one.server.state is SessionState.GATHERING
    one.settle()
    assert one.outcome(RoundDone)[0].cohort == one.roster.clients[1:]
    assert isinstance(one.outcome(Event, SERVER)[5], ClientLeft)

    one = federation()
    one.server.link_lost("client-3", 0.0)
    assert one.server.next_deadline == JOIN_SECONDS


def test_a_lost_or_silent_server_ends_every_client() -> None:
    # By the grace if the link tells, by a deadline if it does not.
    for held_back in [None, Welcome, Chunk, PeerShares]:
        one = federation()
        one.hook = silence(held_back)
        one.idle = set(one.roster.clients) if held_back is None else set()
        one.start()
        for client in one.clients.values():
            client.server_lost(one.now)
            assert [output.code for output in client.expire(GRACE) if isinstance(output, Ended)] == [Code.LEFT]
            assert client.expire(10 * PATIENCE) == []
            client.server_lost(one.now)
            assert client.next_deadline is None

    for kind in (Welcome, Chunk):
        one = federation()
        one.hook = silence(kind)
        client = one.start_client("client-0")
        one.start(*one.roster.clients[1:])
        one.advance()
        deadline = client.next_deadline
        assert deadline == (PATIENCE if kind is Welcome else 2 * one.configuration.phase_seconds)
        assert client.expire(deadline - 0.1) == []
        (ended,) = client.expire(deadline)
        assert (ended.code, "no word from server" in ended.detail) == (Code.TIMEOUT, True)


@cases("away", [GRACE - 1, GRACE + 1])
def test_a_round_begins_with_those_who_are_cut_off_for_the_moment(away: float) -> None:
    one = federation(rounds=3)
    one.paused = True
    one.start()
    one.lose_link("client-2")
    one.at(one.now + away, lambda: one.restore_link("client-2"))
    one.training_seconds = lambda: 2 * GRACE
    one.paused = False
    one.settle()
    everybody = one.roster.clients
    without = tuple(name for name in everybody if name != "client-2")
    last = without if away > GRACE else everybody
    assert [done.cohort for done in one.outcome(RoundDone)] == [everybody, everybody, last]
    lost = [[drop.member for drop in done.dropped] for done in one.outcome(RoundDone)]
    assert lost == [[], ["client-2"] if away > GRACE else [], []]
    check_sums(one.outcome(RoundDone), one)


@cases("last", [EndRound(code=Code.THRESHOLD, detail=""), Finish()])
def test_the_secrets_of_a_round_are_forgotten_with_it(last: EndRound | Finish) -> None:
    one = federation()
    one.hook = silence(PeerShares)
    one.start()
    client = one.clients["client-0"]
    sums: Any = client.sum
    assert sums.data.seed
    one.put(one.forge(SERVER, "client-0", last, round=int(isinstance(last, EndRound))))
    assert sums.data is None
    assert client.sum is None
