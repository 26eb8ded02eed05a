"""Seconds from a command to its first event and its first round: the table of docs/network.md.

    python docs/demonstrations/start.py [REPEATS]

Every command is started as a user does, by the `tacit` beside this interpreter, in a folder that is removed afterwards.
It prints medians. Another commit is measured by the interpreter of its own environment; take turns, and leave the
machine otherwise idle. Seconds of the imports, by module: `python -X importtime -c "import torch, timm"`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from tacit.parties.runs.reading import read_state

TACIT = str(Path(sys.executable).with_name("tacit"))
LONGEST = 600
CLIENTS, IMAGES = 3, 20
STUDENT = """
[federation]
seed = 1
[distillation]
margin = 2.5
teacher_epochs = 1
layer_epochs = 1
prediction_epochs = 1
"""
EXPERIMENT = f"""
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


def done(folder: Path, *arguments: str, status: int = 0) -> float:
    """Seconds that a command takes."""
    began = time.time()
    ended = subprocess.run([TACIT, *arguments], cwd=folder, capture_output=True, text=True, timeout=LONGEST)
    assert ended.returncode == status, f"tacit {' '.join(arguments)}: status {ended.returncode}: {ended.stderr}"
    return time.time() - began


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is waited for at the end."""
    with (folder / "screen").open("wb") as screen:
        process = subprocess.Popen([TACIT, *arguments], cwd=folder, stdout=screen, stderr=screen)
    try:
        yield process
        process.wait(LONGEST)
    finally:
        process.kill()


def server_events(folder: Path, server: subprocess.Popen[bytes], began: float) -> tuple[float, float]:
    """Seconds until the server's first event, and until its first round is done, by its own log."""
    while True:
        over = server.poll()
        for log in folder.rglob("server.jsonl"):
            state = read_state(log)
            for round in state.completed:
                return state.sessions[0].began - began, round.ended - began
        assert over is None, f"the server ended before its first round: {(folder / 'screen').read_text()}"
        time.sleep(0.02)


def simulated(folder: Path) -> tuple[float, float]:
    began = time.time()
    with started(folder, "simulate", "--rounds", "1", "--out", "run") as server:
        return server_events(folder, server, began)


def between_hosts(folder: Path) -> tuple[float, float]:
    """Server and clients with keys, roster and data of their own, started at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    roles = {"server": "server"} | {f"client-{number + 1}": "client" for number in range(CLIENTS)}
    for name, role in roles.items():
        own = folder / name
        own.mkdir()
        done(own, "keys", "new", name, "--role", role)
        lines = [f'role = "{role}"', f'key = "{name}.key"']
        if role == "server":
            lines += [f'bind = "{address}"']
            (own / "experiment.toml").write_text(EXPERIMENT)
        else:
            lines += [f'connect = "{address}"', 'data.source = "own.npz"', 'data.classes = ["0", "1", "2"]']
            images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
            np.savez(own / "own.npz", x_train=images, y_train=np.arange(60) % 3)
        (own / "party.toml").write_text("\n".join(lines))
    done(folder, "roster", "make", "--out", "roster.toml", *(f"{name}/{name}.card" for name in roles))
    for name in roles:
        (folder / name / "roster.toml").write_bytes((folder / "roster.toml").read_bytes())
    began = time.time()
    with ExitStack() as running:
        server = running.enter_context(started(folder / "server", "server", "party.toml", "experiment.toml"))
        for name in list(roles)[1:]:
            running.enter_context(started(folder / name, "client", "party.toml"))
        return server_events(folder / "server", server, began)


def main(repeats: int) -> None:
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as kept:
        student = Path(kept)
        (student / "student.toml").write_text(STUDENT)
        done(student, "--help")  # Nobody has read the interpreter's files before.
        done(student, "distill", "student.toml", "--out", "student")
        for _ in range(repeats):
            for name, work in (("tacit simulate", simulated), (f"server and {CLIENTS} clients", between_hosts)):
                with tempfile.TemporaryDirectory() as folder:
                    for until, seconds in zip(("first event", "first round"), work(Path(folder)), strict=True):
                        found[f"{name}: {until}"].append(seconds)
            with tempfile.TemporaryDirectory() as folder:
                wrong = Path(folder, "wrong.toml")
                wrong.write_text("[model]\nwidht = 8\n")
                found["tacit simulate, a wrong key"].append(done(Path(folder), "simulate", wrong.name, status=2))
            found["tacit --help"].append(done(student, "--help"))
            found[f"tacit infer, {IMAGES} images"].append(done(student, "infer", "student", "--images", str(IMAGES)))
    for name, values in found.items():
        print(f"{name:36} {median(values):6.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
