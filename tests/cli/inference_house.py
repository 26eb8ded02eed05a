"""Hosts for tests of private inference: folders of a dealer, a model owner and a data owner, and their processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from tacit.parties.runs.served import read_served
from tacit.parties.session.event_log import EventT, read
from tests.cli import warm
from tests.cli.hosts import Process, free_port

Invoke = Callable[..., Result]
ROLES = {"dealer": "dealer", "owner": "model-owner", "alice": "data-owner"}
BOUND = 0.1
"""Of the difference of logits to those in the clear, as of `tacit infer`."""


class House:
    """A host each for the dealer, the model owner `owner` and the data owner `alice`."""

    def __init__(self, path: Path, tacit: Invoke, student: Path, images: Path) -> None:
        self.path = path
        self._tacit = tacit
        self._running: list[Process] = []
        self.ports = {name: free_port() for name in ("dealer", "owner")}
        for name, role in ROLES.items():
            (path / name).mkdir()
            self.command("keys", "new", name, "--role", role, "--out", path / name)
        self.roster(*ROLES)
        self.student = student
        self.images = images
        self.write("dealer", bind=self.at("dealer"))
        self.model_owner()
        self.alice()

    def at(self, name: str) -> str:
        return f"tcp://127.0.0.1:{self.ports[name]}"

    def command(self, *arguments: object) -> None:
        done = self._tacit(*arguments)
        assert done.exit_code == 0, done.output

    def roster(self, *names: str, of: tuple[str, ...] = tuple(ROLES)) -> None:
        made = self.path / "roster.toml"
        made.unlink(missing_ok=True)
        self.command("roster", "make", "--out", made, *(self.path / name / f"{name}.card" for name in names))
        for name in of:
            (self.path / name / "roster.toml").write_bytes(made.read_bytes())

    def write(self, name: str, *, role: str = "", **keys: Any) -> Path:
        path = self.path / name / "party.toml"
        given = {"role": role or ROLES[name], "key": f"{name}.key", **keys}
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
        return path

    def model_owner(self, **keys: Any) -> Path:
        given = {"bind": self.at("owner"), "dealer": self.at("dealer"), "model": str(self.student), **keys}
        return self.write("owner", **given)

    def alice(self, **keys: Any) -> Path:
        given = {"model_owner": self.at("owner"), "dealer": self.at("dealer"), "images": str(self.images), **keys}
        return self.write("alice", **given)

    def start(self, name: str, *options: str) -> Process:
        return self.launch(name, ROLES[name], "party.toml", *options)

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


def in_the_clear(student: Path, images: Path) -> torch.Tensor:
    """What the student says of the test images of a file: logits [N, classes]."""
    found = read_served(student)
    pixels = np.load(images)["x_test"][..., None]
    normalised = (pixels.astype(np.float32) - found.data.mean) / found.data.deviation
    with torch.no_grad():
        logits: torch.Tensor = found.transformer(torch.from_numpy(normalised).permute(0, 3, 1, 2))
    return logits


def check_answers(figures: dict[str, Any], student: Path, images: Path) -> None:
    """Every image has the answer that it has in the clear, within the bound."""
    clear = in_the_clear(student, images)
    logits = torch.tensor([row["logits"] for row in figures["images"]], dtype=torch.float64)
    assert 0 < (logits - clear).abs().max() < BOUND
    assert [row["label"] for row in figures["images"]] == [figures["classes"][label] for label in clear.argmax(dim=1)]
    confidences = torch.tensor([row["confidence"] for row in figures["images"]], dtype=torch.float64)
    assert torch.allclose(confidences, logits.softmax(dim=1).max(dim=1).values)
    right = clear.argmax(dim=1).numpy() == np.load(images)["y_test"]
    assert figures["accuracy"] == pytest.approx(right.mean())
