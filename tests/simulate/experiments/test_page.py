"""table.md, table.json and plot.svg, from results that never took place."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tacit.simulate.experiments.catalogue import STUDIES
from tacit.simulate.experiments.engine import PreparedStudy, prepare
from tacit.simulate.experiments.page import Page, command_line
from tacit.simulate.experiments.study import ArmResult, Study

MOVES = [544, 0, 0, 0, 0, 0, 0, 0, 0, 0, 18_058]


def page(study: Study, make_result: Callable[..., ArmResult], seeds: int, directory: Path) -> Page:
    work: PreparedStudy = prepare(study, small=True, seeds=range(seeds), data=None, device="cpu", out=directory)
    accuracies = [0.5 + seed / 8 for seed in range(seeds)]
    results = [make_result(arm, accuracies, moves=[MOVES] * seeds) for arm in work.size.arms]
    return Page(work=work, results=results, command="tacit experiment")


def test_a_page_has_everything(make_result: Callable[..., ArmResult], tmp_path: Path) -> None:
    study = STUDIES["sawada-fig6"]
    made = page(study, make_result, 2, tmp_path)
    made.write(tmp_path)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    table = json.loads((tmp_path / "table.json").read_bytes())
    assert text.startswith(f"## {study.name}: {study.shows}\n")
    for arm, figures in zip(study.small.arms, table["arms"], strict=True):
        assert f"| {arm.name} | {arm.published} | not run | " in text
        assert [run["seed"] for run in figures["runs"]] == [0, 1]
        assert figures["mean"] == sum(run["value"] for run in figures["runs"]) / 2
    for what, value in study.settings:
        assert f"| {what} | {value} |" in text
    for sentence in (*study.silent, *study.small.differences):
        assert f"- {sentence}" in text
    for verdict in table["verdicts"]:
        word = {True: "holds", False: "does not hold", None: "not decided by these runs"}[verdict["holds"]]
        assert f"- **{word}**: {verdict['claim']}. Criterion: " in text
    assert "</svg>" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


def test_mean_spread_and_every_run_stand_in_the_table(make_result: Callable[..., ArmResult], tmp_path: Path) -> None:
    text = "\n".join(page(STUDIES["sawada-fig5"], make_result, 3, tmp_path).markdown())
    assert (
        "| pretrained-unprotected | a curve: the baseline | not run | 62.50 ± 12.50 | 50.00 | 62.50 | 75.00 |" in text
    )


def test_one_run_has_no_spread_in_the_table(make_result: Callable[..., ArmResult], tmp_path: Path) -> None:
    made = page(STUDIES["sawada-fig5"], make_result, 1, tmp_path)
    assert "| not run | 50.00 | 50.00 |" in "\n".join(made.markdown())
    assert made.figures()["arms"][0]["spread"] is None


def test_other_numbers_of_images_are_a_difference(make_result: Callable[..., ArmResult], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), np.arange(20) % 10
    np.savez(tmp_path / "few.npz", x_train=pixels, y_train=labels, x_test=pixels[:10], y_test=labels[:10])
    study, out = STUDIES["sawada-fig5"], tmp_path / "out"
    work = prepare(study, small=False, seeds=(0,), data=tmp_path / "few.npz", device="cpu", out=out)
    results = [make_result(arm, [0.5]) for arm in study.full.arms]
    text = "\n".join(Page(work=work, results=results, command="tacit experiment").markdown())
    assert "- 20 training and 10 test images instead of 50,000 and 10,000" in text
    assert "| pretrained-unprotected | a curve: the baseline | 50.00 | not run | 50.00 |" in text


def test_the_command_names_no_place_of_this_machine() -> None:
    command = command_line("sawada-fig5", small=True, seeds="0-4", data=Path("/some/where/my file.npz"), device="cuda")
    assert command == "tacit experiment sawada-fig5 --small --seeds 0-4 --data 'my file.npz' --device cuda"
    assert command_line("aso-table1", small=False, seeds="1", data=None, device="cpu") == (
        "tacit experiment aso-table1 --seeds 1"
    )
