"""The sides of a protection during a session: one at every client, one at the server.

The sides here are those of no protection, which protections override. A client's side keeps state in its `memory` and
nowhere else: arrays, which are discarded with a round that nobody waits for any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.models.configuration import Architecture, TrainingConfiguration
from tacit.models.interruption import Proceed
from tacit.models.layout import Flat, Layout
from tacit.models.stimuli import Stimuli
from tacit.models.workload import Context, Workload, samples_of
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total, WeightForm

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tacit.models.training import LocalStatistics

Weights = int | npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]
Moved = npt.NDArray[np.bool_]
Memory = Mapping[str, npt.NDArray[Any]]
_NONE: Final = np.zeros(0, np.float32)


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Computation of the members, under any protection."""

    model: Architecture
    training: TrainingConfiguration
    classes: Annotated[int, Meta(ge=1, le=65_536)]
    channels: Annotated[int, Meta(ge=1, le=256)]
    mean: Annotated[tuple[Annotated[float, Meta(ge=0.0, le=1.0)], ...], Meta(max_length=256)] = ()
    """Offset of the pixels of all images, as a fraction of 255, for each channel."""
    std: Annotated[tuple[Annotated[float, Meta(gt=0.0, le=1.0)], ...], Meta(max_length=256)] = ()
    """Divisor of the pixels after that."""
    class_digest: Annotated[bytes, Meta(max_length=32)] = b""
    """Digest of the class names in their order: equal lists, and no others, have equal digests."""
    run: Annotated[bytes, Meta(max_length=32)] = b""
    """Identifier of this run in all of its sessions."""
    stimuli: Stimuli | None = None
    """Images of the server, prepared for the model; no client's own may be among them."""

    def layout(self, model: nn.Module) -> Layout:
        """The summed and the fixed tensors of the model. A gradient has no buffers. ValueError as in Layout.summed; and
        for training.buffers = "local" with a model without any."""
        if self.training.sends_gradients:
            return Layout.summed(model, buffers="fixed")
        layout = Layout.summed(model, buffers="local" if self.training.buffers == "local" else "averaged")
        if self.training.buffers == "local" and not layout.local(model):
            raise ValueError(
                'training.buffers = "local": this model has no float32 buffers, and the server could evaluate it; '
                "leave it out"
            )
        return layout

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the model's images."""
        return self.channels, self.model.image_size, self.model.image_size


class TaskError(Exception):
    """A client cannot work on the task; the message has the reason and the remedy."""


class TermsError(TaskError):
    """The server's terms contradict this client's knowledge. The message is sent to it: nothing in it is private."""


class OtherClassesError(TaskError):
    """A client's images have other classes than the task."""


class CraftedModelError(TaskError):
    """A client's tripwire refuses the server's model."""


@dataclass(frozen=True)
class Basis:
    configuration: Configuration
    work: Work
    model: nn.Module
    """The party's model; its weights change, its architecture does not."""
    seed: int | None
    """Seed of the party's draws; None draws from the operating system's randomness."""
    device: torch.device
    workload: Workload = field(default_factory=Workload)
    client: int = 0

    @cached_property
    def layout(self) -> Layout:
        return self.work.layout(self.model)


@dataclass(frozen=True)
class Group:
    key: GroupKey
    name: str


@dataclass(frozen=True)
class Trained:
    round: int
    model: Flat
    """The model of the round in the clear, float32 [D]; the side's own module holds the trained one."""
    values: Flat
    """The step between the two (models/update_units.py), or the gradient, float32 [D]."""
    samples: int
    """The client's weight if clients do not count alike; 1 for a gradient."""
    random: np.random.SeedSequence
    """Of this round, for the side's own draws; used only if the party is seeded."""
    group: Group | None
    own: Flat = field(default_factory=lambda: _NONE)
    """Metrics of a custom training step."""


@dataclass(frozen=True)
class Protected:
    """A client's contribution, before it is encrypted, clipped and rounded."""

    values: Flat
    weights: Weights
    """In the form given by the protection's facts: a number, one for every tensor, or one for every coordinate."""
    multipliers: Flat
    """Factors of the values by the weights: () or [D]."""
    metrics: dict[str, int] = field(default_factory=dict)
    own: Flat = field(default_factory=lambda: _NONE)
    """Metrics of a custom training step, if the protection changes them."""
    kept: int = 0
    """Coordinates that were kept back as whole tensors."""
    layers: tuple[str, ...] = ()
    """The layers that were chosen to be kept back."""


class ClientSide:
    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self.memory: Memory = {}
        """State kept from round to round; replaced as a whole, and never changed."""

    def form(self) -> Memory:
        """Arrays with the names, shapes and types of its memory after a round; their values are meaningless."""
        return self.memory

    def merge(self, model: Flat) -> Flat:
        """The server's model, float32 [D], with this client's private part in its place."""
        return model

    def train(self, x: Any, y: torch.Tensor | None, *, round: int, seed: int, proceed: Proceed) -> LocalStatistics:
        """Train the basis' model in place, on images and labels, or on the custom step's input x. FloatingPointError if
        training diverges; FactoryError."""
        import torch

        from tacit.models.training import LocalStatistics, train

        basis, training, device = self.basis, self.basis.work.training.in_round(round), self.basis.device
        if basis.workload.train is not None:
            data = x if y is None else (x, y)
            generator = torch.Generator().manual_seed(seed)
            context = Context(
                round=round, client=basis.client, device=device, configuration=training, generator=generator
            )
            own = basis.workload.step(
                basis.model, data, basis.layout, seed=seed, device=device, context=context, metrics=training.metrics
            )
            return LocalStatistics(samples=samples_of(x, otherwise=1), loss_sum=0.0, correct=0, own=own)
        assert y is not None
        return train(basis.model, x, y, training, seed=seed, device=device, proceed=proceed)

    def protect(self, trained: Trained) -> Protected:
        return weighted(trained, trained.samples)

    def reported(self, statistics: LocalStatistics) -> LocalStatistics:
        """Training statistics that are reported within the sum."""
        return statistics


class KeepingSide(ClientSide):
    """Side of a client that keeps back the tensors of these names."""

    def __init__(self, basis: Basis, kept: frozenset[str]) -> None:
        super().__init__(basis)
        self.kept = kept

    def protect(self, trained: Trained) -> Protected:
        return without(trained, self.basis.layout, self.kept)


class ServerSide:
    def __init__(self, basis: Basis) -> None:
        self.basis = basis

    def check(self, total: Total, contributors: int) -> None:
        """Raise ValueError if these cannot be sums of so many honest contributions."""

    def moved(self, total: Total) -> Moved:
        """Coordinates [D] with enough contributors to move; those without any never do.

        Weights of coordinates are counts of contributors."""
        configuration = self.basis.configuration
        if configuration.form is WeightForm.COORDINATE:
            return np.asarray(total.weights) >= configuration.min_contributors
        return np.ones(self.basis.layout.size, np.bool_)

    def finish(self, model: Flat, clients: Mapping[str, tuple[Flat, npt.NDArray[np.int64]]], round: int) -> Flat:
        """The new model, from the old one moved by the sum of this round, float32 [D].

        clients: if the protection's facts require single vectors, the model of every one of them and the weights of its
        tensors [T]. ValueError for one that no honest client sends."""
        return model


def weighted(trained: Trained, weight: int) -> Protected:
    return Protected(trained.values, weight, np.asarray(weight, np.float32))


def without(trained: Trained, layout: Layout, kept: Collection[str]) -> Protected:
    weights = np.array([0 if entry.name in kept else trained.samples for entry in layout.entries])
    return Protected(
        trained.values,
        weights,
        np.repeat(weights, layout.tensor_sizes).astype(np.float32),
        kept=sum(entry.size for entry in layout.entries if entry.name in kept),
    )


def round_seeds(seed: int | None, round: int) -> list[np.random.SeedSequence]:
    """Independent seeds of a round: of training, rounding, the protection; of None, from the operating system."""
    return np.random.SeedSequence(None if seed is None else [seed, round]).spawn(3)


def integer(seeds: np.random.SeedSequence) -> int:
    return int(seeds.generate_state(1, np.uint64)[0] >> np.uint64(1))
