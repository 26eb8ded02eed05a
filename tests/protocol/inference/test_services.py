"""Several data owners at once: what is said in one session, or goes wrong in it, has no effect on the others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.machine import Machine
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    DealerHello,
    DealingOver,
    InferenceHello,
    OrderRandomness,
)
from tacit.protocol.inference.results import InferenceEnded, MaskedLayer, MaterialArrived, Opened
from tacit.protocol.inference.service import Service
from tacit.protocol.sum.states import VERSION
from tacit.simulate.world.inference import DEALER, MODEL_OWNER, MemoryInference, data_owner_names
from tacit.simulate.world.world import Link, Parcel, altered
from tests.cases import cases

NAMES = data_owner_names(3)
FIRST, SECOND, THIRD = NAMES
REGULAR = [InferenceEnded(None, "the session is closed")]


def world(**given: Any) -> MemoryInference:
    return MemoryInference(
        {name: InferenceRequest(images=images, batch=2, channels=1, side=4) for images, name in enumerate(NAMES, 1)},
        **given,
    )


def told_to(run: MemoryInference, party: str, data_owner: str) -> list[tuple[type, int, bytes]]:
    """The bytes that a party was told in a session, in their order on each of its links."""
    return [
        (type(output), output.__dict__.get("step", output.__dict__.get("layer", -1)), bytes(output.data))
        for kind in (MaskedLayer, MaterialArrived, Opened)
        for output in run.outcome(kind, party, data_owner)
    ]


ALONE = {
    (party, name): told_to(run, party, name)
    for run in [world().run()]
    for name in NAMES
    for party in (MODEL_OWNER, name)
}


def check(run: MemoryInference, *names: str) -> None:
    """The sessions with these came to their regular end, with what they tell when nothing is amiss."""
    for name in names:
        for party in (MODEL_OWNER, name):
            assert told_to(run, party, name) == ALONE[party, name]
            ended = run.ended(party, "owners", name)
            assert ended is not None
            assert ended.code is None
        assert run.dealers.sessions[name].state.name == "CLOSED"
    for _, machine in run.living():
        assert machine.deadline is None


@settings(max_examples=10, deadline=None)
@given(choices=st.data())
def test_any_interleaving_of_the_links_leads_to_the_same(choices: st.DataObject) -> None:
    run = world()
    run.network.choose = lambda links: choices.draw(st.sampled_from(sorted(links)))
    run.run()
    assert run.now == 0
    check(run, *NAMES)


def turns() -> Callable[[list[Link]], Link]:
    """Links speak in turn, so that sessions are under way at the same time."""
    taken: dict[Link, int] = {}

    def choose(links: list[Link]) -> Link:
        link = min(links, key=lambda link: taken.get(link, 0))
        taken[link] = taken.get(link, 0) + 1
        return link

    return choose


@cases(
    ("kind", "at"),
    [("inference-hello", 0), ("agree-terms", 0), ("start-pass", 0), ("opening", 3), ("close-inference", 0),
     ("dealer-hello", 0), ("order-randomness", 1)],
)  # fmt: skip
@cases("fault", ["unreadable", "another sender", "gone"])
def test_a_fault_in_one_session_leaves_the_others_alone(kind: str, at: int, fault: str) -> None:
    run = world()
    run.network.choose = turns()

    def spoil(parcel: Parcel) -> list[Parcel]:
        if fault == "gone":
            run.kill(SECOND)
            return []
        frames = (b"\xc1", *parcel.frames[1:])
        return [replace(parcel, frames=frames) if fault == "unreadable" else altered(parcel, sender=THIRD)]

    run.say_instead(kind, SECOND, spoil, at=at)
    run.run()
    check(run, FIRST, THIRD)
    told = [
        told.output
        for told in run.told
        if isinstance(told.output, InferenceEnded) and told.data_owner == SECOND and told.output.code
    ]
    code = {"unreadable": Code.MALFORMED, "another sender": Code.SENDER, "gone": Code.LEFT}[fault]
    # The dealer's answer to what names no session is of none; its sender's patience ends it, and the peer's.
    expected = {code, Code.TIMEOUT} if (kind, fault) == ("dealer-hello", "unreadable") else {code}
    assert {ended.code for ended in told} <= expected
    assert told or (fault, kind) == ("gone", "inference-hello")


def test_what_cannot_be_read_from_the_model_owner_ends_all_its_sessions_with_the_dealer() -> None:
    run = world()
    run.network.choose = turns()
    run.say_instead("order-randomness", MODEL_OWNER, lambda parcel: [replace(parcel, frames=(b"", b""))], at=4)
    run.run()
    for name in NAMES:
        ended = run.ended(DEALER, "dealer", name)
        assert ended is not None
        assert (ended.code, ended.culprit) == (Code.MALFORMED, MODEL_OWNER)
    for _, machine in run.living():
        assert machine.state.name == "ABORTED"


TRANSCRIPT = len(world().run().log)


@cases("delivered", range(4, TRANSCRIPT, 5))
def test_a_data_owner_that_begins_anew(delivered: int) -> None:
    run = world()
    run.network.choose = turns()
    run.start()
    run.advance(lambda: len(run.log) >= delivered)
    before = {id(run.served[name].machine): name for name in run.served}
    run.told = [told for told in run.told if told.data_owner != SECOND]
    run.start(SECOND)
    run.settle()
    ended: list[Machine[Any]] = [run.served[SECOND].machine, run.owners[SECOND].machine]
    assert [machine.state.name for machine in ended] == ["CLOSED", "CLOSED"]
    assert id(ended[0]) not in before
    check(run, FIRST, THIRD)
    # Whatever was under way from the former session has gone to nobody; the new one is complete.
    assert told_to(run, SECOND, SECOND)[-len(ALONE[SECOND, SECOND]) :] == ALONE[SECOND, SECOND]


def test_who_begins_anew_ends_its_former_session() -> None:
    run = world()
    run.start(SECOND)
    run.idle.add(SECOND)
    run.advance()
    former, dealer = run.served[SECOND], run.dealers.sessions[SECOND]
    run.start(SECOND)
    run.idle.clear()
    run.settle()
    assert former.machine.state.name == dealer.state.name == "ABORTED"
    assert former.material is not None
    assert former.material.state.name == "ABORTED"
    assert InferenceEnded(Code.LEFT, "it has said hello again", SECOND) in run.outcome(InferenceEnded, MODEL_OWNER)
    # The dealer hears of it from either owner.
    assert [ended.culprit for ended in run.outcome(InferenceEnded, DEALER)] == [SECOND, ""]
    assert run.ended(SECOND, "owners", SECOND) == InferenceEnded(None, "the session is closed")

    run = world()
    run.start(SECOND)
    run.idle.add(SECOND)
    run.advance()
    former = run.dealers.sessions[SECOND]
    hello = DealerHello(roster=run.roster.hash, peer=MODEL_OWNER, terms=bytes(32), contribution=bytes(32))
    run.put(run.forge(SECOND, DEALER, hello, session=b"\1" * 32))
    assert former.state.name == "ABORTED"
    assert InferenceEnded(Code.SESSION, "another session has begun", SECOND) in run.outcome(InferenceEnded, DEALER)
    new = run.dealers.sessions[SECOND]
    # What is still under way of the former session, even its hello, belongs to nobody.
    run.put(run.forge(MODEL_OWNER, DEALER, DealingOver(), session=former.session))
    assert run.dealers.sessions[SECOND] is new
    assert new.state.name == "AWAIT_OWNERS"

    # The model owner names the next session before the end of the former link shows.
    run = world()
    hello = DealerHello(roster=run.roster.hash, peer=SECOND, terms=bytes(32), contribution=bytes(32))
    run.put(run.forge(MODEL_OWNER, DEALER, hello, session=b"\1" * 32))
    session = run.dealers.sessions[SECOND]
    assert list(run.dealers.drop(SECOND, "the link is lost", 0.0)) == []
    assert session.state.name == "AWAIT_OWNERS"
    ((dropped, outputs),) = run.dealers.drop(MODEL_OWNER, "the link is lost", 0.0)
    assert dropped is session
    assert InferenceEnded(Code.LEFT, "the link is lost", MODEL_OWNER) in outputs


def test_a_service_has_a_deadline_while_a_session_of_it_waits() -> None:
    for name in ("service", "dealers"):
        run = world()
        service: Service[Any] = getattr(run, name)
        assert service.next_deadline is None
        run.start(SECOND)
        assert run.advance(lambda: service.next_deadline is not None)  # noqa: B023
        due = service.next_deadline
        assert due is not None
        assert [outputs for _, outputs in service.expire(due - 1.0)] == [[]]
        assert InferenceEnded in [type(output) for _, outputs in service.expire(due) for output in outputs]
        assert service.next_deadline is None


def test_strangers_and_messages_without_a_session_change_nothing() -> None:
    # Only clients are data owners; only the two owners of a session have a say in it.
    run = world()
    hello = InferenceHello(roster=run.roster.hash)
    answers = list(run.service.feed(DEALER, run.forge(DEALER, MODEL_OWNER, hello, session=bytes(32)).frames, 0.0))
    ((_, (_, ended)),) = answers
    assert (ended.code, ended.culprit) == (Code.MEMBERS, DEALER)
    run = world()
    run.start(FIRST)
    run.idle.add(FIRST)
    run.advance()
    session = run.dealers.sessions[FIRST]
    order = run.forge(MODEL_OWNER, DEALER, OrderRandomness(first=6, count=1, requests=b"")).frames
    for stranger in ("dealer-2", SECOND):
        assert list(run.dealers.feed(stranger, order, 0.0)) == []
        assert all(told is not session for told, _ in run.dealers.feed(stranger, (b"", b""), 0.0))
        assert list(run.dealers.drop(stranger, "gone", 0.0)) == []
    assert session.state.name == "SERVING"
    ((machine, outputs),) = run.dealers.feed(MODEL_OWNER, order, 0.0)
    assert (machine, outputs) == (session, [])

    run = world()
    run.start(FIRST)
    run.idle.add(FIRST)
    run.advance()
    over, hello = DealingOver(), InferenceHello(roster=run.roster.hash)
    assert list(run.service.feed(SECOND, run.forge(SECOND, MODEL_OWNER, over).frames, 0.0)) == []
    assert list(run.service.drop(SECOND, "gone", 0.0)) == []
    for sender in (MODEL_OWNER, FIRST, SECOND):
        unknown = run.forge(sender, DEALER, over, session=b"\2" * 32)
        assert list(run.dealers.feed(sender, unknown.frames, 0.0)) == []
    for peer in (DEALER, "nobody", ""):
        strange = DealerHello(roster=run.roster.hash, peer=peer, terms=bytes(32), contribution=bytes(32))
        parcel = run.forge(MODEL_OWNER, DEALER, strange, session=b"\2" * 32)
        assert list(run.dealers.feed(MODEL_OWNER, parcel.frames, 0.0)) == []
        unreadable = (parcel.frames[0], b"\xc1")
        assert list(run.dealers.feed(MODEL_OWNER, unreadable, 0.0)) == []
    assert list(run.dealers.sessions) == [FIRST]
    assert hello.roster == run.roster.hash


@cases("sender", [MODEL_OWNER, FIRST])
def test_the_dealer_tells_an_owner_of_another_version_which_is_its_own(sender: str) -> None:
    """Nobody's session is concerned, and who has none is told; strangers are not."""
    run = world()
    frames = run.forge(sender, DEALER, DealingOver(), session=b"\2" * 32, version=VERSION).frames
    ((machine, (said, ended)),) = run.dealers.feed(sender, frames, 0.0)
    assert (ended.code, ended.culprit) == (Code.VERSION, sender)
    packet = decode(said.frames, INFERENCE_MESSAGES)
    assert (said.to, packet.envelope.session, packet.envelope.sequence) == (sender, NO_SESSION, 0)
    assert machine not in run.dealers.sessions.values()
    assert list(run.dealers.feed("dealer-2", frames, 0.0)) == []
