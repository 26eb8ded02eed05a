"""The model of an adaptation, attacked by a data owner with the outputs revealed to it, or with labels alone.

The data owner matches outputs of a batch to each other, and its own pixels to the first of them (models/extraction.py).
A network of the same sizes is then trained to reproduce the outputs of the model's blocks, and its outputs are matched
again and again. If no output is revealed, it is trained to give the right labels through the common adapters and head;
the baseline has a head of its own in their place. `copied-blocks` has the model itself up to the first output that is
revealed, and copies of the other blocks; `imitation` has nothing of the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import torch
from timm.models.vision_transformer import Block
from torch import nn
from torch.nn.functional import cross_entropy

from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, each, logits, noted
from tacit.models.configuration import ModelConfiguration
from tacit.models.extraction import matched_images, matched_outputs
from tacit.models.networks import build
from tacit.protocol.inference.schedule import Sizes
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.adaptation_audit.copies import AuditedAdaptation, ReceivedPass, aligned, centred, copied_blocks
from tacit.simulate.audit.results import NOT_ATTACKED, ModelAttackResult, ModelMetrics
from tacit.simulate.audit.scores import mean_interval

BATCH: Final = 32
LEARNING_RATE: Final = 2e-3
WEIGHT_DECAY: Final = 0.05
AGAIN: Final = 5

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A loss of numbers of images [B], outputs of the student's blocks [L, B, T, D] and its logits [B, C]."""

Matcher = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class MatchedRows:
    """Outputs of blocks, matched to the labelled images of a data owner.

    in_order: the images of all rows are known, without matching. ValueError for no pass.
    """

    def __init__(self, passes: Sequence[ReceivedPass], own: Labelled, *, in_order: bool = False) -> None:
        if not passes:
            raise ValueError("no output of a block was revealed")
        self._own, self._in_order = own, in_order
        self._batches = [replace(each, rows=aligned(each.rows)) for each in passes]
        self.rows: dict[int, dict[int, torch.Tensor]] = {}
        """Keyed by block and by the number of the image, float32 [T, D]."""
        self.accuracy = 0.0
        """Fraction of the outputs matched to their own image."""
        self._give([self._by_pixels(each) for each in self._batches])

    def again(self, student: nn.Module) -> None:
        """Match again, by the outputs of a student trained on the previous matches."""
        if self._in_order:
            return
        blocks, outputs = sorted(self.rows), centred(block_outputs(student, self._own.images))
        found = []
        for batch in self._batches:
            chosen = [block for block in blocks if block in batch.rows]
            ours = torch.cat([outputs[block, batch.own] for block in chosen], 1)
            rows = torch.cat([batch.rows[block].rows for block in chosen], 1)
            found.append(self._matched(batch, ours, rows, matched_outputs))
        self._give(found)

    def _by_pixels(self, batch: ReceivedPass) -> torch.Tensor:
        if self._in_order:
            return batch.true
        return self._matched(batch, batch.patches, batch.rows[min(batch.rows)].rows.double(), matched_images)

    def _matched(self, batch: ReceivedPass, ours: torch.Tensor, rows: torch.Tensor, match: Matcher) -> torch.Tensor:
        """Match rows of a batch to what the data owner has of its images, class by class; return their numbers."""
        labels, found = self._own.labels[batch.own], torch.empty_like(batch.own)
        for label in sorted(set(batch.labels.tolist())):
            own, at = (each.eq(label).nonzero()[:, 0] for each in (labels, batch.labels))
            found[at] = batch.own[own[match(ours[own], rows[at])]]
        return found

    def _give(self, found: Sequence[torch.Tensor]) -> None:
        self.rows = {}
        right = 0
        for batch, images in zip(self._batches, found, strict=True):
            right += int((images == batch.true).sum())
            for block, revealed in batch.rows.items():
                self.rows.setdefault(block, {}).update(zip(images.tolist(), revealed.rows, strict=True))
        self.accuracy = right / sum(len(batch.own) for batch in self._batches)


def imitation(
    own: Labelled,
    sizes: Sizes,
    classes: int,
    loss: Loss,
    *,
    epochs: int,
    seed: int,
    again: Callable[[nn.Module], None] = lambda student: None,
) -> nn.Module:
    """Train a network of these sizes and so many classes on all images of a data owner; return it in evaluation mode.

    The optimiser is AdamW, at a rate that rises and falls in one cycle; seed: of initial weights, and of the order of
    images; again: called with the network every AGAIN epochs, to match anew.

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
    for epoch in range(epochs):
        if epoch and not epoch % AGAIN:
            again(student)
        for chosen in torch.split(torch.randperm(count, generator=order), BATCH):
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
    return lambda chosen, outputs, answers: cross_entropy(answers, own.labels[chosen])


def by_adapters(own: Labelled, parameters: AdapterParameters, epsilon: float) -> Loss:
    single = each(lambda tensor: tensor.float(), parameters)
    norm = FinalNorm.plain(single.head_weight.shape[1], epsilon, torch.float32)
    return lambda chosen, outputs, answers: cross_entropy(logits(single, norm, centred(outputs)), own.labels[chosen])


def by_outputs(matched: MatchedRows) -> Loss:
    """Return the loss with outputs: the squared error, relative to the variance of a block's outputs."""
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


COPIED_BLOCKS: Final = "copied-blocks"
IMITATION: Final = "imitation"
COPY_EPOCHS: Final = 150
COPY_LEARNING_RATE: Final = 1e-2
"""Learning rate of copies of blocks, as in tastan-reveal."""
IMITATION_EPOCHS: Final = 60


@dataclass(frozen=True)
class _Predictions:
    labels: torch.Tensor = field(repr=False)
    baseline: torch.Tensor = field(repr=False)
    copy_errors: tuple[float, ...] = ()
    matching_accuracy: float | None = None


@dataclass(frozen=True)
class ModelAttack:
    """Attacks by one data owner on the model of one run."""

    subject: AuditedAdaptation
    owner: str

    def run(
        self, attack: str, place: tuple[str, str], observation: str, passes: Sequence[ReceivedPass], *, in_order: bool
    ) -> ModelAttackResult:
        """Run the attack. place: name of an arm, and its configuration; in_order: the images of all rows are known."""
        began, reason, metrics = time.perf_counter(), "", None
        try:
            metrics = self._metrics((self._copied if attack == COPIED_BLOCKS else self._imitated)(passes, in_order))
        except (ValueError, FloatingPointError) as error:
            reason = str(error)
        arm, configuration = place
        return ModelAttackResult(
            attack=attack,
            arm=arm,
            configuration=configuration,
            adversary=self.owner,
            observation=observation,
            received_outputs=sum(len(rows.rows) for each in passes for rows in each.rows.values()),
            verdict=NOT_ATTACKED if metrics is None else metrics.verdict,
            reason=reason,
            seconds=time.perf_counter() - began,
            metrics=metrics,
        )

    def _copied(self, passes: Sequence[ReceivedPass], in_order: bool) -> _Predictions:
        if not passes:
            raise ValueError("no output of a block was revealed: there is nothing to copy")
        sizes, seed, tested = self.subject.learning.public.sizes, self.subject.seed, self.subject.tested

        def block() -> nn.Module:
            return Block(sizes.width, sizes.heads, mlp_ratio=sizes.hidden / sizes.width, qkv_bias=True)

        found = copied_blocks(
            [each.rows for each in passes],
            block,
            epochs=COPY_EPOCHS,
            learning_rate=COPY_LEARNING_RATE,
            seed=seed,
            in_order=in_order,
        )
        first = found.known[0]
        # Blocks copied as one have no outputs in between; training has zeros there, too.
        stitched = torch.cat([tested[:first], torch.zeros_like(tested[first:])])
        without = stitched.clone()
        for known, outputs in zip(found.known, found.outputs(tested[first]), strict=True):
            stitched[known], without[known] = outputs, tested[first]
        answers, less = (self.subject.answers(centred(outputs)) for outputs in (stitched, without))
        return _Predictions(answers, less, found.errors, found.matching_accuracy)

    def _imitated(self, passes: Sequence[ReceivedPass], in_order: bool) -> _Predictions:
        subject, own = self.subject, self.subject.images_of(self.owner)
        matched = MatchedRows(passes, own, in_order=in_order) if passes else None
        if matched is None:
            loss = by_adapters(own, subject.parameters, subject.learning.epsilon)
        else:
            loss = by_outputs(matched)
        student = imitation(
            own,
            subject.learning.public.sizes,
            len(subject.setting.classes),
            loss,
            epochs=IMITATION_EPOCHS,
            seed=subject.seed,
            again=(lambda student: None) if matched is None else matched.again,
        )
        answers = subject.answers(centred(block_outputs(student, subject.setting.test.images)))
        return _Predictions(answers, self._labelled, (), None if matched is None else matched.accuracy)

    @cached_property
    def _labelled(self) -> torch.Tensor:
        subject, own = self.subject, self.subject.images_of(self.owner)
        student = imitation(
            own,
            subject.learning.public.sizes,
            len(subject.setting.classes),
            by_labels(own),
            epochs=IMITATION_EPOCHS,
            seed=subject.seed,
        )
        with torch.no_grad():
            answers: torch.Tensor = student(subject.setting.test.images)
        return answers.argmax(-1)

    def _metrics(self, found: _Predictions) -> ModelMetrics:
        subject, truth = self.subject, self.subject.setting.test.labels
        target = subject.answers(subject.tested)
        baseline = max(found.baseline, self._labelled, key=lambda labels: _share(labels, target))
        gain = (found.labels == target).double() - (baseline == target).double()
        low, high = mean_interval(gain.numpy())
        return ModelMetrics(
            images=len(target),
            agreement=_share(found.labels, target),
            baseline_agreement=_share(baseline, target),
            advantage_interval=(low, high),
            accuracy=_share(found.labels, truth),
            baseline_accuracy=_share(baseline, truth),
            copy_errors=found.copy_errors,
            matching_accuracy=found.matching_accuracy,
            reconstructed=low is not None and low > 0 and max(found.copy_errors, default=0.0) < 1,
        )


def _share(labels: torch.Tensor, others: torch.Tensor) -> float:
    return (labels == others).double().mean().item()
