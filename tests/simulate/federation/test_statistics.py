"""A first sum in a simulation, by the same code as between hosts: what it says, that it changes nothing of the run, and
that a run that goes on does not ask anew."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.models.data import read
from tacit.models.moments import moments
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import load, parse, with_overrides
from tacit.parties.runs.incidents import incidents
from tacit.parties.runs.reading import read_state
from tacit.parties.session.event_log import read as events
from tacit.parties.session.events import ConfigurationAccepted, StatisticsSummed
from tacit.simulate.federation.faults import read_faults
from tacit.simulate.federation.processes import ServerLostError
from tacit.simulate.federation.run import new_plan, party_names, resumed_plan, simulate
from tacit.simulate.report.page import make_report

pytestmark = pytest.mark.end_to_end

TOML = """
[federation]
clients = 4
rounds = 1
seed = 1
[data]
source = "{source}"
partition = "iid"
{data}
[model]
image_size = 8
{model}
[training]
epochs = 1
[deadlines]
grace = 1
{more}
"""
VIT = "patch_size = 4\nwidth = 8\ndepth = 1\nheads = 2"


def ran(path: Path, data: str, **options: Any) -> dict[str, Any]:
    source = path.parent / "images.npz"
    generator = np.random.default_rng(1)
    arrays = {}
    for part, count in (("train", 120), ("test", 30)):
        arrays[f"y_{part}"] = labels = np.arange(count) % 3
        noise = generator.integers(0, 100, (count, 8, 8))
        arrays[f"x_{part}"] = (noise + 70 * labels[:, None, None]).astype(np.uint8)
    np.savez(source, **arrays)
    text = TOML.format(source=source, data=data, model=VIT, more="")
    plan = new_plan(parse(text, "test"), path, **options)
    asyncio.run(simulate(plan, lambda event: None))
    summary: dict[str, Any] = json.loads(plan.run.summary.read_bytes())
    return summary


def test_the_rounds_are_those_of_a_run_that_is_given_the_same(tmp_path: Path) -> None:
    """The same model, bit for bit; and a fault comes in the round that it is for, not in the first sum."""
    faults = read_faults(drop=["client-2@MASKED_INPUT:1"], parties=party_names(4))
    summary = ran(tmp_path / "summed", 'statistics = "sum"', faults=faults)
    found = expected(tmp_path / "summed")
    assert summary["statistics"] == found == json.loads((tmp_path / "summed" / "statistics.json").read_bytes())
    assert found["clients"] == 4
    assert [drop["party"] for drop in summary["rounds"][0]["dropped"]] == ["client-2"]
    given = ran(tmp_path / "given", f"mean = {found['mean']}\nstd = {found['std']}", faults=faults)
    assert given["statistics"] is None
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("summed", "given")]
    assert models[0] == models[1]
    state = read_state(tmp_path / "summed" / "events")
    assert (len(state.sessions), [round.number for round in state.rounds]) == (1, [1])
    assert (state.ended, incidents(state)) == ("all rounds are done", [])
    assert "of all clients together have" in make_report(RunDirectory(tmp_path / "summed"))


def expected(path: Path) -> dict[str, Any]:
    """Of all pixels in one place, less those of the images that the server shows."""
    experiment, source = load(path / "experiment.toml"), read(load(path / "experiment.toml").data)
    shown = experiment.protection.shown(source.train.labels, len(source.class_names))
    own = np.setdiff1d(np.arange(len(source.train.images)), shown)
    together = moments(source.train.images, channels=1, image_size=8, indices=own)
    mean, std = together.normalisation()
    return {"clients": 4, "pixels": together.pixels, "mean": list(mean), "std": list(std)}


def test_a_run_that_goes_on_keeps_its_statistics(tmp_path: Path) -> None:
    """The server is killed in the first round; keys are new, and the clients are not asked for pixels again."""
    faults = read_faults(drop=["server@MASKED_INPUT:1"], parties=party_names(4))
    with pytest.raises(ServerLostError, match="killed by SIGKILL"):
        ran(tmp_path / "run", 'statistics = "sum"', faults=faults)
    before = (tmp_path / "run" / "statistics.json").read_bytes()
    run = RunDirectory.open(tmp_path / "run")
    again = resumed_plan(with_overrides(load(run.experiment), rounds=2), run)
    summary = asyncio.run(simulate(again, lambda event: None))
    assert summary.completed == 2
    assert (tmp_path / "run" / "statistics.json").read_bytes() == before
    assert sum(isinstance(event, StatisticsSummed) for event in events(run.events("server"))) == 1
    for client in party_names(4)[1:]:
        said = events(run.events(client))
        assert [event.scheme for event in said if isinstance(event, ConfigurationAccepted)] == [
            "statistics",
            "fedavg",
            "fedavg",
        ]
