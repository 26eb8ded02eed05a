"""Declarations of studies, those of files outside the package, and the rows that they measure."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.directory import RunDirectoryError
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.experiments.engine import PreparedStudy, prepare, run_study
from tacit.simulate.experiments.federations import Arm, Federations
from tacit.simulate.experiments.measures import InThisProcess, Request, Row, StudyError, Values
from tacit.simulate.experiments.results import Quantity, StudyResult, StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Size, Study
from tests.cases import cases
from tests.simulate.experiments.conftest import Nobody

ARM = Arm(name="arm", experiment=Experiment())


def squares(row: Row, seed: int, request: Request) -> Values:
    return {"square": float(seed**2), "cube": None if row.name == "none" else float(seed**3)}


def judged(rows: dict[str, StudyRow]) -> Verdict:
    return Verdict(claim="squares grow", criterion="looking", reproduced=True, detail=", ".join(rows))


NUMBERS = Study(
    name="numbers",
    paper="Nobody 2000",
    shows="Table 0",
    claim="numbers grow",
    columns=(Quantity(name="square"), Quantity(name="cube", unit="m", decimals=0)),
    full=Size(
        rows=(Row(name="none"), Row(name="a: b", published={"square": "4"})),
        measure=InThisProcess(squares),
        differences=("it is faster",),
    ),
    claims=(Claim(rows=("none",), judge=judged), Claim(rows=("none", "a: b"), judge=judged)),
)


def prepared(out: Path, *patterns: str, study: Study = NUMBERS, seeds: tuple[int, ...] = (2, 3)) -> PreparedStudy:
    request = Request(seeds=seeds, data=None, device="cpu", out=out)
    return prepare(study, request, small=False, patterns=patterns or ("*",))


def test_rows_are_measured_once_and_claims_judged_when_all_theirs_are(tmp_path: Path) -> None:
    watcher = Nobody()
    some = prepared(tmp_path / "out", "none")
    run_study(some, watcher)
    assert watcher.titles == ["none, seed 2", "none, seed 3"]
    result = some.result(command="tacit")
    assert [row.unfinished for row in result.rows] == ["", "not finished"]
    assert [verdict.detail for verdict in result.verdicts] == ["none"]
    every = prepared(tmp_path / "out")
    run_study(every, watcher)
    assert watcher.titles[2:] == ["a: b, seed 2", "a: b, seed 3"]
    result = every.result(command="tacit")
    assert [verdict.detail for verdict in result.verdicts] == ["none", "none, a: b"]
    first, second = result.rows
    assert (first.values("square"), first.values("cube"), second.values("cube")) == ([4, 9], [], [8, 27])
    assert second.statistics["square"].mean == 6.5
    assert msgspec.json.decode(msgspec.json.encode(result), type=StudyResult) == result
    table, *sentences = result.view()
    assert list(table.cells()) == [["none", "6.50", "3.54", "", "", ""], ["a: b", "6.50", "3.54", "4", "18", "13"]]
    assert sentences == ["reproduced: squares grow (none)", "reproduced: squares grow (none, a: b)"]


def test_results_of_another_function_are_not_mixed(tmp_path: Path) -> None:
    prepared(tmp_path / "out")
    other = replace(NUMBERS, full=replace(NUMBERS.full, measure=InThisProcess(lambda row, seed, request: {})))
    with pytest.raises(RunDirectoryError, match="holds results of another study"):
        prepared(tmp_path / "out", study=other)
    work = prepared(tmp_path / "other", study=other)
    with pytest.raises(StudyError, match="none, seed 2: measured nothing, but the columns of numbers are square, cube"):
        run_study(work, Nobody())


@cases(
    ("changes", "reason"),
    [
        ({"name": "a/b"}, "has other characters than letters"),
        ({"full": Size(rows=())}, "every size has rows, each with a name of its own"),
        ({"full": Size(rows=(Row(name="a: b"), Row(name="a-b")))}, "every size has rows, each with a name of its own"),
        (
            {"claims": (Claim(rows=("nobody", "none"), judge=judged),)},
            "a claim is about rows that there are not: nobody",
        ),
    ],
)
def test_a_study_that_contradicts_itself_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(StudyError, match=reason):
        replace(NUMBERS, **changes)


def test_arms_that_start_from_one_model_have_one_model(tmp_path: Path) -> None:
    other = msgspec.structs.replace(ARM.experiment, model=ModelConfiguration(width=64))
    arms = (replace(ARM, pretrained=True), Arm(name="other", experiment=other, pretrained=True))
    measure = Federations(pretraining=TrainingConfiguration())
    for chosen in (arms, (ARM,)):
        study = replace(NUMBERS, full=Size(rows=chosen, measure=measure), claims=())
        with pytest.raises(StudyError, match="all of these have the same model"):
            prepared(tmp_path / "out", study=study)
    study = replace(NUMBERS, full=Size(rows=(Row(name="row"),)), claims=())
    with pytest.raises(StudyError, match="are each an Arm"):
        prepared(tmp_path / "out", study=study)
