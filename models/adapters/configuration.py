"""The sections [adapter] and [adaptation] of an experiment file: what is trained beside a frozen transformer, and how.
Loads no torch.

In [adapter], `kind` chooses one of two structs below; each has the keys of its own kind and refuses others.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ParallelConfiguration(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="parallel"
):
    """[adapter] of kind "parallel": a low-rank adapter beside every block, and the head."""

    rank: Annotated[
        int, Meta(description="Values to which an adapter reduces the channels, and the tokens.", ge=1, le=1024)
    ] = 8
    scale: Annotated[
        float,
        Meta(
            description="Factor of every adapter at the beginning; it is trained. What it multiplies begins at zero, "
            "so that a scale of zero would stay there.",
            gt=0.0,
            le=100.0,
        ),
    ] = 1.0
    initialisation: Annotated[
        Literal["kaiming", "xavier"],
        Meta(
            description='Random weights of the reductions, uniform with variance 2 / inputs ("kaiming") or '
            '2 / (inputs + outputs) ("xavier").'
        ),
    ] = "kaiming"


class LinearProbeConfiguration(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="linear-probe"
):
    """[adapter] of kind "linear-probe": the head alone."""


AdapterConfiguration = ParallelConfiguration | LinearProbeConfiguration
"""What [adapter] is decoded as; its key `kind` tells which, and is needed."""


Reveal = Literal["none", "sampled", "all"]


Selection = Literal["data-owner", "enrolment"]
"""Which images a batch has whose outputs are told."""


Weights = Literal["equal", "counts"]
"""How much data owners count: alike, or by how many images they have, which they state then."""


Batches = Annotated[int, Meta(description="Batches of a data owner in a round, a step each.", ge=1, le=10_000)]
SmallestCohort = Annotated[
    int,
    Meta(
        description="Fewest data owners whose sum is opened, without those who may collude; data owners and model "
        "owner each see to it.",
        ge=2,
        le=10_000,
    ),
]
Colluders = Annotated[
    int, Meta(description="Data owners who may pool what they know; they hide nobody.", ge=0, le=10_000)
]


class TeachingConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model owner says of how data owners learn beside its model. ValueError if keys contradict."""

    batch: Annotated[int, Meta(description="Images of a batch.", ge=1, le=1024)] = 16
    batches: Batches = 1
    learning_rate: Annotated[float, Meta(description="Of the first rounds.", gt=0.0, le=10.0)] = 0.1
    decay: Annotated[
        float, Meta(description="Factor of the learning rate after each of decay_rounds.", gt=0.0, le=1.0)
    ] = 0.1
    decay_rounds: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...],
        Meta(description="Rounds after which the learning rate decays, in rising order.", max_length=64),
    ] = ()
    margin: Annotated[
        float,
        Meta(
            description="Room in the bounds of what is learned beyond what a rehearsal on the model owner's own images "
            "reaches; a batch that is beyond them teaches nothing.",
            ge=1.0,
            le=16.0,
        ),
    ] = 2.0
    smallest_cohort: SmallestCohort = 3
    colluders: Colluders = 0
    most_rounds: Annotated[
        int, Meta(description="Rounds that the model owner opens at most; 0: as many as there are.", ge=0, le=100_000)
    ] = 0
    weights: Annotated[
        Weights,
        Meta(
            description='How much a data owner counts in the mean: "equal", all alike; "counts", by how many images it '
            "has, which it states to the model owner, and never more than twice what another does."
        ),
    ] = "equal"
    noise: Annotated[
        float,
        Meta(
            description="Standard deviation of the Gaussian noise that the model owner adds to every common parameter "
            "of a round, with as much on loss and right answers; 0: none. What it guarantees is in the summary, and "
            "is next to nothing for noise that learning stands.",
            ge=0.0,
            le=4.0,
        ),
    ] = 0.0
    largest_epsilon: Annotated[
        float,
        Meta(
            description="Budget: the epsilon, for the delta below, of all sums that the model owner tells, with the "
            "whole model as the unit; a learning that has more rounds is refused. 0: none.",
            ge=0.0,
            le=100.0,
        ),
    ] = 0.0
    delta: Annotated[float, Meta(description="The delta of the budget, and of the summary.", gt=0.0, lt=1.0)] = 1e-5

    def __post_init__(self) -> None:
        if list(self.decay_rounds) != sorted(set(self.decay_rounds)):
            raise ValueError(f"adaptation.decay_rounds = {list(self.decay_rounds)}: rounds in rising order, each once")
        if self.largest_epsilon and not self.noise:
            raise ValueError(
                f"adaptation.largest_epsilon = {self.largest_epsilon:g} is a budget of noise; set adaptation.noise too"
            )


class AdaptationConfiguration(TeachingConfiguration, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[adaptation]: how data owners learn beside a model that they do not get. ValueError if keys contradict."""

    reveal: Annotated[
        Reveal,
        Meta(
            description='What data owners receive of the outputs of blocks: "none", nothing, they learn on shares; '
            'INSECURE: "sampled" or "all", outputs of sampled blocks or of all, in secret orders, as in the paper, '
            "which gives the model away."
        ),
    ] = "none"
    selection: Annotated[
        Selection,
        Meta(
            description="Which images a batch has where outputs are told: those that the data owner chose for it "
            '("data-owner"), or the next ones of all that it goes through, which are put into one secret order at the '
            'beginning of a session ("enrolment"); these have to be held in memory.'
        ),
    ] = "data-owner"
    backbone: Annotated[
        str,
        Meta(
            description="The model owner's model: the directory of a run of `tacit simulate` or of a student of `tacit "
            'distill`, which has images like those of [data]; "": one of [model] is trained on known_classes first.'
        ),
    ] = ""
    known_classes: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(
            description="Numbers of the classes whose images are the model owner's, who trains on them, with "
            'backbone = "". All other classes are what the data owners have, and learn. []: the model is '
            "model.checkpoint as it is, and the data owners learn all classes.",
            max_length=65_536,
        ),
    ] = (0, 1, 2, 3, 4)
    own_images: Annotated[
        int,
        Meta(
            description="Images of the model owner, for bounds and a rehearsal, with known_classes = []: so many "
            "training images of [data], evenly spaced, which no data owner has.",
            ge=16,
            le=65_536,
        ),
    ] = 128
    backbone_epochs: Annotated[
        int,
        Meta(description='Epochs of that training, by the keys of [training]; with backbone = "".', ge=1, le=10_000),
    ] = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and self.reveal != "none":
            raise ValueError(
                f'adaptation.noise = {self.noise:g}: with reveal = "{self.reveal}" data owners are told outputs of '
                "blocks, which have none; set one of them to none"
            )
        if self.selection == "enrolment" and self.reveal == "none":
            raise ValueError(
                'adaptation.selection = "enrolment" is for outputs that are told; with reveal = "none" leave it out'
            )
        if len(set(self.known_classes)) != len(self.known_classes):
            raise ValueError(f"adaptation.known_classes = {list(self.known_classes)}: each class once")
