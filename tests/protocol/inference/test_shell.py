"""What a shell must not ask of the machines of private inference, and what it may print: no secret is in any text."""

from typing import Any

import pytest

from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferenceRequest
from tacit.protocol.inference.messages import DealerHello, DealerWelcome
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import KeysDealt, MaskedLayer, MaterialKey, Opened
from tacit.protocol.inference.states import InferenceState
from tacit.simulate.world.inference import DEALER, MODEL_OWNER, PATIENCE, MemoryInference, data_owner_names
from tacit.simulate.world.world import Parcel

(DATA_OWNER,) = data_owner_names(1)
OWNERS = (MODEL_OWNER, DATA_OWNER)


def world(images: int = 1, **given: Any) -> MemoryInference:
    return MemoryInference({DATA_OWNER: InferenceRequest(images=images, batch=1, channels=1, side=4)}, **given)


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
