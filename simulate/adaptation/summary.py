"""summary.json of an adaptation: its figures, made from the event logs, and what its adapters were judged by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

import msgspec

from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.session.event_log import read
from tacit.simulate.adaptation.judging import AdaptersJudged
from tacit.simulate.adaptation.plan import DEALER, MODEL_OWNER, Folder, owner_names

Events = list[dict[str, Any]]


def summarise(
    folder: Folder,
    experiment: AdaptationExperiment,
    judged: Mapping[int, AdaptersJudged],
    *,
    first: AdapterParameters,
    classes: tuple[str, ...],
    ends: Mapping[str, Mapping[str, Any]],
    seed: int,
    wall_seconds: float,
) -> dict[str, Any]:
    """All figures; judged: by round, 0 being before the first; ends: what processes came to."""
    owners = owner_names(experiment.federation.clients)
    logs = {name: list(read(folder.run.events(name))) for name in (DEALER, MODEL_OWNER, *owners)}
    batches = [event for name in owners for event in logs[name] if event["event"] == "batch"]
    rounds = _rounds(experiment, logs, owners, judged)
    last = max(judged)
    return {
        "name": experiment.name,
        "seed": seed,
        "reveal": experiment.adaptation.reveal,
        "classes": list(classes),
        "parameters": first.count,
        "before": asdict(judged[0]),
        "final_accuracy": judged[last].accuracy if last else None,
        "final_balanced_accuracy": judged[last].balanced_accuracy if last else None,
        "final_loss": judged[last].loss if last else None,
        "rounds": rounds,
        "owners": {name: _owner(logs[name], ends[name]) for name in owners},
        "batches": {
            "count": len(batches),
            "refused": sum(event["refused"] for event in batches),
            "seconds": median(event["seconds"] for event in batches) if batches else None,
            "waited_seconds": median(event["waited_seconds"] for event in batches) if batches else None,
            "data_owner_bytes": median(event["sent"] for event in batches) if batches else None,
            "model_owner_bytes": median(event["received"] for event in batches) if batches else None,
        },
        "ended": ends[DEALER]["detail"],
        "wall_seconds": wall_seconds,
        "configuration": msgspec.to_builtins(experiment),
    }


def _rounds(
    experiment: AdaptationExperiment,
    logs: Mapping[str, Events],
    owners: tuple[str, ...],
    judged: Mapping[int, AdaptersJudged],
) -> list[dict[str, Any]]:
    """Of every round of learning that the dealer has ended."""
    learned = {event["round"]: event for name in owners for event in logs[name] if event["event"] == "learned"}
    lost = {
        event["round"]: event["detail"] for name in owners for event in logs[name] if event["event"] == "round-lost"
    }
    refused: defaultdict[int, int] = defaultdict(int)
    for name in owners:
        for event in logs[name]:
            if event["event"] == "batch":
                refused[event["round"]] += event["refused"]
    found = []
    for event in logs[DEALER]:
        if event["event"] != "round-done" or event["round"] > experiment.federation.rounds:
            continue
        number = event["round"]
        told, judgement = learned.get(number, {}), judged.get(number)
        found.append(
            {
                "round": number,
                "status": "completed" if told else "lost" if event["status"] == "completed" else event["status"],
                "detail": lost.get(number, event["detail"]),
                "survivors": event["survivors"],
                "dropped": event["dropped"],
                "images": told.get("images"),
                "refused_batches": refused[number],
                "train_loss": told.get("train_loss"),
                "train_accuracy": told.get("train_accuracy"),
                "accuracy": judgement and judgement.accuracy,
                "balanced_accuracy": judgement and judgement.balanced_accuracy,
                "loss": judgement and judgement.loss,
                "seconds": event["seconds"],
            }
        )
    return found


def _owner(events: Events, end: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "round": end["round"],
        "batches": sum(event["event"] == "batch" for event in events),
        "sessions": sum(event["event"] == "session" for event in events),
        "weights_bytes": sum(event["weights_bytes"] for event in events if event["event"] == "session"),
        "ended": end["detail"],
    }
