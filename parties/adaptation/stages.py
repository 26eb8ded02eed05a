"""Passes of adaptation, as stages that both owners run one after the other.

- A pass of new images: embedding and blocks of private inference. The block outputs that a step reads are carried
  along, and kept behind the pass (kept.py), with the number of values out of range for each image. It reveals nothing.
- A training step: one stage, from kept shares and parameters to the updated parameters. It reveals nothing either.
- A prediction with trained adapters: embedding, blocks, and a training step up to the logits, of which the permitted
  results are revealed if all values were in range, as in the head of inference. Logits need no check: a standardised
  token and parameters in range keep them within their ring (bounds.py).

    carried = LearningCarried(outputs, outside, parameters=parameters, labels=labels, rate=rate)
    for stage in learning_stages(sizes, scales):
        carried = ... stage.prepared(party, images, {})(carried) ...
    parameters = carried.parameters
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from tacit.models.training import CPU
from tacit.parties.adaptation.adapter import AdapterForwards, forward_requests
from tacit.parties.adaptation.bounds import LOGIT_SCALE, StepScales
from tacit.parties.adaptation.fixed_point import PARAMETER
from tacit.parties.adaptation.head import HeadForwards, logit_requests
from tacit.parties.adaptation.step import (
    HiddenProgram,
    ParameterShares,
    StepProgram,
    StepSizes,
    hidden_requests,
    step_requests,
)
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import FixedLinear, Party, Program
from tacit.parties.inference.ranking import check_labels, rankings, reduced, result_requests
from tacit.parties.inference.ring import WORD_BITS, shifted
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

_LOGITS_CUT: Final = 2 * PARAMETER - round(math.log2(LOGIT_SCALE))


@dataclass(frozen=True, repr=False, kw_only=True)
class Predicted:
    logits: torch.Tensor
    """Share modulo 2^STREAM of the logits [B, C], times LOGIT_SCALE."""
    outside: torch.Tensor
    """Share modulo 2^PLACE of the number of values out of range."""


def prediction_requests(sizes: StepSizes, scales: StepScales) -> tuple[AnyBlockRequest, ...]:
    return (*hidden_requests(sizes, scales, forward_requests), *logit_requests(sizes.head, scales.head))


class PredictionProgram:
    def __init__(self, party: Party, sizes: StepSizes, scales: StepScales) -> None:
        self._hidden = HiddenProgram(party, sizes, scales, AdapterForwards)
        self._head = HeadForwards(party, sizes.head, scales.head)

    def run(self, parameters: ParameterShares, outputs: torch.Tensor) -> Program[Predicted]:
        head, hidden = yield from self._hidden.run(parameters, outputs)
        logits = yield from self._head.forwards(head, hidden[:, 0])
        outside = self._hidden.outside + self._head.outside
        return Predicted(logits=shifted(logits, WORD_BITS, _LOGITS_CUT), outside=outside)


def _nothing() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


@dataclass(frozen=True, repr=False, kw_only=True)
class CollectedCarried(Carried):
    outputs: tuple[torch.Tensor, ...] = ()
    """Kept outputs of the blocks so far, int64 [images, S, D] modulo 2^STREAM."""


@dataclass(frozen=True, repr=False, kw_only=True)
class PredictingCarried(CollectedCarried):
    parameters: ParameterShares
    """KEPT fractional bits modulo 2^64."""


@dataclass(frozen=True, repr=False, kw_only=True)
class LearningCarried(Carried):
    """One owner's shares before and after a training step. `share` holds the outputs of blocks in the shape of
    `StepSizes.outputs`, `outside` the number of their values out of range."""

    parameters: ParameterShares
    """KEPT fractional bits modulo 2^64: before the step, and after the stage those after it."""
    labels: torch.Tensor | None = None
    """int64 [images] at a data owner."""
    rate: float = 0.0
    refused: torch.Tensor = field(default_factory=_nothing)
    """After the step: share modulo 2^64 of 1 if any value was out of range, else of 0."""
    loss: torch.Tensor = field(default_factory=_nothing)
    """After the step: the sum of the losses before it, see HeadResult."""
    correct: torch.Tensor = field(default_factory=_nothing)
    """After the step: the number of images classified correctly before it, modulo 2^PLACE."""


@dataclass(frozen=True)
class Collecting:
    """A stage of the backbone that passes all else through, and keeps the first tokens of a block's output."""

    inner: ModelStage
    read: int

    @property
    def name(self) -> str:
        return self.inner.name

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        return self.inner.requests(images, numbers)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        inner = self.inner.prepared(party, images, layers)

        def run(carried: Carried) -> Program[Carried]:
            before = _collected(carried)
            found = yield from inner(before)
            kept = (found.share[:, : self.read],) if self.read else ()
            return replace(before, share=found.share, outside=found.outside, outputs=(*before.outputs, *kept))

        return run


@dataclass(frozen=True)
class PredictionStage:
    """Map the outputs of all blocks to the revealed results if every value was in range; on the CPU."""

    sizes: StepSizes
    scales: StepScales
    results: Results
    name: str = "prediction"

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        sizes = replace(self.sizes, images=images)
        results = result_requests(images, sizes.classes, self.results)
        return (*prediction_requests(sizes, self.scales), COUNTED, *results)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        own = replace(party, device=CPU)
        program = PredictionProgram(own, replace(self.sizes, images=images), self.scales)
        lookup = LookedUp(own, COUNTED)
        ready = rankings(own, images, self.sizes.classes, self.results)

        def run(carried: Carried) -> Program[Carried]:
            before = carried
            assert isinstance(before, PredictingCarried)
            found = yield from program.run(before.parameters, torch.stack(before.outputs).to(CPU))
            yield from in_range(own, before.outside.to(CPU) + found.outside, lookup)
            return Carried((yield from reduced(own, found.logits, LOGIT_SCALE, self.results, ready)))

        return run


@dataclass(frozen=True)
class StepStage:
    """Map kept shares to the parameters after a step, or to the old ones if any value was out of range; on the CPU."""

    sizes: StepSizes
    scales: StepScales
    name: str = "step"

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """ValueError for more images than the bounds are for."""
        return step_requests(self._sizes(images), self.scales)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """ValueError as in `requests`."""
        own = replace(party, device=CPU)
        program = StepProgram(own, self._sizes(images), self.scales)

        def run(carried: Carried) -> Program[Carried]:
            before = carried
            assert isinstance(before, LearningCarried)
            found = yield from program.run(
                before.parameters, before.share, before.labels, rate=before.rate, outside=before.outside
            )
            return LearningCarried(
                _nothing(),
                found.outside,
                parameters=found.parameters,
                labels=before.labels,
                rate=before.rate,
                refused=found.refused,
                loss=found.loss,
                correct=found.correct,
            )

        return run

    def _sizes(self, images: int) -> StepSizes:
        if images > self.sizes.images:
            raise ValueError(f"a batch of {images} images: the bounds are for {self.sizes.images} at most")
        return replace(self.sizes, images=images)


def bringing_stages(public: PublicModel, sizes: StepSizes) -> tuple[PassStage, ...]:
    return _backbone(public, sizes, apart=True)


def learning_stages(sizes: StepSizes, scales: StepScales) -> tuple[PassStage, ...]:
    return (StepStage(sizes, scales),)


def prediction_stages(
    public: PublicModel, sizes: StepSizes, scales: StepScales, results: Results
) -> tuple[PassStage, ...]:
    """Stages of a prediction pass; they take PredictingCarried, and return Carried with the revealed results.

    ValueError if more labels are requested than there are classes."""
    check_labels(sizes.classes, results.labels)
    return (*_backbone(public, sizes, apart=False), PredictionStage(sizes, scales, results))


def _backbone(public: PublicModel, sizes: StepSizes, *, apart: bool) -> tuple[PassStage, ...]:
    kept, _, tokens, _ = sizes.outputs
    first = public.sizes.blocks - kept

    def read(stage: ModelStage) -> int:
        return tokens if isinstance(stage, BlockStage) and stage.index >= first else 0

    return tuple(Collecting(replace(stage, apart=apart), read(stage)) for stage in backbone_stages(public))


def _collected(carried: Carried) -> CollectedCarried:
    if not isinstance(carried, CollectedCarried):
        raise TypeError("a pass through the blocks begins with CollectedCarried")
    return carried
