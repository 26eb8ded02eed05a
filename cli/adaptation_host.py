"""What `tacit dealer`, `tacit model-owner` and `tacit data-owner` do where the file of the party has [adaptation]: data
owners learn beside a model that they do not get, each party on a host of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer
from rich.console import Console

from tacit.cli import output
from tacit.cli.interruption import interruptible
from tacit.parties.hosting.adaptation_host import run_learning_dealer, run_teacher
from tacit.parties.hosting.folder import OpenedParty
from tacit.parties.hosting.learner_host import run_learner
from tacit.parties.hosting.party_file import (
    DataOwnerFile,
    DealerFile,
    LearningSection,
    ModelOwnerFile,
    SummingSection,
    TeachingSection,
)
from tacit.parties.inference.conversation import InferenceError
from tacit.protocol.core.errors import Code

_LOST = (Code.LEFT, Code.TIMEOUT)


def deal(console: Console, opened: OpenedParty[DealerFile], own: SummingSection) -> typer.Exit:
    """Deal and sum until the rounds are over; how that ends the command."""
    ended = asyncio.run(
        interruptible(run_learning_dealer(opened, own, show=output.party_screen(console, server=opened.name)))
    )
    if ended.code is not None:
        return output.failure(f"the rounds ended early: {ended.detail}", output.ABORTED)
    output.say(console, f"the rounds are over: {ended.detail}")
    return typer.Exit()


def teach(console: Console, opened: OpenedParty[ModelOwnerFile], own: TeachingSection) -> None:
    """Let data owners learn, until it is stopped."""
    try:
        asyncio.run(interruptible(run_teacher(opened, own, show=output.party_screen(console))))
    except FloatingPointError as error:
        raise output.failure(error, output.WRONG_INPUT) from None


def learn(
    console: Console, opened: OpenedParty[DataOwnerFile], own: LearningSection, json_file: Path | None
) -> typer.Exit:
    """Learn until the rounds are over; how that ends the command."""
    try:
        ended, learned = asyncio.run(interruptible(run_learner(opened, own, show=output.party_screen(console))))
    except InferenceError as error:
        return output.failure(error, output.SERVER_LOST if error.code in _LOST else output.FAILED)
    output.keep_json(json_file, learned)
    if ended.code is not None:
        return output.failure(ended.detail, output.SERVER_LOST if ended.code in _LOST else output.FAILED)
    output.show(console, learned)
    lost = [one for one in learned.rounds if one.lost is not None]
    completed = len(learned.rounds) - len(lost)
    if completed == own.rounds:
        return typer.Exit()
    reason = f"round {lost[0].round}: {lost[0].lost}" if lost else "the sums of the others were not received"
    return output.failure(f"{completed} of {own.rounds} rounds were completed; {reason}", output.ABORTED)
