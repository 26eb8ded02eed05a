"""A server that sends a model that is none: of another form, with numbers that are not finite, or a pickle."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort, Blob, Chunk, Message
from tacit.protocol.session.messages import StartRound, Welcome
from tacit.protocol.session.rounds import RoundDone, Train
from tacit.protocol.sum.messages import MaskedInput, PeerKeys, PeerShares, Survivors, UnmaskRequest
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.federation import SERVER, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

VICTIM = "client-0"
PARAMETERS = 10
MODEL = np.arange(PARAMETERS, dtype="<f4").tobytes()
Deceived = Callable[..., Any]


def with_one_number(number: float) -> bytes:
    return MODEL[:-4] + np.array(number, "<f4").tobytes()


def of_this_length(model: bytes) -> Blob:
    """The announcement of another model, in the length of the right one."""
    return Blob(digest=announce(model, SumLabel.MODEL).digest, size=len(MODEL))


def tell_of(one: Any, announced: Blob, comes: bytes) -> Any:
    """The victim is told of another model. Its keys are for a sum from that one, and refused; this comes instead."""
    one.tell(StartRound, model=announced)
    told = one.hook

    def hook(parcel: Parcel) -> list[Parcel]:
        refused = parcel.receiver == VICTIM and parcel.packet.kind is Abort and parcel.packet.envelope.round
        return [altered(parcel, message=Chunk(chunk=0), payload=comes)] if refused else told(parcel)

    one.hook = hook
    return one.deceive()


def check_round_without_the_victim(one: Any, refusal: str, code: Code = Code.MODEL) -> None:
    """The victim never trained and says why; the sum of the others is exact, and the next round has everybody."""
    assert (one.victim_over.round, one.victim_over.code) == (1, code)
    assert refusal in one.victim_over.detail
    assert not one.outcome(Train, VICTIM)
    assert not [parcel for parcel in one.log if parcel.sender == VICTIM and parcel.packet.kind is MaskedInput]
    told = [parcel.message for parcel in one.log if parcel.sender == VICTIM and parcel.packet.kind is Abort]
    assert [(abort.code, abort.culprit) for abort in told] == [(code, SERVER)]
    (done,) = one.outcome(RoundDone)
    assert done.survivors == one.roster.clients[1:]
    assert (done.total == one.plain_sum(done)).all()
    one.check_honest_round()


OTHER_MODELS = {
    "of float64": MODEL + MODEL,
    "of float16": MODEL[: len(MODEL) // 2],
    "without its last tensor": MODEL[:-4],
    "with a tensor more": MODEL + bytes(4),
    "empty": b"",
}


@pytest.mark.threat("server/bad-model")
def test_a_model_of_another_form_is_refused(deceived: Deceived) -> None:
    # Shape and dtype are not said: the layout is agreed on, and a model is so many little-endian float32.
    for model in OTHER_MODELS.values():
        one = deceived().tell(StartRound, model=announce(model, SumLabel.MODEL))
        one.tell(Chunk, payload=model).deceive()
        check_round_without_the_victim(one, f"a model of {len(model)} bytes; its layout has {len(MODEL)}")

    for model in [model for model in OTHER_MODELS.values() if model] + [MODEL[:-1], MODEL + b"\x00", b"\x00"]:
        one = tell_of(deceived(), of_this_length(model), model)
        check_round_without_the_victim(one, f"chunk 0 of the model does not have {len(MODEL)} bytes")

    one = deceived()

    def hook(parcel: Parcel) -> list[Parcel]:
        bare = parcel.receiver == VICTIM and parcel.packet.kind is Chunk
        return [replace(parcel, frames=parcel.frames[:2]) if bare else parcel]

    one.hook = hook
    one.deceive()
    check_round_without_the_victim(one, f"chunk 0 of the model does not have {len(MODEL)} bytes")

    huge = encode_structure(small_configuration(5, tensor_sizes=(2**38,)))
    accepting = deceived(policies={VICTIM: Policy(largest_model=2**38)})
    one = tell_of(accepting.tell(Welcome, configuration=huge), Blob(digest=bytes(32), size=2**40), MODEL)
    check_round_without_the_victim(one, "chunk 0 of the model does not have 1048576 bytes")


@pytest.mark.threat("server/bad-model")
def test_a_model_that_is_not_the_announced_one_is_refused(deceived: Deceived) -> None:
    for announced in [Blob(digest=bytes(32), size=len(MODEL)), announce(MODEL, SumLabel.CONFIGURATION)]:
        one = tell_of(deceived(), announced, MODEL)
        check_round_without_the_victim(one, "what came of the model is not what was announced")

    for number in [8, np.nan]:
        one = deceived().tell(Chunk, payload=with_one_number(number)).deceive()
        check_round_without_the_victim(one, "what came of the model is not what was announced")

    one = deceived().tell(Chunk, chunk=1).deceive()
    check_round_without_the_victim(one, "chunk 1 came where chunk 0 of 1 was due", Code.UNEXPECTED)

    for number in [np.nan, -np.nan, np.inf, -np.inf]:
        for place in (0, PARAMETERS - 1):
            numbers = np.frombuffer(MODEL, "<f4").copy()
            numbers[place] = number
            model = numbers.tobytes()
            one = tell_of(deceived(), of_this_length(model), model)
            check_round_without_the_victim(one, "the model has numbers that are not finite")


@pytest.mark.threat("server/pickle")
def test_a_pickle_is_no_model_and_no_configuration(deceived: Deceived, trap: bytes) -> None:
    for announced in [False, True]:
        one = deceived().tell(Chunk, payload=trap)
        if announced:
            one.tell(StartRound, model=announce(trap, SumLabel.MODEL))
        one.deceive()
        length = f"a model of {len(trap)} bytes" if announced else f"does not have {len(MODEL)} bytes"
        check_round_without_the_victim(one, length)

    # Announced and as long as a model: it is read as float32 like any other bytes, and ends there with one NaN.
    parameters = len(trap) // 4 + 2
    model = trap + bytes(4 * (parameters - 1) - len(trap)) + np.array(np.nan, "<f4").tobytes()
    one = deceived(tensor_sizes=(parameters,))
    tell_of(one, announce(model, SumLabel.MODEL), model)
    check_round_without_the_victim(one, "the model has numbers that are not finite")

    one = deceived().tell(Welcome, configuration=trap).deceive()
    assert (one.victim_ended.code, one.victim_ended.detail[:36]) == (
        Code.MALFORMED,
        "server: Configuration is malformed: ",
    )
    one.check_honest_round()


@pytest.mark.threat("server/pickle")
@cases("place", ["envelope", "body"])
@cases("kind", [Welcome, StartRound, Chunk, PeerKeys, PeerShares, Survivors, UnmaskRequest])
def test_a_pickle_is_no_message(deceived: Deceived, trap: bytes, kind: type[Message], place: str) -> None:
    one = deceived()
    said: list[Abort] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender == VICTIM and parcel.packet.kind is Abort:
            said.append(parcel.message)  # type: ignore[arg-type]
        if parcel.receiver != VICTIM or parcel.packet.kind is not kind:
            return [parcel]
        envelope, body, *rest = parcel.frames
        return [replace(parcel, frames=(trap, body, *rest) if place == "envelope" else (envelope, trap, *rest))]

    one.hook = hook
    one.deceive()
    assert [(abort.code, abort.culprit) for abort in said] == [(Code.MALFORMED, SERVER)]
    assert one.outcome(RoundDone)[0].survivors[-4:] == one.roster.clients[1:]
    one.check_honest_round()
