"""A client that is too slow for a round: its stale work ends, and leaves nothing to the next one."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tacit.models.interruption import Interrupted, Proceed, to_the_end
from tacit.parties.learning.learner import Draft, Learner, Update
from tacit.parties.session import shell
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.events import ClientRoundEnded, PhaseEnded, RoundEnded, WaitingChanged
from tacit.parties.session.shell import TaskRunner
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.states import Phase

STRAGGLER = "client-4"


class Straggler(Learner):
    """Trains in its first round until nobody waits for it any more, and then stops, or goes on to the end."""

    def __init__(self, configuration: Configuration, *, stubborn: bool) -> None:
        x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        super().__init__(configuration, x, torch.arange(6) % 3, seed=7, device=torch.device("cpu"))
        self.stubborn, self.brake = stubborn, threading.Event()
        self.trained: list[str] = []
        self.model = b""

    def learn(self, round: int, model: bytes, *arguments: Any, proceed: Proceed = to_the_end, **options: Any) -> Draft:
        self.trained.append(f"{round} begins")
        self.model = model
        try:
            while round == 1 and not self.brake.wait(0.01):
                if not self.stubborn:
                    proceed()
            return super().learn(round, model, *arguments, proceed=to_the_end if self.stubborn else proceed, **options)
        finally:
            self.trained.append(f"{round} ends")


async def lags(federation: Any, learners: list[Straggler]) -> None:
    """Wait until the server waits for the straggler alone, which is at work."""
    async with asyncio.timeout(federation.seconds):
        while not (learners and learners[0].trained):
            await asyncio.sleep(0.01)
        # Keys and shares are exchanged meanwhile, and there too somebody may be the last.
        while True:
            phases, waits = (federation.events("server", kind) for kind in (PhaseEnded, WaitingChanged))
            if phases and phases[-1].next is Phase.TRAIN and waits[-1].on == [STRAGGLER]:
                return
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
@pytest.mark.parametrize("scheme", ["none", "fedsplit"])
@pytest.mark.parametrize("stubborn", [False, True], ids=["interrupted", "to the end"])
async def test_a_straggler_works_on_one_round_at_a_time(
    protected: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, scheme: str, stubborn: bool
) -> None:
    """The server's clock leaps over the training of the first round, as soon as only the straggler is waited for."""
    federation = protected(scheme=scheme)
    learners: list[Straggler] = []
    updates: dict[int, Update] = {}
    leap = 0.0

    def make(configuration: Configuration) -> Learner:
        learners.append(Straggler(configuration, stubborn=stubborn))
        return learners[0]

    event_log: EventLog = federation.event_log("server")
    monkeypatch.setattr(event_log, "now", lambda: time.monotonic() + leap)
    monkeypatch.setattr(shell, "ALIVE_SECONDS", 0.05)
    ordinary = federation.event_log
    monkeypatch.setattr(federation, "event_log", lambda name: event_log if name == "server" else ordinary(name))
    server = await federation.serve(rounds=2)
    clients = [federation.join(name) for name in federation.clients if name != STRAGGLER]
    clients.append(federation.join(STRAGGLER, make=make, on_update=updates.__setitem__))
    await lags(federation, learners)
    leap = 3 * federation.seconds
    await federation.event(STRAGGLER, ClientRoundEnded)
    learners[0].brake.set()
    assert [end.code for end in await federation.all_of(server, *clients)] == [None] * 5
    first, second = federation.events("server", RoundEnded)
    assert [(gone.party, gone.code) for gone in first.dropped] == [(STRAGGLER, "TIMEOUT")]
    assert second.survivors == list(federation.clients)
    assert learners[0].trained == ["1 begins", "1 ends", "2 begins", "2 ends"]
    # What was made of the first round is told to nobody, and the second is as if there had been none.
    assert list(updates) == [2]
    fresh = Straggler(federation.configuration, stubborn=False)
    np.testing.assert_array_equal(updates[2].words, fresh.update(2, learners[0].model).words)


@pytest.fixture
def gates() -> Iterator[dict[str, threading.Event]]:
    events = {name: threading.Event() for name in ("first", "second", "third")}
    yield events
    for event in events.values():
        event.set()


@pytest.mark.asyncio
async def test_what_is_begun_later_waits_for_the_thread_and_is_alone_heard_of(
    gates: dict[str, threading.Event],
) -> None:
    runner, done = TaskRunner(), list[str]()

    def work(name: str) -> Callable[[Proceed], str]:
        def run(proceed: Proceed) -> str:
            done.append(f"{name} begins")
            gates[name].wait()
            done.append(f"{name} ends")
            proceed()
            return name

        return run

    assert runner.take() is None
    runner.begin(work("first"))
    first = runner.present
    while not done:
        await asyncio.sleep(0.001)
    runner.begin(work("second"))
    runner.begin(work("third"))
    third = runner.present
    assert first is not None
    assert third is not None
    assert (runner.take(), done) == (None, ["first begins"])
    for event in gates.values():
        event.set()
    await asyncio.wait([third])
    # The second was not wanted any more before its turn came.
    assert done == ["first begins", "first ends", "third begins", "third ends"]
    assert isinstance(first.exception(), Interrupted)
    taken = runner.take()
    assert taken is third
    assert taken.result() == "third"
    assert runner.take() is None


@pytest.mark.asyncio
async def test_work_says_how_much_of_it_is_done(gates: dict[str, threading.Event]) -> None:
    runner = TaskRunner()

    def work(proceed: Proceed) -> None:
        proceed(3, 4)
        gates["first"].wait()

    runner.begin(work)
    assert runner.done == 0.0
    while not runner.done:
        await asyncio.sleep(0.001)
    assert runner.done == 0.75
    gates["first"].set()
    assert runner.present is not None
    await runner.present
    runner.begin(work)
    assert runner.done == 0.0


@pytest.mark.asyncio
async def test_an_error_of_dropped_work_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    runner = TaskRunner()

    def fail(proceed: Proceed) -> None:
        raise ValueError("nobody hears this")

    runner.begin(fail)
    dropped = runner.present
    runner.drop()
    assert dropped is not None
    await asyncio.wait([dropped])
    assert runner.take() is None
    del dropped, runner
    assert caplog.records == []
