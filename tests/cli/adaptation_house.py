"""Hosts for tests of double-blind adaptation: folders of a dealer, a model owner and three data owners, and their
processes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.cli.command import Invoke
from tests.cli.hosts import Process
from tests.cli.party_hosts import PartyHosts

DATA_OWNERS = ("alice", "bob", "carol")
ROLES = {"dealer": "dealer", "owner": "model-owner", **dict.fromkeys(DATA_OWNERS, "data-owner")}
CLASSES = ("0", "1")
BATCH = 4


def labelled(path: Path, labels: Sequence[int], *, side: int = 8) -> None:
    """An .npz file with images for these labels, of another brightness for each."""
    generator = np.random.default_rng(len(path.parent.name))
    numbers = np.array(labels)
    noise = generator.integers(0, 60, (len(numbers), side, side))
    pixels = (noise + 60 * numbers[:, None, None]).astype(np.uint8)
    np.savez(path, x_train=pixels, y_train=numbers)


class AdaptationHouse(PartyHosts):
    """A host each for the dealer, the model owner `owner` and data owners, who learn so many rounds."""

    ROLES = ROLES
    SERVICES = ("dealer", "owner", "sums")

    def __init__(self, path: Path, tacit: Invoke, student: Path, *, rounds: int = 2) -> None:
        super().__init__(path, tacit)
        self._student = student
        self.rounds = rounds
        self.grace = 1.0
        """Of a lost link to the sums, in seconds."""
        self.model_owner()
        self.dealer()
        for name in DATA_OWNERS:
            labelled(path / name / "images.npz", [0, 1] * 3)
            self.data_owner(name)

    def dealer(self, **keys: Any) -> Path:
        own = {"sums": self.at("sums"), "words": self.words, "rounds": self.rounds, **keys}
        deadlines = {"join": 3600, "phase": 600, "grace": self.grace}
        return self.write("dealer", {"adaptation": own, "adaptation.deadlines": deadlines}, bind=self.at("dealer"))

    @property
    def words(self) -> int:
        """Of a share: two blocks of five tokens of width 8, adapters of rank 2, two classes, and what is counted."""
        adapter = 2 * (2 * 8 + 2 * 5) + 1
        return 2 * adapter + 2 * 8 + 2 + 4

    def inference_dealer(self) -> Path:
        return self.write("dealer", {}, bind=self.at("dealer"))

    def predictor(self, name: str, images: Path, **keys: Any) -> Path:
        given = {"model_owner": self.at("owner"), "dealer": self.at("dealer"), "images": str(images), "batch": BATCH}
        return self.write(name, {"adaptation": {"purpose": "prediction"}}, **given, **keys)

    def model_owner(self, **keys: Any) -> Path:
        own = {"classes": CLASSES, "batch": BATCH, "rounds": self.rounds, "learning_rate": 0.02, "margin": 4.0, **keys}
        adapter = {"kind": "parallel", "rank": 2}
        return self.write(
            "owner",
            {"adaptation": own, "adaptation.adapter": adapter},
            bind=self.at("owner"),
            dealer=self.at("dealer"),
            model=str(self._student),
        )

    def data_owner(self, name: str, *, data: Mapping[str, Any] | None = None, batch: int = BATCH, **keys: Any) -> Path:
        own = {"sums": self.at("sums"), "rounds": self.rounds, "grace": 1.0, **keys}
        images = {"source": "images.npz", "classes": CLASSES} if data is None else data
        addresses = {"model_owner": self.at("owner"), "dealer": self.at("dealer")}
        return self.write(name, {"adaptation": own, "data": images}, **addresses, batch=batch)

    def start_all(self, *, but: Sequence[str] = ()) -> dict[str, Process]:
        return {name: self.start(name) for name in ROLES if name not in but}

    def adapters(self, name: str) -> bytes:
        return (self.path / name / "state" / "adapters.safetensors").read_bytes()

    def stop(self) -> None:
        for process in self._running:
            process.process.kill()
            process.end()


def forget(state: Path) -> None:
    """Remove all that a party has persisted, but its release and the tokens that show that it is no copy."""
    for path in state.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif "tokens" not in path.name and path.name != "release":
            path.unlink()


def complaint(process: Process, status: int, pattern: str) -> None:
    assert process.end() == status, process.everything
    (line,) = process.complained
    assert re.search(pattern, line), line
