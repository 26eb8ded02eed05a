"""Which coordinates every round moved, as a run directory keeps it."""

from pathlib import Path

import numpy as np
import pytest

from tacit.parties.runs.directory import RunDirectory


def test_moves_are_counted_over_all_rounds(tmp_path: Path) -> None:
    """Nineteen coordinates, which is no whole number of bytes; a round that is repeated counts once."""
    run = RunDirectory.create(tmp_path)
    moved = np.random.default_rng(0).random((3, 19)) < 0.5
    for round, coordinates in ((1, ~moved[0]), (1, moved[0]), (2, moved[1]), (10, moved[2])):
        run.save_moves(round, coordinates)
    assert run.count_moves().tolist() == moved.sum(axis=0).tolist()


def test_a_run_that_recorded_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="records no moves"):
        RunDirectory.create(tmp_path).count_moves()
