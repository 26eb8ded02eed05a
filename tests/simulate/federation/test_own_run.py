"""Runs of one's own functions: callbacks, stopping early, going on, functions that no module has."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.own_functions import Round
from tacit.parties.session.events import RoundEnded
from tacit.simulate import Federation, FederationResult
from tests.world.own_functions import net, share, step

pytestmark = pytest.mark.end_to_end


def made(directory: Path, rounds: int = 3, **keys: Any) -> Federation:
    given: dict[str, Any] = {"model": net, "data": share, "train": step, "clients": 3, "seed": 4, **keys}
    return Federation(rounds=rounds, directory=directory, **given)


def weights(result: FederationResult) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(result.model.parameters()).detach()


def test_a_run_that_is_stopped_twice_goes_on_to_the_same_model(tmp_path: Path) -> None:
    seen: list[Round] = []

    def on_round(round: Round) -> bool:
        seen.append(round)
        return len(seen) == 1

    def failing(round: Round) -> None:
        raise KeyError("disk of mine")

    whole = made(tmp_path / "whole").run()
    first = made(tmp_path / "parts", resume=True, checkpoints=1).run(
        on_round=on_round, evaluate=lambda model: float(sum(map(torch.numel, model.parameters())))
    )
    assert (first.completed, seen[0].number, seen[0].completed) == (1, 1, True)
    assert isinstance(seen[0].event, RoundEnded)
    assert seen[0].metrics == first.metrics[1] == {"accuracy": float(weights(first).numel())}
    assert (tmp_path / "parts" / "report.html").is_file()
    kept = sorted(path.name for path in (tmp_path / "parts" / "checkpoints").iterdir())
    assert kept == ["best.safetensors", "round-1.safetensors"]
    with pytest.raises(KeyError, match="disk of mine"):
        made(tmp_path / "parts", resume=True).run(on_round=failing)
    rows = list(csv.DictReader((tmp_path / "parts" / "rounds.csv").open()))
    assert len(rows) >= 2
    assert (tmp_path / "parts" / "report.html").is_file()
    last = made(tmp_path / "parts", resume=True).run()
    assert last.completed == 3
    assert torch.equal(weights(last), weights(whole))
    again = made(tmp_path / "parts", resume=True).run()
    assert again.completed == 3
    with pytest.raises(ValueError, match=r"is a run with other keys: training\.epochs = 2, which was 4"):
        made(tmp_path / "parts", rounds=4, resume=True, training={"epochs": 2}).run()
    with pytest.raises(ValueError, match=r"there is something already; .*, or go on with that run by resume=True"):
        made(tmp_path / "parts").run()


def scaled(model: Any, data: Any, rate: float, context: Any) -> None:
    assert context.client in range(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += rate * context.round


def test_partials_and_closures_run_and_go_on_in_an_event_loop(tmp_path: Path) -> None:
    size = 3

    def model() -> torch.nn.Module:
        return torch.nn.Linear(size, 1)

    def federation(rounds: int) -> Federation:
        return made(
            tmp_path,
            rounds,
            model=model,
            data=lambda client, clients: [0] * (client + 1),
            train=partial(scaled, rate=0.125),
            resume=True,
        )

    async def cell(rounds: int) -> FederationResult:
        return federation(rounds).run()

    before = weights(asyncio.run(cell(1)))
    second = federation(2).run()
    assert second.completed == 2
    assert torch.allclose(weights(second) - before, torch.tensor(0.25), atol=1e-4)
    assert RunDirectory(tmp_path).experiment.is_file()


SCRIPT = """
import sys
import torch
from tacit.simulate import Federation

RATE = 0.5

def net():
    return torch.nn.Linear(2, 1)

def data(client, clients):
    return torch.zeros(4, 2), torch.zeros(4).long()

def train(model, data):
    with torch.no_grad():
        model.bias += RATE

if __name__ == "__main__":
    result = Federation(
        model=net, data=data, train=train, clients=3, rounds=2, seed=1, directory=sys.argv[1],
        aggregation={"clip": 1.0},
    ).run(on_round=lambda round: round.number == 1)
    print(result.completed)
"""


def test_a_command_goes_on_with_the_run_of_a_script_unless_it_was_edited(tmp_path: Path) -> None:
    (tmp_path / "my-script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def told(*arguments: object) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        return done.returncode, done.stdout + done.stderr

    assert told("my-script.py", "run") == (0, "1\n")
    tacit = ("-c", "import sys; from tacit.cli.entry import main; sys.exit(main())", "simulate", "--resume", "run")
    file = tmp_path / "run" / "experiment.toml"
    text = file.read_text()
    file.write_text(text.replace("epochs = 4", "epochs = 5"))
    status, said = told(*tacit)
    assert (status, "was edited since the run began: training.epochs = 5, which was 4; undo" in said) == (2, True)
    file.write_text(text)
    status, said = told(*tacit)
    assert status == 0, said
    found = load_file(tmp_path / "run" / "model.safetensors")
    rounds = json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"]
    assert [(one["round"], one["status"]) for one in rounds] == [(1, "completed"), (2, "completed")]
    assert found["bias"].shape == (1,)


def measuring(model: Any, data: Any, context: Any) -> dict[str, float]:
    step(model, data)
    return {"loss": 0.5 + context.round, "client": float(context.client)}


def test_metrics_of_a_step_are_means_in_the_sum_and_noisy_where_updates_are(tmp_path: Path) -> None:
    names = {"training": {"metrics": ["loss", "client"]}}
    for number, (keys, error) in enumerate(
        (
            ({}, 1e-3),
            ({"aggregation": {"mode": "none"}, "policy": {"modes": ["none"]}}, 1e-3),
            ({"protection": {"scheme": "dp-gaussian", "dp_noise": 0.001}}, 0.2),
        )
    ):
        seen: list[Round] = []
        result = made(tmp_path / str(number), 2, train=measuring, **names, **keys).run(on_round=seen.append)
        assert [set(one.metrics) for one in seen] == [{"loss", "client"}] * 2
        for one in result.summary.rounds:
            assert abs(one.metrics["loss"] - 0.5 - one.round) < error
            assert one.metrics["client"] + error > 0.0
            assert result.metrics[one.round] == one.metrics
        noise = [abs(one.metrics["loss"] - 0.5 - one.round) for one in result.summary.rounds]
        assert (max(noise) > 2e-4) == (error > 0.1), noise
        rows = list(csv.DictReader((tmp_path / str(number) / "rounds.csv").open()))
        assert float(rows[1]["metric_loss"]) == result.summary.rounds[1].metrics["loss"]
