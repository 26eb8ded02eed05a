"""Results of private inference at a data owner: one struct for simulations and hosts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import structs

from tacit.parties.runs.results import Column, Result, Table, decimals, prose

REFUSED: Final = "refused: out of range, ask again with another image"
"""Shown in place of a label."""
MOST_SHOWN: Final = 20
"""Number of images that are shown to people."""


class AnsweredImage(msgspec.Struct, frozen=True, kw_only=True):
    """Result for an image: labels, logits, or features of a model without classes; none for a refused image."""

    image: str
    label: str | None
    """Best class."""
    labels: list[str] | None
    """Best classes, best first; null if logits were received."""
    confidence: float | None
    """Softmax of the best logit; null if labels alone were received."""
    logits: list[float] | None
    features: list[float] | None
    """Embedding of the image; null for a model with classes."""
    refused: bool
    """Whether a value of its pass was out of range."""
    unreadable: str | None = None
    """Reason why its file cannot be read; such an image was not sent to inference."""

    @classmethod
    def of(
        cls, image: str, classes: Sequence[str], logits: Sequence[float] | None, labels: Sequence[int] | None
    ) -> AnsweredImage:
        """Result from the numbers of the best labels, or from logits, which are features without classes; with neither
        the image was refused."""
        found = cls(image=image, label=None, labels=None, confidence=None, logits=None, features=None, refused=False)
        if labels is not None:
            names = [classes[number] for number in labels]
            return structs.replace(found, label=names[0], labels=names)
        if logits is None:
            return structs.replace(found, refused=True)
        if not classes:
            return structs.replace(found, features=list(logits))
        largest = max(logits)
        confidence = 1 / math.fsum(math.exp(logit - largest) for logit in logits)
        label = classes[logits.index(largest)]
        return structs.replace(found, label=label, confidence=confidence, logits=list(logits))

    @classmethod
    def not_read(cls, image: str, reason: str) -> AnsweredImage:
        """An image whose file cannot be read."""
        return structs.replace(cls.of(image, (), None, None), refused=False, unreadable=reason)

    @property
    def shown(self) -> str:
        """Text in a table: labels, number of features, or that it was refused or not read."""
        if self.unreadable is not None:
            return "its file cannot be read"
        if self.features is not None:
            return f"{len(self.features)} features"
        return ", ".join(self.labels or [self.label or REFUSED])


def verdicts_disclosed(passes: int) -> str:
    """Describe the verdicts of so many passes that a model owner has learned."""
    return (
        f"The verdicts of {passes} {'pass' if passes == 1 else 'passes'}, in range or not, told the model owner one "
        "bit each, about a question that it chose with the model and its bounds."
    )


class PrivateAnswers(Result, frozen=True, kw_only=True):
    """Results for images, and their cost."""

    images: list[AnsweredImage]
    accuracy: float | None
    """Share of the images with a result that were classified correctly; null without known labels."""
    passes: int
    online_seconds: float
    preprocessing_wait_seconds: float
    """Seconds spent waiting for correlated randomness before passes."""

    def first_images(self) -> Iterator[Table | str]:
        shown = self.images[:MOST_SHOWN]
        yield Table(
            columns=(Column("image"), Column("label", prose), Column("confidence", decimals(3))),
            rows=[(one.image, one.shown, one.confidence) for one in shown],
            flagged=[number for number, one in enumerate(shown) if one.refused or one.unreadable],
        )
        if more := len(self.images) - len(shown):
            yield f"and {more} more; --json FILE has all of them"
        if any(one.labels for one in self.images):
            yield "The model owner reveals labels alone: there are no confidences."
        if any(one.features for one in self.images):
            yield "The model has no classes: --json FILE has the features of every image."

    @property
    def disclosed(self) -> str:
        """Describe the verdicts that the model owner has learned."""
        return verdicts_disclosed(self.passes)

    def sentence(self, compared: str = "") -> str:
        """Count, accuracy and time for an image; compared: a comparison, between these."""
        count, right = sum(one.unreadable is None for one in self.images), self.accuracy
        known = "" if right is None else f", {right:.1%} of them right"
        return (
            f"{count} images{known}; {compared}{1000 * self.online_seconds / count:.0f} ms an image online, and "
            f"{1000 * self.preprocessing_wait_seconds / count:.0f} ms of waiting for correlated randomness"
        )


class Answers(PrivateAnswers, frozen=True, kw_only=True, tag="tacit.answers.5"):
    """Results from a model owner on another host, and their cost; bytes are those of shares, by sender."""

    classes: list[str]
    """Class names, in the order of the logits."""
    weights: str
    """Commitment to the model, in hexadecimal digits."""
    data_owner_bytes: int
    model_owner_bytes: int

    def view(self) -> Iterator[Table | str]:
        """The first images, accuracy and time."""
        yield from self.first_images()
        yield self.disclosed
        yield self.sentence()
