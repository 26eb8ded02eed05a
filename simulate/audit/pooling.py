"""Rounds that an attack may read as one: those in which the same clients trained on the same images.

The audit knows every batch and says which rounds these are. An adversary has to guess that much; where a client trains
on all that it has, every round is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.audit.views import UpdateView

_NEVER_AGAIN: Final = "in {rounds} rounds no client trained on the same images again"


@dataclass(frozen=True, kw_only=True)
class PooledRounds:
    """Of one kind of observations, those that belong together, each as one view with `others`."""

    about: str
    """How many rounds, in words."""
    views: list[UpdateView] = field(repr=False)
    why_not: str
    """Why there are none; else empty."""


def pooled(subject: AuditedRun, views: Sequence[UpdateView]) -> PooledRounds:
    """By the clients in a view and what they trained on, in the order of the last rounds."""
    alike: dict[tuple[tuple[str, bytes], ...], list[UpdateView]] = defaultdict(list)
    for view in views:
        batches = tuple((client, _batch(subject, client, view.round)) for client in view.clients)
        alike[batches].append(view)
    several = [same for same in alike.values() if len(same) > 1]
    if not several:
        rounds = len({view.round for view in views})
        return PooledRounds(about="rounds pooled", views=[], why_not=_NEVER_AGAIN.format(rounds=rounds))
    least, most = min(map(len, several)), max(map(len, several))
    return PooledRounds(
        about=f"{most} rounds pooled" if least == most else f"{least} to {most} rounds pooled",
        views=[replace(same[-1], others=tuple(same[:-1])) for same in several],
        why_not="",
    )


def _batch(subject: AuditedRun, client: str, round: int) -> bytes:
    """Equal for equal images, in whatever order."""
    return b"".join(sorted(image.numpy().tobytes() for image in subject.true_images(client, round)))
