"""Who goes on with what was never said, without end, or as somebody else; and who never says that anything has come."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import MOST_KEPT
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import Abort, Resume
from tacit.protocol.core.rate_limit import HELLOS
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

CHEAT, VICTIM, CLIENTS = "client-4", "client-1", 5


def federation(**changes: Any) -> MemoryFederation:
    return MemoryFederation(small_configuration(CLIENTS), CLIENTS, rounds=2, **changes)


def instead(one: MemoryFederation, kind: str, make: Callable[[Parcel], list[Parcel]]) -> None:
    """The cheat says something else than its first message of this kind, or before it."""
    one.say_instead(kind, CHEAT, make)


def check_others(one: MemoryFederation) -> list[RoundDone]:
    rounds = one.outcome(RoundDone)
    assert len(rounds) == 2
    for done in rounds:
        assert set(one.roster.clients) - {CHEAT} <= set(done.survivors)
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
    return rounds


def refused(one: MemoryFederation) -> list[tuple[str, str]]:
    return [(event.member, event.code) for event in one.outcome(MessageRefused)]


LIES: dict[str, tuple[dict[str, Any], Code]] = {
    "more than was said": ({"received": 20}, Code.SEQUENCE),
    "far in the future": ({"received": 2**31}, Code.SEQUENCE),
    "less said than has come": ({"sequence": 1}, Code.SEQUENCE),
    "on the same link": ({"links": 0}, Code.SEQUENCE),
    "as another member": ({"sender": VICTIM}, Code.SENDER),
}


@pytest.mark.threat("client/impossible-resumption")
@cases(("changes", "code"), LIES.values())
def test_what_cannot_be_gone_on_with_bars_who_asks(changes: dict[str, Any], code: Code) -> None:
    one, changes = federation(), dict(changes)
    later = changes.pop("links", 1)

    def ask(said: Parcel) -> list[Parcel]:
        link = said.packet.envelope.link + later
        return [altered(one.forge(CHEAT, SERVER, Resume(), round=0), **{"link": link} | changes)]

    instead(one, "share-keys", ask)
    one.run()
    check_others(one)
    assert refused(one) == [(CHEAT, code.name)]


@pytest.mark.threat("client/impossible-resumption")
@cases("conversation", [True, False])
@cases("session", [bytes(32), bytes(range(32))])
def test_of_another_session_nothing_is_said_again(session: bytes, *, conversation: bool) -> None:
    one, answers = federation(), list[Any]()

    def ask(said: Parcel) -> list[Parcel]:
        if not conversation:
            one.put(one.forge(CHEAT, SERVER, Abort(code=Code.LOCAL, detail="", culprit=CHEAT), round=0))
        asked = one.forge(CHEAT, SERVER, Resume(), round=0, session=session, link=7, received=3, sequence=2)
        answers.extend(output for output in one.server.feed(CHEAT, asked.frames, one.now))
        return [said] if conversation else []

    instead(one, "share-keys", ask)
    one.run()
    rounds = check_others(one)
    (told,) = answers
    packet = Parcel(SERVER, CHEAT, tuple(told.frames)).packet
    envelope = packet.envelope
    assert packet.parse().code is Code.LEFT  # type: ignore[attr-defined]
    assert (envelope.session, envelope.link, envelope.sequence) == (session, 7, 3)
    assert refused(one) == []
    assert (CHEAT in rounds[0].survivors) is conversation


@pytest.mark.threat("client/endless-resumptions")
def test_five_hundred_resumptions_are_answered_a_few_times() -> None:
    one = federation()
    # The model has come, as far as the server knows of nothing else.
    one.hook = lambda parcel: [] if (parcel.sender, parcel.kind) == (CHEAT, "share-keys") else [parcel]
    one.training_seconds = lambda: 5.0
    one.start()
    sent, links = list[int](), count(2**16)
    client = one.clients[CHEAT]

    def ask() -> None:
        asked = one.forge(CHEAT, SERVER, Resume(), round=0, link=next(links), received=2, sequence=20)
        outputs = one.server.feed(CHEAT, asked.frames, one.now)
        sent.append(sum(len(frame) for output in outputs for frame in getattr(output, "frames", ())))

    # The model is said again and again: it never says that it has come.
    one.hook = lambda parcel: [] if CHEAT in (parcel.sender, parcel.receiver) else [parcel]
    for number in range(500):
        one.at(one.now + number * 3.0 / 500, ask)
    one.settle(until=one.now + 3.0)
    answered = [size for size in sent if size]
    assert len(answered) <= HELLOS
    assert client.round == 1
    assert len(one.server.presence._links[CHEAT]._kept) <= MOST_KEPT
    one.settle()
    check_others_in_first(one)


def check_others_in_first(one: MemoryFederation) -> None:
    done, *_ = one.outcome(RoundDone)
    assert set(one.roster.clients) - {CHEAT} <= set(done.survivors)
    np.testing.assert_array_equal(done.total, one.plain_sum(done))


@pytest.mark.threat("client/replayed-connection")
def test_what_was_said_on_a_former_link_has_no_effect_a_second_time() -> None:
    one, former = federation(), list[Parcel]()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender != CHEAT or parcel.packet.kind is Hello:
            return [parcel]
        if parcel.kind == "masked-input" and not parcel.packet.envelope.link:
            one.lose_link(CHEAT)
            one.restore_link(CHEAT)
            return []
        if parcel.packet.envelope.link:
            return [parcel, *former]
        former.append(parcel)
        return [parcel]

    one.hook = hook
    one.run()
    rounds = check_others(one)
    assert all(done.survivors == one.roster.clients for done in rounds)
    assert refused(one) == []
    assert one.server.ignored >= 3 * len(former)


@pytest.mark.threat("client/nothing-received")
def test_a_hundred_clients_that_never_say_what_has_come_make_the_server_keep_one_model() -> None:
    clients, parameters = 100, 20_000
    one = MemoryFederation(small_configuration(clients, mode="none", parameters=parameters), clients, rounds=2)

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender == SERVER or parcel.packet.kind is Hello:
            return [parcel]
        return [altered(parcel, received=0)]

    one.hook, one.paused = hook, True
    one.start()
    owned, shared = 0, set[int]()
    for link in one.server.presence._links.values():
        assert len(link._kept) <= MOST_KEPT
        frames: list[Frame] = [frame for said in link._kept for frame in said.rest]
        shared |= {id(frame.obj) for frame in frames if isinstance(frame, memoryview)}
        owned += sum(len(frame) for frame in frames if not isinstance(frame, memoryview))
    assert len(one.server.presence.members) == clients
    assert len(shared) == 1
    assert owned < clients * 2_000
    # They cannot know of the second round, whose model would be one more to keep.
    one.paused = False
    one.settle()
    assert {code for _, code in refused(one)} == {"SEQUENCE"}
    assert len(refused(one)) == clients


@pytest.mark.threat("server/impossible-resumption")
@cases(
    "changes",
    [{"received": 9}, {"received": 2**31}, {"sequence": 0}, {"link": 2}, {"session": bytes(range(32))}],
)
def test_a_server_that_goes_on_with_what_was_never_said_loses_the_client(changes: dict[str, Any]) -> None:
    one = federation()

    def lose(said: Parcel) -> list[Parcel]:
        one.lose_link(VICTIM)
        one.restore_link(VICTIM)
        return []

    one.say_instead("share-keys", VICTIM, lose)
    hook = one.hook

    def lie(parcel: Parcel) -> list[Parcel]:
        answer = (parcel.receiver, parcel.kind) == (VICTIM, "resume")
        return [altered(parcel, **changes)] if answer else list(hook(parcel))

    one.hook = lie
    one.run()
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is (Code.SESSION if "session" in changes else Code.SEQUENCE)
    said = [parcel.kind for parcel in one.log if parcel.sender == VICTIM and parcel.packet.envelope.round]
    assert said[-1] in ("fetch", "share-keys")
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
