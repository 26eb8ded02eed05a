"""Mask keys that serve more than one round, as where keys of a session replace fresh ones: what a server then reads.

Nothing here does so. The clients are ours, whose randomness repeats its first draws, which are their keys; all else is
drawn anew, and the seeds of masks follow from each round's own transcript. docs/decisions/017-fresh-keys.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.messages import Abort
from tacit.protocol.sum.exchange import Summed
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.world import Streams
from tests.adversary.conftest import opened_secrets, unmasked_vectors
from tests.cases import cases
from tests.world.sums import MemorySum, memory_sum

VICTIM, PLACE = "c0", 0
KEYS_DRAWN = 2
"""Draws of a client before any other: the private channel key and the private mask key."""


class RepeatedKeys(Streams):
    """Fresh randomness but for the keys, which are those of another round."""

    def __init__(self, seed: bytes, former: bytes) -> None:
        super().__init__(seed)
        self._former, self._repeated = Streams(former), dict[str, Entropy]()

    def of(self, name: str) -> Entropy:
        return self._repeated.setdefault(name, self._mixed(self._former.of(name), super().of(name)))

    @staticmethod
    def _mixed(former: Entropy, fresh: Entropy) -> Callable[[int], bytes]:
        drawn = count()
        return lambda length: (former if next(drawn) < KEYS_DRAWN else fresh)(length)


@pytest.mark.threat("server/subtraction")
@cases("repeated", [True, False])
@cases("lost_first", [False, True])
def test_a_mask_key_that_is_opened_gives_the_vectors_of_all_rounds_that_it_serves(
    repeated: bool, lost_first: bool
) -> None:
    """A client is lost in one round, so that its mask key is opened; in another one it survives, and its seed is."""
    first = memory_sum(5, active=True, seed=b"first")
    streams = RepeatedKeys(b"second", b"first") if repeated else Streams(b"second")
    second = MemorySum(replace(first.agreement, round=1), first.signing, first.vectors, streams)
    lost, survived = (first, second) if lost_first else (second, first)
    lost.training = {VICTIM}
    lost.hook = lambda d: [] if d.receiver == VICTIM and isinstance(d.message, Abort) else [d]
    for run in (first, second):
        run.run()
        (summed,) = run.outcome(Summed)
        assert (VICTIM in summed.survivors) == (run is survived)
    opened = opened_secrets(lost, SumLabel.KEY_SHARE)
    assert set(opened) == {PLACE}
    assert not np.array_equal(unmasked_vectors(survived)[VICTIM], survived.vectors[VICTIM])
    read = unmasked_vectors(survived, opened)[VICTIM]
    assert np.array_equal(read, survived.vectors[VICTIM]) == repeated
