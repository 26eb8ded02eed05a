"""Puts what clients found when they evaluated the model where the server's own figure would stand.

The server cannot evaluate a model that is encrypted under a key of the clients, nor one of which every client has a
part of its own. A client that has the result of a round evaluates it, and its `evaluated` event says so; here they
complete the server's `round-done` of that round, several of them by their mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import mean
from typing import Any, Final

FIGURES: Final = ("accuracy", "balanced_accuracy", "loss")
"""What they find."""


def complete(logs: Mapping[str, list[dict[str, Any]]]) -> None:
    """Add these figures to the rounds that lack them. logs: the events of every party, changed in place."""
    found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name, events in logs.items():
        for event in events:
            if event["event"] == "evaluated":
                found[event["round"]][name] = event
    for events in logs.values():
        for event in events:
            if event["event"] == "round-done" and event.get("accuracy", 0.0) is None and event["round"] in found:
                judged = found[event["round"]].values()
                # Runs that were begun by an earlier version lack some.
                known = [figure for figure in FIGURES if all(figure in one for one in judged)]
                event.update({figure: mean(one[figure] for one in judged) for figure in known})
