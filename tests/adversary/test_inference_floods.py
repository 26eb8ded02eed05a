"""A data owner that begins sessions without end: model owner and dealer answer a few, and serve the others."""

from collections.abc import Callable

import pytest

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.rate_limit import HELLO_SECONDS, HELLOS
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, DealerHello, InferenceHello, InferenceTerms
from tacit.protocol.inference.results import InferenceEnded
from tacit.simulate.world import inference as world
from tacit.simulate.world.world import Parcel
from tests.cases import cases

CHEAT, HONEST = world.data_owner_names(2)
TIMES, SECONDS = 500, 3.0
REQUEST = InferenceRequest(images=2, batch=1, channels=1, side=4)

Flood = Callable[[world.MemoryInference, int], Parcel]


def hello(run: world.MemoryInference, number: int) -> Parcel:
    return run.forge(CHEAT, world.MODEL_OWNER, InferenceHello(roster=run.roster.hash), session=bytes(32), sequence=0)


def noise(receiver: str) -> Flood:
    def noise(run: world.MemoryInference, number: int) -> Parcel:
        frames: tuple[Frame, ...] = (number.to_bytes(2, "little"),) * 3
        return Parcel(CHEAT, receiver, frames, INFERENCE_MESSAGES)  # type: ignore[arg-type]

    return noise


def material(run: world.MemoryInference, number: int) -> Parcel:
    message = DealerHello(
        roster=run.roster.hash, peer=world.MODEL_OWNER, terms=bytes(32), contribution=number.to_bytes(32, "little")
    )
    return run.forge(CHEAT, run.dealer_name, message, session=number.to_bytes(32, "big"), sequence=0)


FLOODS: dict[str, Flood] = {
    "hellos": hello,
    "noise to the model owner": noise(world.MODEL_OWNER),
    "noise to the dealer": noise("dealer"),
    "sessions that it names to the dealer": material,
}


def put(run: world.MemoryInference, make: Flood, number: int) -> Callable[[], None]:
    return lambda: run.put(make(run, number))


@pytest.mark.threat("data-owner/endless-sessions")
@cases("flood", FLOODS)
def test_a_data_owner_floods_and_the_other_is_served(flood: str) -> None:
    run = world.MemoryInference({CHEAT: REQUEST, HONEST: REQUEST})
    begun: list[str] = []
    serve, deal_for = run.service._begin, run.dealers._begin
    run.service._begin = lambda name: (begun.append(name), serve(name))[1]
    run.dealers._begin = lambda name, *rest: (begun.append(name), deal_for(name, *rest))[1]
    for number in range(TIMES):
        run.at(number * SECONDS / TIMES, put(run, FLOODS[flood], number + 1))
    run.at(SECONDS / 2, lambda: run.start(HONEST))
    run.settle(until=SECONDS)
    # Machines, answers and lines of logs are as many as sessions.
    assert 1 <= begun.count(CHEAT) <= HELLOS
    answers = [p for p in run.log if p.receiver == CHEAT and p.packet.kind in (InferenceTerms, Abort)]
    assert len(answers) <= 2 * HELLOS
    ends = [told for told in run.told if isinstance(told.output, InferenceEnded) and told.data_owner == CHEAT]
    assert len(ends) <= 2 * HELLOS
    run.settle(until=SECONDS + 3 * HELLO_SECONDS)
    ended = run.ended(HONEST, data_owner=HONEST)
    assert ended is not None
    assert ended.code is None
    # What waited was one hello, which has had its turn.
    assert begun.count(CHEAT) <= HELLOS + 1


@pytest.mark.threat("data-owner/endless-sessions")
def test_whoever_uses_its_sessions_has_as_many_as_it_likes() -> None:
    run = world.MemoryInference({HONEST: REQUEST})
    for _ in range(3 * HELLOS):
        run.start()
        run.settle()
        ended = run.ended(HONEST, data_owner=HONEST)
        assert ended is not None
        assert ended.code is None
    assert run.now < HELLO_SECONDS
