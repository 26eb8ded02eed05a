"""Hosts for tests of private inference: folders of a dealer, a model owner and a data owner, and their processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.parties.runs.served import read_served
from tests.cli.command import Invoke
from tests.cli.party_hosts import PartyHosts

ROLES = {"dealer": "dealer", "owner": "model-owner", "alice": "data-owner"}
BOUND = 0.1
"""Of the difference of logits to those in the clear, as of `tacit infer`."""


class House(PartyHosts):
    """A host each for the dealer, the model owner `owner` and the data owner `alice`."""

    ROLES = ROLES

    def __init__(self, path: Path, tacit: Invoke, student: Path, images: Path) -> None:
        super().__init__(path, tacit)
        self.student = student
        self.images = images
        self.write("dealer", bind=self.at("dealer"))
        self.model_owner()
        self.alice()

    def model_owner(self, **keys: Any) -> Path:
        given = {"bind": self.at("owner"), "dealer": self.at("dealer"), "model": str(self.student), **keys}
        return self.write("owner", **given)

    def alice(self, **keys: Any) -> Path:
        given = {"model_owner": self.at("owner"), "dealer": self.at("dealer"), "images": str(self.images), **keys}
        return self.write("alice", **given)


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
