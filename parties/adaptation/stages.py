"""A pass that learns, or predicts by what was learnt, as stages that both owners run one after the other: embedding and
blocks of private inference, and a step of learning, or a prediction, in the place of the head.

Both take the outputs of all blocks, so they are carried along, with the parameters. A step ends with the parameters
after it, and tells nothing but whether all values of the pass were in range. A prediction tells the data owner the
results if they were, as the head of inference does.

    carried = LearningCarried(input_share(public, images, pixels), parameters=parameters, labels=labels, rate=rate)
    for stage in learning_stages(public, sizes, scales):
        carried = ... stage.prepared(party, images, layers)(carried) ...
    parameters = carried.parameters
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from tacit.models.training import CPU
from tacit.parties.adaptation.bounds import LOGIT_SCALE, StepScales
from tacit.parties.adaptation.prediction import PredictionProgram, prediction_requests
from tacit.parties.adaptation.step import ParameterShares, StepProgram, StepSizes, step_requests
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import FixedLinear, Party, Program
from tacit.parties.inference.ranking import check_labels, rankings, reduced, result_requests
from tacit.parties.inference.stages import (
    COUNTED,
    BlockStage,
    Carried,
    ModelStage,
    PassStage,
    Run,
    backbone_stages,
    in_range,
)
from tacit.parties.inference.tables import LookedUp
from tacit.protocol.inference.schedule import Results


def _nothing() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


@dataclass(frozen=True, repr=False, kw_only=True)
class LearningCarried(Carried):
    """From stage to stage of a pass that learns, or predicts by what was learnt; this owner's shares."""

    parameters: ParameterShares
    """KEPT fractional bits modulo 2^64: those before the step, and behind it those after it."""
    labels: torch.Tensor | None = None
    """Int64 [images] at a data owner that learns."""
    rate: float = 0.0
    """Learning rate of the step."""
    outputs: tuple[torch.Tensor, ...] = ()
    """Of every block so far, int64 [images, T, D] modulo 2^STREAM."""
    loss: torch.Tensor = field(default_factory=_nothing)
    """Behind the step, the sum of the losses before it, as of HeadResult."""
    correct: torch.Tensor = field(default_factory=_nothing)
    """Behind the step, how many images were classified correctly before it, modulo 2^PLACE."""


@dataclass(frozen=True)
class Collecting:
    """A stage of the backbone, beside which everything else is carried; what a block leaves is kept."""

    inner: ModelStage

    @property
    def name(self) -> str:
        return self.inner.name

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        return self.inner.requests(images, numbers)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        inner = self.inner.prepared(party, images, layers)

        def run(carried: Carried) -> Program[Carried]:
            before = _learning(carried)
            found = yield from inner(before)
            kept = (found.share,) if isinstance(self.inner, BlockStage) else ()
            return replace(before, share=found.share, outside=found.outside, outputs=(*before.outputs, *kept))

        return run


@dataclass(frozen=True)
class PredictionStage:
    """The outputs of all blocks to what is told of the logits, if everything was in range; on the CPU."""

    sizes: StepSizes
    """Of any batch."""
    scales: StepScales
    results: Results
    name: str = "prediction"

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        sizes = replace(self.sizes, images=images)
        told = result_requests(images, sizes.classes, self.results)
        return (*prediction_requests(sizes, self.scales), COUNTED, *told)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        own = replace(party, device=CPU)
        program = PredictionProgram(own, replace(self.sizes, images=images), self.scales)
        lookup = LookedUp(own, COUNTED)
        ready = rankings(own, images, self.sizes.classes, self.results)

        def run(carried: Carried) -> Program[Carried]:
            before = _learning(carried)
            found = yield from program.run(before.parameters, [output.to(CPU) for output in before.outputs])
            yield from in_range(own, before.outside.to(CPU) + found.outside, lookup)
            return Carried((yield from reduced(own, found.logits, LOGIT_SCALE, self.results, ready)))

        return run


@dataclass(frozen=True)
class StepStage:
    """The outputs of all blocks to the parameters after a step, if everything was in range; on the CPU."""

    sizes: StepSizes
    """Of the largest batch."""
    scales: StepScales
    name: str = "step"

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """ValueError for more images than the bounds are for."""
        return (*step_requests(self._sizes(images), self.scales), COUNTED)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """ValueError as of `requests`."""
        own = replace(party, device=CPU)
        program = StepProgram(own, self._sizes(images), self.scales)
        lookup = LookedUp(own, COUNTED)

        def run(carried: Carried) -> Program[Carried]:
            before = _learning(carried)
            outputs = [output.to(CPU) for output in before.outputs]
            found = yield from program.run(before.parameters, outputs, before.labels, rate=before.rate)
            outside = before.outside.to(CPU) + found.outside
            yield from in_range(own, outside, lookup)
            return LearningCarried(
                _nothing(),
                outside,
                parameters=found.parameters,
                labels=before.labels,
                rate=before.rate,
                loss=found.loss,
                correct=found.correct,
            )

        return run

    def _sizes(self, images: int) -> StepSizes:
        if images > self.sizes.images:
            raise ValueError(f"a batch of {images} images: the bounds are for {self.sizes.images} at most")
        return replace(self.sizes, images=images)


def learning_stages(public: PublicModel, sizes: StepSizes, scales: StepScales) -> tuple[PassStage, ...]:
    """Those of a pass that learns, in order; they take and leave LearningCarried."""
    return (*_collected(public), StepStage(sizes, scales))


def prediction_stages(
    public: PublicModel, sizes: StepSizes, scales: StepScales, results: Results
) -> tuple[PassStage, ...]:
    """Those of a pass that predicts; they take LearningCarried, and leave Carried with what is told.

    ValueError for more labels than can be told of so many classes."""
    check_labels(sizes.classes, results.labels)
    return (*_collected(public), PredictionStage(sizes, scales, results))


def _collected(public: PublicModel) -> tuple[PassStage, ...]:
    return tuple(Collecting(stage) for stage in backbone_stages(public))


def _learning(carried: Carried) -> LearningCarried:
    if not isinstance(carried, LearningCarried):
        raise TypeError("a pass that learns begins with LearningCarried")
    return carried
