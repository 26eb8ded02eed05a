"""A federation in namespaces: the hosts of tests/cli, each in its own, and what their logs say."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tacit.parties.runs.reading  # noqa: F401  # Declares the events of every log.
from tacit.parties.runs.state import parse_event
from tacit.parties.session.event_log import EventT
from tacit.protocol.core.events import Event
from tests.cli import warm
from tests.cli.hosts import CLASSES, PATIENCE, Hosts, Process
from tests.network.namespaces import Family, Network, network
from tests.network.wire import Shape

PORT: Final = 7007
OPEN_FILES: Final = 1024
RUN: Final = "server/state/runs/0001-small"


class NetworkHosts(Hosts):
    """The hosts of a federation, in namespaces of their own. grace: of server and clients, for lost links."""

    def __init__(self, path: Path, joined: Network, *, clients: int, family: Family, grace: int) -> None:
        self.network = joined
        self._family: Family = family
        self._grace = grace
        self._followers: list[subprocess.Popen[str]] = []
        super().__init__(path, clients=clients)
        bind = f"tcp://{joined.address('server', family)}:{PORT}"
        self.party("server", f'bind = "{bind}"\n[data]\nsource = "tests.npz"\n')

    def client(self, name: str, **_: Any) -> Path:
        connect = f"tcp://{self.network.address('server', self._family)}:{PORT}"
        classes = ", ".join(f'"{one}"' for one in CLASSES)
        data = f'[data]\nsource = "own.npz"\nclasses = [{classes}]\n'
        return self.party(name, f'connect = "{connect}"\ngrace = {self._grace}\n{data}')

    def start(self, name: str, *arguments: str, script: str = "", space: str = "") -> Process:
        if not name:
            return super().start(name, *arguments)
        space = self.network.space(space or name)
        process = Process(
            warm.start(arguments, self.path / name, namespace=space, open_files=OPEN_FILES, script=script)
        )
        self._running.append(process)
        return process

    def launch(self, name: str, command: Sequence[str]) -> Process:
        """Start another command in the namespace of this name, and in its folder, if it has one."""
        # As many open files as a shell or a service usually gets, whatever it is here.
        usual = ["prlimit", f"--nofile={OPEN_FILES}:"]
        folder = self.path / name
        process = Process.of([*self.network.within(name), *usual, *command], folder if folder.is_dir() else self.path)
        self._running.append(process)
        return process

    def federate(
        self, *, rounds: int, width: int = 8, phase: int = 60, stay: bool = False, epochs: int = 1, some: int = 0
    ) -> tuple[Process, dict[str, Process]]:
        """Start everybody: the server, and the clients by their names. stay: clients wait for other sessions. some:
        only so many clients are started, and the experiment takes all of the roster."""
        clients = len(self.names) - 1
        cohort: int | str = '"all"' if some else clients
        path = self.experiment(rounds=rounds, clients=cohort, epochs=epochs, max_weight=100 + 3 * clients)
        text = path.read_text().replace("grace = 1", f"grace = {self._grace}")
        path.write_text(
            text.replace("width = 8", f"width = {width}")
            .replace("phase = 60", f"phase = {phase}")
            .replace("train = 120", "train = 900")
        )
        server = self.start("server", "server", "party.toml", "experiment.toml")
        server.until("listens at")
        more = ["--stay"] if stay else []
        started = self.names[1 : 1 + (some or clients)]
        return server, {name: self.start(name, "client", "party.toml", *more) for name in started}

    def rounds(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.path / RUN / "summary.json").read_bytes())["rounds"]
        return found

    def finish(self, server: Process, clients: Mapping[str, Process]) -> list[dict[str, Any]]:
        """Wait until everybody has ended well. Every round had everybody in it; returns the rounds."""
        assert server.end() == 0, server.everything
        for name, client in clients.items():
            assert client.end() == 0, f"{name}:\n{client.everything}\nserver:\n{server.everything}"
        rounds = self.rounds()
        assert [(entry["status"], entry["survivors"]) for entry in rounds] == [
            ("completed", list(self.names[1:]))
        ] * len(rounds), rounds
        return rounds

    def events(self, name: str = "server") -> Events:
        """What a party's log says from the beginning on, and while it is written."""
        # By name alone: with inotify it loses a file whose folder is moved.
        path = self.path / (f"{RUN}/events/server.jsonl" if name == "server" else f"{name}/state/events/{name}.jsonl")
        command = ["tail", "---disable-inotify", "-s", "0.1", "-n", "+1", "-F", str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._followers.append(process)
        return Events(process)

    def stop(self) -> None:
        for follower in self._followers:
            with follower:
                follower.kill()
        super().stop()


class Events:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._lines = process.stdout
        self._watchdog = threading.Timer(PATIENCE, process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def all(self) -> Iterator[Event]:
        self._watchdog.cancel()
        return map(parse_event, self._lines)

    def wait(self, kind: type[EventT], **fields: object) -> EventT:
        for event in map(parse_event, self._lines):
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
                return event
        raise AssertionError(f"no {kind.__name__} with {fields}")


@contextmanager
def federation(
    path: Path,
    *,
    clients: int,
    family: Family = 4,
    grace: int = 10,
    shapes: Mapping[str, Shape] | None = None,
    others: Sequence[str] = (),
) -> Iterator[NetworkHosts]:
    """Hosts in namespaces, of which nothing is left. shapes: of the wires that are slow; others: who is on the network
    and not in the federation."""
    names = ("server", *(f"client-{number}" for number in range(1, clients + 1)))
    with network((*names, *others), shapes) as joined:
        hosts = NetworkHosts(path, joined, clients=clients, family=family, grace=grace)
        try:
            yield hosts
        finally:
            hosts.stop()
