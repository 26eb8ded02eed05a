"""Hosts for tests: folders that share nothing but the loopback interface, and their parties as processes."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import IO, Any

import numpy as np

from tests.cli import warm

TACIT = str(Path(sys.executable).with_name("tacit"))
PATIENCE = 480.0  # Seconds until a wait counts as lost; no test takes them.
CLASSES = ("0", "1", "2")
EXPERIMENT = """
name = "small"
[federation]
clients = {clients}
rounds = {rounds}
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
[training]
epochs = {epochs}
batch_size = 8
learning_rate = 0.01
[aggregation]
max_weight = {max_weight}
[deadlines]
join = 3600
train = 120
phase = 60
grace = 1
"""


def images(path: Path, **labels: Sequence[int]) -> None:
    """An .npz file with images of 8 x 8 pixels, brighter from class to class, for these labels."""
    generator = np.random.default_rng(len(path.name))
    arrays: dict[str, Any] = {}
    for part, numbers in labels.items():
        arrays[f"y_{part}"] = np.array(numbers)
        noise = generator.integers(0, 60, (len(numbers), 8, 8))
        arrays[f"x_{part}"] = (noise + 60 * np.array(numbers)[:, None, None]).astype(np.uint8)
    np.savez(path, **arrays)


def free_port() -> int:
    """Below those that the kernel gives out: until its party listens, nobody else gets it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port


class Process:
    """A command on a host; `until` follows what it says."""

    def __init__(self, process: subprocess.Popen[str] | warm.WarmProcess) -> None:
        self.process = process
        self.said: list[str] = []
        self.complained: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((process.stdout, self.said), (process.stderr, self.complained))
        ]
        for reader in self._readers:
            reader.start()

    @classmethod
    def of(cls, command: Sequence[str], folder: Path) -> Process:
        return cls(
            subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def _read(self, stream: IO[str], kept: list[str]) -> None:
        for line in stream:
            kept.append(line.rstrip("\n"))
            self._lines.put(line)
        self._lines.put(None)

    def until(self, pattern: str, *, after: str = "") -> None:
        """Wait until it has said a line with this, after the first with that."""
        ended = 0
        while True:
            lines = dropwhile(lambda line: not re.search(after, line), [*self.said, *self.complained])
            if any(re.search(pattern, line) for line in lines):
                return
            if ended == 2:
                raise AssertionError(f"{pattern!r} was not said:\n{self.everything}")
            ended += self._lines.get(timeout=PATIENCE) is None

    def end(self) -> int:
        status = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def everything(self) -> str:
        return "\n".join([*self.said, *self.complained])


class Hosts:
    """The hosts of a federation: server, client-1, ...; each has a folder with its files only."""

    def __init__(self, path: Path, *, clients: int = 3) -> None:
        self.path = path
        self.names = ("server", *(f"client-{number}" for number in range(1, clients + 1)))
        self.port = free_port()
        self._running: list[Process] = []
        for name in self.names:
            (path / name).mkdir()
            role = "server" if name == "server" else "client"
            self.command(name, "keys", "new", name, "--role", role)
            (path / f"{name}.card").write_bytes((path / name / f"{name}.card").read_bytes())
        self.make_roster(*self.names)
        images(path / "server" / "tests.npz", test=[0, 1, 2] * 4)
        self.party("server", f'bind = "tcp://127.0.0.1:{self.port}"\n[data]\nsource = "tests.npz"\n')
        for number, name in enumerate(self.names[1:]):
            # Of the last client's images none is of class 2.
            labels = [0, 1, 2] * (8 + number) if number < clients - 1 else [0, 1, 1] * 8
            images(path / name / "own.npz", train=labels)
            self.client(name)

    def make_roster(self, *names: str, out: str = "roster.toml") -> None:
        made = self.path / out
        made.unlink(missing_ok=True)
        self.command("", "roster", "make", "--out", str(made), *(str(self.path / f"{name}.card") for name in names))
        for name in names:
            if (self.path / name).is_dir():
                (self.path / name / "roster.toml").write_bytes(made.read_bytes())

    def party(self, name: str, text: str) -> Path:
        role = "server" if name == "server" else "client"
        path = self.path / name / "party.toml"
        path.write_text(f'role = "{role}"\nkey = "{name}.key"\n{text}')
        return path

    def client(
        self, name: str, *, connect: str = "", more: str = "", source: str = "own.npz", sections: str = ""
    ) -> Path:
        connect = connect or f"tcp://127.0.0.1:{self.port}"
        classes = ", ".join(f'"{one}"' for one in CLASSES)
        data = f'[data]\nsource = "{source}"\nclasses = [{classes}]\n'
        return self.party(name, f'connect = "{connect}"\ngrace = 1\n{more}\n{data}{sections}')

    def experiment(
        self, *, rounds: int = 2, clients: int | str = 3, epochs: int = 1, max_weight: int = 100, more: str = ""
    ) -> Path:
        path = self.path / "server" / "experiment.toml"
        path.write_text(EXPERIMENT.format(rounds=rounds, clients=clients, epochs=epochs, max_weight=max_weight))
        return path

    def start(self, name: str, *arguments: str) -> Process:
        process = Process(warm.start(arguments, self.path / name))
        self._running.append(process)
        return process

    def run(self, name: str, *arguments: str) -> Process:
        process = self.start(name, *arguments)
        process.end()
        return process

    def command(self, name: str, *arguments: str) -> None:
        """Run a command there that must succeed, and that loads little."""
        done = subprocess.run([TACIT, *arguments], cwd=self.path / name, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def stop(self) -> None:
        for process in self._running:
            # Only while it runs: later, its number may be that of a session of another test.
            if process.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.process.pid, signal.SIGKILL)
            process.end()


@contextlib.contextmanager
def running_hosts(path: Path, *, clients: int = 3) -> Iterator[Hosts]:
    hosts = Hosts(path, clients=clients)
    try:
        yield hosts
    finally:
        hosts.stop()
