"""Models that a data owner teaches on its own images, with what it was told, or with nothing but their labels.

Which of its images an output is of, nobody tells it: it matches its own pixels to the first output of a batch, and that
to the next ones (models/extraction.py). A network of the same sizes, with random weights, is then taught to leave what
the model's blocks leave. Where no output is told, it is taught to give the right labels through the adapters and the
head that every data owner is told; the floor has a head of its own in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tacit.models.adapters.features import noted
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, each, logits
from tacit.models.configuration import ModelConfiguration
from tacit.models.extraction import matched_images, matched_outputs
from tacit.models.vision_transformer import build
from tacit.protocol.inference.schedule import Sizes
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.adaptation_audit.copies import centred
from tacit.simulate.adaptation_audit.subject import TellingPass

BATCH: Final = 32
LEARNING_RATE: Final = 2e-3
WEIGHT_DECAY: Final = 0.05

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From numbers of images [B], outputs of the student's blocks [L, B, T, D] and its logits [B, C]."""


@dataclass(frozen=True)
class MatchedRows:
    """Outputs that were given to images."""

    rows: dict[int, dict[int, torch.Tensor]] = field(repr=False)
    """By block and by the number of the image, float32 [T, D]."""
    ordered: float
    """Share of those that were given to their own image."""


def matched_rows(passes: Sequence[TellingPass], *, in_order: bool = False) -> MatchedRows:
    """What was told, by image; in_order: the images of all rows are known, so that nothing is matched. ValueError for
    no pass."""
    if not passes:
        raise ValueError("no output of a block was told")
    found: dict[int, dict[int, torch.Tensor]] = {}
    right = count = 0
    for told in passes:
        before: torch.Tensor | None = None
        names = told.own
        for block, each_block in sorted(told.rows.items()):
            if in_order:
                images = each_block.images
            elif before is None:
                images = told.own[matched_images(told.patches, each_block.rows.double())]
            else:
                images = names[matched_outputs(before, each_block.rows)]
            names, before = images, each_block.rows
            right, count = right + int((images == each_block.images).sum()), count + len(images)
            found.setdefault(block, {}).update(zip(images.tolist(), each_block.rows, strict=True))
    return MatchedRows(found, right / count)


def imitation(own: Labelled, sizes: Sizes, classes: int, loss: Loss, *, epochs: int, seed: int) -> nn.Module:
    """A network of these sizes and so many classes, in evaluation mode, taught on all images of a data owner. By AdamW,
    at a rate that rises and falls in one cycle; seed: of initial weights, and of the order of images.

    FloatingPointError as soon as a loss is not finite.
    """
    configuration = ModelConfiguration(
        image_size=sizes.side,
        patch_size=sizes.patch,
        width=sizes.width,
        depth=sizes.blocks,
        heads=sizes.heads,
        mlp_ratio=sizes.hidden / sizes.width,
    )
    student, count = build(configuration, classes=classes, channels=sizes.channels, seed=seed).train(), len(own.labels)
    optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = epochs * math.ceil(count / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(count, generator=order).split(BATCH):
            with noted(student) as seen:
                answers = student(own.images[chosen])
            found = loss(chosen, torch.stack(seen), answers)
            if not math.isfinite(found.item()):
                raise FloatingPointError(f"the loss of an imitation is {found.item()}")
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(found)
            optimizer.step()
            schedule.step()
    return student.eval()


def by_labels(own: Labelled) -> Loss:
    """The loss of a student that is told nothing."""
    return lambda chosen, outputs, answers: cross_entropy(answers, own.labels[chosen])


def by_adapters(own: Labelled, parameters: AdapterParameters, epsilon: float) -> Loss:
    """The loss of one that is told adapters and head alone."""
    single = each(lambda tensor: tensor.float(), parameters)
    ones = torch.ones(single.head_weight.shape[1])
    norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=epsilon)
    return lambda chosen, outputs, answers: cross_entropy(logits(single, norm, centred(outputs)), own.labels[chosen])


def by_outputs(matched: MatchedRows) -> Loss:
    """The loss of one that is told outputs: squares of what it errs by, in units of how outputs of a block vary."""
    units = {block: torch.stack([*rows.values()]).var() for block, rows in matched.rows.items()}

    def loss(chosen: torch.Tensor, outputs: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        ours, total = centred(outputs), 0.0 * answers.sum()
        for block, rows in matched.rows.items():
            there = [(place, rows[name]) for place, name in enumerate(chosen.tolist()) if name in rows]
            if there:
                places, theirs = zip(*there, strict=True)
                wrong = ours[block, list(places)] - torch.stack(theirs)
                total = total + wrong.square().mean() / units[block]
        return total

    return loss
