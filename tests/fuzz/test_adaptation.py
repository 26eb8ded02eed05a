"""Sessions of double-blind adaptation, and so of private inference, whatever comes between their parties: every machine
ends, and a sum is told of no survivors but those that all have confirmed.

Three data owners go through a round; the messages between owners, and with the dealer, are altered on their way.
"""

import time
from collections import Counter
from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.states import SumTold
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.results import InferenceEnded
from tacit.protocol.inference.states import InferenceState
from tacit.simulate.bench.ends import Peak
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.inference import data_owner_names
from tests.fuzz.wire import Wire

MOST_BYTES = 64 << 20
"""Above what a run starts with."""
OWNERS = data_owner_names(3)
OVER = {InferenceState.CLOSED, InferenceState.ABORTED}


def test_sessions_of_adaptation(mutate: Callable, budget: Callable, tell: Callable) -> None:
    outcomes: Counter[str] = Counter()
    peak, began = Peak(), time.perf_counter()

    @budget(30, 2_000)
    @given(st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        random = Random(seed)
        plan = round_plan(1, OWNERS, batches=random.choice((1, 2)))
        world = MemoryAdaptation(dict.fromkeys(OWNERS, plan), seed=random.randbytes(8))
        Wire(world, random, mutate, outcomes, rates=(0.001, 0.005, 0.1))
        world.run()
        # A model owner that got the last message of a data owner altered awaits its next pass until the link ends.
        rest = [shell.machine for shell in world.shells if shell.machine.state not in OVER]
        assert all(isinstance(one, LearningModelOwner) and one.state is InferenceState.IDLE for one in rest)
        ends = [told.output for told in world.told if isinstance(told.output, InferenceEnded)]
        assert all(isinstance(end.code, Code | None) for end in ends)
        outcomes.update(end.code.name for end in ends if end.code is not None)
        sums = [told for told in world.told if isinstance(told.output, SumTold) and told.output.data is not None]
        assert not sums or (world.sums.opened, world.sums.survivors) == (1, OWNERS)
        outcomes["sums"] += len(sums)
        outcomes["messages"] += len(world.log)

    check()
    tell("sessions of adaptation", outcomes, time.perf_counter() - began, peak.bytes())
    assert outcomes["sums"]
    assert {"altered", Code.MALFORMED.name, Code.UNEXPECTED.name, Code.SEQUENCE.name} <= outcomes.keys()
    assert peak.bytes() < MOST_BYTES
