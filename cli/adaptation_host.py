"""What `tacit dealer`, `tacit model-owner` and `tacit data-owner` do where the file of the party has [adaptation]: data
owners learn beside a model that they do not get, each party on a host of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer
from rich.console import Console

from tacit.cli import legacy_output, output
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
        ended, figures = asyncio.run(interruptible(run_learner(opened, own, show=output.party_screen(console))))
    except InferenceError as error:
        return output.failure(error, output.SERVER_LOST if error.code in _LOST else output.FAILED)
    legacy_output.keep_json(json_file, "learned", figures)
    if ended.code is not None:
        return output.failure(ended.detail, output.SERVER_LOST if ended.code in _LOST else output.FAILED)
    completed = sum(row["lost"] is None for row in figures["rounds"])
    if figures["round"]:
        output.say(console, f"the common adapters after round {figures['round']} are in {figures['adapters']}")
    if completed == own.rounds:
        return typer.Exit()
    lost = next((row for row in figures["rounds"] if row["lost"] is not None), None)
    reason = "of the others nothing was told" if lost is None else f"round {lost['round']}: {lost['lost']}"
    return output.failure(f"{completed} of {own.rounds} rounds were completed; {reason}", output.ABORTED)
