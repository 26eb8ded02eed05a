"""The sum on one screen is the sum that the machines hold, message by message."""

from collections.abc import Collection

import numpy as np

from docs.generate.one_sum import hold_sum
from tacit.protocol.sum.exchange import Summed
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.world.sums import memory_sum


@cases("silent", [(), (1,), (0,)])
@cases("ring_bits", [20, 64])
def test_it_says_what_the_machines_say_and_has_their_sum(silent: Collection[int], ring_bits: int) -> None:
    run = memory_sum(6, active=True, seed=b"reference", ring_bits=ring_bits)
    names, agreement = run.agreement.cohort, run.agreement
    fresh = Streams(b"reference")
    total, said = hold_sum(
        agreement,
        [run.signing[name] for name in names],
        [run.vectors[name] for name in names],
        [fresh.of(name) for name in names],
        silent=silent,
    )
    run.hook = lambda item: [] if item.kind == "masked-input" and agreement.places[item.sender] in silent else [item]
    run.run()
    (summed,) = run.outcome(Summed)
    assert summed.survivors == tuple(name for place, name in enumerate(names) if place not in silent)
    np.testing.assert_array_equal(total, summed.total)
    heard = [
        (item.sender, item.receiver, item.message, None if item.payload is None else bytes(item.payload))
        for item in run.log
        if agreement.places.get(item.receiver) not in silent or item.kind in ("peer-keys", "peer-shares")
    ]
    assert said == heard
