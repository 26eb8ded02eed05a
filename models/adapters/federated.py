"""Federated training of adapters in the clear, on outputs of blocks that are computed once; and its rehearsal.

It is the reference for the computation on shares: in every round each client takes steps of stochastic gradient descent
from the common parameters (gradients.py), and the next ones are the mean of all clients' (Tastan and Nandakumar 2025,
sections 4.3 and 4.4). A client draws from its own generator, seeded with the seed, the round and its number.

The rehearsal finds the range of every value in training for a publisher that has seen none of the training images. On
labelled images of its own it goes through both extremes:

- *familiar classes*: its own labels, folded onto the new classes by their remainder, nearly the easiest task: logits,
  the head and derivatives by tokens grow most. There are owners of one class each, and one of all images.
- *memorisation*: a few images for each of a few owners, labels drawn at random. The head alone cannot separate them, so
  the adapters grow most.

A short training draws few images, so all own images run forwards once before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta

from tacit.models.adapters.configuration import AdapterConfiguration
from tacit.models.adapters.gradients import Note, descent, note_parameters, stepped, unnoted
from tacit.models.adapters.parallel import (
    ALL_BLOCKS,
    QUADRATIC_GELU,
    Activation,
    AdapterParameters,
    BlockSampling,
    FinalNorm,
    each,
    initial,
    logits,
    masked,
)
from tacit.models.training import EVALUATION_BATCH

Order = npt.NDArray[np.int64]
"""Indices of images [n]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Labelled images as their blocks' outputs. The representation shows none of them."""

    outputs: torch.Tensor = field(repr=False)
    """Floating-point [L, N, T, D] (parallel.py)."""
    labels: torch.Tensor = field(repr=False)

    def part(self, order: Order) -> Features:
        indices = torch.from_numpy(order)
        return Features(outputs=self.outputs[:, indices], labels=self.labels[indices])


class LabelledOutputs(Protocol):
    """Labelled images with precomputed block outputs, as `Features`, or with outputs computed on demand."""

    @property
    def labels(self) -> torch.Tensor:
        """Labels of all images, int64 [N]."""

    def part(self, order: Order) -> Features:
        """Return the images at these indices, in their order."""


class RoundWork(Protocol):
    def batches(self, images: int, generator: np.random.Generator) -> Iterator[Order]:
        """Yield indices below `images`, a batch for each step."""


@dataclass(frozen=True)
class OneEpoch:
    """One pass over all images, in steps of `images`; the last step takes the rest."""

    size: int = 16

    def batches(self, images: int, generator: np.random.Generator) -> Iterator[Order]:
        order = generator.permutation(images)
        for start in range(0, images, self.size):
            yield order[start : start + self.size]


@dataclass(frozen=True)
class FullBatches:
    """`steps` steps on exactly `images` images, through one epoch after the other: of fewer, images repeat."""

    size: int
    count: int

    def batches(self, images: int, generator: np.random.Generator) -> Iterator[Order]:
        wanted = self.size * self.count
        order = np.concatenate([generator.permutation(images) for _ in range(math.ceil(wanted / images))])
        yield from np.split(order[:wanted], self.count)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Length of training, and its step sizes; the defaults are the paper's (section 5.2)."""

    rounds: Annotated[int, Meta(ge=1, le=1 << 20)] = 50
    learning_rate: Annotated[float, Meta(gt=0.0, le=100.0)] = 1e-3
    """Learning rate of the first rounds."""
    decay: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Factor of the learning rate after each of `decay_rounds`."""
    decay_rounds: Annotated[tuple[Annotated[int, Meta(ge=1, le=1 << 20)], ...], Meta(max_length=64)] = (25, 40)
    """Round numbers, from 1."""

    def rate(self, number: int) -> float:
        return self.learning_rate * self.decay ** sum(number > passed for passed in self.decay_rounds)


def federated(
    parameters: AdapterParameters,
    norm: FinalNorm,
    clients: Sequence[LabelledOutputs],
    schedule: Schedule,
    work: RoundWork,
    *,
    seed: int,
    sampling: BlockSampling = ALL_BLOCKS,
    activation: Activation = QUADRATIC_GELU,
    note: Note = unnoted,
    weights: Sequence[int] = (),
) -> Iterator[AdapterParameters]:
    """Yield the common parameters after every round, computed on demand.

    Every client counts by its weight; without weights all count alike, whatever their data. For every batch a client
    draws its images first, then the blocks whose outputs are given. `note` receives the values of all steps
    (gradients.py), and the parameters after each. Raises ValueError for no clients, a client without images, and
    outputs or labels that do not fit the parameters; FloatingPointError as soon as the loss of a batch is not finite.
    """
    if not clients:
        raise ValueError("there are no clients to train; at least one is needed")
    for index, client in enumerate(clients):
        if len(client.labels) == 0:
            raise ValueError(f"client {index} has no images to train on; give it one, or leave it out")
    factors = torch.tensor(weights)

    def mean(*values: torch.Tensor) -> torch.Tensor:
        stacked = torch.stack(values)
        if not weights:
            return stacked.mean(0)
        total: torch.Tensor = torch.tensordot(factors.to(stacked.dtype), stacked, 1)
        return total / sum(weights)

    for number in range(1, schedule.rounds + 1):
        rate = schedule.rate(number)
        updated = []
        for index, client in enumerate(clients):
            local = parameters
            generator = np.random.default_rng([seed, number, index])
            for order in work.batches(len(client.labels), generator):
                batch = client.part(order)
                outputs = masked(batch.outputs, sampling.draw(len(batch.outputs), generator))
                found = descent(local, norm, outputs, batch.labels, activation=activation, note=note)
                if not math.isfinite(found.loss):
                    raise FloatingPointError(
                        f"round {number}, client {index}: the loss of a batch is {found.loss}; training diverged, take "
                        "a smaller learning_rate"
                    )
                local = stepped(local, found.gradient, rate)
                # The parameters after the last step are checked too, although no step starts from them.
                note_parameters(local, note)
            updated.append(local)
        parameters = each(mean, *updated)
        yield parameters


@torch.no_grad()
def balanced_accuracy(
    parameters: AdapterParameters,
    norm: FinalNorm,
    features: LabelledOutputs,
    *,
    activation: Activation = QUADRATIC_GELU,
) -> float:
    """Return the mean over the occurring classes of their fraction of correctly classified images, 0 to 1, with the
    outputs of all blocks. ValueError for no images, and for outputs that do not fit the parameters."""
    if len(features.labels) == 0:
        raise ValueError("a balanced accuracy was asked for of no images; at least one is needed")
    answers = torch.cat(
        [logits(parameters, norm, part.outputs, activation=activation).argmax(-1) for part in _evaluated(features)]
    )
    return balanced(answers, features.labels)


def _evaluated(features: LabelledOutputs) -> Iterator[Features]:
    count = len(features.labels)
    for start in range(0, count, EVALUATION_BATCH):
        yield features.part(np.arange(start, min(start + EVALUATION_BATCH, count)))


def balanced(answers: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the same for given answers, int64 [N], and labels [N], of which there is at least one."""
    correct = answers == labels
    return torch.stack([correct[labels == label].double().mean() for label in torch.unique(labels)]).mean().item()


_CLASS_OWNERS: Final = 8
"""Largest number of owners of one class each."""
_LEARNERS_BY_HEART: Final = 3
_PREDICTED: Final = ("inputs", "channels", "tokens", "deviations")
"""Checked values of a prediction, by name in a note."""


class Reached:
    """A note (gradients.py) of the least and the largest norm of the rows of every name."""

    def __init__(self) -> None:
        self._intervals: dict[str, tuple[float, float]] = {}

    def __call__(self, name: str, rows: torch.Tensor) -> None:
        low, high = (norm.item() for norm in rows.norm(dim=-1).aminmax())
        least, largest = self._intervals.get(name, (low, high))
        self._intervals[name] = min(least, low), max(largest, high)

    def forwards(self, name: str, rows: torch.Tensor) -> None:
        """Note the values of a prediction; it has no derivatives, and its logits are not checked."""
        if name in _PREDICTED:
            self(name, rows)

    def least(self, name: str) -> float:
        return self._intervals.get(name, (0.0, 0.0))[0]

    def largest(self, name: str) -> float:
        return self._intervals.get(name, (0.0, 0.0))[1]


def rehearsal(
    own: Features,
    configuration: AdapterConfiguration,
    schedule: Schedule,
    work: FullBatches,
    *,
    classes: int,
    epsilon: float,
    seed: int,
) -> Reached:
    """Return the ranges of training adapters and a head of `classes` classes, on images with labels from 0.

    epsilon: of the backbone's final norm. Everything follows from the arguments. ValueError for no images, fewer than
    two classes, and outputs that do not fit; FloatingPointError for a learning rate at which training diverges."""
    if len(own.labels) == 0 or classes < 2:
        raise ValueError(
            f"a rehearsal on {len(own.labels)} images for {classes} classes; one image and two classes are needed"
        )
    outputs = own.outputs.double()
    outputs = outputs - outputs.mean(-1, keepdim=True)
    blocks, _, tokens, width = outputs.shape
    norm = FinalNorm.plain(width, epsilon)
    first = initial(configuration, blocks=blocks, tokens=tokens, width=width, classes=classes, seed=seed)
    first = each(torch.Tensor.double, first)
    generator, reached = np.random.default_rng([seed, 0]), Reached()
    known = Features(outputs=outputs, labels=own.labels % classes)
    for batch in _evaluated(known):
        descent(first, norm, batch.outputs, batch.labels, note=reached.forwards)
    for owners in (_by_class(known), _by_heart(known, work.size, classes, generator)):
        for _ in federated(first, norm, owners, schedule, work, seed=seed, note=reached):
            pass
    return reached


def _by_class(known: Features) -> list[Features]:
    labels = known.labels.numpy()
    alone = [known.part(np.flatnonzero(labels == label)) for label in np.unique(labels)[:_CLASS_OWNERS]]
    return [*alone, known]


def _by_heart(known: Features, batch: int, classes: int, generator: np.random.Generator) -> list[Features]:
    each_has = max(min(batch // 2, len(known.labels) // _LEARNERS_BY_HEART), 1)
    orders = np.resize(generator.permutation(len(known.labels)), (_LEARNERS_BY_HEART, each_has))
    return [
        Features(outputs=known.part(order).outputs, labels=torch.from_numpy(generator.integers(classes, size=each_has)))
        for order in orders
    ]
