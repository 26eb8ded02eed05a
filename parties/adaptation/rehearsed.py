"""Bounds of training steps that the model owner derives before it receives any data.

A rehearsal on its own images (models/adapters/federated.py) measures the ranges of values. Later training reaches other
values, so each bound has room, by a margin:

| values | room |
|---|---|
| parameters | the margin, times their move from the least norm to the largest: their start is known |
| variances | the square of the margin, down and up, as in private inference |
| z, p, q | its root: all other bounds are products of these, and of parameters |
| logits | its root, within the softmax's range: the easiest examples end far above all others |
| derivatives | the margin itself: they differ most between images |
| outputs of blocks | none beyond their own checks |

The scale of the residual stream is such that a token of a block's output takes at most a quarter of its ring in a pass
in range; training passes check that as inference does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from tacit.models.adapters.configuration import AdapterConfiguration
from tacit.models.adapters.federated import Features, FullBatches, Reached, Schedule, rehearsal
from tacit.models.adapters.parallel import halved, halvings_of, read_outputs
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.adaptation.bounds import StepBounds, StepScales, fitted_step
from tacit.parties.adaptation.head import told_reach
from tacit.parties.adaptation.public import PublicLearning, step_sizes
from tacit.parties.adaptation.step import StepSizes
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.inference.ring import SPARE
from tacit.parties.inference.scales import checked_norm
from tacit.parties.inference.tables import BoundError
from tacit.parties.inference.waves import FitError
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS, HEAD_TENSORS
from tacit.protocol.inference.schedule import STREAM

MARGIN: Final = 2.0
"""With 1.5, 49 of 1200 batches of unknown digits were out of range, with 2 none."""
_STEP: Final = 0.25
_LEAST_MOVE: Final = 0.25
"""Smallest assumed move of the norm of a parameter tensor."""
_LEAST_NORM: Final = 2.0**-4
"""Smallest assumed norm of any other value: some hundred units of the coarsest resolution."""


def rehearsed_bounds(
    reached: Reached,
    public: PublicModel,
    *,
    rate: float,
    classes: int,
    halvings: tuple[int, ...] = (),
    margin: float = MARGIN,
) -> StepBounds:
    """Bounds from the ranges of a rehearsal, with this margin. rate: the largest learning rate; halvings: see
    StepBounds, for all blocks or none. ValueError for a margin below 1."""
    if not margin >= 1:
        raise ValueError(f"a margin of {margin} is below 1, so that the rehearsal itself would be out of range")
    tensors = dict(zip((*ADAPTER_TENSORS, *HEAD_TENSORS), (*ADAPTER_TENSORS, "head_weight", "head_bias"), strict=True))

    def widened(name: str) -> float:
        return math.sqrt(margin) * max(reached.largest(name), _LEAST_NORM)

    def moved(name: str) -> float:
        least = reached.least(name)
        return least + margin * max(reached.largest(name) - least, _LEAST_MOVE)

    return StepBounds(
        rate=rate,
        stream=public.stream,
        halvings=halvings,
        outputs=_outputs(public, halvings),
        parameters={name: moved(noted) for name, noted in tensors.items()},
        inputs=widened("inputs"),
        channels=widened("channels"),
        tokens=widened("tokens"),
        derivatives=math.sqrt(margin) * widened("derivatives"),
        variances=((reached.least("deviations") / margin) ** 2, (reached.largest("deviations") * margin) ** 2),
        epsilon=public.epsilon,
        logits=told_reach(classes, widened("logits")),
    )


def _outputs(public: PublicModel, halvings: tuple[int, ...]) -> float:
    """Largest norm of a block's output token that a step reads, in a pass in range: the largest input of the next
    block's first LayerNorm or, behind the last block, which has no check, the capacity of the ring."""
    last = SPARE * 2.0 ** (STREAM - 2) / public.stream
    if not halvings:
        return last
    norms = [
        checked_norm(block.first_norm, public.sizes.width, public.stream) / min(block.first_norm.lift) / SPARE
        for block in public.blocks[1:]
    ]
    return max(norm * 0.5**times for norm, times in zip([*norms, last], halvings, strict=True))


@dataclass(frozen=True, kw_only=True)
class FittedLearning:
    scales: StepScales
    bounds: StepBounds
    margin: float
    """The requested margin, or the largest below it that fits."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    adapter: AdapterConfiguration
    schedule: Schedule
    batch: int
    batches: int
    classes: int
    seed: int
    """Seed of the initial parameters; both owners know it."""
    names: tuple[str, ...] = ()


def rehearsed_learning(
    model: PrivateModel,
    transformer: FriendlyTransformer,
    images: torch.Tensor,
    labels: torch.Tensor,
    lesson: Lesson,
    *,
    margin: float = MARGIN,
) -> tuple[PublicLearning, float]:
    """Return the public parameters of a training, and the margin of their bounds, from a rehearsal on the model owner's
    own images.

    images: float32 [N, C, S, S]; labels: int64 [N], from 0. ValueError and FloatingPointError as in `rehearsal`,
    BoundError as in `fitted_learning`, and ValueError as in PublicLearning."""
    schedule, classes, seed = lesson.schedule, lesson.classes, lesson.seed
    sizes = step_sizes(model.public, lesson.adapter, classes=classes, batch=lesson.batch)
    blocks, tokens, _ = sizes.kept
    outputs = read_outputs(transformer, images, blocks=blocks, tokens=tokens)
    halvings = halvings_of(outputs) if sizes.adapters else ()
    typical = Features(outputs=halved(outputs, halvings), labels=labels)
    epsilon, work = model.public.epsilon, FullBatches(lesson.batch, lesson.batches)
    reached = rehearsal(typical, lesson.adapter, schedule, work, classes=classes, epsilon=epsilon, seed=seed)
    rate = schedule.learning_rate
    fitted = fitted_learning(reached, model.public, sizes, rate=rate, halvings=halvings, margin=margin)
    return PublicLearning(public=model.public, scales=fitted.scales, **vars(lesson)), fitted.margin


def fitted_learning(
    reached: Reached,
    public: PublicModel,
    sizes: StepSizes,
    *,
    rate: float,
    halvings: tuple[int, ...] = (),
    margin: float = MARGIN,
) -> FittedLearning:
    """Return the scales for `rehearsed_bounds` with the margin, or with the largest smaller one that fits the rings, in
    steps of a quarter down to 1. BoundError if even the rehearsal's own ranges do not fit; ValueError for a margin
    below 1."""
    while True:
        bounds = rehearsed_bounds(reached, public, rate=rate, classes=sizes.classes, halvings=halvings, margin=margin)
        try:
            scales = fitted_step(sizes.adapter, sizes.head, bounds, adapters=sizes.adapters)
        except (BoundError, FitError) as error:
            if margin == 1:
                raise BoundError(
                    f"what a rehearsal reached does not fit a step of learning on shares, with no margin at all: "
                    f"{error}. Take a smaller learning rate, fewer rounds, or adapters of a lower rank"
                ) from error
            margin = max(margin - _STEP, 1.0)
        else:
            return FittedLearning(scales=scales, bounds=bounds, margin=margin)
