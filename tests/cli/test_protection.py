"""`tacit simulate` with protections: encrypted and plain runs beside each other, and what is refused before a run."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from tacit.models import checkpoint
from tacit.models.data import load as load_data
from tacit.models.layout import Layout
from tacit.models.model_encryption import PATCH_EMBEDDING, POSITION_EMBEDDING
from tacit.models.networks import build
from tacit.models.training import evaluate
from tacit.parties.runs.experiment import load
from tacit.parties.session.events import ConfigurationProposed, ListeningStarted, ModelEvaluated
from tacit.protocol.core.events import Event
from tests.cli.command import Invoke, WriteExperiment

pytestmark = pytest.mark.end_to_end

Show = Callable[[Event], None]

ENCRYPTED = "[encryption]\n"
KNOWN = 'initial_model = "server"\n'
NO_SECURE_SUM = '[policy]\nmodes = ["none"]\n[aggregation]\nmode = "none"\n'
KNOWN_PLAINTEXT = NO_SECURE_SUM.replace("[policy]", "[policy]\naccept_known_plaintext = true")
FORGOTTEN = "its clients removed what they remembered when its rounds were done; "
KILLED = "server: its process ended unexpectedly: killed by SIGKILL"
TEST_IMAGES = 12
EXHAUSTIVE = pytest.mark.exhaustive


@dataclass(frozen=True)
class Run:
    result: Result
    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_bytes())
        return summary

    def model(self, name: str = "model.safetensors") -> tuple[Layout, np.ndarray]:
        layout = Layout.of(self.fresh())
        return layout, checkpoint.load(self.directory / name, layout)[0]

    def fresh(self) -> torch.nn.Module:
        return build(load(self.directory / "experiment.toml").model, classes=3, channels=1, seed=0)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, tacit: Invoke, write_experiment: WriteExperiment) -> Run:
    """The run of `held_run`, from the same first model, but encrypted, under a second key for the third round."""
    directory = tmp_path_factory.mktemp("encrypted")
    file = write_experiment(directory / "small.toml", rounds=3, more=f"{ENCRYPTED}{KNOWN}rekey_every = 2")
    return Run(tacit("simulate", file, "--seed", 7, "--verify", "--out", directory / "run"), directory / "run")


def test_an_encrypted_run_learns_what_the_plain_one_learns(encrypted: Run, held_run: tuple[Result, Path]) -> None:
    plain = Run(*held_run)
    assert (encrypted.result.exit_code, encrypted.result.stderr) == (0, "")
    lines = encrypted.result.stdout.splitlines()
    assert [line for line in lines if "group key" in line] == [f"group key {epoch} of 4 clients" for epoch in (0, 1)]
    assert sum("ring sum exact over 4 clients" in line for line in lines) == 3

    layout, read = encrypted.model("plain-model.safetensors")
    held, expected = encrypted.model()[1], plain.model()[1]
    # As in tests/parties/session/test_encrypted_training.py; the rows of an orthogonal matrix [16, 16] are below 4 in
    # sum, all coordinates below 1.1, and the four clients' vectors off by a step each.
    step = encrypted.summary["aggregation"]["step"]
    each = (4 + 1) * (2 * 2.0**-24 * 1.1 + 4 * step / 60)
    assert np.abs(read - expected).max() <= 8 * (3 * each + 2 * 4 * 2.0**-24 * 1.1)
    hidden = {
        name for name, part in layout.split(held).items() if np.abs(part - layout.split(expected)[name]).max() > 0.01
    }
    # One in 24 permutations of four rows leaves all of them where they are.
    assert hidden | {POSITION_EMBEDDING} == {PATCH_EMBEDDING, POSITION_EMBEDDING}
    for one, other in zip(encrypted.summary["rounds"], plain.summary["rounds"], strict=True):
        assert abs(one["accuracy"] - other["accuracy"]) <= 1 / TEST_IMAGES
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-3)


def test_the_plain_model_is_the_one_that_was_evaluated(encrypted: Run) -> None:
    experiment = load(encrypted.directory / "experiment.toml")
    data = load_data(experiment.data, image_size=experiment.model.image_size)
    layout, read = encrypted.model("plain-model.safetensors")
    model = encrypted.fresh()
    layout.load_into(model, read)
    judged = evaluate(model, data.x_test, data.y_test, batch_size=TEST_IMAGES, device=torch.device("cpu"))
    assert judged.accuracy == encrypted.summary["final_accuracy"]
    # One image at a time or all at once: float32 adds up in another order.
    assert judged.loss == pytest.approx(encrypted.summary["final_loss"], rel=1e-5)
    assert f"test accuracy {judged.accuracy:.3f} after" in encrypted.result.stdout


def test_an_encrypted_run_that_is_over_is_not_resumed_but_another_begins_where_it_ended(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment, encrypted: Run
) -> None:
    """The other one without secure aggregation, which policy.accept_known_plaintext permits."""
    before = {path: path.read_bytes() for path in encrypted.directory.iterdir() if path.is_file()}
    plain = encrypted.directory / "plain-model.safetensors"
    refused = tacit("simulate", "--resume", encrypted.directory, "--rounds", 4)
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"tacit: {encrypted.directory} cannot be resumed: {FORGOTTEN}start anew from {plain} (model.checkpoint, with "
        'encryption.initial_model = "server")\n'
    )
    assert before == {path: path.read_bytes() for path in encrypted.directory.iterdir() if path.is_file()}

    file = write_experiment(tmp_path / "more.toml", rounds=1, more=f"{ENCRYPTED}{KNOWN}{KNOWN_PLAINTEXT}")
    file.write_text(file.read_text().replace("[model]", f"[model]\ncheckpoint = {str(plain)!r}"))
    more = Run(tacit("simulate", file, "--seed", 7, "--out", tmp_path / "run"), tmp_path / "run")
    assert (more.result.exit_code, more.result.stderr) == (0, "")
    assert "no secure aggregation" in more.result.stdout
    # One epoch of AdamW with a learning rate of 1e-3 takes two steps, a fresh model would be ten times further away.
    layout, read = more.model("plain-model.safetensors")
    difference = layout.split(np.abs(read - encrypted.model("plain-model.safetensors")[1]))
    assert 0 < difference[POSITION_EMBEDDING].max() < 2.5e-3


@pytest.mark.parametrize(
    ("party", "kind", "signalled", "status", "begins", "kept"),
    [
        ("client-1", ModelEvaluated, "command", 130, "tacit: interrupted; finished rounds are kept: ", True),
        # The first model may be written by then, or not.
        pytest.param("server", ConfigurationProposed, "command", 130, "tacit: interrupted", False, marks=EXHAUSTIVE),
        pytest.param(
            "client-1", ModelEvaluated, "server", 4, f"tacit: {KILLED}; finished rounds are kept: ", True,
            marks=EXHAUSTIVE,
        ),
        ("server", ListeningStarted, "server", 4, f"tacit: {KILLED}; finished rounds are kept: ", False),
    ],
)  # fmt: skip
def test_a_run_that_ends_early_says_how_it_goes_on(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment, watch: Callable[[Show], None],
    party: str, kind: type[Event], signalled: str, status: int, begins: str, kept: bool,
) -> None:  # fmt: skip
    done: list[str] = []

    def look(event: Event) -> None:
        if event.party != party or not isinstance(event, kind) or done:
            return
        done.append(party)
        if signalled == "command":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            (process,) = (child for child in multiprocessing.active_children() if child.name == signalled)
            process.kill()

    watch(look)
    run = tmp_path / "run"
    file = write_experiment(tmp_path / "small.toml", rounds=1000, more=ENCRYPTED)
    result = tacit("simulate", file, "--out", run)
    assert (result.exit_code, done) == (status, [party]), result.output
    assert result.stderr.startswith(begins)
    assert (f"--resume {run}" in result.stderr) == (run / "model.safetensors").exists()
    assert (run / "plain-model.safetensors").exists() == kept
    for child in multiprocessing.active_children():
        child.join(60.0)  # One that was just being started ends by itself.
    assert multiprocessing.active_children() == []
