"""`tacit bench start`: how long it takes until something happens, by the commands themselves.

Every command is started as a user does, in an interpreter of its own, in a folder that is removed afterwards. Where
parties train, the seconds of training are known from their logs; what their imports take is measured beside, by as many
interpreters that import the same at the same time, and attributed to packages by an interpreter that keeps count. Two
measurements may differ by what else the machine does meanwhile.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from tacit.parties.session.event_log import read
from tacit.simulate.bench.ends import BenchmarkError

CLIENTS: Final = 3
IMPORTS: Final = "import tacit.parties.hosting.client_host, torch._dynamo, timm.models.vision_transformer"
"""What a client between hosts has imported when it has trained."""
_PRELOAD: Final = "import tacit.simulate.federation.preload"
"""What `tacit simulate` and `tacit infer` load once for all parties."""
_LEAST_PROFILED: Final = 0.05
"""Packages that take less are told together."""
_STUDENT: Final = """
[federation]
seed = 1
[distillation]
margin = 2.5
teacher_epochs = 1
layer_epochs = 1
prediction_epochs = 1
"""
_IMAGES: Final = 20
_LONGEST: Final = 600.0
_LOOK_AGAIN: Final = 0.02
_EXPERIMENT: Final = f"""
[federation]
clients = {CLIENTS}
rounds = 1
[data]
classes = ["0", "1", "2"]
mean = [0.35]
std = [0.2]
[model]
image_size = 8
patch_size = 4
width = 8
depth = 1
heads = 2
[deadlines]
join = 3600
"""


def measure(repeats: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """The figures, in seconds: medians of so many runs. BenchmarkError if a command does not do what it should."""
    found: dict[str, list[float]] = {}
    with _folder() as student:
        progress("help")
        _help()  # Nobody has read the interpreter's files before.
        progress("distilling a student to ask")
        _distil(student)
        for repeat in range(repeats):
            for name, work in (
                ("help", _help),
                ("wrong_input", _wrong_input),
                ("simulate_first_round", _simulated),
                ("infer", lambda: _inferred(student)),
                ("imports", _imports),
            ):
                progress(f"{name.replace('_', ' ')}, {repeat + 1} of {repeats}")
                found.setdefault(name, []).append(work())
            progress(f"between hosts, {repeat + 1} of {repeats}")
            for name, seconds in _between_hosts().items():
                found.setdefault(name, []).append(seconds)
    return {
        "clients": CLIENTS,
        "images": _IMAGES,
        "repeats": repeats,
        "seconds": {name: median(one) for name, one in found.items()},
        "profile": _profile(),
    }


def _help() -> float:
    with _folder() as folder:
        return _timed(["--help"], folder, status=0)


def _wrong_input() -> float:
    with _folder() as folder:
        (folder / "experiment.toml").write_text("[model]\nwidht = 8\n")
        return _timed(["simulate", "experiment.toml"], folder, status=2)


def _simulated() -> float:
    """From `tacit simulate` until its first round is done."""
    with _folder() as folder:
        began = time.time()
        with _started(["simulate", "--rounds", "1", "--out", "run"], folder) as process:
            ended = _first_round(folder / "run", process)
        return ended - began


def _distil(folder: Path) -> None:
    (folder / "experiment.toml").write_text(_STUDENT)
    _timed(["distill", "experiment.toml", "--out", "student"], folder, status=0)


def _inferred(folder: Path) -> float:
    """Of so many images; those of digits are of 8 x 8 pixels."""
    return _timed(["infer", "student", "--images", str(_IMAGES)], folder, status=0)


def _profile() -> dict[str, float]:
    """Seconds that the modules of each package take by themselves, the slowest first; the rest is "others"."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", _PRELOAD], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"an interpreter failed at {_PRELOAD}: {done.stderr.strip()}")
    taken = Counter[str]()
    for line in done.stderr.splitlines():
        # "import time: self [us] | cumulative | imported package", after a heading of the same form.
        own, _, module = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():
            taken[module.strip().partition(".")[0]] += int(own)
    named = {package: count / 1e6 for package, count in taken.most_common() if count >= _LEAST_PROFILED * 1e6}
    return named | {"others": taken.total() / 1e6 - sum(named.values())}


def _imports() -> float:
    """What the imports of server and clients take when all are started at once."""
    began = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-c", IMPORTS]) for _ in range(CLIENTS + 1)]
    if sum(process.wait() for process in processes):
        raise BenchmarkError(f"an interpreter failed at {IMPORTS}")
    return time.monotonic() - began


def _between_hosts() -> dict[str, float]:
    """From `tacit server` and `tacit client`, started at once, until the first round is done."""
    names = ("server", *(f"client-{number}" for number in range(1, CLIENTS + 1)))
    with _folder() as folder:
        _enrol(folder, names)
        began = time.time()
        with ExitStack() as running:
            server = running.enter_context(_started(["server", "party.toml", "experiment.toml"], folder / "server"))
            for name in names[1:]:
                running.enter_context(_started(["client", "party.toml"], folder / name))
            ended = _first_round(folder / "server" / "state" / "runs", server)
        training = max(
            event["training_seconds"]
            for name in names[1:]
            for event in read(folder / name / "state" / "events" / f"{name}.jsonl")
            if event["event"] == "update"
        )
        return {"hosts_first_round": ended - began, "training": training}


def _enrol(folder: Path, names: Sequence[str]) -> None:
    """Folders with what each party has on a host of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    generator = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir()
        role = "server" if name == "server" else "client"
        _timed(["keys", "new", name, "--role", role], folder / name, status=0)
        labels = np.arange(60) % 3
        images = generator.integers(0, 255, (len(labels), 8, 8)).astype(np.uint8)
        np.savez(folder / name / "own.npz", x_train=images, y_train=labels)
        reached = f'bind = "{address}"' if role == "server" else f'connect = "{address}"\ndata.source = "own.npz"'
        classes = "" if role == "server" else 'data.classes = ["0", "1", "2"]\n'
        (folder / name / "party.toml").write_text(f'role = "{role}"\nkey = "{name}.key"\n{reached}\n{classes}')
    cards = [f"{name}/{name}.card" for name in names]
    _timed(["roster", "make", "--out", "roster.toml", *cards], folder, status=0)
    for name in names:
        (folder / name / "roster.toml").write_bytes((folder / "roster.toml").read_bytes())
    (folder / "server" / "experiment.toml").write_text(_EXPERIMENT)


def _first_round(folder: Path, server: subprocess.Popen[bytes]) -> float:
    """When the server of a run in this folder said that its first round was done, by the clock."""
    while True:
        over = server.poll()
        for log in folder.rglob("server.jsonl"):
            for event in read(log):
                if event["event"] == "round-done":
                    if event["status"] != "completed":
                        raise BenchmarkError(f"the first round was aborted: {event['detail']}")
                    return float(event["time"])
        if over is not None:
            raise BenchmarkError(f"the server ended with status {over} before its first round was done")
        time.sleep(_LOOK_AGAIN)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tacit-start-") as folder:
        yield Path(folder)


@contextmanager
def _started(arguments: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is waited for at the end; its screen goes to a file."""
    with (
        (folder / "screen").open("wb") as screen,
        subprocess.Popen(_command(arguments), cwd=folder, stdout=screen, stderr=screen) as process,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        process.wait(_LONGEST)


def _timed(arguments: Sequence[str], folder: Path, *, status: int) -> float:
    began = time.monotonic()
    done = subprocess.run(
        _command(arguments), cwd=folder, capture_output=True, text=True, timeout=_LONGEST, check=False
    )
    if done.returncode != status:
        raise BenchmarkError(f"tacit {' '.join(arguments)} ended with status {done.returncode}: {done.stderr.strip()}")
    return time.monotonic() - began


def _command(arguments: Sequence[str]) -> list[str]:
    return [str(Path(sys.executable).with_name("tacit")), *arguments]
