"""Messages lost, repeated or out of turn, parties that fail or come late, and what a shell must not ask or print."""

from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferenceRequest
from tacit.protocol.inference.messages import DealerHello, DealerWelcome, Opening
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import Deal, InferenceEnded, KeysDealt, MaskedLayer, MaterialKey, Opened
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


def computing(run: MemoryInference) -> tuple[InferenceDataOwner, InferenceModelOwner]:
    """Both owners in a pass in which neither has opened anything."""
    run.idle.update(OWNERS)
    run.start()
    run.advance()
    data_owner, model_owner = run.owners[DATA_OWNER].machine, run.served[DATA_OWNER].machine
    assert isinstance(data_owner, InferenceDataOwner)
    assert isinstance(model_owner, InferenceModelOwner)
    run.owners[DATA_OWNER].tell("owners", data_owner.ask(run.clock, run.now))
    run.advance()
    run.served[DATA_OWNER].tell("owners", model_owner.begin(run.weights, run.clock, run.now))
    run.advance()
    assert data_owner.state is model_owner.state is InferenceState.COMPUTING
    return data_owner, model_owner


def test_who_is_to_open_something_has_no_deadline() -> None:
    run = world()
    data_owner, model_owner = computing(run)
    assert (data_owner.deadline, model_owner.deadline) == (None, run.now + PATIENCE)
    run.idle.remove(DATA_OWNER)
    run.owners[DATA_OWNER].go_on()
    assert (data_owner.deadline, model_owner.deadline) == (run.now + PATIENCE, run.now + PATIENCE)
    run.advance()
    assert (data_owner.deadline, model_owner.deadline) == (run.now + PATIENCE, None)


def check_a_layer_out_of_order_or_of_another_length(layer: int, size: int) -> None:
    run = world()
    run.idle.add(DEALER)
    run.say_instead("dealer-welcome", DEALER, lambda parcel: [])
    run.start()
    run.advance()
    model_owner = run.served[DATA_OWNER].machine
    assert isinstance(model_owner, InferenceModelOwner)
    assert model_owner.state is InferenceState.MASKING
    with pytest.raises(LocalProtocolError, match=f"{size} bytes of layer {layer} where layer 0 is due"):
        model_owner.mask(layer, bytes(size), 0.0)
    assert model_owner.state is InferenceState.MASKING


def test_what_a_shell_must_not_ask_for() -> None:
    for call, words in [
        (lambda ours, theirs: ours.give(1, bytes(8), 0.0), "8 bytes for round 1; owed"),
        (lambda ours, theirs: ours.give(0, bytes(8), 0.0), "8 bytes for round 0; owed"),
        (lambda ours, theirs: theirs.give(1, bytes(60), 0.0), "owed .*: .1, 60., due: 0"),
        (lambda ours, theirs: ours.ask(0.0, 0.0), "cannot ask for a pass in state COMPUTING"),
        (lambda ours, theirs: theirs.mask(0, b"", 0.0), "cannot provide what is waited for in state COMPUTING"),
    ]:
        machines = computing(world())
        before = [(machine.state, machine.deadline, machine.data.owed) for machine in machines]
        with pytest.raises(LocalProtocolError, match=words):
            call(*machines)
        assert before == [(machine.state, machine.deadline, machine.data.owed) for machine in machines]

    for layer, size in [(1, 128), (0, 127), (0, 0), (-1, 64)]:
        check_a_layer_out_of_order_or_of_another_length(layer, size)


def test_what_a_shell_must_not_ask_for_between_passes() -> None:
    run = world()
    with pytest.raises(LocalProtocolError, match="have not agreed on terms"):
        run.join(DATA_OWNER).agreed  # noqa: B018

    def rest(parcel: Parcel) -> list[Parcel]:
        run.idle.add(DATA_OWNER)
        return [parcel]

    last = sum(opened.step >= 0 for opened in world().run().outcome(Opened, DATA_OWNER)) - 1
    run.say_instead("opening", MODEL_OWNER, rest, at=last)
    run.start()
    run.advance()
    data_owner = run.owners[DATA_OWNER].machine
    assert isinstance(data_owner, InferenceDataOwner)
    assert data_owner.state is InferenceState.IDLE
    with pytest.raises(LocalProtocolError, match="all 1 passes that were agreed on are over"):
        data_owner.ask(run.clock, run.now)
    run.idle.clear()
    run.owners[DATA_OWNER].go_on()
    run.settle()
    assert run.verdicts() == {(None, "")}


def test_no_secret_is_in_any_text_and_no_contribution_is_kept() -> None:
    run = world()
    run.start()
    texts = list[str]()
    while run.advance(lambda count=len(run.log): len(run.log) > count):  # type: ignore[misc] # noqa: B008
        texts += [repr(run.log[-1]), repr(run.log[-1].message)]
        texts += [repr((machine, vars(machine).get("_hellos"))) for _, machine in run.living()]
    assert run.verdicts() == {(None, "")}
    texts += [repr(told) for told in run.told]
    (dealt,) = run.outcome(KeysDealt)
    secrets = [*dealt.keys, *(key.key for key in run.outcome(MaterialKey))]
    secrets += [
        message.contribution
        for message in (parcel.message for parcel in run.log)
        if isinstance(message, DealerHello | DealerWelcome)
    ]
    # Of a pass in range both words say so, with zeros here.
    opened = [output for output in run.outcome(Opened) if any(output.data)]
    secrets += [bytes(output.data)[:16] for output in (*opened, *run.outcome(MaskedLayer))]
    assert len(secrets) > 20
    for secret in secrets:
        assert not any(repr(secret)[2:-1] in text or secret.hex() in text for text in texts)

    run = world()
    run.idle.add(DATA_OWNER)
    run.start()
    run.advance()
    assert run.outcome(KeysDealt)
    messages = [parcel.message for parcel in run.log]
    given = {said.contribution for said in messages if isinstance(said, DealerHello | DealerWelcome)}
    assert len(given) == 4
    for _, machine in run.living():
        assert not given & {value for value in vars(machine).values() if isinstance(value, bytes)}
        assert not vars(machine).get("_hellos")
