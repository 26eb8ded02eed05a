"""FedCG (Wu et al. 2022): like FedSplit, but clients also share a generator of their private half's features
(models/fedcg.py).

A client keeps its discriminator and its extractor. The server has the vector of every client, and thus a generator and
a classifier of each, from which it distils its own, each weighted by its samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, cast

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.models import split
from tacit.models.configuration import TrainingConfiguration
from tacit.models.interruption import Proceed
from tacit.models.layout import Flat
from tacit.parties.protections.fedsplit import Split, SplitClient
from tacit.parties.protections.protection import Disclosure, Facts
from tacit.parties.protections.sides import Basis, Memory, ServerSide, Work, integer, round_seeds
from tacit.protocol.sum.configuration import Proposal

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tacit.models.fedcg import CoupledModel
    from tacit.models.training import LocalStatistics


_DISCRIMINATOR: Final = "discriminator."


class FedCG(Split, frozen=True, kw_only=True, tag="fedcg"):
    """Clients share classifier and generator; the server distils."""

    takes_factories: ClassVar[bool] = False
    about: ClassVar[str] = (
        "The first half of the model never leaves a client, and clients share a generator of what comes out of that "
        "half; without secure aggregation only."
    )

    distillation_steps: Annotated[
        int,
        Meta(
            description="Training steps of the server for generator and classifier in a round, each with a "
            "batch of training.batch_size.",
            ge=1,
            le=1_000_000,
        ),
    ] = 2000

    def facts(self) -> Facts:
        return replace(super().facts(), single_vectors=True)

    def disclosures(self, clients: int) -> tuple[Disclosure, ...]:
        whole = "the classifier and the generator of each client"
        return (Disclosure("server", whole, 'always: it works with aggregation.mode = "none" alone'),)

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        if terms.secure:
            raise ValueError(
                f'protection.scheme = "{self.scheme}": its server distils from the classifier and the generator of '
                f'every client, which aggregation.mode = "{terms.mode}" hides from it; set aggregation.mode to "none" '
                '(and list it in policy.modes), or take "fedsplit"'
            )
        if key := next((key for key in ("proximal", "augment") if getattr(training, key)), ""):
            raise ValueError(
                f'training.{key} = {getattr(training, key)}: protection.scheme = "{self.scheme}" trains in its own '
                "way; leave it out"
            )
        if training.buffers == "local":
            raise ValueError(
                f'training.buffers = "local": with protection.scheme = "{self.scheme}" the server distils from '
                'generators, which normalise by their buffers; set it to "average"'
            )
        super().check(terms, training)

    def build(self, network: nn.Module, work: Work, seed: int) -> nn.Module:
        from tacit.models.fedcg import CoupledModel

        split.extractor(work.layout(network), work.model, self.split)
        return CoupledModel(
            network,
            split.first_shared(work.model, self.split),
            shape=work.shape,
            classes=work.classes,
            # A LeNet has sigmoids of its own.
            squash=work.model.name != "lenet",
            seed=seed,
        )

    def private(self, model: nn.Module, work: Work) -> frozenset[str]:
        network = cast("CoupledModel", model).network
        return frozenset(f"network.{name}" for name in super().private(network, work))

    def client(self, basis: Basis) -> FedCGClient:
        return FedCGClient(basis, self.private(basis.model, basis.work))

    def server(self, basis: Basis) -> FedCGServer:
        return FedCGServer(basis, self)


class FedCGClient(SplitClient):
    """Trains a generator that learns to imitate its extractor."""

    def __init__(self, basis: Basis, kept: frozenset[str]) -> None:
        from tacit.models.fedcg import discriminator

        super().__init__(basis, kept)
        self._model = cast("CoupledModel", basis.model)
        self._discriminator = discriminator(self._model, integer(round_seeds(basis.seed, 0)[0]))
        """The persisted state is loaded into it before training."""
        self.memory = self._trained()

    def train(self, x: Any, y: torch.Tensor | None, *, round: int, seed: int, proceed: Proceed) -> LocalStatistics:
        from torch import from_numpy

        from tacit.models.fedcg import train_client

        assert y is not None
        training, device = self.basis.work.training.in_round(round), self.basis.device
        for name, tensor in self._discriminator.state_dict(prefix=_DISCRIMINATOR).items():
            tensor.copy_(from_numpy(self.memory[name].copy()))
        statistics = train_client(
            self._model, self._discriminator, x, y, training, round=round, seed=seed, device=device, proceed=proceed
        )
        self.memory = {**self.memory, **self._trained()}
        return statistics

    def _trained(self) -> Memory:
        tensors = self._discriminator.state_dict(prefix=_DISCRIMINATOR)
        return {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}


class FedCGServer(ServerSide):
    def __init__(self, basis: Basis, protection: FedCG) -> None:
        super().__init__(basis)
        self._private = protection.private(basis.model, basis.work)
        self._steps = protection.distillation_steps
        self._model = cast("CoupledModel", deepcopy(basis.model))

    def finish(self, model: Flat, clients: Mapping[str, tuple[Flat, npt.NDArray[np.int64]]], round: int) -> Flat:
        teachers = [(flat, self._samples(name, weights)) for name, (flat, weights) in clients.items()]
        return self.distil(model, teachers, round)

    def distil(self, mean: Flat, clients: Sequence[tuple[Flat, int]], round: int) -> Flat:
        """The shared part of a new model, and the private part of `mean`: float32 [D].

        mean: initial weights; clients: models and numbers of samples; round: determines the draws, so that a resumed
        run repeats them. ValueError names a tensor that is not finite."""
        from tacit.models.fedcg import distil

        samples = sum(count for _, count in clients)
        teachers = [(self._loaded(flat), count / samples) for flat, count in clients]
        seeds = np.random.SeedSequence(self.basis.seed, spawn_key=(round - 1,))
        student, seed = self._loaded(mean), integer(seeds)
        batch_size, device = self.basis.work.training.batch_size, self.basis.device
        distil(student, teachers, steps=self._steps, batch_size=batch_size, seed=seed, device=device)
        layout = self.basis.layout
        distilled = layout.flatten(student)
        parts, kept = layout.split(distilled), layout.split(mean)
        for name in self._private:
            parts[name][...] = kept[name]
        return distilled

    def _samples(self, name: str, weights: npt.NDArray[np.int64]) -> int:
        found = {
            int(weight)
            for entry, weight in zip(self.basis.layout.entries, weights, strict=True)
            if entry.name not in self._private
        }
        if len(found) != 1 or 0 in found:
            raise ValueError(f"{name} gives the tensors that it shares the weights {sorted(found)}, not one above 0")
        return found.pop()

    def _loaded(self, flat: Flat) -> CoupledModel:
        model = deepcopy(self._model)
        self.basis.layout.load_into(model, flat)
        return model
