"""An adaptation that was run with recordings: what its owners have, and what the audit knows beside to judge them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from tacit.models.adapters.federated import FullBatches, Order
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, logits
from tacit.parties.adaptation import standing
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.stages import input_share
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.plan import Folder, owner_names, read_learning
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled, setting
from tacit.simulate.adaptation_audit.copies import ToldPass, ToldRows, centred
from tacit.simulate.audit.scores import CANDIDATES, Pixels
from tacit.simulate.federation.recording import ToldOutputs, read


@dataclass(frozen=True, kw_only=True)
class TellingPass:
    """What a data owner was told of a batch, beside which images it had brought."""

    rows: ToldPass = field(repr=False)
    own: torch.Tensor = field(repr=False)
    """Numbers of its images, int64 [B]."""
    patches: torch.Tensor = field(repr=False)
    """Their pixels, float64 [B, N, P]."""
    labels: torch.Tensor = field(repr=False)
    """What was told beside the last block's output, int64 [B] in the order of that."""


@dataclass(frozen=True)
class AuditedAdaptation:
    """A run that can be attacked."""

    experiment: AdaptationExperiment
    seed: int
    setting: AdaptationSetting
    learning: PublicLearning
    parameters: AdapterParameters = field(repr=False)
    """The last common ones, float64, which all data owners were told."""

    @classmethod
    def of(cls, experiment: AdaptationExperiment, folder: Folder, seed: int) -> AuditedAdaptation:
        """Of a run in this folder. ValueError or OSError for what is not there any more."""
        learning = read_learning(folder)
        last, _ = standing.load(folder.of_owner(owner_names(experiment.federation.clients)[0]), learning.initial())
        return cls(experiment, seed, setting(experiment, folder.path, seed=seed), learning, last)

    def images_of(self, owner: str) -> Labelled:
        """What a data owner has."""
        return self.setting.owners[self._number(owner)]

    def batches(self, owner: str) -> list[Order]:
        """Numbers of its images in every pass of a run in which no batch was gone through again."""
        own, images = self.experiment.adaptation, len(self.images_of(owner).labels)
        work = FullBatches(own.batch, own.batches)
        return [
            batch
            for round in range(1, self.experiment.federation.rounds + 1)
            for batch in work.batches(images, np.random.default_rng([self.seed, round, self._number(owner)]))
        ]

    def told(self, recordings: Path, owner: str) -> Iterator[TellingPass]:
        """What it was told, pass by pass. What each row really is of, to judge by, is that of its images whose output
        in the clear is nearest."""
        images = self.images_of(owner).images
        shared = input_share(self.learning.public, len(images), images).flatten(1)
        clear = centred(block_outputs(self.setting.served.transformer, images)).flatten(2)
        for record in read(recordings, owner):
            if isinstance(record, ToldOutputs):
                patches = torch.from_numpy(record.patches.copy())
                own = torch.stack([(shared == one).all(1).nonzero()[0, 0] for one in patches.flatten(1)])
                rows = {}
                for block, told in record.rows.items():
                    outputs = torch.from_numpy(told.copy())
                    nearest = torch.cdist(outputs.flatten(1), clear[block, own]).argmin(1)
                    rows[block] = ToldRows(rows=outputs, images=own[nearest])
                labels = torch.from_numpy(record.labels.copy())
                yield TellingPass(rows=rows, own=own, patches=patches.double(), labels=labels)

    @cached_property
    def tested(self) -> torch.Tensor:
        """Outputs of all blocks for the test images, float32 [L, N, T, D], without the mean of tokens."""
        return centred(block_outputs(self.setting.served.transformer, self.setting.test.images))

    def answers(self, outputs: torch.Tensor) -> torch.Tensor:
        """Labels [N] by adapters and head, of outputs of all blocks [L, N, T, D]."""
        ones = torch.ones(self.learning.public.sizes.width, dtype=torch.float64)
        norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=self.learning.epsilon)
        with torch.no_grad():
            return logits(self.parameters, norm, outputs.double()).argmax(-1)

    def pixels(self, images: torch.Tensor) -> list[Pixels]:
        """Images as they are looked at: 0 to 1, the darkest and the brightest value that test images have."""
        test = self.setting.test.images.double()
        low, high = test.amin((0, 2, 3), keepdim=True), test.amax((0, 2, 3), keepdim=True)
        return list(((images.double() - low) / (high - low)).clamp(0, 1).numpy())

    def candidates(self, owner: str, number: int) -> list[Pixels]:
        """Images to confuse one of a data owner's with, which are not its own: as the seed and the number say."""
        others = (own.images for place, own in enumerate(self.setting.owners) if place != self._number(owner))
        pool = torch.cat([self.setting.test.images, *others])
        generator = torch.Generator().manual_seed((self.seed * 1000 + number) % 2**63)
        return self.pixels(pool[torch.randperm(len(pool), generator=generator)[: CANDIDATES - 1]])

    def blind(self) -> Pixels:
        """What somebody gives who has seen nothing: the mean of the model owner's own images."""
        image: Pixels = self.pixels(self.setting.own.images.mean(0, keepdim=True))[0]
        return image

    def _number(self, owner: str) -> int:
        return owner_names(self.experiment.federation.clients).index(owner)
