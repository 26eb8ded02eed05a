"""What `tacit dealer`, `tacit model-owner` and `tacit data-owner` do where the file of the party has [adaptation]: data
owners learn beside a model that they do not get, each party on a host of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from tacit.cli import output
from tacit.cli.interruption import interruptible
from tacit.cli.serving_screen import show_serving
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
    ended = asyncio.run(interruptible(run_learning_dealer(opened, own, show=partial(_show_serving, console))))
    if ended.code is not None:
        return output.failure(f"the rounds ended early: {ended.detail}", output.ABORTED)
    output.say(console, f"the rounds are over: {ended.detail}")
    return typer.Exit()


def teach(console: Console, opened: OpenedParty[ModelOwnerFile], own: TeachingSection) -> None:
    """Let data owners learn, until it is stopped."""
    try:
        asyncio.run(interruptible(run_teacher(opened, own, show=partial(_show_serving, console))))
    except FloatingPointError as error:
        raise output.failure(error, output.WRONG_INPUT) from None


def learn(
    console: Console, opened: OpenedParty[DataOwnerFile], own: LearningSection, json_file: Path | None
) -> typer.Exit:
    """Learn until the rounds are over; how that ends the command."""
    show = partial(_show_learning, console, own.rounds)
    try:
        ended, figures = asyncio.run(interruptible(run_learner(opened, own, show=show)))
    except InferenceError as error:
        return output.failure(error, output.SERVER_LOST if error.code in _LOST else output.FAILED)
    output.keep_json(json_file, "learned", figures)
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


def _show_serving(console: Console, event: str, fields: dict[str, Any]) -> None:
    say = partial(output.say, console)
    if event == "sums":
        say(f"serves the sums at {fields['address']}")
    elif event == "goes-on":
        say(f"goes on after round {fields['round']}")
    elif event == "rehearses":
        say("finds bounds, by a rehearsal on images of its own")
    elif event == "narrow":
        output.warn(
            f"adaptation.margin: bounds with more room than {fields['margin']:g} do not fit the rings; batches may be "
            "refused"
        )
    elif event == "learning":
        say(f"shares of {fields['words']} words: adaptation.words of the dealer")
    elif event == "noise":
        budget = f", epsilon {fields['largest_epsilon']:g} at most" if fields["largest_epsilon"] else ", no budget"
        say(f"noise of {fields['deviation']:g} on every common parameter{budget}")
    elif event == "joined":
        say(f"  {fields['member']} takes part in the sums")
    elif event == "round-done":
        over = "completed" if fields["status"] == "completed" else f"is lost: {fields['detail']}"
        say(f"round {fields['round']:>3}  {over}", style="" if fields["status"] == "completed" else "yellow")
    elif event == "sum" and not fields["told"]:
        say(f"  {fields['peer']} is told no sum of round {fields['round']}: {fields['detail']}", style="yellow")
    else:
        show_serving(console, event, fields)


def _show_learning(console: Console, rounds: int, event: str, fields: dict[str, Any]) -> None:
    say = partial(output.say, console)
    if event == "images":
        learned = f"; round {fields['learned']} is learned" if fields["learned"] else ""
        say(f"{fields['images']} images to learn from{learned}")
    elif event == "agreed":
        say(f"model {fields['weights']}")
    elif event == "learned":
        say(f"round {fields['round']:>3} of {rounds}  {output.learned_words(fields)}")
    elif event == "round-lost":
        say(f"round {fields['round']:>3} is lost: {fields['detail']}", style="yellow")
    elif event == "session-lost":
        say(f"  the session with the model owner is lost: {fields['detail']}", style="yellow")
    elif event == "round-over" and fields["code"]:
        say(f"  not in the sum of round {fields['round']}: {fields['detail']}", style="yellow")
    elif event == "not-connected":
        say(f"  {fields['reason']}", style="yellow")
    elif event == "link-lost":
        say(f"  the link to {fields['peer']} is lost")
