"""A member has a few hellos, and gets them back: beyond them its hello waits for an answer, and nobody is barred."""

import numpy as np
import pytest

from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Ended, Transmit
from tacit.protocol.core.messages import Message, Resume
from tacit.protocol.core.rate_limit import HELLO_SECONDS, HELLOS
from tacit.protocol.session.messages import MESSAGES, Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.states import SessionState, TrainingState
from tacit.simulate.world.federation import GRACE, JOIN_SECONDS, SERVER, MemoryFederation, small_configuration
from tests.cases import cases

CLIENT = "client-0"


def federation(clients: int = 4, **changes: object) -> MemoryFederation:
    return MemoryFederation(small_configuration(clients, **changes), clients, rounds=2)


def welcomes(one: MemoryFederation) -> int:
    return sum((parcel.receiver, parcel.kind) == (CLIENT, "welcome") for parcel in one.log)


def greet(one: MemoryFederation, times: int) -> None:
    """The client is started so often, one time after the other."""
    for _ in range(times):
        one.start_client(CLIENT)
        one.advance()


@cases("after", [0.0, 3.0])
@cases("hellos", range(1, HELLOS + 4))
def test_a_few_hellos_are_answered_at_once_and_then_one_from_time_to_time(hellos: int, after: float) -> None:
    one = federation()
    one.settle(until=after)
    greet(one, hellos)
    assert welcomes(one) == min(hellos, HELLOS)
    waits = hellos > HELLOS
    assert (CLIENT in one.server.presence) is not waits
    assert one.clients[CLIENT].state is (TrainingState.AWAIT_WELCOME if waits else TrainingState.AWAIT_ROUND)
    assert one.server.next_deadline == min(JOIN_SECONDS, after + HELLO_SECONDS if waits else JOIN_SECONDS)
    # Of those that waited, one is answered.
    one.settle(until=after + HELLO_SECONDS + 1)
    assert welcomes(one) == min(hellos, HELLOS + 1)
    assert CLIENT in one.server.presence
    assert one.clients[CLIENT].state is TrainingState.AWAIT_ROUND
    assert one.server.presence.barred == set()


@cases("back", range(HELLOS + 2))
def test_hellos_come_back_up_to_so_many(back: int) -> None:
    one = federation()
    one.start(*one.roster.clients[1:])
    greet(one, HELLOS)
    one.idle = set(one.roster.clients)
    one.settle(until=back * HELLO_SECONDS + 1)
    before = welcomes(one)
    greet(one, HELLOS + 3)
    assert welcomes(one) - before == min(back, HELLOS)


def test_who_waits_is_in_no_round_and_in_the_next_when_it_has_its_answer() -> None:
    one = federation()
    one.training_seconds = lambda: 2.0 * HELLO_SECONDS
    one.start(*one.roster.clients[1:])
    greet(one, HELLOS + 1)
    assert one.server.state is SessionState.IN_ROUND
    one.settle()
    first, second = one.outcome(RoundDone)
    assert first.survivors == one.roster.clients[1:]
    assert second.survivors == one.roster.clients
    for done in (first, second):
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
    assert one.ended(CLIENT) == one.ended("client-1") == Ended(None, "the federation is finished")
    assert one.outcome(MessageRefused) == []


def test_who_says_hello_again_is_no_longer_missed() -> None:
    one = federation()
    one.start(*one.roster.clients[:3])
    one.server.link_lost(CLIENT, one.now)
    one.settle(until=GRACE / 2)
    greet(one, 1)
    one.settle(until=2 * GRACE)
    assert CLIENT in one.server.presence
    assert one.server.next_deadline == JOIN_SECONDS


def test_a_gathering_that_waits_for_it_goes_on_with_its_answer() -> None:
    one = federation()
    greet(one, HELLOS + 1)
    one.start(*one.roster.clients[1:])
    assert one.server.state is SessionState.GATHERING
    one.settle(until=HELLO_SECONDS + 1)
    assert one.outcome(RoundDone)[0].cohort == one.roster.clients


@cases("state", ["ended", "barred"])
def test_who_is_out_for_good_waits_for_nothing(state: str) -> None:
    one = federation()
    one.rounds_left = 1
    one.start(*one.roster.clients[1:])
    greet(one, HELLOS + 1)
    if state == "barred":
        one.network.forget(lambda link: True)
        one.put(one.forge(CLIENT, SERVER, one.log[0].message, round=0, session=bytes(32), sequence=7))
        assert one.server.presence.barred == {CLIENT}
    else:
        one.settle(until=HELLO_SECONDS / 2)
        assert (one.server.state, one.server.next_deadline) == (SessionState.ENDED, None)
    assert one.server.presence.answers.waited(1e9) == []
    before = welcomes(one)
    one.settle(until=one.now + 2 * HELLO_SECONDS)
    assert welcomes(one) == before


def test_the_answer_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = federation()
    monkeypatch.setattr("tacit.protocol.session.server_session.encode_structure", None)
    one.run()
    assert [done.code for done in one.outcome(RoundDone)] == [None, None]


def test_a_hello_with_another_roster_waits_for_its_turn_too() -> None:
    one = federation()
    greet(one, HELLOS + 1)
    hello = one.log[0].message
    one.put(one.forge(CLIENT, SERVER, type(hello)(roster=bytes(32)), round=0, session=bytes(32), sequence=0))
    assert one.outcome(MessageRefused) == []
    one.settle(until=one.now + HELLO_SECONDS + 1)
    (refused,) = one.outcome(MessageRefused)
    assert refused.code == Code.ROSTER.name
    assert CLIENT not in one.server.presence.barred


def test_a_refused_hello_is_answered_in_a_new_conversation() -> None:
    one = federation()
    greet(one, 1)
    number = one.log[0].packet.envelope.link + 5
    bad = {"session": bytes(32), "link": number, "sequence": 1}
    hello = one.forge(CLIENT, SERVER, one.log[0].message, round=0, **bad)
    (abort,) = [out for out in one.server.feed(CLIENT, hello.frames, one.now) if isinstance(out, Transmit)]
    envelope = decode(abort.frames, MESSAGES).envelope
    assert (envelope.type, envelope.link, envelope.sequence) == ("abort", number, 0)


@cases("kind", [Hello, Resume])
def test_a_hello_or_resume_that_names_a_round_is_refused(kind: type[Message]) -> None:
    one = federation()
    one.start()
    message = Hello(roster=one.roster.hash) if kind is Hello else Resume()
    number = one.log[0].packet.envelope.link + 5
    (refused,) = [
        output
        for output in one.put(one.forge(CLIENT, SERVER, message, round=1, link=number))
        if isinstance(output, MessageRefused)
    ]
    assert (refused.code, one.server.presence.barred) == ("SESSION", {CLIENT})


def test_a_resume_is_answered_at_once_when_an_answer_is_due() -> None:
    one = federation()
    one.start(*one.roster.clients[1:])
    greet(one, HELLOS)
    one.idle = set(one.roster.clients)
    one.settle(until=HELLO_SECONDS)
    before = sum(parcel.kind == "resume" for parcel in one.log)
    one.lose_link(CLIENT)
    one.restore_link(CLIENT)
    one.advance()
    assert sum(parcel.kind == "resume" for parcel in one.log) == before + 2
