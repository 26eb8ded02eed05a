"""Claims about rows of adaptation, the declarations of its tables, and the data sets that they look for."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from PIL import Image

from tacit.models.configuration import ModelConfiguration
from tacit.simulate.experiments.adaptation import AdaptationRow, AdaptationSettings, as_good, better, loses_less
from tacit.simulate.experiments.adaptation_images import DataBlock, DataPart
from tacit.simulate.experiments.data import DataError
from tacit.simulate.experiments.engine import PreparedStudy, prepare
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.results import Run, StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Study
from tacit.simulate.experiments.tastan_tables import (
    CIFAR10,
    LORA,
    OURS,
    PROBING,
    TABLE1,
    TABLE2,
    TABLE3,
    TUNING,
    TWIN_BLOCK,
)
from tests.cases import cases

TABLES: Final = {table.name: table for table in (TABLE1, TABLE2, TABLE3)}
SET: Final = DataBlock(name="set", owned=DataPart(), adapted_to=DataPart())


def row(name: str, found: Mapping[str, list[float]], published: dict[str, str] | None = None) -> StudyRow:
    runs = [
        Run(seed=seed, values=dict(zip(found, values, strict=True)), seconds=1.0)
        for seed, values in enumerate(zip(*found.values(), strict=True))
    ]
    return StudyRow.of(name, runs, published or {})


def judged(claim: Claim, found: dict[tuple[str, str], list[float]]) -> Verdict:
    names = dict.fromkeys(name for name, _ in found)
    return claim.judge(
        {
            f"set: {one}": row(one, {column: each for (name, column), each in found.items() if name == one})
            for one in names
        }
    )


@cases(
    ("ours", "reproduced", "detail"),
    [
        ([[0.8, 0.9], [0.8, 0.9]], True, "one +30.0 points, two +30.0 points"),
        ([[0.8, 0.9], [0.5, 0.6]], None, "one +30.0 points, two +0.0 points; undecided: two"),
        ([[0.8, 0.9], [0.45, 0.56]], None, "one +30.0 points, two -4.5 points; undecided: two"),
        ([[0.8, 0.9], [0.4, 0.5]], False, "one +30.0 points, two -10.0 points; not so: two"),
        ([[0.4, 0.5], [0.5, 0.6]], False, "one -10.0 points, two +0.0 points; not so: one; undecided: two"),
        ([[0.8], [0.8]], None, "one +30.0 points, two +30.0 points; undecided: one, two"),
    ],
)
def test_better_in_every_column(ours: list[list[float]], reproduced: bool | None, detail: str) -> None:
    other = [[0.5, 0.6][: len(values)] for values in ours]
    if ours[1] == [0.45, 0.56]:
        # Differences of -0.09 and 0: the interval goes 12.7 standard errors to each side.
        other[1] = [0.54, 0.56]
    found = {}
    for column, values, theirs in zip(("one", "two"), ours, other, strict=True):
        found |= {("a", column): values, ("b", column): theirs}
    verdict = judged(better(SET, "a", "b"), found)
    assert (verdict.claim, verdict.reproduced) == ("set: a is more accurate than b in every column", reproduced)
    assert verdict.detail == detail


@pytest.mark.parametrize(("ours", "reproduced"), [(0.49, True), (0.48, None), (0.47, False)])
def test_as_good_allows_two_points(ours: float, reproduced: bool | None) -> None:
    verdict = judged(as_good(SET, "a", "b"), {("a", "one"): [ours] * 2, ("b", "one"): [0.5] * 2})
    assert verdict.reproduced is reproduced


@pytest.mark.parametrize(("after", "reproduced"), [(0.85, True), (0.75, False), (0.8, None)])
def test_a_row_that_loses_less(after: float, reproduced: bool | None) -> None:
    found = {
        ("a", "mild"): [0.9, 0.9],
        ("a", "extreme"): [after, after],
        ("b", "mild"): [0.6, 0.6],
        ("b", "extreme"): [0.5, 0.5],
    }
    verdict = judged(loses_less(SET, "a", "b", before="mild", after="extreme"), found)
    assert verdict.reproduced is reproduced


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_is_declared_completely(table: Study) -> None:
    columns = {column.name for column in table.columns}
    assert all(set(one.published) in (set(), columns) for one in table.full.rows)
    assert [one for one in table.full.rows if one.published]
    assert {name for claim in table.claims for name in claim.rows} <= {
        one.name for size in (table.full, table.small) if size for one in size.rows
    }
    if table.small is not None:
        names = [one.name for one in table.small.rows]
        assert [one.name.rpartition(": ")[2] for one in table.full.rows][: len(names)] == names
    everywhere = [row(one.name, {column: [0.5, 0.5] for column in columns}) for one in table.full.rows]
    assert [verdict.reproduced for verdict in table.judge(everywhere)].count(False) == 0


@pytest.mark.parametrize("block", [TWIN_BLOCK, CIFAR10])
def test_table_1_is_judged_by_its_rows(block: DataBlock) -> None:
    steps = {TUNING: 0.9, OURS: 0.8, PROBING: 0.5, LORA: 0.85}
    columns = [column.name for column in TABLE1.columns]
    found = {
        name: {column: [value - 0.01 * at] * 2 for at, column in enumerate(columns)} for name, value in steps.items()
    }
    found[PROBING][columns[-1]] = [0.3, 0.3]
    for reproduced in (True, False):
        verdicts = TABLE1.judge([row(block.row(name), values) for name, values in found.items()])
        assert [verdict.reproduced for verdict in verdicts] == [reproduced, True, True]
        found[OURS][columns[2]] = [0.2, 0.2]
    assert TABLE1.judge([row(block.row(OURS), found[OURS])]) == []


def test_data_sets_of_the_full_size_are_looked_for(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for number in range(40):
            place = tmp_path / part / "abcd"[number % 4]
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (6 * number, 0, 0)).save(place / f"{number}.png")
    there = DataBlock(name="there", owned=DataPart(source="folder"), adapted_to=DataPart(source="folder", half=1))
    absent = DataBlock(name="absent", owned=DataPart(source="folder"), adapted_to=DataPart(source="svhn"))
    measure, first = TABLE1.full.measure, TABLE1.full.rows[0]
    assert isinstance(measure, AdaptationSettings)
    assert isinstance(first, AdaptationRow)
    measure = replace(measure, model=ModelConfiguration(image_size=8, patch_size=4, width=8, depth=2, heads=2))

    def prepared(*blocks: DataBlock) -> PreparedStudy:
        rows = tuple(replace(first, name=block.row(first.name), block=block) for block in blocks)
        study = replace(TABLE1, full=replace(TABLE1.full, rows=rows, measure=measure), claims=())
        request = Request(
            seeds=(0,), data=tmp_path, device="cpu", out=tmp_path / "-".join(block.name for block in blocks)
        )
        return prepare(study, request, small=False)

    work = prepared(absent, there)
    result = work.result(command="")
    assert [one.unfinished for one in result.rows] == ["not measured, there are no files of absent", "not finished"]
    assert result.differences[-1] == "without absent, whose files are not in the directory"
    assert result.data == "there"
    assert [job.row.name for job in work.jobs()] == [there.row(first.name)]
    with pytest.raises(DataError, match="train_32x32"):
        prepared(absent)
