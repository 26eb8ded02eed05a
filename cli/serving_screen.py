"""What a dealer and a model owner say on the screen of the data owners that they serve."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.console import Console

from tacit.cli import output


def show_serving(console: Console, event: str, fields: dict[str, Any]) -> None:
    """An event of a dealer or a model owner."""
    say = partial(output.say, console)
    who = fields.get("peer") or " and ".join(fields.get("owners", ()))
    if event == "listening":
        say(f"listens at {fields['address']}")
    elif event == "model":
        say(f"model {fields['weights']}")
    elif event == "not-connected":
        say(f"  {fields['reason']}", style="yellow")
    elif event == "session":
        say(f"session with {who}")
    elif event == "agreed":
        say(f"  {who} asks about {fields['images']} images")
    elif event == "session-over":
        dealt = sum(fields.get("material", {}).values())
        sent = f"; {dealt / 1e6:.1f} MB of material" if dealt else ""
        say(f"session with {who} over: {fields['detail']}{sent}", style="yellow" if fields["code"] else "")
    elif event == "refused":
        say(f"  refused: {fields['member']}: {fields['detail']}", style="yellow")
    elif event == "stranger":
        say(f"  stranger: {fields['reason']}", style="yellow")
