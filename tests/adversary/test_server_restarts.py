"""A server that begins again: in the middle of a round, with a model it has had, or without the client it is after."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.session.messages import EndRound, Promise, StartRound, VoidedRound, Welcome
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train
from tacit.protocol.session.voiding import promise
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskedInput,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.protocol.sum.results import Contribution
from tacit.simulate.world.federation import SERVER
from tacit.simulate.world.network import Parcel, altered

VICTIM = "client-0"
Deceived = Callable[..., Any]
ROUND = (
    StartRound,
    Fetch,
    Chunk,
    AdvertiseKeys,
    PeerKeys,
    ShareKeys,
    PeerShares,
    MaskedInput,
    Survivors,
    ConfirmSurvivors,
    UnmaskRequest,
    UnmaskShares,
    EndRound,
)
"""What is said in a round of the active mode, in its order."""


def sent(one: Any, kind: type[Message], name: str) -> int:
    return sum(parcel.sender == name and parcel.packet.kind is kind for parcel in one.log)


def check_nobody_opened_twice(one: Any) -> None:
    """No client sent shares that open a sum of its updates of one model in two rounds."""
    for name, journal in one.journals.items():
        opened = [entry.model for entry in journal if entry.unmasked]
        assert len(opened) == len(set(opened)), name


def last_said(one: Any, kind: type[Message] | None = None) -> Parcel:
    """The last message, or the last of that kind, that reached the victim."""
    return next(p for p in reversed(one.log) if p.receiver == VICTIM and kind in (None, p.packet.kind))


def the_round_again(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, StartRound).message)


def the_next_round(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, StartRound).message, round=2)


def the_session_again(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, Welcome).message, round=0)


def the_last_message_again(one: Any, parcel: Parcel) -> Parcel:
    return last_said(one)


def the_keys_again(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, PeerKeys).message)


RESTARTS: dict[Callable[[Any, Parcel], Parcel], Code] = {
    the_round_again: Code.SESSION,
    the_next_round: Code.UNEXPECTED,
    the_session_again: Code.UNEXPECTED,
    the_last_message_again: Code.SEQUENCE,
    the_keys_again: Code.UNEXPECTED,
}
MOMENTS = (Chunk, PeerKeys, PeerShares, Survivors, UnmaskRequest, EndRound)
"""What the server says next where it begins again instead, in every phase of a round."""


@pytest.mark.threat("server/restarts-midway")
@pytest.mark.parametrize(
    ("moment", "restart"),
    [
        (moment, restart)
        for restart in RESTARTS
        for moment in MOMENTS
        if restart is not the_keys_again or moment not in (Chunk, PeerKeys)
    ],
)
def test_nothing_is_begun_again_in_a_session(
    deceived: Deceived, moment: type[Message], restart: Callable[[Any, Parcel], Parcel]
) -> None:
    one = deceived()
    told: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver != VICTIM or (not told and parcel.packet.kind is not moment):
            return [parcel]
        told.append(parcel)
        return [restart(one, parcel)] if len(told) == 1 else []

    one.hook = hook
    one.paused = moment is not EndRound
    one.start()
    one.settle(until=1000.0)
    aborts = [parcel.message.code for parcel in one.log if parcel.sender == VICTIM and parcel.packet.kind is Abort]
    if moment is EndRound and restart is the_keys_again:
        assert (aborts, one.clients[VICTIM].ignored) == ([], 1)
    elif moment is EndRound and restart is the_next_round:
        assert aborts == [Code.REPEATED_MODEL]
    else:
        assert aborts == [RESTARTS[restart]]
    assert sent(one, AdvertiseKeys, VICTIM) == (moment is not Chunk)
    assert sent(one, MaskedInput, VICTIM) == (moment in (Survivors, UnmaskRequest, EndRound))
    assert sent(one, UnmaskShares, VICTIM) == (moment is EndRound)
    (done,) = one.outcome(RoundDone)
    if done.total is not None:
        assert (done.total == one.plain_sum(done)).all()
    if moment is EndRound:
        one.model = bytes(len(one.model))
        one.restart()
    one.check_honest_round()
    check_nobody_opened_twice(one)


@pytest.mark.threat("server/restarts-midway")
@pytest.mark.threat("server/subtraction")
@pytest.mark.parametrize(
    ("mode", "moment"),
    [("active", moment) for moment in ROUND]
    + [("semi-honest", moment) for moment in ROUND if moment not in (Survivors, ConfirmSurvivors)],
)
def test_a_server_that_restarts_without_one_client(deceived: Deceived, mode: str, moment: type[Message]) -> None:
    """It loses all that comes from that message on, starts again, and asks four of the five for the same model.

    Before anybody masked a vector nothing is lost. Afterwards the disks of the clients know: who did not open the sum
    promises never to, and with two, or three, such promises it stays closed for ever; who did open it refuses.
    """
    one = deceived(mode=mode)
    lost: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is moment or (lost and moment is not UnmaskShares):
            lost.append(parcel)
            return []
        return [parcel]

    one.hook = hook
    one.paused = moment is not EndRound
    one.start()
    opened = moment in (UnmaskShares, EndRound)
    assert all(any(entry.unmasked for entry in journal) == opened for journal in one.journals.values())
    one.hook = lambda parcel: [parcel]
    one.kill(VICTIM)
    one.paused = True
    one.start_server()
    one.outputs.clear()
    others = one.roster.clients[1:]
    one.start(*others)
    one.settle(until=1000.0)
    (done,) = one.outcome(RoundDone)
    if opened:
        assert [over.code for over in one.outcome(RoundOver)] == [Code.REPEATED_MODEL] * 4
        assert (done.total, one.outcome(Train)) == (None, [])
    else:
        assert done.survivors == others
        assert (done.total == one.plain_sum(done)).all()
    check_nobody_opened_twice(one)
    one.model = bytes(len(one.model))
    one.restart()
    one.check_honest_round()


@pytest.mark.threat("server/subtraction")
@pytest.mark.parametrize("unmasked", range(6))
@pytest.mark.parametrize(("mode", "needed"), [("active", 2), ("semi-honest", 3)])
def test_a_restarted_server_and_the_same_model(deceived: Deceived, mode: str, needed: int, unmasked: int) -> None:
    """It dies with the vectors and has forgotten everything; the disks of the clients know who opened the sum."""
    one = deceived(mode=mode)
    names = one.roster.clients

    def hook(parcel: Parcel) -> list[Parcel]:
        held = parcel.packet.kind is UnmaskRequest and parcel.receiver in names[unmasked:]
        return [] if held or parcel.packet.kind is UnmaskShares else [parcel]

    one.hook = hook
    one.start()
    assert [journal[-1].unmasked for journal in one.journals.values()] == [name in names[:unmasked] for name in names]
    one.hook = lambda parcel: [parcel]
    one.start_server()
    one.outputs.clear()
    one.run()
    willing = names[unmasked:] if 5 - unmasked >= needed else ()
    assert tuple(party for party, output in one.outputs if isinstance(output, Train)) == willing
    refusals = [(party, output.code) for party, output in one.outputs if isinstance(output, RoundOver)]
    assert {code for party, code in refusals if party not in willing} <= {Code.REPEATED_MODEL}
    (done,) = one.outcome(RoundDone)
    threshold = 6 - needed
    assert done.survivors == (willing if len(willing) >= threshold else ())
    if done.total is not None:
        assert (done.total == one.plain_sum(done)).all()
    check_nobody_opened_twice(one)


@pytest.mark.threat("server/subtraction")
def test_a_client_that_unmasked_never_repeats(deceived: Deceived) -> None:
    """Even where the others' promises suffice for those who did not unmask."""
    one = deceived()
    one.rounds_left = 2
    held = set(one.roster.clients[1:])

    def hook(parcel: Parcel) -> list[Parcel]:
        return [] if parcel.receiver in held and parcel.packet.kind is UnmaskRequest else [parcel]

    one.hook = hook
    one.start()
    one.hook = lambda parcel: [parcel]
    for name in held:
        one.start_client(name)
    one.advance()
    assert one.outcome(RoundDone)[0].code is Code.THRESHOLD
    one.settle()
    overs = [over for over in one.outcome(RoundOver, VICTIM) if over.round == 2]
    assert [over.code for over in overs] == [Code.REPEATED_MODEL]
    second = one.outcome(RoundDone)[1]
    assert second.survivors == one.roster.clients[1:]
    assert (second.total == one.plain_sum(second)).all()
    check_nobody_opened_twice(one)


Proof = Callable[[Any, Contribution], Iterable[VoidedRound]]


def given(one: Any, earlier: Contribution, name: str, signer: str = "", **changes: Any) -> Promise:
    """The promise of this member, as somebody else, or for another session or round, has signed it."""
    signing: SigningKey = one.signing[signer or name]
    return Promise(member=name, signature=promise(replace(earlier, **changes), name, signing).signature)


def void(earlier: Contribution, *promises: Promise, **changes: Any) -> tuple[VoidedRound, ...]:
    fields: dict[str, Any] = {"session": earlier.session, "round": earlier.round} | changes
    return (VoidedRound(**fields, promises=promises),)


ONE, TWO, ABSENT = "client-1", "client-2", "client-4"
OTHER = b"o" * 32
PROOFS: dict[str, tuple[Proof, Code]] = {
    "no proof": (lambda one, e: (), Code.REPEATED_MODEL),
    "no promise": (lambda one, e: void(e), Code.REPEATED_MODEL),
    "one too few": (lambda one, e: void(e, given(one, e, ONE)), Code.REPEATED_MODEL),
    "one twice": (lambda one, e: void(e, given(one, e, ONE), given(one, e, ONE)), Code.REPEATED_MODEL),
    "who did not share": (lambda one, e: void(e, given(one, e, ONE), given(one, e, ABSENT)), Code.REPEATED_MODEL),
    "a stranger": (
        lambda one, e: void(e, given(one, e, ONE), Promise(member="zoe", signature=bytes(64))),
        Code.REPEATED_MODEL,
    ),
    "the server": (lambda one, e: void(e, given(one, e, ONE), given(one, e, SERVER)), Code.REPEATED_MODEL),
    "forged": (lambda one, e: void(e, given(one, e, ONE), given(one, e, TWO, SERVER)), Code.SIGNATURE),
    "another's": (lambda one, e: void(e, given(one, e, ONE), given(one, e, TWO, ONE)), Code.SIGNATURE),
    "unsigned": (lambda one, e: void(e, given(one, e, ONE), Promise(member=TWO, signature=b"")), Code.SIGNATURE),
    "replayed of another round": (
        lambda one, e: void(e, given(one, e, ONE), given(one, e, TWO, round=9)),
        Code.SIGNATURE,
    ),
    "replayed of another session": (
        lambda one, e: void(e, given(one, e, ONE), given(one, e, TWO, session=OTHER)),
        Code.SIGNATURE,
    ),
    "proof of another round": (
        lambda one, e: void(e, *(given(one, e, name, round=9) for name in (ONE, TWO)), round=9),
        Code.REPEATED_MODEL,
    ),
    "proof of another session": (
        lambda one, e: void(e, *(given(one, e, name, session=OTHER) for name in (ONE, TWO)), session=OTHER),
        Code.REPEATED_MODEL,
    ),
}
ENOUGH: Proof = lambda one, e: void(e, given(one, e, ONE), given(one, e, TWO))  # noqa: E731


def asked_again(one: Any, proof: Proof, *, opened: bool) -> RoundDone:
    """Four clients complete a round and one is late; the server restarts and asks all but the victim, with that proof.

    opened: whether the four also sent the shares that open the first sum.
    """
    one.hook = lambda parcel: [] if parcel.packet.kind is UnmaskRequest and not opened else [parcel]
    one.paused = True
    one.start(*one.roster.clients[:4])
    one.settle(until=100.0)
    (earlier,) = {entry.session: entry for entry in one.journals[VICTIM]}.values()
    assert (earlier.sharers, earlier.unmasked) == (one.roster.clients[:4], opened)
    one.hook = lambda parcel: [parcel]
    one.kill(VICTIM)
    one.start_server()
    one.tell(StartRound, to=one.roster.clients, voided=tuple(proof(one, earlier)))
    one.outputs.clear()
    one.start(*one.roster.clients[1:])
    one.settle(until=one.now + 1000.0)
    (done,) = one.outcome(RoundDone)
    return done


@pytest.mark.threat("server/subtraction")
@pytest.mark.parametrize("proof", PROOFS)
def test_bad_promises_repeat_nothing(deceived: Deceived, proof: str) -> None:
    """Two promises of the four who shared are needed."""
    one = deceived()
    make, code = PROOFS[proof]
    assert asked_again(one, make, opened=False).total is None
    assert [one.outcome(RoundOver, name)[-1].code for name in one.roster.clients[1:4]] == [code] * 3
    assert {party for party, output in one.outputs if isinstance(output, Train)} <= {ABSENT}
    assert [sent(one, MaskedInput, name) for name in one.roster.clients] == [1, 1, 1, 1, 0]
    check_nobody_opened_twice(one)
    one.model = bytes(len(one.model))
    one.restart()
    one.check_honest_round()


@pytest.mark.threat("server/subtraction")
@pytest.mark.parametrize("mode", ["active", "semi-honest"])
@pytest.mark.parametrize("opened", [False, True])
def test_enough_promises_repeat_a_closed_round_and_no_opened_one(deceived: Deceived, opened: bool, mode: str) -> None:
    one = deceived(mode=mode)
    done = asked_again(one, ENOUGH, opened=opened)
    assert done.survivors == (() if opened else one.roster.clients[1:])
    if not opened:
        assert (done.total == one.plain_sum(done)).all()
    check_nobody_opened_twice(one)


@pytest.mark.threat("server/subtraction")
@pytest.mark.threat("client/coalition")
def test_promises_of_as_many_as_may_collude_do_not_count(deceived: Deceived) -> None:
    """One of the four may promise and open the sum all the same, so that three have to promise."""
    for proof, enough in ((ENOUGH, False), (lambda one, e: void(e, *(given(one, e, n) for n in e.sharers[:3])), True)):
        one = deceived(corrupt=0.25)
        done = asked_again(one, proof, opened=False)
        assert done.survivors == (one.roster.clients[1:] if enough else ())
        assert sent(one, MaskedInput, ONE) == 1 + enough


@pytest.mark.threat("server/subtraction")
@pytest.mark.threat("server/restarts-midway")
def test_a_session_cannot_be_used_a_second_time(deceived: Deceived) -> None:
    """Else the journal, which is kept by session and round, would forget the first contribution."""
    one = deceived()
    one.run()
    session = one.server.session
    one.start_server()
    one.server.presence.session = session
    one.rounds_left = 1
    one.start()
    one.settle()
    assert one.outcome(RoundDone)[-1].code is Code.THRESHOLD
    overs = one.outcome(RoundOver)[5:]
    assert [(over.code, over.detail) for over in overs] == [
        (Code.SESSION, "this client was in round 1 of this session before")
    ] * 5
    one.restart()
    one.check_honest_round()


@pytest.mark.threat("server/restarts-midway")
@pytest.mark.parametrize("round", [0, 1])
def test_an_old_round_is_not_started_again(deceived: Deceived, round: int) -> None:
    one = deceived()
    one.rounds_left = 2

    def hook(parcel: Parcel) -> list[Parcel]:
        again = parcel.receiver == VICTIM and parcel.packet.kind is StartRound and parcel.packet.envelope.round == 2
        return [altered(parcel, round=round)] if again else [parcel]

    one.hook = hook
    one.run()
    assert one.victim_ended.code is Code.SESSION
    assert f"round {round} is started a second time" in one.victim_ended.detail
    one.restart()
    one.check_honest_round()


@pytest.mark.threat("server/restarts-midway")
def test_a_round_is_not_started_twice_while_a_client_trains(deceived: Deceived) -> None:
    one = deceived()
    one.idle = {VICTIM}
    one.start()
    one.put(one.forge(SERVER, VICTIM, last_said(one, StartRound).message, round=1))
    assert one.victim_ended.code is Code.SESSION
    one.idle = set()
    one.check_honest_round()
