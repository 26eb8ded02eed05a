"""A federation small enough for rounds in fractions of a second, and the command run within this process.

The party processes are real. Their fork server belongs to this process and loads torch once for all runs.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tacit.cli.screen import Screen
from tacit.protocol.core.events import Event
from tacit.simulate.federation import processes
from tests.cli.command import Invoke, WriteExperiment, invoke
from tests.simulate.conftest import undrawn  # noqa: F401

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from distillations import write

CLASSES = 3
SMALL = """
name = "small"
[federation]
clients = {clients}
rounds = {rounds}
[data]
source = {source!r}
partition = "iid"
[model]
image_size = 8
patch_size = 4
width = {width}
depth = 1
heads = 2
[training]
epochs = 1
batch_size = 8
[deadlines]
grace = 0.5
{more}
"""

Show = Callable[[Event], None]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("data") / "images.npz"
    arrays = {}
    for part, samples in (("train", 60), ("test", 12)):
        arrays[f"y_{part}"] = np.arange(samples) % CLASSES
        noise = generator.integers(0, 60, (samples, 8, 8))
        arrays[f"x_{part}"] = (noise + 60 * arrays[f"y_{part}"][:, None, None]).astype(np.uint8)
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def write_experiment(images: Path) -> WriteExperiment:
    """write_experiment(path, clients=, rounds=, width=, more=) writes a small experiment file."""

    def write(path: Path, *, clients: int = 4, rounds: int = 2, width: int = 8, more: str = "") -> Path:
        path.write_text(SMALL.format(clients=clients, rounds=rounds, source=str(images), width=width, more=more))
        return path

    return write


@pytest.fixture(scope="session")
def tacit() -> Invoke:
    """tacit(*arguments) runs the command; the result has exit_code, stdout and stderr."""
    return invoke


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, write_experiment: WriteExperiment) -> Path:
    return write_experiment(tmp_path_factory.mktemp("small") / "small.toml")


@pytest.fixture(scope="session")
def held_run(tmp_path_factory: pytest.TempPathFactory, tacit: Invoke, small: Path) -> tuple[Result, Path]:
    """Three rounds with seed 7, verified, and their directory. Tests only read it."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    copy = directory.parent / "copy.json"
    options = ["--rounds", 3, "--seed", 7, "--verify", "--json", copy, "--out", directory]
    with pytest.MonkeyPatch.context() as patch:
        # Who is stopped before it has left in order does not log its last traffic.
        patch.setattr(processes, "LEAVE_SECONDS", 120.0)
        return tacit("simulate", small, *options), directory


@pytest.fixture(scope="session")
def distilled(tacit: Invoke, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A small student, distilled; what the command said, and the folder of its results (`out`). Tests only read it."""
    directory = tmp_path_factory.mktemp("distilled")
    experiment = write(directory / "tiny.toml", Path("digits"))
    out, copy = directory / "out", directory / "copy.json"
    result = tacit("distill", experiment, "--data", images, "--out", out, "--json", copy)
    assert result.exit_code == 0, result.stderr
    return result, directory


@pytest.fixture(scope="session")
def student(distilled: tuple[Result, Path]) -> Path:
    return distilled[1] / "out"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Show], None]:
    """watch(show) has show(event) called for every event of a party."""

    def watch(look: Show) -> None:
        show = Screen.show

        def watched(screen: Screen, event: Event) -> None:
            look(event)
            show(screen, event)

        monkeypatch.setattr(Screen, "show", watched)

    return watch
