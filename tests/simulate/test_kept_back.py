"""Runs of real processes whose clients keep something back, and what is refused before such a run."""

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.models import checkpoint
from tacit.models.configuration import ModelConfiguration
from tacit.models.data import load
from tacit.models.layout import Layout
from tacit.models.representation import stimulus_indices
from tacit.models.vision_transformer import build
from tacit.parties.event_log import read
from tacit.simulate.experiment import Experiment, parse
from tacit.simulate.run import kept, new_plan, resumed_plan, simulate
from tacit.simulate.run_directory import RunDirectoryError
from tacit.simulate.supervision import InputError

TOML = """
[federation]
clients = 4
rounds = 2
seed = 7
[model]
name = "lenet"
image_size = 8
[training]
epochs = 1
[protection]
scheme = "SCHEME"
"""
LAYERS = ("conv1", "conv2", "conv3", "fc")


def experiment(scheme: str, more: str = "") -> Experiment:
    return parse(TOML.replace("SCHEME", scheme) + more, "test")


def run(experiment: Experiment, directory: Path) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    plan = new_plan(experiment, directory, verify=True, report=False)
    summary = asyncio.run(simulate(plan, lambda party, event, fields: None))
    events = [event for path in (directory / "events").iterdir() for event in read(path)]
    return plan, summary, events


def test_a_run_with_masked_layers(tmp_path: Path) -> None:
    plan, summary, _ = run(experiment("fedrsm", "min_contributors = 4"), tmp_path / "run")
    layout = Layout.of(build(ModelConfiguration(name="lenet", image_size=8), classes=10, channels=1, seed=0))
    first = layout.flatten(build(plan.experiment.model, classes=10, channels=1, seed=plan.split_seed))
    last, _ = checkpoint.load(plan.run.model, layout)
    assert all(entry["status"] == "completed" for entry in summary["rounds"])
    # The server's stimuli are two images of each of ten classes, and no client's.
    data = load(plan.experiment.data, image_size=8)
    assert len(stimulus_indices(data.y_train.numpy(), data.classes)) == 20
    assert [entry["samples"] for entry in summary["rounds"]] == [len(data.y_train) - 20] * 2
    masked = [set(work["layers"]) for entry in summary["rounds"] for work in entry["local"].values()]
    assert len(masked) == 8
    assert all(len(layers) == 1 for layers in masked)
    sizes = {name: sum(e.size for e in layout.entries if e.name.startswith(f"{name}.")) for name in LAYERS}
    for entry in summary["rounds"]:
        for work in entry["local"].values():
            assert work["kept"] == sizes[work["layers"][0]]
            assert work["choosing_seconds"] > 0
    # All four clients must send a layer for it to move: those that somebody masked in both rounds are as they were.
    before, after = layout.split(first), layout.split(last)
    rounds = [set.union(*masked[:4]), set.union(*masked[4:])]
    for name in before:
        layer = name.partition(".")[0]
        assert np.array_equal(before[name], after[name]) == all(layer in somebody for somebody in rounds)
    with pytest.raises(RunDirectoryError, match="its clients kept something of their own in memory only; start anew"):
        resumed_plan(plan.experiment, plan.run)
    assert kept(plan).startswith("the run cannot be resumed: with protection.scheme fedrsm")


def test_a_run_with_split_models_is_judged_by_its_clients(tmp_path: Path) -> None:
    """Also the last round, whose shared half nobody receives any more."""
    _, summary, events = run(experiment("fedsplit"), tmp_path / "run")
    judged = [event for event in events if event["event"] == "evaluated" and event["round"] > 0]
    for entry in summary["rounds"]:
        found = [event["accuracy"] for event in judged if event["round"] == entry["round"]]
        assert len(found) == 4
        assert entry["accuracy"] == pytest.approx(np.mean(found))
    assert len({event["loss"] for event in judged}) == 8, "every client has a model of its own"
    assert summary["final_accuracy"] == summary["rounds"][1]["accuracy"]
    assert {work["kept"] for entry in summary["rounds"] for work in entry["local"].values()} == {3924}


@pytest.mark.parametrize(
    ("scheme", "more", "complaint"),
    [
        ("fedrsm", "masked_layers = 4", "protection.masked_layers = 4: this model has 4 layers, and at least one must"),
        ("fedrsm", 'granularity = "block"', 'protection.granularity = "block": this model has no residual blocks'),
        ("fedsplit", 'split = "conv7"', 'protection.split = "conv7": this model has no module "conv7" with tensors'),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_the_run(
    tmp_path: Path, scheme: str, more: str, complaint: str
) -> None:
    plan = new_plan(experiment(scheme, more), tmp_path / "run", report=False)
    with pytest.raises(InputError, match=re.escape(complaint)):
        asyncio.run(simulate(plan, lambda party, event, fields: None))
