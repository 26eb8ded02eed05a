"""`tacit experiment` with real parties: a study small enough for rounds in fractions of a second."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.figure
import msgspec
import numpy as np
import pytest
from click.testing import Result

from tacit.cli import study_screen
from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Aggregation, Deadlines, Experiment, FederationSection
from tacit.parties.session.event_log import read
from tacit.parties.session.events import ListeningStarted, RoundEnded
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tacit.simulate.experiments.adaptation import AdaptationSettings
from tacit.simulate.experiments.catalogue import STUDIES
from tacit.simulate.experiments.federations import Arm, Federations
from tacit.simulate.experiments.results import Verdict
from tacit.simulate.experiments.study import Claim, Size, Study
from tacit.simulate.federation.processes import Show
from tests.cli.command import Invoke
from tests.cli.outputs import check_output

pytestmark = pytest.mark.end_to_end


ARM = Experiment(
    federation=FederationSection(clients=4, rounds=2),
    model=ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2),
    training=TrainingConfiguration(epochs=1, batch_size=8),
    aggregation=Aggregation(value_bits=24),
    deadlines=Deadlines(grace=0.5),
)
BINARY = msgspec.structs.replace(
    ARM, protection=BinaryWeights(zero_probability=0.8), policy=ClientPolicy(uncoordinated_weights=True)
)
TINY = Study(
    name="tiny",
    paper="Nobody 2000",
    shows="Table 0",
    claim="nothing changes",
    settings=(("clients", "4"),),
    silent=("the weather: mild",),
    full=Size(rows=(Arm(name="plain", experiment=ARM),)),
    small=Size(
        rows=(
            Arm(name="plain", experiment=ARM, pretrained=True, published={"test accuracy": "99.9"}),
            Arm(name="again", experiment=ARM, pretrained=True),
            Arm(name="binary", experiment=BINARY),
        ),
        measure=Federations(pretraining=TrainingConfiguration(epochs=2, batch_size=8), record_moves=True),
        differences=("everything is smaller",),
    ),
    claims=(
        Claim(
            rows=("plain",),
            judge=lambda rows: Verdict(claim="sun shines", criterion="looking", reproduced=None, detail="one arm"),
        ),
    ),
    draw=lambda result: matplotlib.figure.Figure(),
)


Look = Callable[[str, Event], None]
"""Called with the title of a run, and every event of its parties."""


def watched(patch: pytest.MonkeyPatch, look: Look) -> None:
    began = study_screen.StudyScreen.began

    def watching(screen: study_screen.StudyScreen, title: str) -> Show:
        show = began(screen, title)

        def both(event: Event) -> None:
            show(event)
            look(title, event)

        return both

    patch.setattr(study_screen.StudyScreen, "began", watching)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Look], None]:
    return lambda look: watched(monkeypatch, look)


def kill(*names: str) -> None:
    for process in multiprocessing.active_children():
        if process.name in names:
            process.kill()


@dataclass(frozen=True)
class Held:
    """The study, interrupted in its second run and given again."""

    first: Result
    again: Result
    directory: Path
    summary_before: int
    """When the summary of the first run was written, in nanoseconds, seen between the commands."""
    rounds_before: int
    """What the second run had done by then, which is to be interrupted after the first; a busy machine may be late."""
    copy: Path

    def file(self, arm: str, seed: int, name: str) -> Path:
        return self.directory / "runs" / arm / str(seed) / name

    @property
    def table(self) -> dict[str, Any]:
        return check_output(self.directory / "table.json", "study")


@pytest.fixture(scope="module")
def studies() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STUDIES, "tiny", TINY)
        yield


@pytest.fixture(scope="module")
def held(tacit: Invoke, studies: None, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Held:
    directory = tmp_path_factory.mktemp("tiny") / "out"
    copy = directory.parent / "copy.json"
    command = ["experiment", "tiny", "--small", "--seeds", "3,5", "--data", images, "--out", directory, "--json", copy]

    def look(title: str, event: Event) -> None:
        if title == "again, seed 3" and isinstance(event, RoundEnded):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        watched(patch, look)
        first = tacit(*command)
    written = (directory / "runs" / "plain" / "3" / "summary.json").stat().st_mtime_ns
    second = RunDirectory(directory / "runs" / "again" / "3")
    rounds = 3 if second.summary.exists() else second.progress().round
    return Held(first, tacit(*command), directory, written, rounds, copy)


def test_an_interrupted_study_says_how_to_go_on(held: Held) -> None:
    assert held.first.exit_code == 130
    assert held.first.stderr == "tacit: interrupted; finished runs are kept: give the same command again\n"


def test_the_same_command_goes_on_where_it_was(held: Held) -> None:
    assert (held.again.exit_code, held.again.stderr) == (0, "")
    assert held.file("plain", 3, "summary.json").stat().st_mtime_ns == held.summary_before
    assert "6 runs of 2 rounds, 1 of them finished before" in held.again.stdout
    assert "plain, seed 3" not in held.again.stdout
    assert "   2 of 6  again, seed 3: test accuracy " in held.again.stdout
    assert "not decided: sun shines (one arm)\n" in held.again.stdout
    events = [type(event) for event in read(held.file("again", 3, "events/server.jsonl"))]
    if held.rounds_before == 1:
        assert events.count(ListeningStarted) == 2, "the interrupted run was continued, not begun again"
    assert "trained before" in held.first.stdout
    assert "trained before" not in held.again.stdout


def test_arms_of_a_seed_share_everything_but_their_settings(held: Held) -> None:
    """`again` is `plain` once more, and was interrupted: the same clients, images and weights give the same model."""
    model = "model.safetensors"
    assert held.file("plain", 3, model).read_bytes() == held.file("again", 3, model).read_bytes()
    assert held.file("plain", 5, model).read_bytes() == held.file("again", 5, model).read_bytes()
    others = [held.file(arm, seed, model).read_bytes() for arm, seed in (("plain", 3), ("plain", 5), ("binary", 3))]
    assert len(set(others)) == 3


def test_only_pretrained_arms_start_from_the_model_that_was_trained_before(held: Held) -> None:
    for arm, starts in (("plain", True), ("again", True), ("binary", False)):
        for seed in (3, 5):
            path = (held.directory / "data" / f"pretrained-{seed}.safetensors").resolve()
            text = held.file(arm, seed, "experiment.toml").read_text()
            assert (f'checkpoint = "{path}"' in text) == starts
            assert f"\nseed = {seed}\n" in text
            assert f'source = "{(held.directory / "data" / "federated.npz").resolve()}"' in text


def test_every_run_stands_in_the_table(held: Held) -> None:
    table = held.table
    assert held.copy.read_bytes() == (held.directory / "table.json").read_bytes()
    assert table["command"] == "tacit experiment tiny --small --seeds 3,5 --data images.npz"
    assert (table["size"], table["seeds"], table["data"]) == (
        "small",
        [3, 5],
        "images.npz: 60 training and 12 test images of 3 classes",
    )
    assert [row["name"] for row in table["rows"]] == ["plain", "again", "binary"]
    for row in table["rows"]:
        for run, seed in zip(row["runs"], (3, 5), strict=True):
            summary = json.loads(held.file(row["name"], seed, "summary.json").read_bytes())
            assert run["seed"] == seed
            assert run["federation"]["accuracies"] == [entry["accuracy"] for entry in summary["rounds"]]
            assert run["values"] == {"test accuracy": 100 * summary["final_accuracy"]}
            assert sum(run["federation"]["moves"]) == summary["aggregation"]["parameters"]
    plain, _, binary = ([run["federation"]["moves"] for run in row["runs"]] for row in table["rows"])
    assert plain[0][:2] == [0, 0], "without protection every coordinate moves in every round"
    never, once, always = binary[0]
    # 1 - 0.8^4 = 0.5904 of the coordinates move in a round; these limits are more than ten deviations wide.
    total = never + once + always
    assert abs(never / total - 0.4096**2) < 0.1
    assert abs(always / total - 0.5904**2) < 0.1
    assert binary[0] != binary[1]


def test_results_of_other_settings_are_not_mixed(tacit: Invoke, held: Held, images: Path) -> None:
    other = tacit("experiment", "tiny", "--small", "--seeds", 3, "--out", held.directory)
    assert other.exit_code == 2
    assert other.stderr == (
        f"tacit: {held.directory} holds results of another study, or of other settings, data or device: choose another "
        "directory with --out\n"
    )
    fewer = tacit("experiment", "tiny", "--small", "--seeds", 3, "--data", images, "--out", held.directory)
    assert fewer.exit_code == 0, "the same settings with fewer seeds need no run"
    assert "3 runs of 2 rounds, 3 of them finished before" in fewer.stdout


@pytest.mark.parametrize(
    ("victims", "status", "complaint"),
    [
        (
            ("client-1", "client-2"),
            3,
            "a round was aborted, or its model not judged; see {run}, and give the command again",
        ),
        (("server",), 4, "killed by SIGKILL; finished runs are kept: give the same command again"),
    ],
    ids=["an aborted round", "a lost server"],
)
def test_a_run_that_fails_ends_the_study(
    tacit: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    images: Path,
    tmp_path: Path,
    watch: Callable[[Look], None],
    victims: tuple[str, ...],
    status: int,
    complaint: str,
) -> None:
    """Two of four clients are killed, which leaves fewer than the threshold; or the server is."""

    def look(title: str, event: Event) -> None:
        if isinstance(event, RoundStarted) and event.round == 1:
            kill(*victims)

    # It ends when they are killed, in whichever round that is.
    long = msgspec.structs.replace(ARM, federation=FederationSection(clients=4, rounds=50))
    small = Size(rows=(Arm(name="plain", experiment=long),))
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, small=small))
    watch(look)
    result = tacit("experiment", "tiny", "--small", "--seeds", 0, "--data", images, "--out", tmp_path / "out")
    assert result.exit_code == status
    assert result.stderr.endswith(f"{complaint.format(run=tmp_path / 'out' / 'runs' / 'plain' / '0')}\n")
    assert not (tmp_path / "out" / "table.md").exists()
    assert multiprocessing.active_children() == []


def empty_folder(path: Path) -> Path:
    (path / "cifar-10-batches-bin").mkdir()
    return path


def bad_file(path: Path) -> Path:
    path.write_bytes(b"no archive")
    return path


REFUSALS: dict[str, tuple[Callable[[Path, Path], list[object]], str]] = {
    "an unknown name": (lambda out, images: ["sawada-fig7"], "no experiment 'sawada-fig7'; choose one of aso-table1"),
    "the full size without images": (lambda out, images: ["sawada-fig5"], "the full size needs --data: a directory"),
    "a directory without CIFAR-10": (
        lambda out, images: ["sawada-fig5", "--data", empty_folder(out.parent)],
        "batches.meta.txt is no file",
    ),
    "a broken file": (
        lambda out, images: ["aso-table1", "--small", "--data", bad_file(out.parent / "bad.npz")],
        "is not a readable .npz file",
    ),
    "a file without a study": (lambda out, images: [__file__], "test_experiment.py defines no STUDY; assign a"),
    "images of another shape": (
        lambda out, images: ["sawada-fig6", "--data", images],
        "holds images of 8 x 8 x 1 in 3 classes; the full size takes 32 x 32 x 3 in 10 classes",
    ),
}  # fmt: skip


def test_wrong_input_is_refused_before_anything_starts(tacit: Invoke, tmp_path: Path, images: Path) -> None:
    wrong = {}
    for number, (case, (arguments, reason)) in enumerate(REFUSALS.items()):
        out = tmp_path / str(number) / "out"
        out.parent.mkdir()
        result = tacit("experiment", *arguments(out, images), "--out", out)
        lines = result.stderr.splitlines()
        if (result.exit_code, len(lines), out.exists()) != (2, 1, False) or reason not in lines[0]:
            wrong[case] = result.output
    assert wrong == {}


def test_a_study_of_ones_own_is_run_like_the_others(tacit: Invoke, tmp_path: Path) -> None:
    example, out = Path(__file__).parents[2] / "docs" / "examples" / "my_study.py", tmp_path / "out"
    result = tacit("experiment", example, "--small", "--seeds", "0", "--out", out)
    assert result.exit_code == 0, result.stderr
    table = check_output(out / "table.json", "study")
    assert table["command"] == "tacit experiment my_study.py --small --seeds 0"
    assert [(row["name"], row["runs"][0]["values"].keys()) for row in table["rows"]] == [
        (name, {"test accuracy", "sent by all clients"}) for name in ("plain", "noise")
    ]
    assert "not decided: without noise the model is more accurate (" in result.stdout
    again = tacit("experiment", example, "--small", "--seeds", "0", "--out", out)
    assert "2 runs of 2 rounds, 2 of them finished before" in again.stdout


def test_rows_without_a_federation_are_written_like_the_others(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table 1 of adaptation on classes 0 and 1 of the owner and 2 and 3 of the clients, in seconds."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 64), ("test", 16)):
        labels = np.arange(count) % 4
        arrays |= {f"y_{part}": labels, f"x_{part}": generator.integers(0, 60, (count, 8, 8), np.uint8)}
        arrays[f"x_{part}"] += (60 * labels[:, None, None]).astype(np.uint8)
    data = tmp_path / "four.npz"
    np.savez(data, **arrays)
    study = STUDIES["tastan-table1"]
    twin = study.size(small=True)
    assert isinstance(twin.measure, AdaptationSettings)
    measure = replace(
        twin.measure,
        model=ModelConfiguration(image_size=8, patch_size=4, width=8, depth=2, heads=2),
        distillation=DistillationConfiguration(layer_epochs=1, prediction_epochs=1, margin=10.0),
        rounds=1,
    )
    monkeypatch.setitem(STUDIES, "tastan-table1", replace(study, small=replace(twin, measure=measure)))
    out, copy = tmp_path / "out", tmp_path / "copy.json"
    command = ["experiment", "tastan-table1", "--small", "--seeds", "3", "--data", data, "--out", out, "--json", copy]
    assert tacit(*command, "--arm", "ours").exit_code == 0
    assert check_output(copy, "study")["verdicts"] == []
    result = tacit(*command)
    assert result.exit_code == 0, result.stderr
    assert "4 runs, 1 of them finished before" in result.stdout
    assert copy.read_bytes() == (out / "table.json").read_bytes()
    table = check_output(copy, "study")
    assert table["command"] == "tacit experiment tastan-table1 --small --seeds 3 --data four.npz"
    assert [row["name"] for row in table["rows"]] == [row.name for row in twin.rows]
    assert all(row["runs"] for row in table["rows"])
    page = (out / "table.md").read_text()
    assert "| row | central | alpha = 100 | alpha = 1 | alpha = 0.01 |" in page
    for row in table["rows"]:
        assert all(f"{value:.3f}" in page for run in row["runs"] for value in run["values"].values())
    assert (out / "plot.svg").read_text().startswith("<?xml")
    # One seed decides nothing.
    assert result.stdout.count("not decided: ") == len(table["verdicts"]) == 3
