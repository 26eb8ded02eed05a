"""The model of an adaptation, attacked by a data owner with what it was told.

Both attacks end with a network whose answers, by the common adapters and head, are compared with those of the adapted
model on images that nobody has learned from. `copied-blocks` has all of the model before the first output that is told,
and copies in the place of the other blocks; `imitation` has nothing of the model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from timm.models.vision_transformer import Block
from torch import nn

from tacit.models.adapters.parallel import block_outputs
from tacit.simulate.adaptation_audit.copies import centred, copied_blocks
from tacit.simulate.adaptation_audit.imitation import (
    MatchedRows,
    by_adapters,
    by_labels,
    by_outputs,
    imitation,
)
from tacit.simulate.adaptation_audit.subject import AuditedAdaptation, TellingPass
from tacit.simulate.audit.figures import NOT_ATTACKED, ModelJudged, ModelRow
from tacit.simulate.audit.scores import mean_interval

COPIED_BLOCKS: Final = "copied-blocks"
IMITATION: Final = "imitation"
COPY_EPOCHS: Final = 150
COPY_LEARNING_RATE: Final = 1e-2
"""Of copies of blocks, as tastan-reveal has it."""
IMITATION_EPOCHS: Final = 60


@dataclass(frozen=True)
class _Answers:
    """What a network says of the test images."""

    labels: torch.Tensor = field(repr=False)
    """int64 [N]."""
    floor: torch.Tensor = field(repr=False)
    """Those of the same with less, int64 [N]."""
    errors: tuple[float, ...] = ()
    ordered: float | None = None


@dataclass(frozen=True)
class ModelAttack:
    """By one data owner, in one run."""

    subject: AuditedAdaptation
    owner: str

    def row(
        self, attack: str, place: tuple[str, str], what: str, passes: Sequence[TellingPass], *, in_order: bool
    ) -> ModelRow:
        """place: name of an arm, and what it is; passes: what was told; in_order: with the images of all rows given."""
        began, why, figures = time.perf_counter(), "", None
        try:
            found = (self._copied if attack == COPIED_BLOCKS else self._imitated)(passes, in_order)
            figures = self._judged(found)
        except (ValueError, FloatingPointError) as error:
            why = str(error)
        arm, about = place
        return ModelRow(
            attack=attack,
            arm=arm,
            about=about,
            adversary=self.owner,
            what=what,
            told=sum(len(rows.rows) for each in passes for rows in each.rows.values()),
            verdict=NOT_ATTACKED if figures is None else figures.verdict,
            why=why,
            seconds=time.perf_counter() - began,
            figures=figures,
        )

    def _copied(self, passes: Sequence[TellingPass], in_order: bool) -> _Answers:
        if not passes:
            raise ValueError("no output of a block was told: there is nothing to copy")
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
        # Of blocks that were copied as one there are no outputs in between; learning has zeros there, too.
        stitched = torch.cat([tested[:first], torch.zeros_like(tested[first:])])
        without = stitched.clone()
        for known, outputs in zip(found.known, found.outputs(tested[first]), strict=True):
            stitched[known], without[known] = outputs, tested[first]
        answers, less = (self.subject.answers(centred(outputs)) for outputs in (stitched, without))
        return _Answers(answers, less, found.errors, found.ordered)

    def _imitated(self, passes: Sequence[TellingPass], in_order: bool) -> _Answers:
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
        return _Answers(answers, self._labelled, (), None if matched is None else matched.ordered)

    @cached_property
    def _labelled(self) -> torch.Tensor:
        """What a network says that was taught with the owner's labels alone."""
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

    def _judged(self, found: _Answers) -> ModelJudged:
        subject, truth = self.subject, self.subject.setting.test.labels
        target = subject.answers(subject.tested)
        floor = max(found.floor, self._labelled, key=lambda labels: _share(labels, target))
        gain = (found.labels == target).double() - (floor == target).double()
        low, high = mean_interval(gain.numpy())
        return ModelJudged(
            images=len(target),
            agreement=_share(found.labels, target),
            floor=_share(floor, target),
            better_by_interval=(low, high),
            accuracy=_share(found.labels, truth),
            floor_accuracy=_share(floor, truth),
            errors=found.errors,
            ordered=found.ordered,
            recovered=low is not None and low > 0 and max(found.errors, default=0.0) < 1,
        )


def _share(labels: torch.Tensor, others: torch.Tensor) -> float:
    return (labels == others).double().mean().item()
