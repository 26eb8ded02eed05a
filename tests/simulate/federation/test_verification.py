"""--verify finds a sum that is wrong in a single word, or by more than rounding allows."""

from pathlib import Path

import numpy as np
import pytest

from tacit.parties.runs.directory import RunDirectory, write_arrays
from tacit.parties.runs.summary import VerifiedRound
from tacit.secagg.ring import Ring
from tacit.simulate.federation.run import VerificationError, verify

RING = Ring(24)
NAMES = ("client-1", "client-2")
WORDS = np.array([[5, 2**24 - 1, 7], [2**24 - 5, 2, 8]], RING.word)
VALUES = np.array([[0.5, -1.0, 0.25], [0.25, 1.0, 0.5]], np.float32)
BOUND = 0.125


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def record(
    run: RunDirectory, *, round: int = 1, flip: int = 0, shift: float = 0.0, names: tuple[str, ...] = NAMES
) -> None:
    """Both updates, and a sum that is off by `flip` in a word and by `shift` in a value."""
    for name, words, values in zip(NAMES, WORDS, VALUES, strict=True):
        write_arrays(run.verification(round, name), words=words, values=values)
    total = np.array([0, 1, 15], RING.word)
    total[1] ^= flip
    values = VALUES.astype(np.float64).sum(axis=0) + np.array([0.0, shift, 0.0])
    write_arrays(run.verification(round, "sum"), words=total, values=values, bound=BOUND, names=names)


def test_a_right_sum_is_reported_with_its_error(run: RunDirectory) -> None:
    record(run, round=2, shift=-BOUND)
    record(run, round=1)
    assert verify(run, RING.bits) == [
        VerifiedRound(round=1, clients=2, largest_error=0.0, bound=BOUND),
        VerifiedRound(round=2, clients=2, largest_error=BOUND, bound=BOUND),
    ]


def test_one_wrong_bit_is_found(run: RunDirectory) -> None:
    record(run, flip=1)
    with pytest.raises(VerificationError, match="round 1: 1 of 3 words of the secure sum are wrong"):
        verify(run, RING.bits)


@pytest.mark.parametrize("shift", [1.01 * BOUND, -1.01 * BOUND])
def test_a_value_beyond_the_bound_is_found(run: RunDirectory, shift: float) -> None:
    record(run, shift=shift)
    with pytest.raises(VerificationError, match=r"round 1: the sum is off by 0\.126\d*; quantisation allows 0\.125"):
        verify(run, RING.bits)


def test_a_round_without_a_sum_was_aborted_and_is_left_out(run: RunDirectory) -> None:
    record(run)
    write_arrays(run.verification(2, "client-1"), words=WORDS[0], values=VALUES[0])
    assert [one.round for one in verify(run, RING.bits)] == [1]
