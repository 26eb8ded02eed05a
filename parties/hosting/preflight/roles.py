"""What is tested of each role, in this order. Another role is another entry: its subject, and its checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tacit.parties.hosting.party_file import PartyFileError
from tacit.parties.hosting.party_schema import DataOwnerFile, PartyFile
from tacit.parties.hosting.preflight import inference, own, reach, work
from tacit.parties.hosting.preflight.checks import Check, Finding, Subject, made
from tacit.parties.hosting.preflight.subjects import (
    ClientSubject,
    DataOwnerSubject,
    DealerSubject,
    ModelOwnerSubject,
    ServerSubject,
)
from tacit.parties.runs.experiment import Experiment

BEFORE: Final = (own.KEY, own.ROSTER, own.FOLDER, own.CLOCK)
ROLES: Final[dict[str, tuple[type[Subject[Any]], tuple[Check[Any], ...]]]] = {
    "server": (
        ServerSubject,
        (
            *BEFORE,
            work.SERVER_IMAGES,
            work.SERVER_EXPERIMENT,
            work.SERVER_CLASSES,
            work.SERVER_MEMORY,
            own.DISK,
            reach.ADDRESS,
        ),
    ),
    "client": (
        ClientSubject,
        (
            *BEFORE,
            work.JOURNAL,
            work.CLIENT_IMAGES,
            work.CLIENT_EXPERIMENT,
            work.CLIENT_CLASSES,
            work.POLICY,
            work.CLIENT_MEMORY,
            own.DISK,
            work.TRAINING,
            *reach.SERVER.checks,
        ),
    ),
    "dealer": (DealerSubject, (*BEFORE, own.DISK, reach.ADDRESS)),
    "model-owner": (
        ModelOwnerSubject,
        (*BEFORE, inference.MODEL, inference.MODEL_OWNER_MEMORY, own.DISK, reach.ADDRESS, *reach.DEALER.checks),
    ),
    "data-owner": (
        DataOwnerSubject,
        (
            *BEFORE,
            inference.IMAGES,
            inference.ANSWERS,
            own.DISK,
            *reach.DEALER.checks,
            *reach.MODEL_OWNER.checks,
            inference.TERMS,
            inference.DATA_OWNER_MEMORY,
            inference.PIXELS,
        ),
    ),
}

LEARNING: Final[tuple[Check[Any], ...]] = (
    *BEFORE,
    inference.LEARNING_IMAGES,
    own.DISK,
    *reach.DEALER.checks,
    *reach.SUMS.checks,
    *reach.TEACHER.checks,
)
"""Of a data owner that learns beside a model."""
PREDICTING: Final[tuple[Check[Any], ...]] = (
    *BEFORE,
    inference.IMAGES,
    inference.LEARNED,
    inference.ANSWERS_BY_LEARNED,
    own.DISK,
    *reach.DEALER.checks,
    *reach.TEACHER.checks,
)
"""Of one that asks with what it has learned."""


def preflight(file: PartyFile, experiment: Experiment | None) -> Iterator[Finding]:
    """Test everything that this party will need, one thing after the other. PartyFileError for an experiment where it
    has none."""
    if experiment is not None and file.role not in ("server", "client"):
        raise PartyFileError(f'role = "{file.role}": private inference has no experiment: leave the file out')
    subject, checks = ROLES[file.role]
    if isinstance(file, DataOwnerFile) and file.adaptation is not None:
        checks = PREDICTING if file.learns is None else LEARNING
    return made(checks, subject(file, experiment))
