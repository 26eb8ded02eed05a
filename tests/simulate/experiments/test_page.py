"""table.md, table.json and plot.svg, from rows that never took place."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tacit.simulate.experiments.catalogue import STUDIES
from tacit.simulate.experiments.engine import prepare
from tacit.simulate.experiments.federations import Federations
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.page import write
from tacit.simulate.experiments.results import WORDS, StudyResult, StudyRow
from tests.simulate.experiments.conftest import write_random

MakeRow = Callable[..., StudyRow]
MOVES = [544, 0, 0, 0, 0, 0, 0, 0, 0, 0, 18_058]


def result(name: str, make_row: MakeRow, seeds: int, directory: Path) -> StudyResult:
    study = STUDIES[name]
    request = Request(seeds=tuple(range(seeds)), data=None, device="cpu", out=directory)
    made = prepare(study, request, small=True).result(command="tacit experiment")
    accuracies = [0.5 + seed / 8 for seed in range(seeds)]
    assert study.small is not None
    assert isinstance(study.small.measure, Federations)
    values = study.small.measure.values
    rows = [make_row(arm, accuracies, moves=[MOVES] * seeds, values=values) for arm in study.small.rows]
    return msgspec.structs.replace(made, rows=rows, verdicts=study.judge(rows))


@pytest.mark.parametrize("name", ["sawada-fig6", "sawada-fig5", "fedrsm-table2", "aso-table1"])
def test_a_page_has_everything(name: str, make_row: MakeRow, tmp_path: Path) -> None:
    study, made = STUDIES[name], result(name, make_row, 2, tmp_path)
    write(made, tmp_path, draw=study.draw, details=study.details(made))
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text.startswith(f"## {study.name}: {study.shows}\n")
    assert study.small is not None
    for arm in study.small.rows:
        assert f"| {arm.name} | " in text
        assert all(value in text for value in arm.published.values())
    for what, value in study.settings:
        assert f"| {what} | {value} |" in text
    for sentence in (*study.silent, *study.small.differences):
        assert f"- {sentence}" in text
    assert made.verdicts
    for verdict in made.verdicts:
        assert f"- **{WORDS[verdict.reproduced]}**: {verdict.claim}. Criterion: " in text
    assert "</svg>" in (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert msgspec.json.decode((tmp_path / "table.json").read_bytes(), type=StudyResult) == made


def test_other_numbers_of_images_are_a_difference(tmp_path: Path) -> None:
    path = write_random(tmp_path / "few.npz", train=20, test=10)
    request = Request(seeds=(0,), data=path, device="cpu", out=tmp_path / "out")
    made = prepare(STUDIES["sawada-fig5"], request, small=False).result(command="")
    assert made.differences[-1] == "20 training and 10 test images instead of 50,000 and 10,000"
