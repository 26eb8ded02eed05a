"""What the supervisor of an adaptation knows beside the event logs, on the disk from before the first round on: so that
figures can be made of a run that goes on, or was killed."""

from __future__ import annotations

import msgspec

from tacit.models.file_system import replace_file
from tacit.parties.runs.directory import RunDirectoryError, writing
from tacit.simulate.adaptation.judging import AdaptersJudged
from tacit.simulate.adaptation.plan import Folder


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a run."""

    began: float
    """Seconds since 1970."""
    classes: tuple[str, ...]
    parameters: int
    """How many numbers are learned."""
    judged: dict[int, AdaptersJudged]
    """The common adapters on test images, by the round that they are after; 0: the first ones."""


def keep(folder: Folder, known: Known) -> None:
    """Write it, whole or not at all. OSError as of `writing`."""
    with writing(folder.judged):
        replace_file(folder.judged, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


def read_known(folder: Folder) -> Known:
    """What a run has kept. RunDirectoryError if that is nothing yet, or cannot be read."""
    try:
        return msgspec.json.decode(folder.judged.read_bytes(), type=Known)
    except FileNotFoundError:
        raise RunDirectoryError(
            f"{folder.path}: the first round has not begun: there is nothing to report yet; wait for it"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunDirectoryError(f"{folder.judged} cannot be read ({error}): restore it") from None
