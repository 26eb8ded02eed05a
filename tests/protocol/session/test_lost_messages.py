"""A message that is lost with a broken link: nobody's offence, and its owner is in the next round."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Report
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.outputs import Ended
from tacit.protocol.session.messages import Hello, Welcome
from tacit.protocol.session.rounds import RoundDone, RoundOver
from tacit.protocol.session.tables import TrainingState
from tacit.simulate.world.federation import PATIENCE, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.network import Parcel, altered

CLIENT = "client-0"
CLIENTS = 5
ROUNDS = 4


def federation(**changes: Any) -> MemoryFederation:
    return MemoryFederation(small_configuration(CLIENTS, **changes), CLIENTS, rounds=ROUNDS)


def flap(one: MemoryFederation, *ends: str) -> None:
    """The link between server and client breaks and comes back at once; these ends notice."""
    if SERVER in ends:
        one.server.link_lost(CLIENT, one.now)
        one.server.link_back(CLIENT)
    if CLIENT in ends and CLIENT in one.clients:
        one.clients[CLIENT].server_lost(one.now)
        one.clients[CLIENT].server_back()


def lose(one: MemoryFederation, meant: Callable[[int, Parcel], bool], *ends: str) -> list[Parcel]:
    """Lose a message of the client's link when it breaks; returns what was lost."""
    count, lost = 0, list[Parcel]()

    def hook(parcel: Parcel) -> list[Parcel]:
        nonlocal count
        if CLIENT not in (parcel.sender, parcel.receiver):
            return [parcel]
        count += 1
        if lost or not meant(count - 1, parcel):
            return [parcel]
        lost.append(parcel)
        flap(one, *ends)
        return []

    one.hook = hook
    return lost


def check_others(one: MemoryFederation) -> list[RoundDone]:
    """All rounds have exact sums with everybody else in them, and nobody was refused."""
    rounds = one.outcome(RoundDone)
    for done in rounds:
        assert set(one.roster.clients[1:]) <= set(done.survivors)
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
    assert [report for report in one.outcome(Report) if report.event == "refused"] == []
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    return rounds


FIRST = [
    *("hello", "welcome", "start-round", "advertise-keys", "fetch", "chunk", "peer-keys", "share-keys", "peer-shares"),
    *("masked-input", "survivors", "confirm-survivors", "unmask-request", "unmask-shares", "end-round"),
]
"""What is said over the link of a client up to the end of its first round."""


@pytest.mark.parametrize("number", range(len(FIRST)), ids=FIRST)
def test_every_message_of_a_round_may_be_lost_with_its_link(number: int) -> None:
    one = federation()
    lost = lose(one, lambda count, parcel: count == number, SERVER, CLIENT)
    one.run()
    rounds = check_others(one)
    kind = lost[0].kind
    assert kind == FIRST[number]
    ended = one.ended(CLIENT)
    assert ended is not None
    # The server never knew of a conversation whose hello is lost, and is gone when the client loses its patience.
    assert ended.code is (Code.TIMEOUT if kind == "hello" else None)
    assert (CLIENT in rounds[-1].survivors) is (kind != "hello")


@pytest.mark.parametrize("direction", ["to the server", "to the client"])
@pytest.mark.parametrize("noticed", ["by the receiver", "by the sender", "by nobody"])
def test_a_gap_is_a_loss_where_the_receiver_knows_that_its_link_broke(noticed: str, direction: str) -> None:
    receiver = SERVER if direction == "to the server" else CLIENT
    ends = {"by nobody": set[str](), "by the receiver": {receiver}, "by the sender": {SERVER, CLIENT} - {receiver}}
    kind = "advertise-keys" if receiver == SERVER else "peer-keys"
    one = federation()
    lose(one, lambda count, parcel: parcel.kind == kind, *ends[noticed])
    # Something follows at once.
    hook = one.hook
    one.hook = lambda parcel: hook(parcel) or ([altered_next(parcel)] if parcel.kind == kind else [])
    one.run()
    barred = [report.fields["code"] for report in one.outcome(Report) if report.event == "refused"]
    ended = one.ended(CLIENT)
    assert ended is not None
    if noticed == "by the receiver":
        rounds = check_others(one)
        assert (CLIENT in rounds[0].survivors, CLIENT in rounds[-1].survivors) == (False, True)
        assert ended.code is None
    else:
        assert barred == (["SEQUENCE"] if receiver == SERVER else [])
        assert ended.code is Code.SEQUENCE


def altered_next(parcel: Parcel) -> Parcel:
    """The message that would have followed."""
    return altered(parcel, sequence=parcel.packet.envelope.sequence + 1)


@pytest.mark.parametrize("sequence", [0, -1], ids=["the first again", "the last again"])
def test_what_is_replayed_stays_an_offence_after_a_lost_link(sequence: int) -> None:
    one = federation()

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.kind) != (CLIENT, "share-keys"):
            return [parcel]
        flap(one, SERVER, CLIENT)
        due = parcel.packet.envelope.sequence
        return [altered(parcel, sequence=sequence % due)]

    one.hook = hook
    one.run()
    assert [report.fields["code"] for report in one.outcome(Report) if report.event == "refused"] == ["SEQUENCE"]
    assert all(CLIENT not in done.survivors for done in one.outcome(RoundDone))


def test_the_member_is_told_that_it_is_out_and_its_round_ends_without_a_reproach() -> None:
    one = federation()
    lose(one, lambda count, parcel: parcel.kind == "advertise-keys", SERVER)
    hook = one.hook
    one.hook = lambda parcel: hook(parcel) or [altered_next(parcel)]
    one.run()
    told = [parcel for parcel in one.log if parcel.receiver == CLIENT and parcel.kind == "abort"]
    assert [(abort.packet.envelope.round, abort.message) for abort in told] == [
        (0, Abort(code=Code.LEFT, detail=DETAIL, culprit=CLIENT))
    ]
    assert [parcel.kind for parcel in one.log if parcel.sender == CLIENT].count("abort") == 0
    over = one.outcome(RoundOver, CLIENT)
    assert [(each.round, each.code) for each in over] == [(1, Code.LEFT), *((n, None) for n in range(2, ROUNDS + 1))]
    left = [report.fields for report in one.outcome(Report) if report.event == "left"]
    assert left == [{"member": CLIENT, "detail": DETAIL}]
    done, *_ = check_others(one)
    assert [(drop.member, drop.code) for drop in done.dropped] == [(CLIENT, Code.LEFT)]


DETAIL = "message 1 came where message 0 was due: what was under way when the link broke is lost"


def test_what_the_server_said_before_it_heard_the_second_hello_is_passed_over() -> None:
    """The client notices a gap; the abort that the server has under way is of the conversation before."""
    one = federation()
    lose(one, lambda count, parcel: parcel.kind == "chunk", CLIENT)
    hook = one.hook

    def late(parcel: Parcel) -> list[Parcel]:
        if said := hook(parcel):
            return said
        following = altered_next(parcel)
        return [following, altered_next(following), altered_next(altered_next(following))]

    one.hook = late
    one.run()
    rounds = check_others(one)
    assert one.ended(CLIENT) == Ended(None, "the federation is finished")
    assert CLIENT in rounds[-1].survivors
    assert [parcel.packet.kind for parcel in one.log if parcel.sender == CLIENT].count(Hello) == 2


def test_another_configuration_at_the_second_hello_ends_the_client() -> None:
    one = federation()
    lose(one, lambda count, parcel: parcel.kind == "advertise-keys", SERVER)
    hook, welcomed = one.hook, 0
    other = MemoryFederation(small_configuration(CLIENTS, clip=0.5), CLIENTS)

    def bend(parcel: Parcel) -> list[Parcel]:
        nonlocal welcomed
        if (parcel.receiver, parcel.kind) == (CLIENT, "welcome"):
            welcomed += 1
            if welcomed == 2:
                encoded = welcome_of(other)
                return [altered(parcel, message=Welcome(roster=one.roster.hash, configuration=encoded))]
        return hook(parcel) or [altered_next(parcel)]

    one.hook = bend
    one.run()
    ended = one.ended(CLIENT)
    assert ended is not None
    assert (ended.code, "something else than before" in ended.detail) == (Code.POLICY, True)
    check_others(one)


def welcome_of(federation: MemoryFederation) -> bytes:
    federation.start(CLIENT)
    (said,) = [parcel.message for parcel in federation.log if parcel.kind == "welcome"]
    assert isinstance(said, Welcome)
    return said.configuration


def test_a_key_group_goes_on_without_who_lost_a_message_and_takes_it_back() -> None:
    one = federation(group_key=True)
    lose(one, lambda count, parcel: parcel.kind == "peer-key-contributions", SERVER, CLIENT)
    one.run()
    rounds = check_others(one)
    assert CLIENT not in rounds[0].survivors
    assert CLIENT in rounds[-1].survivors


def test_a_server_that_falls_silent_when_its_link_came_back_is_given_one_more_time() -> None:
    one = federation()
    lost = lose(one, lambda count, parcel: parcel.kind == "chunk", CLIENT)
    lossy = one.hook
    one.hook = lambda parcel: [] if parcel.sender == SERVER and parcel.receiver == CLIENT and lost else lossy(parcel)
    one.start()
    client, until = one.clients[CLIENT], 2 * one.configuration.phase_seconds
    assert (client.state, client.next_deadline) == (TrainingState.FETCHING_MODEL, until)
    # Its sum ends with its deadline, and it waits for another round.
    one.settle(until=until + 1)
    until += PATIENCE
    assert (client.state, client.next_deadline) == (TrainingState.AWAIT_ROUND, until)
    one.settle(until=until + 1)
    assert (client.state, client.next_deadline) == (TrainingState.AWAIT_WELCOME, until + PATIENCE)
    one.settle()
    assert one.ended(CLIENT) == Ended(Code.TIMEOUT, "no word from server while it was to await the server's welcome")
