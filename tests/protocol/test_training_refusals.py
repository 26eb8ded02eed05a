"""What a client of a federation refuses of its server: proposals below its policy, and models that are not right."""

from typing import Any

import numpy as np
import pytest

from tacit.protocol.codec import encode_structure
from tacit.protocol.configuration import Policy
from tacit.protocol.errors import Code
from tacit.protocol.machine import Report
from tacit.protocol.messages import EndRound, Finish, ModelChunk, StartRound, Welcome
from tacit.protocol.primitives import Label, digest
from tacit.protocol.rounds import Ended, RoundDone, RoundOver, Train
from tacit.protocol.training_client import TrainingState
from tacit.simulate.memory_federation import SERVER, MemoryFederation, Parcel, altered, small_configuration

VICTIM = "client-0"


def federation(clients: int = 5, **changes: Any) -> MemoryFederation:
    return MemoryFederation(small_configuration(clients), clients, **changes)


def told_to(one: MemoryFederation, kind: type, **changes: Any) -> None:
    """Let the server say something else to the victim: changed fields of the message, or another payload."""

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver != VICTIM or parcel.packet.kind is not kind:
            return [parcel]
        payload = changes.get("payload")
        fields = {name: value for name, value in changes.items() if name != "payload"}
        said = parcel.message
        message = kind(**{name: getattr(said, name) for name in said.__struct_fields__} | fields)
        return [altered(parcel, message=message, payload=payload)]

    one.hook = hook


def ended(one: MemoryFederation) -> Ended:
    found = one.ended(VICTIM)
    assert found is not None
    return found


def round_over(one: MemoryFederation) -> RoundOver:
    (over,) = one.outcome(RoundOver, VICTIM)
    return over


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"mode": "semi-honest"}, "the server proposes mode = semi-honest"),
        ({"clip": 2.0}, "the server proposes clip = 2.0"),
        ({"corrupt": 0.0}, "the server proposes corrupt = 0.0"),
        ({"ring_bits": 8}, "the configuration cannot hold its sum"),
    ],
)
def test_a_configuration_below_the_policy_ends_the_session(changes: dict[str, Any], refusal: str) -> None:
    one = federation()
    told_to(one, Welcome, configuration=encode_structure(small_configuration(5, **changes)))
    one.run()
    assert ended(one).code is Code.POLICY
    assert refusal in ended(one).detail
    left = [report.fields for report in one.outcome(Report, SERVER) if report.event == "left"]
    assert [(report["member"], refusal in report["detail"]) for report in left] == [(VICTIM, True)]
    assert one.outcome(RoundDone)[0].survivors == one.roster.clients[1:]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"roster": bytes(32)}, Code.ROSTER),
        ({"configuration": b""}, Code.MALFORMED),
        ({"configuration": b"\x80"}, Code.MALFORMED),
        ({"configuration": encode_structure(small_configuration(5)) + b"\x00"}, Code.MALFORMED),
    ],
)
def test_welcomes_that_are_not_right(changes: dict[str, Any], code: Code) -> None:
    one = federation()
    told_to(one, Welcome, **changes)
    one.run()
    assert ended(one).code is code
    assert one.clients[VICTIM].state is TrainingState.ENDED


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        (Policy(smallest_cohort=6), "the server proposes cohort = 5; this client's policy accepts 6 to 5 clients"),
        (Policy(threshold_floor=5), "the server proposes threshold = 4; this client's policy accepts 5 to 5 of 5"),
    ],
)
def test_a_cohort_below_the_policy_ends_the_round_before_it_begins(policy: Policy, refusal: str) -> None:
    one = federation(policies={VICTIM: policy})
    one.run()
    assert (round_over(one).round, round_over(one).code) == (1, Code.POLICY)
    assert refusal in round_over(one).detail
    (done,) = one.outcome(RoundDone)
    assert [(dropped.member, dropped.code) for dropped in done.dropped] == [(VICTIM, Code.LEFT)]
    assert refusal in done.dropped[0].detail
    assert ended(one).code is None
    assert not one.journals[VICTIM]


def test_a_configured_threshold_below_the_floor() -> None:
    one = MemoryFederation(small_configuration(5, threshold=3), 5).run()
    assert one.outcome(RoundDone)[0].code is Code.THRESHOLD
    assert all("threshold = 3" in over.detail for over in one.outcome(RoundOver))
    assert len(one.outcome(RoundOver)) == 5
    assert not one.outcome(Train)


MODEL = np.arange(10, dtype="<f4").tobytes()


def with_one_number(number: float) -> bytes:
    return MODEL[:-4] + np.array(number, "<f4").tobytes()


@pytest.mark.parametrize(
    ("changes", "code", "refusal"),
    [
        ({"cohort": b"\x1e"}, Code.MEMBERS, "this client was not selected"),
        ({"cohort": b"\x3f"}, Code.MEMBERS, "beyond the 5 members"),
        ({"cohort": b"\x03"}, Code.POLICY, "the server proposes cohort = 2"),
        ({"model_bytes": 36}, Code.MODEL, "a model of 36 bytes; its layout has 40"),
        ({"model_bytes": 44}, Code.MODEL, "a model of 44 bytes; its layout has 40"),
        ({"model": bytes(32)}, Code.MODEL, "the model that came is not the one that was announced"),
    ],
)
def test_rounds_that_are_not_right(changes: dict[str, Any], code: Code, refusal: str) -> None:
    one = federation()
    told_to(one, StartRound, **changes)
    one.run()
    assert (round_over(one).round, round_over(one).code) == (1, code)
    assert refusal in round_over(one).detail
    assert not one.outcome(Train, VICTIM)
    assert one.outcome(RoundDone)[0].survivors == one.roster.clients[1:]


@pytest.mark.parametrize(
    ("payload", "refusal"),
    [
        (MODEL[:-1], "chunk 0 of the model does not have 40 bytes"),
        (MODEL + b"\x00", "chunk 0 of the model does not have 40 bytes"),
        (with_one_number(8), "the model that came is not the one that was announced"),
    ],
)
def test_models_that_are_not_the_announced_one(payload: bytes, refusal: str) -> None:
    one = federation()
    told_to(one, ModelChunk, payload=payload)
    one.run()
    assert (round_over(one).code, round_over(one).detail) == (Code.MODEL, refusal)
    assert not one.outcome(Train, VICTIM)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_models_with_numbers_that_are_not_finite(number: float) -> None:
    model = with_one_number(number)
    one = federation()
    told_to(one, StartRound, model=digest(Label.MODEL, model))
    start = one.hook
    told_to(one, ModelChunk, payload=model)
    chunk = one.hook
    one.hook = lambda parcel: [last for first in start(parcel) for last in chunk(first)]
    one.run()
    assert round_over(one).detail == "the model has numbers that are not finite"


def test_a_chunk_without_its_array() -> None:
    one = federation()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver == VICTIM and parcel.packet.kind is ModelChunk:
            return [Parcel(SERVER, VICTIM, parcel.frames[:2])]
        return [parcel]

    one.hook = hook
    one.run()
    assert round_over(one).code is Code.MODEL


def test_a_chunk_that_was_not_asked_for() -> None:
    one = federation()
    told_to(one, ModelChunk, chunk=1)
    one.run()
    assert (round_over(one).code, round_over(one).detail) == (
        Code.UNEXPECTED,
        "chunk 1 came where chunk 0 of 1 was due",
    )


def test_a_huge_model_takes_no_memory_before_it_comes() -> None:
    huge = small_configuration(5, tensor_sizes=(2**38,))
    one = federation()
    told_to(one, Welcome, configuration=encode_structure(huge))
    welcome = one.hook
    told_to(one, StartRound, model_bytes=2**40)
    start = one.hook
    one.hook = lambda parcel: [last for first in welcome(parcel) for last in start(first)]
    one.run()
    assert round_over(one).detail == "chunk 0 of the model does not have 1048576 bytes"


@pytest.mark.parametrize("round", [0, 1])
def test_an_old_round_is_not_started_again(round: int) -> None:
    one = federation(rounds=2)

    def hook(parcel: Parcel) -> list[Parcel]:
        again = parcel.receiver == VICTIM and parcel.packet.kind is StartRound and parcel.packet.envelope.round == 2
        return [altered(parcel, round=round)] if again else [parcel]

    one.hook = hook
    one.run()
    assert (ended(one).code, f"round {round} is started a second time" in ended(one).detail) == (Code.SESSION, True)


def test_a_round_is_not_started_twice() -> None:
    one = federation()
    one.idle = {VICTIM}
    for name in one.roster.clients:
        one.start_client(name)
    one.deliver()
    start = next(p for p in one.log if p.receiver == VICTIM and p.packet.kind is StartRound).message
    one.put(one.forge(SERVER, VICTIM, start, round=1))
    assert ended(one).code is Code.SESSION


def test_the_end_of_an_old_round_is_ignored() -> None:
    one = federation(rounds=2)
    one.paused = True
    for name in one.roster.clients:
        one.start_client(name)
    one.deliver()
    one.idle = {VICTIM}
    one.paused = False
    one.settle(until=1.0)
    client = one.clients[VICTIM]
    assert (client.state, client.round) == (TrainingState.TRAINING, 2)
    assert one.put(one.forge(SERVER, VICTIM, EndRound(code=Code.THRESHOLD, detail=""), round=1)) == []
    assert (client.state, client.ignored) == (TrainingState.TRAINING, 1)


def test_a_finish_in_the_middle_of_a_sum_ends_the_session() -> None:
    one = federation()
    one.idle = {VICTIM}
    for name in one.roster.clients:
        one.start_client(name)
    one.deliver()
    one.emit(VICTIM, one.clients[VICTIM].contribute(1, one.draw(VICTIM, 1), one.now))
    one.put(one.forge(SERVER, VICTIM, Finish(), round=0))
    assert ended(one) == Ended(None, "the federation is finished")
    assert one.clients[VICTIM].next_deadline is None
