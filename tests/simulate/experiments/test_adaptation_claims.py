"""What cells say of claims, and how a table of adaptation is told."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from PIL import Image

from tacit.models.configuration import ModelConfiguration
from tacit.simulate.experiments.adaptation import AdaptationTable, Cell, Cells, DataBlock, as_good, better, loses_less
from tacit.simulate.experiments.adaptation_page import AdaptationFindings, AdaptationMeasurement
from tacit.simulate.experiments.adaptation_parts import DataPart
from tacit.simulate.experiments.adaptation_runs import prepare
from tacit.simulate.experiments.tastan_tables import LORA, OURS, PROBING, TABLE1, TABLE2, TABLE3, TUNING
from tests.cases import cases

TABLES: Final = {table.name: table for table in (TABLE1, TABLE2, TABLE3)}


def cells(found: dict[tuple[str, str], list[float]], *, block: str = "set") -> Cells:
    """By row and column, the accuracies of the seeds 0, 1, ..."""
    columns = dict.fromkeys(column for _, column in found)
    return Cells(
        blocks=(block,),
        columns=tuple(columns),
        cells=tuple(
            Cell(block=block, row=row, column=column, seed=seed, accuracy=value, seconds=1.0)
            for (row, column), values in found.items()
            for seed, value in enumerate(values)
        ),
    )


@cases(
    ("ours", "holds", "detail"),
    [
        ([[0.8, 0.9], [0.8, 0.9]], True, "one +30.0 points, two +30.0 points"),
        ([[0.8, 0.9], [0.5, 0.6]], None, "one +30.0 points, two +0.0 points; undecided: two"),
        ([[0.8, 0.9], [0.45, 0.56]], None, "one +30.0 points, two -4.5 points; undecided: two"),
        ([[0.8, 0.9], [0.4, 0.5]], False, "one +30.0 points, two -10.0 points; not so: two"),
        ([[0.4, 0.5], [0.5, 0.6]], False, "one -10.0 points, two +0.0 points; not so: one; undecided: two"),
        ([[0.8], [0.8]], None, "one +30.0 points, two +30.0 points; undecided: one, two"),
        ([[], []], None, "one not measured, two not measured; undecided: one, two"),
    ],
)
def test_better_in_every_column(ours: list[list[float]], holds: bool | None, detail: str) -> None:
    other = [[0.5, 0.6][: len(values) or 2] for values in ours]
    if ours[1] == [0.45, 0.56]:
        # Differences of -0.09 and 0: the interval goes 12.7 standard errors to each side.
        other[1] = [0.54, 0.56]
    found = {}
    for column, values, theirs in zip(("one", "two"), ours, other, strict=True):
        found |= {("a", column): values, ("b", column): theirs}
    (verdict,) = better(cells(found), "a", "b")
    assert (verdict.holds, verdict.detail) == (holds, detail)


@pytest.mark.parametrize(("ours", "holds"), [(0.49, True), (0.48, None), (0.47, False)])
def test_as_good_allows_two_points(ours: float, holds: bool | None) -> None:
    (verdict,) = as_good(cells({("a", "one"): [ours] * 2, ("b", "one"): [0.5] * 2}), "a", "b")
    assert verdict.holds is holds


@pytest.mark.parametrize(("after", "holds"), [(0.85, True), (0.75, False), (0.8, None)])
def test_a_row_that_loses_less(after: float, holds: bool | None) -> None:
    found = {
        ("a", "mild"): [0.9, 0.9],
        ("a", "extreme"): [after, after],
        ("b", "mild"): [0.6, 0.6],
        ("b", "extreme"): [0.5, 0.5],
    }
    (verdict,) = loses_less(cells(found), "a", "b", before="mild", after="extreme")
    assert verdict.holds is holds


def findings(table: AdaptationTable, *, small: bool, block: str) -> AdaptationFindings:
    """Where every row but LoRA has the accuracies 0.5 and 0.7 in the first column, and less in each of the next."""
    found = {
        (row.name, column.name): [0.5 - at / 10, 0.7 - at / 10]
        for row in table.full.rows
        for at, column in enumerate(table.columns)
        if row.name != LORA
    }
    return AdaptationFindings(table=table, size=table.size(small=small), small=small, cells=cells(found, block=block))


def test_figures_of_the_paper_stand_where_the_settings_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    full = "\n".join(findings(TABLE3, small=False, block="CIFAR-10").lines())
    assert "| CIFAR-10 | K = 10 | K = 20 | K = 50 |" in full
    assert "| ours | 0.600 ± 0.141 (0.500, 0.700); the paper: 0.9446 | " in full
    assert "0.400 ± 0.141 (0.300, 0.500); the paper: none |" in full
    assert "LoRA: not measured, peft is not installed: pip install 'tacit[lora]'." in full
    small = "\n".join(findings(TABLE3, small=True, block="CIFAR-10").lines())
    assert "| ours | 0.600 ± 0.141 (0.500, 0.700) | " in small
    assert "the paper" not in small


def test_rows_and_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = findings(TABLE1, small=False, block="SVHN")
    by_name = {row["row"]: row for row in made.rows()}
    assert by_name[OURS]["published"] == (0.9232, 0.9329, 0.9249, 0.7431)
    assert by_name[OURS]["means"] == pytest.approx(
        {"central": 0.6, "alpha = 100": 0.5, "alpha = 1": 0.4, "alpha = 0.01": 0.3}
    )
    assert (by_name[LORA]["published"], by_name[LORA]["means"]) == (None, {})
    assert by_name[LORA]["missing"].startswith("peft is not installed")
    (axes,) = made.draw().axes
    assert [line.get_label() for line in axes.get_lines() if not line.get_label().startswith("_")] == [
        TUNING,
        PROBING,
        OURS,
    ]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_is_declared_completely(table: AdaptationTable) -> None:
    names = [row.name for row in table.full.rows]
    blocks = [block.name for block in table.full.blocks]
    assert {row for _, row in table.published} <= set(names)
    assert {block for block, _ in table.published} == set(blocks)
    assert all(len(values) == len(table.columns) for values in table.published.values())
    assert table.small is None or [row.name for row in table.small.rows] == names
    assert len(set(names)) == len(names)
    assert f"arms: {', '.join(names)}" in AdaptationMeasurement(claim=table).summary()
    everywhere = cells({(row, column.name): [0.5, 0.5] for row in names for column in table.columns})
    assert [verdict.holds for verdict in table.judge(everywhere)].count(False) == 0


def test_table_1_is_judged_by_its_rows() -> None:
    steps = {TUNING: 0.9, OURS: 0.8, PROBING: 0.5, LORA: 0.85}
    columns = [column.name for column in TABLE1.columns]
    found = {
        (row, column): [value - 0.01 * at] * 2 for row, value in steps.items() for at, column in enumerate(columns)
    }
    found[PROBING, columns[-1]] = [0.3, 0.3]
    assert [verdict.holds for verdict in TABLE1.judge(cells(found))] == [True, True, True]
    found[OURS, columns[2]] = [0.2, 0.2]
    assert [verdict.holds for verdict in TABLE1.judge(cells(found))] == [False, True, True]


def test_data_sets_of_the_full_size_are_looked_for(tmp_path: Path) -> None:
    """A folder of images stands for the one that is there."""
    for part in ("train", "test"):
        for number in range(40):
            place = tmp_path / part / "abcd"[number % 4]
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (6 * number, 0, 0)).save(place / f"{number}.png")
    there = DataBlock(name="there", owned=DataPart(source="folder"), adapted_to=DataPart(source="folder", half=1))
    absent = DataBlock(name="absent", owned=DataPart(source="folder"), adapted_to=DataPart(source="svhn"))
    full = replace(
        TABLE1.full,
        model=ModelConfiguration(image_size=8, patch_size=4, width=8, depth=2, heads=2),
        blocks=(absent, there),
    )
    prepared = AdaptationMeasurement(claim=replace(TABLE1, full=full)).prepare(small=False, data=tmp_path)
    assert [block.name for block in prepared.work.blocks] == ["there"]
    assert prepared.differences[-1] == "without absent, whose files are not in the directory"
    assert prepared.work.tasks[there.owned].classes == 4
    with pytest.raises(FileNotFoundError, match="train_32x32"):
        prepare(replace(TABLE1, full=replace(full, blocks=(absent,))), small=False, data=tmp_path)
