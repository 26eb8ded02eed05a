"""The history of an adaptation, as the report of a federation has it: the dealer is the server of the sums, the data
owners are its clients, and what is known of a round beside its sum is in the summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.parties.runs.incidents import incidents
from tacit.simulate.adaptation.plan import DEALER, MODEL_OWNER, Folder
from tacit.simulate.report.adaptation_outputs import AdaptationFigures
from tacit.simulate.report.fold import Fold
from tacit.simulate.report.history import History, PartyHistory


def history_of(folder: Folder, summary: AdaptationFigures) -> History:
    """From the logs that the parties of a run have left. EventLogError for logs that cannot be read."""
    logs = {name: folder.events(name) for name in summary["parties"]}
    rounds = {row["round"]: row for row in summary["rounds"]}
    fold = Fold(History(DEALER, {name: PartyHistory(name) for name in (DEALER, *summary["owners"])}))
    # Of one time, that of the dealer comes first: so does its log.
    for event in sorted((event for log in logs.values() for event in log), key=lambda event: event["time"]):
        fold.take(_judged(event, rounds) if event["event"] == "round-done" else event)
    history = fold.close()
    # It is in no sum.
    history.parties.pop(MODEL_OWNER, None)
    history.rounds = [round for round in history.rounds if round.number in rounds]
    history.incidents = incidents(logs)
    for name, owner in summary["owners"].items():
        history.parties[name].trained = owner["seconds"]
    return history


def _judged(event: Mapping[str, Any], rounds: Mapping[int, Any]) -> dict[str, Any]:
    """How a round ended, with what is known of it beside its sum."""
    row = rounds.get(event["round"], {})
    keys = ("status", "detail", "accuracy", "balanced_accuracy", "loss", "train_accuracy", "train_loss")
    return {"accuracy": None, "loss": None, **event, **{key: row[key] for key in keys if key in row}}
