"""The section [distillation] of an experiment file: conversion to an MPC-friendly model. Loads no torch."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Epochs = Annotated[int, Meta(ge=1, le=1000)]


class DistillationConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[distillation]: the teacher, the student's polynomials and both stages. ValueError unless decay_epochs ascend."""

    teacher_epochs: Annotated[
        int,
        Meta(
            description="Epochs of the teacher on all training images, with optimizer, batches and learning rate of "
            "[training]; a model.checkpoint is the teacher unchanged, unless it gets a new head.",
            ge=1,
            le=1000,
        ),
    ] = 20
    new_head: Annotated[
        bool,
        Meta(
            description="Replace a head of model.checkpoint for other classes by a random one, and train the "
            "teacher; otherwise such a checkpoint is refused."
        ),
    ] = False
    softmax_degree: Annotated[
        int,
        Meta(description="Degree of the Taylor series in the softmax; even degrees are never negative.", ge=1, le=16),
    ] = 6
    inverse_steps: Annotated[
        int, Meta(description="Steps of Goldschmidt's iterations, in the softmax and in LayerNorm.", ge=1, le=16)
    ] = 7
    layer_epochs: Annotated[
        Epochs, Meta(description="Stage 1: epochs on embedding, attention matrices and hidden states.")
    ] = 15
    prediction_epochs: Annotated[Epochs, Meta(description="Stage 2: epochs on the predictions.")] = 15
    layer_learning_rate: Annotated[float, Meta(description="Adam's step in stage 1.", gt=0.0, le=1.0)] = 1e-3
    prediction_learning_rate: Annotated[float, Meta(description="Adam's step in stage 2.", gt=0.0, le=1.0)] = 1e-4
    decay_epochs: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=2000)], ...],
        Meta(
            description="Ascending epoch numbers, counted from 1 over both stages: at each, Adam's step falls to a "
            "tenth.",
            max_length=100,
        ),
    ] = ()
    labels: Annotated[
        bool,
        Meta(description="Whether stage 2 also trains on the labels of the images, by cross-entropy."),
    ] = False
    temperature: Annotated[
        float, Meta(description="Divisor of the logits before their comparison in stage 2.", gt=0.0, le=100.0)
    ] = 5.0
    largest_score: Annotated[
        float,
        Meta(
            description="Limit at which the scores of the teacher's attention, each row centred, are clipped before "
            "the student learns them: the exponential of a large one leaves the range of fixed-point numbers.",
            gt=0.0,
            le=10.0,
        ),
    ] = 5.0
    batch_size: Annotated[int, Meta(description="Images in one step of both stages.", ge=1, le=65536)] = 16
    margin: Annotated[
        float,
        Meta(
            description="Factor by which the intervals of the polynomials exceed those of the training images, and "
            "ranges on shares those of typical images. Values beyond them are an error in the clear, and refused on "
            "shares.",
            ge=1.0,
            le=100.0,
        ),
    ] = 1.5

    def __post_init__(self) -> None:
        if list(self.decay_epochs) != sorted(set(self.decay_epochs)):
            raise ValueError(
                f"distillation.decay_epochs = {list(self.decay_epochs)}: expected every epoch once, in ascending order"
            )
