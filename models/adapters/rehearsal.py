"""How far the values of a training of adapters reach, found by training on other images than those it will be of.

Whoever publishes bounds for steps on shares has seen none of the images that will be learned, but has labelled images
of its own. It trains adapters on these in the clear, as they will be trained, and takes note of what passes. What will
be learned may be easier or harder than anything it knows, so it goes through both ends of what there is:

- *what the model knows*: its own labels, folded onto the new classes by their remainder. Hardly anything is as easy for
  a backbone that was trained on these images: logits, the head and derivatives by tokens grow most here. There are
  owners of one class each, whose batches pull apart, and one that has all images. Where there are fewer labels of its
  own than new classes, the rows of the others are only pushed down, as those of rare classes are.
- *what can only be learned by heart*: a few images for each of a few owners, their labels drawn at random. The head
  alone cannot tell them apart, so here it is the adapters that grow most.

Tokens are given less their mean, as the residual stream is on shares, and the head reads the standardised token itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from tacit.models.adapters.configuration import AdapterConfiguration
from tacit.models.adapters.federated import Features, FullBatches, Schedule, federated
from tacit.models.adapters.parallel import FinalNorm, each, initial

_CLASS_OWNERS: Final = 8
"""Owners of one class each, at most."""
_LEARNERS_BY_HEART: Final = 3


class Reached:
    """A note (gradients.py) of the least and the largest norm of the rows of every name."""

    def __init__(self) -> None:
        self._intervals: dict[str, tuple[float, float]] = {}

    def __call__(self, name: str, rows: torch.Tensor) -> None:
        """See Note."""
        low, high = (norm.item() for norm in rows.norm(dim=-1).aminmax())
        least, largest = self._intervals.get(name, (low, high))
        self._intervals[name] = min(least, low), max(largest, high)

    def least(self, name: str) -> float:
        """The least norm; 0 where nothing of this name passed."""
        return self._intervals.get(name, (0.0, 0.0))[0]

    def largest(self, name: str) -> float:
        """The largest norm; 0 where nothing of this name passed."""
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
    """What trainings of adapters and a head of so many new classes reach, on labelled images whose labels count from 0.

    epsilon: of the backbone's final norm. Everything follows from the arguments. ValueError for no images, fewer than
    two classes, and outputs that do not fit; FloatingPointError for a learning rate at which training diverges."""
    if len(own.labels) == 0 or classes < 2:
        raise ValueError(
            f"a rehearsal on {len(own.labels)} images for {classes} classes; one image and two classes are needed"
        )
    outputs = own.outputs.double()
    outputs = outputs - outputs.mean(-1, keepdim=True)
    blocks, _, tokens, width = outputs.shape
    ones = torch.ones(width, dtype=torch.float64)
    norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=epsilon)
    first = initial(configuration, blocks=blocks, tokens=tokens, width=width, classes=classes, seed=seed)
    generator, reached = np.random.default_rng([seed, 0]), Reached()
    known = Features(outputs=outputs, labels=own.labels % classes)
    for owners in (_by_class(known), _by_heart(known, work.size, classes, generator)):
        for _ in federated(each(torch.Tensor.double, first), norm, owners, schedule, work, seed=seed, note=reached):
            pass
    return reached


def _by_class(known: Features) -> list[Features]:
    """Owners of one class each, and one of all images."""
    labels = known.labels.numpy()
    alone = [known.part(np.flatnonzero(labels == label)) for label in np.unique(labels)[:_CLASS_OWNERS]]
    return [*alone, known]


def _by_heart(known: Features, batch: int, classes: int, generator: np.random.Generator) -> list[Features]:
    """Each image is there twice in a batch, if there are enough."""
    each_has = max(min(batch // 2, len(known.labels) // _LEARNERS_BY_HEART), 1)
    orders = np.resize(generator.permutation(len(known.labels)), (_LEARNERS_BY_HEART, each_has))
    return [
        Features(outputs=known.part(order).outputs, labels=torch.from_numpy(generator.integers(classes, size=each_has)))
        for order in orders
    ]
