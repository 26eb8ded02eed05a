"""`tacit adapt`: data owners learn beside a small model in real processes; what they learn, and what is refused."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from click.testing import Result
from safetensors.torch import save_file

from tacit.cli.adaptation_screen import AdaptationScreen
from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation import standing
from tacit.parties.adaptation.events import BatchEnded
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.events import InferenceSessionEnded
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import mark_release
from tacit.parties.runs.experiment import load_as
from tacit.parties.runs.reveals import GIVES_AWAY, PROTECTS
from tacit.protocol.adaptation.sums import weight_of
from tacit.protocol.core.events import Event
from tacit.simulate.adaptation.clear import InTheClear
from tacit.simulate.adaptation.plan import Folder, read_learning
from tacit.simulate.adaptation.setting import setting
from tests.cli.command import Invoke
from tests.cli.outputs import check_output

SMALL = """
name = "small"
[federation]
clients = 4
rounds = 2
[data]
partition = "iid"
[model]
image_size = 8
patch_size = 4
width = 16
depth = 2
heads = 2
[training]
batch_size = 32
learning_rate = 2e-3
[adapter]
kind = "parallel"
rank = 4
[adaptation]
batch = 8
backbone_epochs = 2
[deadlines]
join = 3600
grace = 0.5
"""
STEP_ERROR = 2.0**-7
"""Of a step, relative to how far all parameters move (tests/parties/adaptation/test_stages.py)."""
BLOCK_ERROR = 1e-3
"""Of what a block leaves, relative to it, and so of derivatives, which are products of two such values."""


@dataclass(frozen=True)
class Run:
    result: Result
    path: Path

    @property
    def folder(self) -> Folder:
        return Folder(self.path)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return check_output(self.path / "summary.json", "adaptation")

    @property
    def learning(self) -> PublicLearning:
        return read_learning(self.folder)

    def adapters(self, round: int) -> AdapterParameters:
        parameters, number, _ = standing.load(self.folder.adapters(round), self.learning.initial())
        assert number == round
        return parameters


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.toml"
    path.write_text(SMALL)
    return path


def held(tacit: Invoke, experiment: Path, path: Path, *options: object) -> Run:
    result = tacit("adapt", experiment, *options, "--out", path)
    assert multiprocessing.active_children() == []
    return Run(result, path)


@pytest.fixture(scope="module")
def run(tacit: Invoke, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two rounds of four data owners with seed 7. Tests only read it."""
    directory = tmp_path_factory.mktemp("adapted")
    return held(tacit, small, directory / "run", "--seed", 7, "--json", directory / "copy.json")


def distance(one: AdapterParameters, other: AdapterParameters) -> float:
    parts = zip(one.tensors.values(), other.tensors.values(), strict=True)
    return sum((left - right).square().sum().item() for left, right in parts) ** 0.5


def in_the_clear(run: Run, *, by_images: bool = False) -> list[AdapterParameters]:
    """The common adapters after every round, with the same images in the same batches; by_images: data owners count by
    how many they have."""
    experiment, learning = load_as(AdaptationExperiment, run.folder.run.experiment), run.learning
    seed = run.summary["seed"]["value"]
    found = setting(experiment, run.path, seed=seed)
    counts = [len(own.train.labels) for own in found.owners]
    weights = [weight_of(count, min(counts) if by_images else 0) for count in counts]
    return list(InTheClear(learning, found, seed=seed).rounds(weights=weights))


def error(run: Run, expected: AdapterParameters, steps: int) -> float:
    """How far what is learned on shares in so many steps may be from what is learned in the clear: every step is off by
    its own error, and by what follows from where it begins, which is no more."""
    return 2 * (STEP_ERROR + steps * BLOCK_ERROR) * distance(expected, run.learning.initial())


@pytest.mark.end_to_end
@pytest.mark.smoke
def test_all_data_owners_learn_the_same(run: Run) -> None:
    assert (run.result.exit_code, run.result.stderr) == (0, "")
    summary = run.summary
    assert check_output(run.path.parent / "copy.json", "adaptation") == summary
    kept = [run.folder.of_owner(name).read_bytes() for name in summary["owners"]]
    assert len(kept) == 4
    assert set(kept) == {run.folder.adapters(2).read_bytes()}
    assert [(row["round"], row["status"]) for row in summary["rounds"]] == [(1, "completed"), (2, "completed")]
    assert all(row["images"] == 4 * 8 for row in summary["rounds"])
    assert summary["batches"]["refused"] == 0
    assert summary["final_balanced_accuracy"] > summary["before"]["balanced_accuracy"]
    assert summary["final_loss"] < summary["before"]["loss"]
    assert f"balanced test accuracy {summary['final_balanced_accuracy']:.3f}" in run.result.stdout


@pytest.mark.end_to_end
def test_the_summary_says_where_it_comes_from_and_what_it_costs(run: Run) -> None:
    summary = run.summary
    assert summary["protects"] == PROTECTS["none"]
    assert summary["seed"] == {"value": 7, "drawn": False, "repeats": "everything but keys"}
    (session,) = summary["sessions"]
    assert session["versions"]["tacit"]
    roles = {name: party["role"] for name, party in summary["parties"].items()}
    assert roles == {"dealer": "dealer", "model-owner": "model-owner"} | dict.fromkeys(summary["owners"], "data-owner")
    assert summary["parties"]["model-owner"]["phases"] == {}
    assert all(summary["parties"][name]["phases"]["MASKED_INPUT"]["bytes_sent"] > 0 for name in summary["owners"])
    for owner in summary["owners"].values():
        assert (owner["round"], owner["batches"], owner["sessions"]) == (2, 2, 1)
    batches, kept, owners = summary["batches"], summary["kept"], summary["owners"]
    for told, counted in (("bytes_sent", "data_owner_bytes"), ("bytes_received", "model_owner_bytes")):
        assert sum(owner[told] for owner in owners.values()) == 2 * len(owners) * batches[counted] + kept[counted]
    dealt_to_owners = sum(summary["dealer_bytes"][name] for name in owners)
    counted = "preprocessing_to_data_owner_bytes"
    assert dealt_to_owners == 2 * len(owners) * batches[counted] + kept[counted]
    over = [event for event in run.folder.events("dealer") if isinstance(event, InferenceSessionEnded)]
    dealt = {owner: sum(event.preprocessing_bytes.get(owner, 0) for event in over) for owner in summary["dealer_bytes"]}
    assert dealt == summary["dealer_bytes"]
    page = (run.path / "report.html").read_text()
    assert f"{summary['final_balanced_accuracy']:.3f}" in page


@pytest.mark.end_to_end
def test_what_is_learned_is_what_is_learned_in_the_clear(run: Run) -> None:
    for number, expected in enumerate(in_the_clear(run), start=1):
        assert distance(run.adapters(number), expected) <= error(run, expected, steps=number)


@pytest.mark.end_to_end
def test_a_head_is_learned_beside_a_checkpoint_of_timm(tacit: Invoke, small: Path, tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = timm.create_model("test_vit", num_classes=10)
        torch.nn.init.normal_(model.cls_token, std=0.5)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    generator, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 240), ("test", 60)):
        labels = np.arange(count) % 3
        noise = generator.integers(0, 90, (count, 32, 32, 3))
        arrays |= {f"x_{part}": (noise + 60 * labels[:, None, None, None]).astype(np.uint8), f"y_{part}": labels}
    np.savez(tmp_path / "images.npz", **arrays)
    options = ["--model", "test_vit", "--checkpoint", tmp_path / "model.safetensors", "--image-size", 32]
    options += ["--data", tmp_path / "images.npz", "--adapter", "linear-probe", "--clients", 3, "--rounds", 1]
    probe = held(tacit, small, tmp_path / "run", *options, "--seed", 7)
    assert probe.result.exit_code == 0, probe.result.stderr
    assert probe.summary["parameters"] == 3 * model.embed_dim + 3
    assert probe.summary["batches"]["refused"] == 0
    # Only images that batches draw pass the blocks, once.
    assert probe.summary["kept"]["images"] == 3 * 8 * probe.learning.batches
    (expected,) = in_the_clear(probe)
    assert distance(probe.adapters(1), expected) <= error(probe, expected, steps=1)


@pytest.mark.end_to_end
def test_that_telling_outputs_gives_the_model_away_is_said_everywhere(
    tacit: Invoke, small: Path, tmp_path: Path
) -> None:
    told = held(tacit, small, tmp_path / "run", "--reveal", "all", "--rounds", 1, "--clients", 3, "--seed", 7)
    assert told.result.exit_code == 0
    assert told.result.stderr == f'tacit: reveal = "all": {GIVES_AWAY}\n'
    assert told.summary["protects"] == GIVES_AWAY
    assert GIVES_AWAY in (told.path / "report.html").read_text()
    (expected,) = in_the_clear(told)
    assert distance(told.adapters(1), expected) <= error(told, expected, steps=1)


@pytest.mark.end_to_end
def test_what_noise_on_sums_guarantees_is_said_everywhere(tacit: Invoke, tmp_path: Path) -> None:
    noisy = held(tacit, changed(tmp_path, "noise = 0.01"), tmp_path / "run", "--seed", 7)
    assert noisy.result.exit_code == 0, noisy.result.output
    found = noisy.summary["noise"]
    assert (found["deviation"], found["sums"], found["largest_epsilon"]) == (0.01, 2, None)
    # Gaussian mechanisms whose inverse squares add up to much more than 1 have an epsilon of half of that, and a root.
    spent = 2 * 3 * 4 * (found["largest_norm"] / found["deviation"]) ** 2
    assert 0.5 * spent <= found["epsilon"] <= 0.5 * spent + 5 * spent**0.5
    for text in (noisy.result.output, (noisy.path / "report.html").read_text()):
        said = " ".join(text.split())
        assert "standard deviation 0.01 on every common parameter; after 2 sums epsilon is" in said
        assert "guarantees next to nothing" in said


@pytest.mark.end_to_end
def test_a_data_owner_that_dies_costs_its_own_part(
    tacit: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, victim = AdaptationScreen.show, "data-owner-2"

    def killing(screen: AdaptationScreen, event: Event) -> None:
        show(screen, event)
        if isinstance(event, BatchEnded) and (event.party, event.number, event.round) == (victim, 1, 1):
            (process,) = (one for one in multiprocessing.active_children() if one.name == victim)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(AdaptationScreen, "show", killing)
    experiment = tmp_path / "several batches.toml"
    experiment.write_text(small.read_text().replace("batch = 8", "batch = 4\nbatches = 6"))
    run = held(tacit, experiment, tmp_path / "run", "--seed", 7)
    assert run.result.exit_code == 0, run.result.stderr
    others = [name for name in run.summary["owners"] if name != victim]
    assert [row["survivors"] for row in run.summary["rounds"]] == [others, others]
    assert 1 <= run.summary["owners"][victim]["batches"] < 6
    assert "SIGKILL" in run.summary["owners"][victim]["ended"]
    assert f"{victim}: its process ended unexpectedly: killed by SIGKILL" in run.result.stdout
    assert {run.folder.of_owner(name).read_bytes() for name in others} == {run.folder.adapters(2).read_bytes()}
    assert f"<th>{victim}</th>" in (run.path / "report.html").read_text()


def written(directory: Path, text: str) -> Path:
    (directory / "own.toml").write_text(text)
    return directory / "own.toml"


def full(directory: Path) -> Path:
    (directory / "full").mkdir()
    (directory / "full" / "notes.txt").write_text("mine")
    return directory / "full"


def changed(directory: Path, key: str) -> Path:
    return written(directory, SMALL.replace("[adaptation]", f"[adaptation]\n{key}"))


WRONG: dict[str, tuple[Callable[[Path, Path], list[object]], str]] = {
    "too few data owners": (
        lambda small, tmp: [small, "--clients", 2],
        "federation.clients = 2: [policy] accepts at least 3",
    ),
    "a class that is none": (
        lambda small, tmp: [changed(tmp, "known_classes = [0, 10]")],
        "adaptation.known_classes has 10, and the images have the classes 0 to 9",
    ),
    "nothing left to learn": (
        lambda small, tmp: [changed(tmp, "known_classes = [0, 1, 2, 3, 4, 5, 6, 7, 8]")],
        "adaptation.known_classes has 9 of 10 classes: two at least are to be left",
    ),
    "noise on sums where outputs are told": (
        lambda small, tmp: [changed(tmp, 'noise = 0.01\nreveal = "all"')],
        'adaptation.noise = 0.01: with reveal = "all" data owners are told outputs of blocks, which have none',
    ),
    "enrolment where nothing is told": (
        lambda small, tmp: [changed(tmp, 'selection = "enrolment"')],
        'adaptation.selection = "enrolment" is for outputs that are told',
    ),
    "a budget of noise that is not there": (
        lambda small, tmp: [changed(tmp, "largest_epsilon = 1.0")],
        "adaptation.largest_epsilon = 1 is a budget of noise; set adaptation.noise too",
    ),
    "more data owners than can be weighed": (
        lambda small, tmp: [changed(tmp, 'weights = "counts"'), "--clients", 129],
        'federation.clients = 129: with adaptation.weights = "counts" 128 data owners can be added',
    ),
    "a model that is none": (
        lambda small, tmp: [changed(tmp, f'backbone = "{tmp / "nowhere"}"')], "nowhere holds neither",
    ),
    "a folder that is not empty": (lambda small, tmp: [small, "--out", full(tmp)], "is not empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(
    tacit: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, reason = WRONG[case]
    result = tacit("adapt", *arguments(small, tmp_path))
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("tacit: ")
    assert reason in line
    assert "Traceback" not in result.output
    assert multiprocessing.active_children() == []


@pytest.mark.end_to_end
def test_what_was_learned_is_asked(tacit: Invoke, run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "figures.json"
    result = tacit("predict", run.path, "--images", 5, "--batch", 4, "--json", copy)
    figures = check_output(copy, "prediction")
    answered = [image for image in figures["images"] if not image["refused"]]
    assert (result.exit_code, len(figures["images"]), figures["round"]) == (0 if len(answered) == 5 else 1, 5, 2)
    assert figures["agreement"] in (None, 1.0)
    assert {image["label"] for image in answered} <= {"5", "6", "7", "8", "9"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--images", "nowhere.png"), "--images nowhere.png: no such file or folder, and no number of test images"),
        ((), "holds no experiment.toml: name a directory that `tacit adapt` has written, and finished"),
    ],
)
def test_what_cannot_be_asked_is_refused(tacit: Invoke, tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    if options:
        folder = Folder(tmp_path)
        folder.learning.parent.mkdir(parents=True)
        for path in (folder.run.experiment, folder.learning, folder.run.summary):
            path.touch()
        mark_release(tmp_path)
    result = tacit("predict", tmp_path, *options)
    assert (result.exit_code, reason in result.stderr.replace("\n", " ")) == (2, True)
