"""What a data owner has been told of its images, on its disk: so that a pass is never asked twice, whoever dies.

JSON lines, appended and synchronised one by one: first the model and its classes, then an answer for each pass. The
file is named after the images, so that others have another one; and all answers of a file are of one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tacit.models.file_system import FILES
from tacit.parties.session.event_log import remove_incomplete_line


class AnswersError(Exception):
    """The answers cannot be read or kept; the message names the file and what to do."""


class AnsweredBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="model"):
    """Who has answered."""

    weights: str
    """The commitment to the model, in hexadecimal digits."""
    input: str
    classes: tuple[str, ...]


class AnsweredPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pass"):
    """What one pass has brought; the images are the next ones."""

    logits: tuple[tuple[float, ...] | None, ...]
    """A row for each image, a number for each class; None for an image of a pass that was refused, or of which labels
    alone were told."""
    labels: tuple[tuple[int, ...] | None, ...] = ()
    """Where these were: a row for each image, the numbers of the best classes; None for an image that was refused."""
    online_seconds: float
    offline_seconds: float
    """That it waited for material before."""
    sent: int
    """Bytes of shares, of this owner."""
    received: int
    """Of the model owner."""


class AnsweredRow(NamedTuple):
    """What a data owner knows of one image: one of these, or none if it was refused."""

    logits: Sequence[float] | None
    labels: Sequence[int] | None


_DECODER: Final = msgspec.json.Decoder(AnsweredBy | AnsweredPass)


class Answers:
    """The answers about so many images. AnswersError for a file that is none, or of other images."""

    def __init__(self, path: Path, *, images: int) -> None:
        self.by: AnsweredBy | None = None
        """None before the first session."""
        self.passes: list[AnsweredPass] = []
        self.path = path
        self._images = images
        try:
            for line in remove_incomplete_line(path).splitlines():
                self._take(_DECODER.decode(line))
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise AnswersError(f"{path} cannot be read ({error}): remove it to ask about all images again") from None

    @property
    def count(self) -> int:
        """How many images are answered, or refused; they are the first."""
        return sum(len(each.logits) for each in self.passes)

    @property
    def rows(self) -> list[AnsweredRow]:
        """Of the images that are answered."""
        return [
            AnsweredRow(*row)
            for each in self.passes
            for row in zip(each.logits, each.labels or (None,) * len(each.logits), strict=True)
        ]

    def write(self, entry: AnsweredBy | AnsweredPass) -> None:
        """Keep it, and return when it is on the disk. AnswersError."""
        try:
            FILES.append(self.path, msgspec.json.encode(entry) + b"\n")
            FILES.synchronise(self.path)
            if not self.passes:
                FILES.synchronise(self.path.parent)
        except OSError as error:
            raise AnswersError(
                f"{self.path} cannot be written ({error.strerror}): make room, then start again"
            ) from error
        self._take(entry)

    def _take(self, entry: Any) -> None:
        if isinstance(entry, AnsweredBy):
            if self.by is not None:
                raise ValueError("it is of two models")
            self.by = entry
            return
        self.passes.append(entry)
        classes = 0 if self.by is None else len(self.by.classes)
        misfit = (
            any(row is not None and len(row) != classes for row in entry.logits)
            or len(entry.labels) not in (0, len(entry.logits))
            or any(row is not None and not _labels(row, classes) for row in entry.labels)
        )
        if self.count > self._images or misfit:
            raise ValueError("it does not fit the images")


def _labels(row: Sequence[int], classes: int) -> bool:
    """Whether these are numbers of classes, at least one."""
    return len(row) > 0 and min(row) >= 0 and max(row) < classes
