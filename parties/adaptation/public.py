"""Public parameters of a training: the model, the scales of its numbers, the task and its duration. The terms of a
session carry them as their arithmetic.

The model owner derives them from a rehearsal (rehearsed.py). A data owner accepts only values within the limits
declared here: within them no value makes a party fail, allocate more than the sizes permit, or compute anything but
wrong numbers.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta

from tacit.models.adapters.configuration import AdapterConfiguration, ParallelConfiguration
from tacit.models.adapters.federated import Schedule
from tacit.models.adapters.parallel import AdapterParameters, each, initial
from tacit.parties.adaptation.bounds import StepScales, fits_cut
from tacit.parties.adaptation.fixed_point import ACTIVATION
from tacit.parties.adaptation.step import StepSizes, whole_rate
from tacit.parties.inference.model import PRINTABLE, PublicModel
from tacit.parties.inference.private_model import PrivateModel, stated
from tacit.parties.inference.ranking import check_labels
from tacit.protocol.adaptation.messages import AdaptationTerms, LearningSizes, Purpose
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS, HEAD_TENSORS, LIFTED
from tacit.protocol.inference.schedule import Results

LARGEST_PARAMETERS: Final = 1 << 24
LARGEST_BATCH: Final = 1 << 28
"""Largest number of values in all blocks' outputs of a batch."""


class PublicLearning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made by the model owner, or read by `learning_of`. ValueError for inconsistent parts."""

    public: PublicModel
    scales: StepScales
    adapter: AdapterConfiguration
    classes: Annotated[int, Meta(ge=2, le=1 << 12)]
    batch: Annotated[int, Meta(ge=1, le=1 << 10)]
    """Images of every step."""
    batches: Annotated[int, Meta(ge=1, le=1 << 16)]
    schedule: Schedule
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    names: tuple[Annotated[str, Meta(min_length=1, max_length=256, pattern=PRINTABLE)], ...] = ()
    """Class names, in order; empty if both owners know them otherwise."""

    def __post_init__(self) -> None:
        sizes, scales, adapters = self.sizes, self.scales, isinstance(self.adapter, ParallelConfiguration)
        if (scales.adapter is not None) is not adapters:
            raise ValueError(f"scales of {'no ' * adapters}adapters come with {self.adapter}")
        if tuple(scales.parameters) != (*(ADAPTER_TENSORS if adapters else ()), *HEAD_TENSORS):
            raise ValueError(f"scales of the parameters {', '.join(scales.parameters)} come with {self.adapter}")
        if len(scales.halvings) not in (0, sizes.outputs[0]):
            raise ValueError(f"{len(scales.halvings)} numbers of halvings come with {sizes.outputs[0]} blocks")
        if not fits_cut(self.public.stream, scales.halvings, scales.cut):
            raise ValueError(
                f"{scales.cut} bits are cut off outputs of blocks of scale {self.public.stream:g}, halved as "
                f"{scales.halvings} says: that does not leave {ACTIVATION} fractional bits of {LIFTED} at most"
            )
        values = self.public.sizes.blocks * math.prod(sizes.adapter.stream)
        for name, count, limit in (
            ("numbers to learn", sizes.parameters, LARGEST_PARAMETERS),
            ("values that the blocks leave of a batch", values, LARGEST_BATCH),
        ):
            if count > limit:
                raise ValueError(f"{count} {name} are more than {limit}; take a lower rank, or a smaller batch")
        if len(self.names) not in (0, self.classes):
            raise ValueError(f"{len(self.names)} names come with {self.classes} classes")
        if self.schedule.learning_rate > scales.rate:
            raise ValueError(
                f"a learning rate of {self.schedule.learning_rate:g} comes with scales for {scales.rate:g} at most"
            )
        for number in (1, self.schedule.rounds):
            whole_rate(self.rate(number), self.batch)

    @property
    def sizes(self) -> StepSizes:
        return step_sizes(self.public, self.adapter, classes=self.classes, batch=self.batch)

    @property
    def learning(self) -> LearningSizes:
        sizes = self.sizes
        return LearningSizes(
            adapters=sizes.adapters,
            rank=max(sizes.rank, 1),
            classes=sizes.classes,
            batch=sizes.images,
            cut=self.scales.cut,
            gradient=self.scales.gradient,
        )

    @property
    def epsilon(self) -> float:
        return self.scales.head.variances.inverse.offset

    def initial(self) -> AdapterParameters:
        """Initial common parameters, float64."""
        model = self.public.sizes
        first = initial(
            self.adapter,
            blocks=model.blocks,
            tokens=model.tokens,
            width=model.width,
            classes=self.classes,
            seed=self.seed,
        )
        return each(torch.Tensor.double, first)

    def rate(self, number: int) -> float:
        return self.schedule.rate(number)


def step_sizes(public: PublicModel, adapter: AdapterConfiguration, *, classes: int, batch: int) -> StepSizes:
    rank = adapter.rank if isinstance(adapter, ParallelConfiguration) else 0
    return StepSizes(
        images=batch,
        tokens=public.sizes.tokens,
        width=public.sizes.width,
        classes=classes,
        adapters=public.sizes.blocks if rank else 0,
        rank=rank,
    )


def learning_terms(
    private_model: PrivateModel,
    learning: PublicLearning,
    *,
    purpose: Purpose,
    results: Results,
    most_images: int,
    rounds: int,
    smallest_cohort: int,
    least_count: int = 0,
    audited: int = 0,
) -> AdaptationTerms:
    """Terms that the model owner offers to data owners: passes of the training's batch, on shares from the image on.
    ValueError for a training beside another model, a number out of bounds, and whatever `learning_of` refuses."""
    if learning.public != private_model.public:
        raise ValueError("the learning is beside another model than this one; rehearse it with this one")
    terms = msgspec.convert(
        {
            "sizes": learning.public.sizes,
            "results": results,
            "weights": private_model.commitment,
            "most_images": most_images,
            "most_batch": learning.batch,
            "audited": audited,
            "arithmetic": msgspec.msgpack.encode(learning),
            "purpose": purpose,
            "learning": learning.learning,
            "rounds": rounds,
            "smallest_cohort": smallest_cohort,
            "least_count": least_count,
        },
        AdaptationTerms,
    )
    learning_of(terms)
    return terms


def learning_of(terms: AdaptationTerms) -> PublicLearning:
    """Public parameters in a model owner's terms. ValueError if they do not fit the terms."""
    learning = stated(terms, PublicLearning)
    if learning.public.sizes != terms.sizes:
        raise ValueError(f"scales for {learning.public.sizes} come with terms for {terms.sizes}")
    if learning.learning != terms.learning:
        raise ValueError(f"a learning of {learning.learning} comes with terms for {terms.learning}")
    if terms.most_batch != learning.batch:
        raise ValueError(
            f"terms with batches of {terms.most_batch} images at most come with a learning by batches of "
            f"{learning.batch}"
        )
    if terms.rounds < learning.schedule.rounds:
        raise ValueError(
            f"terms for {terms.rounds} rounds come with a schedule of {learning.schedule.rounds}; open as many"
        )
    check_labels(learning.classes, terms.results.labels)
    return learning
