"""What the studies conclude from results, both ways; and the distribution of update counts."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tacit.parties.protections.binary_weights import BinaryWeights, LockedBinaryWeights
from tacit.simulate.experiments import aso_table1, fedrsm_table2, sawada_fig5, sawada_fig6
from tacit.simulate.experiments.results import StudyRow
from tacit.simulate.experiments.study import Study

MakeRow = Callable[..., StudyRow]
ROUNDS, COORDINATES = 10, 18_602


def with_accuracies(
    study: Study, make_row: MakeRow, usual: Sequence[float], **others: Sequence[float]
) -> list[StudyRow]:
    """Results of every arm; `others` by the name with underscores and without its R."""

    def chosen(name: str) -> Sequence[float]:
        return next((others[key] for key in others if name.replace("-", "_").startswith(key)), usual)

    values = study.small.measure.values  # type: ignore[attr-defined, union-attr]
    return [make_row(arm, chosen(arm.name), values=values) for arm in study.small.rows]


@pytest.mark.parametrize(
    ("others", "reproduced"),
    [
        ({"scratch_fixed": [0.7, 0.71]}, [True, True, True, None]),
        ({}, [True, False, True, None]),
        ({"pretrained_fixed": [0.8, 0.81], "scratch_fixed": [0.7, 0.71]}, [False, True, True, None]),
        ({"pretrained_locked": [0.8, 0.81], "scratch_fixed": [0.7, 0.71]}, [False, True, True, None]),
        ({"pretrained_fixed": [0.89, 0.92]}, [None, False, True, None]),
        ({"pretrained_fixed": [0.98, 0.99], "scratch_fixed": [0.98, 0.99]}, [False, False, True, None]),
        ({"scratch_fixed": [0.7, 0.71], "scratch_binary": [0.7, 0.71]}, [True, True, False, False]),
        ({"scratch_fixed": [0.7, 0.71], "scratch_binary": [0.98, 0.99]}, [True, True, True, True]),
        ({"scratch_fixed": [0.5, 1.1], "scratch_binary": [0.5, 1.1]}, [True, None, None, None]),
        ({"scratch_fixed": [0.7, 0.71], "scratch_locked": [0.7, 0.71]}, [True, True, True, True]),
    ],
)
def test_figure_5_is_judged_by_its_results(
    make_row: MakeRow, others: dict[str, list[float]], reproduced: list[bool | None]
) -> None:
    results = with_accuracies(sawada_fig5.STUDY, make_row, [0.9, 0.91], **others)
    verdicts = sawada_fig5.STUDY.judge(results)
    assert [verdict.reproduced for verdict in verdicts] == reproduced
    assert "scratch-fixed-position" in verdicts[1].detail


@pytest.mark.parametrize("study", [aso_table1.STUDY, fedrsm_table2.STUDY, sawada_fig5.STUDY], ids=lambda one: one.name)
def test_what_is_not_finished_is_not_judged(make_row: MakeRow, study: Study) -> None:
    results = with_accuracies(study, make_row, [0.9, 0.91])
    claims = {verdict.claim for verdict in study.judge(results)}
    lost: set[str] = set()
    for missing in results:
        found = {verdict.claim for verdict in study.judge([one for one in results if one is not missing])}
        assert found <= claims
        lost |= claims - found
    assert lost == claims, "every claim needs some arm"
    assert study.judge([]) == []


def test_one_seed_decides_nothing(make_row: MakeRow) -> None:
    results = with_accuracies(sawada_fig5.STUDY, make_row, [0.9], scratch_fixed=[0.5])
    assert [verdict.reproduced for verdict in sawada_fig5.STUDY.judge(results)] == [None] * 4


@pytest.mark.parametrize(
    ("images", "reproduced"),
    [([0, 0], True), ([1, -1], True), ([0, 2], False), ([-2, 0], False)],
)
def test_table_1_takes_one_test_image_for_equal(make_row: MakeRow, images: list[int], reproduced: bool) -> None:
    plain = [300 / 360, 310 / 360]
    other = [accuracy + number / 360 for accuracy, number in zip(plain, images, strict=True)]
    results = with_accuracies(aso_table1.STUDY, make_row, plain, plain_sum_gaussian=other)
    assert [verdict.reproduced for verdict in aso_table1.STUDY.judge(results)] == [True, reproduced, True, True]
    results = with_accuracies(aso_table1.STUDY, make_row, plain, secure_sum_orthogonal=other)
    assert [verdict.reproduced for verdict in aso_table1.STUDY.judge(results)] == [True, True, reproduced, True]


def counted(make_row: MakeRow, generator: np.random.Generator, *, wrong: str = "") -> list[StudyRow]:
    """Counts as in runs: drawn from what each arm's settings imply, for `wrong` from those of the arm before."""
    results: list[StudyRow] = []
    fixed = 17 * 32
    for arm in sawada_fig6.STUDY.small.rows:
        protection = arm.experiment.protection
        runs = []
        for _ in range(2):
            if not isinstance(protection, BinaryWeights | LockedBinaryWeights):
                moves = np.array([fixed, *[0] * (ROUNDS - 1), COORDINATES - fixed])
            elif isinstance(protection, BinaryWeights):
                chance = 1 - protection.zero_probability**5
                moves = np.bincount(generator.binomial(ROUNDS, chance, COORDINATES), minlength=ROUNDS + 1)
            else:
                chance = 1 - protection.zero_probability**5
                moves = np.bincount(ROUNDS * generator.binomial(1, chance, COORDINATES), minlength=ROUNDS + 1)
            runs.append(moves.tolist())
        if arm.name == wrong:
            runs = [list(run.moves or ()) for run in results[-1].federated]
        results.append(make_row(arm, [0.1, 0.1], moves=runs))
    return results


def test_counts_that_follow_equation_13_are_found_to(make_row: MakeRow) -> None:
    generator = np.random.default_rng(7)
    results = counted(make_row, generator)
    assert [verdict.reproduced for verdict in sawada_fig6.STUDY.judge(results)] == [True] * 4
    unlocked = sawada_fig6.STUDY.judge([result for result in results if result.name not in sawada_fig6.LOCKED])
    assert [verdict.reproduced for verdict in unlocked] == [True] * 2
    assert not any("locked" in verdict.claim for verdict in unlocked), "no locked arm has run"
    for result, arm in zip(results, sawada_fig6.STUDY.small.rows, strict=True):
        for run in result.federated:
            assert sawada_fig6.computed(arm.name, run).sum() == pytest.approx(1.0, abs=1e-12)
            assert 0 <= sawada_fig6.values(arm, run)[sawada_fig6.DISTANCE.name] <= 2


@pytest.mark.parametrize("wrong", [arm.name for arm in sawada_fig6.STUDY.small.rows[2:]])
def test_counts_of_another_probability_are_found_out(make_row: MakeRow, wrong: str) -> None:
    results = counted(make_row, np.random.default_rng(8), wrong=wrong)
    *follows, _ = sawada_fig6.STUDY.judge(results)
    (refuted,) = [verdict for verdict in follows if not verdict.reproduced]
    assert refuted.detail.endswith(f"in {wrong}")


def test_locked_weights_that_update_as_much_are_found_out(make_row: MakeRow) -> None:
    results = counted(make_row, np.random.default_rng(9))
    fresh = results[3]
    assert fresh.name == "binary-weights-0.8"
    moved = [[9000, *run.moves[1:-1], run.moves[-1] - 9000 + run.moves[0]] for run in fresh.federated if run.moves]
    results[3] = make_row(sawada_fig6.STUDY.small.rows[3], [0.1, 0.1], moves=moved)
    assert [verdict.reproduced for verdict in sawada_fig6.STUDY.judge(results)] == [True, False, True, False]
