"""What an observation tells beside images: the labels in it, and coordinates of one client alone.

Labels are counted by the gradient of the classifier (models/attacks/closed_form.py), and a blind attacker gives the
shares that labels have among other images. At a coordinate to which one honest client contributed alone, a sum is that
client's value: whoever opens it, or receives the model made of it, has it. How many there are follows from what the
clients really contributed, which the audit looks up as it does the true images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tacit.models.attacks.closed_form import classifier, label_counts, whole
from tacit.simulate.audit.figures import NOT_ATTACKED, NOT_RECOVERED, RECOVERED, LabelFigures, ObservationRow
from tacit.simulate.audit.scores import mean_interval
from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.audit.views import MASKED, UpdateView, contributors
from tacit.simulate.audit.wire import ON_THE_WIRE


class Observations:
    """Judges kinds of observations, of which the first is of single uploads that nothing protects."""

    def __init__(self) -> None:
        self.rows: list[ObservationRow] = []
        self._failed: str | None = None
        """Why labels were not told there; empty if they were."""

    def add(
        self, subject: AuditedRun, recordings: Path, place: tuple[str, str, str], views: Sequence[UpdateView]
    ) -> None:
        """The next kind; place: name of the arm, what it is, and the adversary."""
        arm, about, adversary = place
        labels, why = None, self._failed or ""
        if not why:
            try:
                labels = _labels(subject, views)
            except ValueError as error:
                why = str(error)
        if self._failed is None:
            failing = labels is not None and not labels.recovered
            self._failed = "on the unprotected case it fails" if failing else why
            why = self._failed
        verdict = NOT_ATTACKED if why or labels is None else RECOVERED if labels.recovered else NOT_RECOVERED
        self.rows.append(
            ObservationRow(
                arm=arm,
                about=about,
                adversary=adversary,
                what=views[0].what,
                cohort=len(views[0].clients),
                alone=float(np.mean([_alone(subject, recordings, view) for view in views])),
                labels=labels,
                verdict=verdict,
                why=why,
            )
        )


def _labels(subject: AuditedRun, views: Sequence[UpdateView]) -> LabelFigures:
    """ValueError, with the reason, where the gradient of the classifier is not there."""
    right, blind = list[float](), list[float]()
    for view in views:
        sight = subject.sight(view)
        _, head = classifier(sight.model)
        true = torch.cat([subject.true_labels(client, view.round) for client in view.clients])
        counts = torch.bincount(true, minlength=head.out_features)
        found = label_counts(sight.model, sight.gradients, images=len(true))
        guessed = whole(torch.bincount(subject.data.y_test, minlength=head.out_features).double(), len(true))
        right.append(int(torch.minimum(found, counts).sum()) / len(true))
        blind.append(int(torch.minimum(guessed, counts).sum()) / len(true))
    gains = np.subtract(right, blind)
    low, high = mean_interval(gains)
    return LabelFigures(
        observations=len(views),
        right=float(np.mean(right)),
        blind=float(np.mean(blind)),
        better_by_interval=(low, high),
        recovered=low is not None and low > 0,
    )


def _alone(subject: AuditedRun, recordings: Path, view: UpdateView) -> float:
    if view.what == MASKED or view.what.startswith(ON_THE_WIRE):
        return 0.0
    counts = contributors(recordings, view, subject.terms)
    return float(((counts == 1) & view.known).mean())
