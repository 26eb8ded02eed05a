"""Runs of real processes whose clients keep something back, and what is refused before such a run."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.models import checkpoint
from tacit.models.configuration import ModelConfiguration
from tacit.models.data import load
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.models.stimuli import stimulus_indices
from tacit.parties.runs.experiment import Experiment, parse
from tacit.parties.runs.summary import Summary
from tacit.parties.session.event_log import read
from tacit.parties.session.events import ModelEvaluated
from tacit.protocol.core.events import Event
from tacit.simulate.federation.run import new_plan, simulate

pytestmark = pytest.mark.end_to_end

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
ALONE = "min_contributors = 4\n[policy]\nuncoordinated_weights = true\n"
FEDCG = 'distillation_steps = 2\n[aggregation]\nmode = "none"\n[policy]\nmodes = ["none"]'
LAYERS = ("conv1", "conv2", "conv3", "fc")

Held = tuple[Any, Summary, list[Event]]


def experiment(scheme: str, more: str = "") -> Experiment:
    return parse(TOML.replace("SCHEME", scheme) + more, "test")


def run(experiment: Experiment, directory: Path) -> Held:
    plan = new_plan(experiment, directory, verify=True, report=False)
    summary = asyncio.run(simulate(plan, lambda event: None))
    events = [event for path in (directory / "events").iterdir() for event in read(path)]
    return plan, summary, events


@pytest.fixture(scope="module")
def masked_run(tmp_path_factory: pytest.TempPathFactory) -> Held:
    """FedRSM under secure aggregation."""
    return run(experiment("fedrsm", ALONE), tmp_path_factory.mktemp("masked") / "run")


def test_a_run_with_masked_layers(masked_run: Held) -> None:
    plan, summary, _ = masked_run
    layout = Layout.of(build(ModelConfiguration(name="lenet", image_size=8), classes=10, channels=1, seed=0))
    first = layout.flatten(build(plan.experiment.model, classes=10, channels=1, seed=plan.split_seed))
    last, _ = checkpoint.load(plan.run.model, layout)
    assert summary.completed == summary.planned
    # The server's stimuli are two images of each of ten classes, and no client's.
    data = load(plan.experiment.data, image_size=8)
    assert len(stimulus_indices(data.y_train.numpy(), data.classes)) == 20
    assert [one.samples for one in summary.rounds] == [len(data.y_train) - 20] * 2
    masked = [set(work.layers) for one in summary.rounds for work in one.local.values()]
    assert len(masked) == 8
    assert all(len(layers) == 1 for layers in masked)
    sizes = {name: sum(e.size for e in layout.entries if e.name.startswith(f"{name}.")) for name in LAYERS}
    for one in summary.rounds:
        for work in one.local.values():
            assert work.kept == sizes[work.layers[0]]
            assert work.choosing_seconds > 0
    # All four clients must send a layer for it to move: those that somebody masked in both rounds are as they were.
    before, after = layout.split(first), layout.split(last)
    rounds = [set.union(*masked[:4]), set.union(*masked[4:])]
    for name in before:
        layer = name.partition(".")[0]
        assert np.array_equal(before[name], after[name]) == all(layer in somebody for somebody in rounds)


@pytest.mark.parametrize(("scheme", "more"), [("fedsplit", ""), ("fedcg", FEDCG)])
def test_a_run_with_split_models_is_judged_by_its_clients(tmp_path: Path, scheme: str, more: str) -> None:
    """Also the last round, whose shared half nobody receives any more."""
    _, summary, events = run(experiment(scheme, more), tmp_path / "run")
    judged = [event for event in events if isinstance(event, ModelEvaluated) and event.round > 0]
    for one in summary.rounds:
        found = [event.accuracy for event in judged if event.round == one.round]
        assert len(found) == 4
        assert one.accuracy == pytest.approx(np.mean(found))
    assert len({event.loss for event in judged}) == 8, "every client has a model of its own"
    assert summary.final_accuracy == summary.rounds[1].accuracy
    assert {work.kept for one in summary.rounds for work in one.local.values()} == {3924}
