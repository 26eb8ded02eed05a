"""The sections [adapter] and [adaptation] of an experiment file: the trained part beside a frozen transformer, and its
training. Loads no torch.

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
            description="Initial factor of every adapter; it is trained. It multiplies values that start at zero, so "
            "a scale of zero would never change.",
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
"""Type of [adapter]; its required key `kind` selects the struct."""


Reveal = Literal["none", "sampled", "all"]


Selection = Literal["data-owner", "enrolment"]
"""Choice of a batch's images when outputs are revealed."""


Weights = Literal["equal", "counts"]
"""Weights of data owners: equal, or by their stated numbers of images."""


Batches = Annotated[int, Meta(description="Batches of a data owner in a round, a step each.", ge=1, le=10_000)]
SmallestCohort = Annotated[
    int,
    Meta(
        description="Fewest data owners whose sum is opened, not counting possible colluders; data owners and "
        "model owner both enforce it.",
        ge=2,
        le=10_000,
    ),
]
Colluders = Annotated[
    int, Meta(description="Data owners that may collude; not counted in smallest_cohort.", ge=0, le=10_000)
]


class TeachingConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model owner's settings of the data owners' training beside its model. ValueError if keys contradict."""

    batch: Annotated[int, Meta(description="Images per batch.", ge=1, le=1024)] = 16
    batches: Batches = 1
    learning_rate: Annotated[float, Meta(description="Learning rate of the first rounds.", gt=0.0, le=10.0)] = 0.1
    decay: Annotated[
        float, Meta(description="Factor of the learning rate after each of decay_rounds.", gt=0.0, le=1.0)
    ] = 0.1
    decay_rounds: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...],
        Meta(description="Rounds after which the learning rate decays, in ascending order.", max_length=64),
    ] = ()
    margin: Annotated[
        float,
        Meta(
            description="Safety factor on the ranges of all values in training, relative to a rehearsal on the model "
            "owner's own images; a batch out of range has no effect.",
            ge=1.0,
            le=16.0,
        ),
    ] = 2.0
    smallest_cohort: SmallestCohort = 3
    colluders: Colluders = 0
    most_rounds: Annotated[
        int, Meta(description="Most rounds that the model owner opens; 0: as many as there are.", ge=0, le=100_000)
    ] = 0
    weights: Annotated[
        Weights,
        Meta(
            description='Weight of a data owner in the mean: "equal"; or "counts", by its number of images, which it '
            "states to the model owner, and at most twice another's."
        ),
    ] = "equal"
    noise: Annotated[
        float,
        Meta(
            description="Standard deviation of the Gaussian noise that the model owner adds to every common "
            "parameter of a round, with as much on loss and right answers; 0: none. The summary states its guarantee, "
            "which is negligible for noise that training tolerates.",
            ge=0.0,
            le=4.0,
        ),
    ] = 0.0
    largest_epsilon: Annotated[
        float,
        Meta(
            description="Privacy budget: the epsilon, for the delta below, of all sums that the model owner reveals, "
            "with the whole model as the unit; training with more rounds is refused. 0: none.",
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
            description='Block outputs that data owners receive: "none", training on shares; INSECURE: "sampled" or '
            '"all", outputs of sampled or of all blocks, in secret orders, as in the paper, which gives the model '
            "away."
        ),
    ] = "none"
    selection: Annotated[
        Selection,
        Meta(
            description="Images of a batch whose outputs are revealed: those that the data owner chose for it "
            '("data-owner"), or the next ones of all its images, in one secret order drawn at the beginning of a '
            'session ("enrolment"); these have to fit in memory.'
        ),
    ] = "data-owner"
    backbone: Annotated[
        str,
        Meta(
            description="The model owner's model: the directory of a run of `tacit simulate` or of a student of "
            '`tacit distill`, with images like those of [data]; "": one of [model] is first trained on known_classes.'
        ),
    ] = ""
    known_classes: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(
            description='Numbers of the classes whose images the model owner has and trains on, with backbone = "". '
            "The data owners have all other classes, and train on them. []: the model is model.checkpoint as it is, "
            "and the data owners train on all classes.",
            max_length=65_536,
        ),
    ] = (0, 1, 2, 3, 4)
    own_images: Annotated[
        int,
        Meta(
            description="The model owner's images, for ranges and a rehearsal, with known_classes = []: so many "
            "training images of [data], evenly spaced, which no data owner has.",
            ge=16,
            le=65_536,
        ),
    ] = 128
    backbone_epochs: Annotated[
        int,
        Meta(description='Epochs on known_classes, by the keys of [training]; with backbone = "".', ge=1, le=10_000),
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
