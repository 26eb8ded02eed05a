"""Whole passes over a small transformer, both owners in one process, and what its blocks leave in the clear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tacit.parties.adaptation.stages import CollectedCarried, bringing_stages
from tacit.parties.adaptation.step import StepSizes
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.stages import Carried, PassStage, input_share
from tacit.protocol.inference.schedule import Round
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_memory import Pass


def block_outputs(model: Transformer, images: torch.Tensor) -> torch.Tensor:
    """Float64 [L, B, T, D], every token less its mean, as the residual stream on shares is."""
    exact, found = model.exact(), []
    x = exact.embed(exact.patches(images.double()))
    for block in exact.blocks:
        x = block(x)
        found.append(x - x.mean(-1, keepdim=True))
    return torch.stack(found)


class WholePass:
    """Of both owners, over any stages behind the embedding and the blocks of a transformer."""

    def __init__(self, model: Transformer, images: torch.Tensor) -> None:
        self._pass = Pass(model.friendly, model.fitted, images)
        self.pair, self._images = self._pass.pair, len(images)
        self.begun = [input_share(model.public, len(images), given) for given in (None, images)]
        """What each owner begins with."""
        self.numbers = {name: number for number, name in enumerate(self._pass.layers[DATA])}
        """Of the masks of layers."""

    def run(self, stages: Sequence[PassStage], carried: Sequence[Carried]) -> list[list[Any]]:
        """What both owners carry behind every stage. Each asks for what it says, beforehand, that it will."""
        found: list[list[Any]] = [list(carried)]
        for stage in stages:
            first = len(self.pair.requests)
            runs = [
                stage.prepared(self.pair.parties[rank], self._images, self._pass.layers[rank]) for rank in (MODEL, DATA)
            ]
            assert tuple(self.pair.requests[first:]) == stage.requests(self._images, self.numbers)
            found.append(self.pair.run(*(run(part) for run, part in zip(runs, found[-1], strict=True))))
        return found[1:]

    def collected(self, public: PublicModel, sizes: StepSizes) -> tuple[Any, Any]:
        """The images have passed the blocks: what both owners keep."""
        begun = [CollectedCarried(share) for share in self.begun]
        *_, (one, other) = self.run(bringing_stages(public, sizes), begun)
        return one, other

    @property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(self.pair.log)

    @property
    def in_range(self) -> bool:
        return self._pass.in_range()
