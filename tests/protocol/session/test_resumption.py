"""Links that break at any moment and come back: nobody loses a round, nothing is lost, nothing counts twice."""

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.rate_limit import HELLOS
from tacit.protocol.session.events import ClientJoined, ClientLeft, ClientResumed
from tacit.protocol.session.messages import Finish, Hello, Welcome
from tacit.protocol.session.rounds import Accepted, RoundDone, RoundOver
from tacit.protocol.session.states import TrainingState
from tacit.simulate.world.federation import GRACE, PATIENCE, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

CLIENT, CLIENTS, AWAY = "client-0", 4, 5.0
KINDS: dict[str, dict[str, Any]] = {
    "active": {},
    "encrypted": {"group_key": True, "encrypted": True},
    "chunks": {"parameters": 300_000},
    "plain chunks": {"parameters": 300_000, "mode": "none"},
}


def federation(kind: str, rounds: int = 1) -> MemoryFederation:
    return MemoryFederation(small_configuration(CLIENTS, **KINDS[kind]), CLIENTS, rounds=rounds)


def own(parcel: Parcel) -> bool:
    return CLIENT in (parcel.sender, parcel.receiver)


@cache
def said(kind: str) -> tuple[str, ...]:
    """What goes over the client's link in a whole session, up to the server's farewell, which waits for nobody."""
    log = [parcel for parcel in federation(kind).run().log if own(parcel)]
    assert log.pop().packet.kind is Finish
    return tuple(f"{'to' if parcel.sender == SERVER else 'from'} client: {parcel.kind}" for parcel in log)


def check_all(one: MemoryFederation) -> None:
    """Everybody was in every round, all sums are exact, and nobody was blamed or said hello twice."""
    rounds = one.outcome(RoundDone)
    assert [done.round for done in rounds] == list(range(1, one.server.round + 1))
    for done in rounds:
        assert (done.code, done.survivors, done.dropped) == (None, one.roster.clients, ())
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
    assert [len(one.outcome(kind)) for kind in (MessageRefused, ClientLeft, ClientJoined)] == [0, 0, CLIENTS]
    assert {one.ended(name) for name in one.roster.clients} == {Ended(None, "the federation is finished")}
    for name in one.roster.clients:
        assert [(over.round, over.code) for over in one.outcome(RoundOver, name)] == [
            (done.round, None) for done in rounds
        ]


def broken(one: MemoryFederation, moments: dict[int, bool]) -> MemoryFederation:
    """Play with links that break with these messages of the client's link, before or after they arrive."""
    count = 0

    def hook(parcel: Parcel) -> list[Parcel]:
        nonlocal count
        if not own(parcel):
            return [parcel]
        count += 1
        after = moments.get(count - 1)
        if after is None:
            return [parcel]
        if after:
            one.put(parcel)
        one.lose_link(CLIENT)
        one.at(one.now + AWAY, lambda: one.restore_link(CLIENT))
        return []

    one.hook = hook
    return one.run()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.exhaustive] * kind.endswith("chunks")) for kind in KINDS]
)
def test_a_link_that_breaks_at_any_message_costs_nobody_a_round(kind: str) -> None:
    for number, message in enumerate(said(kind)):
        for after in (False, True):
            one = broken(federation(kind), {number: after})
            hellos = sum(parcel.packet.kind is Hello and parcel.sender == CLIENT for parcel in one.log)
            assert hellos == 1, (message, after)
            check_all(one)


@cases("seed", range(10))
def test_links_that_break_several_times_cost_nobody_a_round(seed: int) -> None:
    """Also before what was said again has arrived, and to several clients at a time."""
    one, random = federation("active", rounds=2), Random(seed)
    one.training_seconds = lambda: random.uniform(0, 50)
    left = dict.fromkeys(one.roster.clients, HELLOS - 1)

    def restore(name: str) -> None:
        if name in one.network.cut:
            one.restore_link(name)

    def hook(parcel: Parcel) -> list[Parcel]:
        (name,) = {parcel.sender, parcel.receiver} - {SERVER}
        if not left[name] or name in one.network.cut or parcel.packet.kind is Finish or random.random() < 0.85:
            return [parcel]
        left[name] -= 1
        if random.random() < 0.5:
            one.put(parcel)
        one.lose_link(name)
        # All of them together are shorter than a phase.
        one.at(one.now + random.uniform(0, one.configuration.phase_seconds / HELLOS), lambda: restore(name))
        return []

    one.hook = hook
    check_all(one.run())
    assert sum(left.values()) < CLIENTS * (HELLOS - 1)


def test_the_server_says_how_many_messages_it_said_again() -> None:
    """None where the client's own was lost; the model with the keys of the others, which followed in vain."""
    for moment, again in (("from client: advertise-keys", 0), ("to client: chunk", 2)):
        one = broken(federation("active"), {said("active").index(moment): False})
        assert one.outcome(ClientResumed, SERVER) == [ClientResumed(member=CLIENT, messages=again)]


def test_what_waited_in_the_clients_queue_arrives_first_and_is_passed_over() -> None:
    """The message before it was lost with the link; the server knows that the link broke."""
    one = federation("active")
    lost = list[Parcel]()

    def hook(parcel: Parcel) -> list[Parcel]:
        if not own(parcel) or parcel.kind != "share-keys" or lost:
            return [parcel]
        lost.append(parcel)
        one.lose_link(CLIENT)
        one.network.send(altered(parcel, sequence=parcel.packet.envelope.sequence + 1), one.now)
        one.restore_link(CLIENT)
        return []

    one.hook = hook
    before = one.server.ignored
    check_all(one.run())
    assert one.server.ignored > before


@cases("receiver", [SERVER, CLIENT])
@cases(
    "sequence",
    [
        0,  # the first again
        -1,  # the last again
        1,  # one left out
    ],
)
@cases("resumed", [False, True])
def test_within_a_link_the_numbers_are_strict(receiver: str, sequence: int, *, resumed: bool) -> None:
    one, kind, seen = federation("active"), "share-keys" if receiver == SERVER else "peer-shares", list[Parcel]()

    def hook(parcel: Parcel) -> list[Parcel]:
        if not own(parcel) or parcel.kind != kind:
            return [parcel]
        if resumed and not seen:
            seen.append(parcel)
            one.lose_link(CLIENT)
            one.restore_link(CLIENT)
            return []
        due = parcel.packet.envelope.sequence
        assert not resumed or parcel.packet.envelope.link == seen[0].packet.envelope.link + 1
        return [altered(parcel, sequence=due + sequence if sequence else 0)]

    one.hook = hook
    one.run()
    ended = one.ended(CLIENT)
    assert ended is not None
    assert ended.code is Code.SEQUENCE
    refused = [event.code for event in one.outcome(MessageRefused)]
    assert refused == (["SEQUENCE"] if receiver == SERVER else [])


@cases("when", ["before the welcome", "in the round", "between rounds"])
def test_a_link_that_is_away_for_longer_than_the_grace_costs_what_the_grace_says(when: str) -> None:
    """The client is told that it is gone as soon as it is back, says hello, and is in the next round."""
    kind = {"before the welcome": "hello", "in the round": "share-keys", "between rounds": "end-round"}[when]
    one = MemoryFederation(small_configuration(CLIENTS), CLIENTS, rounds=3)
    one.training_seconds = lambda: 2 * GRACE
    gone = list[Parcel]()

    def hook(parcel: Parcel) -> list[Parcel]:
        if not own(parcel) or parcel.kind != kind or gone:
            return [parcel]
        gone.append(parcel)
        one.lose_link(CLIENT)
        one.clients[CLIENT].server_back()
        one.at(one.now + GRACE + 1, lambda: (one.clients[CLIENT].server_lost(one.now), one.restore_link(CLIENT)))
        return []

    one.hook = hook
    one.run()
    rounds = one.outcome(RoundDone)
    assert CLIENT in rounds[-1].survivors
    assert one.ended(CLIENT) == Ended(None, "the federation is finished")
    for done in rounds:
        assert set(one.roster.clients[1:]) <= set(done.survivors)
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
    assert one.outcome(MessageRefused) == []


@cases(("clip", "code"), [(0.5, None), (2.0, Code.POLICY)])
def test_another_configuration_at_the_second_hello_is_judged_like_a_first_one(clip: float, code: Code | None) -> None:
    one, welcomed, other = federation("active"), 0, MemoryFederation(small_configuration(CLIENTS, clip=clip), CLIENTS)
    other.start(CLIENT)
    (proposed,) = [parcel.message for parcel in other.log if parcel.kind == "welcome"]
    assert isinstance(proposed, Welcome)

    def hook(parcel: Parcel) -> list[Parcel]:
        nonlocal welcomed
        if (parcel.receiver, parcel.kind) == (CLIENT, "welcome"):
            welcomed += 1
            if welcomed == 2:
                return [altered(parcel, message=replace(proposed, roster=one.roster.hash))]
        if (parcel.sender, parcel.kind) == (CLIENT, "advertise-keys"):
            one.lose_link(CLIENT)
            one.server.presence.leave(CLIENT)
            one.restore_link(CLIENT)
            return []
        return [parcel]

    one.hook = hook
    one.run()
    accepted = [output.configuration for output in one.outcome(Accepted)]
    ended = one.ended(CLIENT)
    assert ended is not None
    assert accepted.count(other.configuration) == (code is None)
    assert (ended.code is Code.POLICY) == (code is Code.POLICY)


def test_a_server_that_falls_silent_when_its_link_came_back_is_given_one_more_time() -> None:
    one = federation("active")
    one.idle = {CLIENT}
    one.start()
    client = one.clients[CLIENT]
    one.hook = lambda parcel: [] if own(parcel) else [parcel]
    client.deadline = one.now + PATIENCE
    one.lose_link(CLIENT)
    one.restore_link(CLIENT)
    one.settle(until=PATIENCE + 1)
    assert client.state is TrainingState.AWAIT_WELCOME
    one.settle()
    assert one.ended(CLIENT) == Ended(Code.TIMEOUT, "no word from server while it was to await the server's welcome")


@cases("side", ["server", "client"])
def test_what_is_not_kept_any_more_ends_the_conversation_and_nothing_else(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = MemoryFederation(small_configuration(CLIENTS), CLIENTS, rounds=3)
    gone = list[Parcel]()

    def hook(parcel: Parcel) -> list[Parcel]:
        kind = "peer-shares" if side == "server" else "share-keys"
        if not own(parcel) or parcel.kind != kind or gone:
            return [parcel]
        gone.append(parcel)
        link = one.server.presence._links[CLIENT] if side == "server" else one.clients[CLIENT]._link._link
        link._drop_oldest()
        one.lose_link(CLIENT)
        one.restore_link(CLIENT)
        return []

    one.hook = hook
    one.run()
    rounds = one.outcome(RoundDone)
    assert [CLIENT in done.survivors for done in rounds] == [False, True, True]
    assert [(drop.member, drop.code) for drop in rounds[0].dropped] == [(CLIENT, Code.LEFT)]
    assert next((over.round, over.code) for over in one.outcome(RoundOver, CLIENT)) == (1, Code.LEFT)
    assert one.outcome(MessageRefused) == []
    assert one.ended(CLIENT) == Ended(None, "the federation is finished")


def test_a_round_is_over_once_however_often_its_conversation_ends() -> None:
    one = federation("active")
    one.idle = {CLIENT}
    one.start()
    for _ in range(2):
        one.lose_link(CLIENT)
        one.server.presence.leave(CLIENT)
        one.restore_link(CLIENT)
        one.settle(until=one.now)
    assert sum(parcel.kind == "hello" and parcel.sender == CLIENT for parcel in one.log) == 3
    assert [(over.round, over.code) for over in one.outcome(RoundOver, CLIENT)] == [(1, Code.LEFT)]
