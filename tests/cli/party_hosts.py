"""A host each for the parties of private inference or adaptation: their folders, and their processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tacit.parties.session.event_log import EventT, read
from tests.cli import warm
from tests.cli.command import Invoke
from tests.cli.hosts import Process, free_port


class PartyHosts:
    """Every party has a folder with its keys and the roster of all of them; subclasses write their party files."""

    ROLES: ClassVar[Mapping[str, str]]
    SERVICES: ClassVar[Sequence[str]] = ("dealer", "owner")

    def __init__(self, path: Path, tacit: Invoke) -> None:
        self.path = path
        self._tacit = tacit
        self._running: list[Process] = []
        self.ports = {name: free_port() for name in self.SERVICES}
        for name, role in self.ROLES.items():
            (path / name).mkdir()
            self.command("keys", "new", name, "--role", role, "--out", path / name)
        self.roster(*self.ROLES)

    def at(self, name: str) -> str:
        return f"tcp://127.0.0.1:{self.ports[name]}"

    def command(self, *arguments: object) -> None:
        done = self._tacit(*arguments)
        assert done.exit_code == 0, done.output

    def roster(self, *names: str, of: Sequence[str] = ()) -> None:
        """Make a roster of these, and give it to those, or to all."""
        made = self.path / "roster.toml"
        made.unlink(missing_ok=True)
        self.command("roster", "make", "--out", made, *(self.path / name / f"{name}.card" for name in names))
        for name in of or self.ROLES:
            (self.path / name / "roster.toml").write_bytes(made.read_bytes())

    def write(self, name: str, sections: Mapping[str, Mapping[str, Any]] | None = None, **keys: Any) -> Path:
        path = self.path / name / "party.toml"
        given = {"role": self.ROLES[name], "key": f"{name}.key", **keys}
        lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        for section, values in (sections or {}).items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        path.write_text("\n".join([*lines, ""]))
        return path

    def start(self, name: str, *options: str) -> Process:
        return self.launch(name, self.ROLES[name], "party.toml", *options)

    def launch(self, name: str, *arguments: str) -> Process:
        process = Process(warm.start(arguments, self.path / name))
        self._running.append(process)
        return process

    def status(self, name: str) -> dict[str, Any]:
        copy = self.path / name / "status.json"
        self._tacit("status", self.path / name / "party.toml", "--json", copy)
        found: dict[str, Any] = json.loads(copy.read_bytes())
        return found

    def events(self, name: str, kind: type[EventT]) -> list[EventT]:
        log = self.path / name / "state" / "events" / f"{name}.jsonl"
        return [event for event in read(log) if isinstance(event, kind)]

    def stop(self) -> None:
        for process in self._running:
            process.process.kill()
            process.end()
