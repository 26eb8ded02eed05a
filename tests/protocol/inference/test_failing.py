"""Messages out of turn, lost or repeated, and parties that fail, come late or ask for what they must not.

Where a case has no name of its own it is enumerated: every message of a session is lost, repeated or put behind the
next one; every party dies, noticed or not, before every message.
"""

from typing import Any

import msgspec

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import Opening
from tacit.protocol.inference.results import Deal, InferenceEnded, KeysDealt, MaskedLayer, Opened
from tacit.protocol.inference.states import InferenceState, MaterialState
from tacit.simulate.world.inference import DEALER, MODEL_OWNER, PATIENCE, MemoryInference, data_owner_names
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
OWNERS = (MODEL_OWNER, DATA_OWNER)
OTHER = b"\xff" * 32


def world(images: int = 1, **given: Any) -> MemoryInference:
    return MemoryInference({DATA_OWNER: InferenceRequest(images=images, batch=1, channels=1, side=4)}, **given)


def results(run: MemoryInference) -> list[tuple[str, int, bytes]]:
    return [
        (told.party, getattr(told.output, "step", -1), bytes(told.output.data))
        for told in run.told
        if isinstance(told.output, Opened | MaskedLayer)
    ]


TRANSCRIPT = tuple(world().run().log)
"""All messages of a session of one image."""
RESULTS = results(world().run())


@cases("fault", ["replayed", "lost", "put behind the next"])
def test_every_message_replayed_lost_or_reordered(fault: str) -> None:
    harmless = 0
    for index in range(len(TRANSCRIPT)):
        run, held, seen = world(), list[Parcel](), 0

        def hook(parcel: Parcel, index: int = index, held: list[Parcel] = held) -> list[Parcel]:
            nonlocal seen
            seen += 1
            if seen == index + 1:
                if fault == "put behind the next":
                    held.append(parcel)
                return [parcel, parcel] if fault == "replayed" else []
            link = parcel.sender, parcel.receiver
            behind = [each for each in held if (each.sender, each.receiver) == link]
            held.clear() if behind else None
            return [parcel, *behind]

        run.hook = hook
        run.run()
        verdicts = run.verdicts(unheard=fault != "replayed")
        if (ended := run.ended(DATA_OWNER)) is not None and ended.code is None:
            assert results(run)[-len(RESULTS) :] == RESULTS
        codes = {code for code, _ in verdicts} - {None}
        # A hello of either kind that is said again begins anew, and ends what there was.
        assert codes <= {Code.SEQUENCE, Code.SESSION, Code.TIMEOUT} | ({Code.LEFT} if index == 0 else set())
        harmless += not codes
    # Only what comes last can be lost or repeated without harm.
    assert harmless <= 3


@cases("noticed", [True, False])
@cases("victim", [*OWNERS, DEALER])
def test_a_party_that_dies_before_every_message(victim: str, noticed: bool) -> None:
    aborted = 0
    for index in range(len(TRANSCRIPT) + 1):
        run = world()
        run.start()
        assert run.advance(lambda run=run, index=index: len(run.log) == index)  # type: ignore[misc]
        if noticed:
            run.kill(victim)
        else:
            run.dead.add(victim)
        run.settle()
        verdicts = run.verdicts(unheard=not noticed) - {(None, "")}
        codes = {code for code, _ in verdicts}
        if not noticed:
            assert codes <= {Code.TIMEOUT}
        else:
            # Who comes to the dealer when it is gone already finds out by its patience, or that of its peer.
            assert codes <= {Code.LEFT, Code.TIMEOUT} if victim == DEALER else codes <= {Code.LEFT}
            assert run.now == PATIENCE if Code.TIMEOUT in codes else run.now == 0
            assert {culprit for code, culprit in verdicts if code is Code.LEFT} <= {victim}
        aborted += bool(codes)
    last = max(
        index
        for index, parcel in enumerate(TRANSCRIPT)
        if parcel.sender == victim and (noticed or parcel.receiver != DEALER)
    )
    assert last <= aborted <= len(TRANSCRIPT)  # Whatever it has to say is needed.


@cases("owner", OWNERS)
@cases(
    ("kind", "at", "changes"),
    [
        ("dealer-hello", 0, {"terms": OTHER}),
        ("order-randomness", 0, {"requests": b""}),
        ("order-randomness", 1, {"requests": b"other material"}),
        ("order-randomness", 1, {"count": 1}),
    ],
)
def test_owners_that_say_different_things_to_the_dealer(
    owner: str, kind: str, at: int, changes: dict[str, Any]
) -> None:
    run = world()
    run.say_instead(
        kind, owner, lambda parcel: [altered(parcel, message=msgspec.structs.replace(parcel.message, **changes))], at=at
    )
    run.run()
    ((code, culprit),) = run.verdicts()
    assert code is Code.POLICY
    assert culprit in OWNERS  # The later one: the dealer cannot know who of them is right.
    assert len(run.outcome(KeysDealt)) == (kind != "dealer-hello")
    assert len(run.outcome(Deal)) == at


def test_a_dealer_that_is_late_and_one_that_is_too_late() -> None:
    for late in (False, True):
        run = world()
        run.idle.add(DEALER)
        run.start()
        run.advance()
        setup, pass_material = run.outcome(Deal)
        run.deal(run.dealer(DATA_OWNER), setup)
        run.now += PATIENCE - 1
        for tell, machine in run.living():
            tell(machine.expire(run.now))
        assert not run.outcome(InferenceEnded)
        if not late:
            run.deal(run.dealer(DATA_OWNER), pass_material)
        run.settle()
        # The data owner, who waits for the model owner, may blame that one: it cannot know what the delay is due to.
        assert {code for code, _ in run.verdicts()} == {Code.TIMEOUT if late else None}
        assert run.ended(MODEL_OWNER, "dealer") == (
            InferenceEnded(Code.TIMEOUT, f"no word from {DEALER} for 60 s: still to order and receive material", DEALER)
            if late
            else InferenceEnded(None, "no more material is wanted")
        )
        assert late or results(run) == RESULTS


@cases(
    ("kind", "at", "owner"),
    [(kind, at, owner) for kind, at in (("dealer-hello", 0), ("order-randomness", 1)) for owner in OWNERS],
)
def test_the_dealer_names_the_owner_that_it_waits_for(kind: str, at: int, owner: str) -> None:
    run = world()
    run.say_instead(kind, owner, lambda parcel: [], at=at)
    run.start()
    run.advance()
    dealer = run.dealer(DATA_OWNER)
    assert dealer.deadline == PATIENCE
    *told, ended = dealer.expire(PATIENCE)
    assert (ended.code, ended.culprit) == (Code.TIMEOUT, owner)
    assert f"no word from {owner} for {PATIENCE:g} s, while the other owner waits" in ended.detail
    assert {message.to for message in told} == set(OWNERS)


@cases("party", [*OWNERS, DEALER])
def test_a_party_that_cannot_go_on(party: str) -> None:
    run = world()
    run.start()
    assert run.advance(lambda: len(run.outcome(Deal)) == 2)
    error = RemoteProtocolError(Code.LOCAL, "the device is out of memory", culprit=party)
    if party == DEALER:
        run.tell_dealer(run.dealer(DATA_OWNER), run.dealer(DATA_OWNER).give_up(error, run.now))
    else:
        owner = run.served[DATA_OWNER] if party == MODEL_OWNER else run.owners[DATA_OWNER]
        owner.tell("owners", owner.machine.give_up(error, run.now))
    run.settle()
    assert run.verdicts() == {(Code.LOCAL, party)}
    assert {ended.detail for ended in run.outcome(InferenceEnded)} == {"the device is out of memory"}
    assert run.now == 0


@cases("owner", OWNERS)
def test_an_owner_that_leaves_the_dealer_before_it_came(owner: str) -> None:
    run = world()
    run.say_instead("dealer-hello", owner, lambda parcel: [])
    run.start()
    run.advance()
    side = run.served[DATA_OWNER] if owner == MODEL_OWNER else run.owners[DATA_OWNER]
    assert side.material is not None
    assert side.material.state is MaterialState.AWAIT_WELCOME
    run.kill(owner)
    run.settle()
    assert run.verdicts() == {(Code.LEFT, owner)}


def test_what_is_under_way_of_a_former_session_is_ignored() -> None:
    run = world()
    data_owner = run.join(DATA_OWNER)
    run.owners[DATA_OWNER].begin()
    for sequence in (1, 2):
        stale = run.forge(MODEL_OWNER, DATA_OWNER, Opening(step=0, chunk=0), session=OTHER, round=1, sequence=sequence)
        assert data_owner.feed(stale.frames, run.now) == []
    assert (data_owner.state, data_owner.ignored) == (InferenceState.AWAIT_TERMS, 2)

    def with_stale(parcel: Parcel) -> list[Parcel]:
        return [altered(parcel, session=OTHER), parcel]

    for kind in ("dealer-welcome", "randomness"):
        run.say_instead(kind, DEALER, with_stale)
    run.settle()
    assert run.verdicts() == {(None, "")}
    assert results(run) == RESULTS
    materials = [owner.material for owner in (run.served[DATA_OWNER], run.owners[DATA_OWNER])]
    assert sum(material.ignored for material in materials if material) == 2
