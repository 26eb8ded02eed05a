"""summary.json of an adaptation: its figures, made from the event logs, and the evaluation of its adapters.

Only a simulation can evaluate the adapters in the clear, beside the model that they were learned for. The supervisor
keeps these results on the disk from before the first round on, so that figures can be made of a run that goes on, or
was killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median, median_low
from typing import Any, Final, Literal, cast

import msgspec
import torch
from torch.nn.functional import cross_entropy

from tacit.models.adapters.federated import Features, balanced
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, logits
from tacit.models.file_system import replace_file
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.adaptation.noise import SumNoise, noise_policy
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import RunDirectoryError, told, writing
from tacit.parties.runs.reveals import PROTECTS
from tacit.parties.runs.summary import epsilon_of, phases
from tacit.simulate.adaptation.plan import DEALER, MODEL_OWNER, Folder, owner_names, read_learning
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.report.outputs import (
    AdaptationFigures,
    AdaptationOwner,
    AdaptationParty,
    AdaptationRound,
    BatchFigures,
    JudgedFigures,
    SumNoiseFigures,
)


@dataclass(frozen=True)
class AdaptersJudged:
    """On images that nobody has learned from."""

    accuracy: float
    balanced_accuracy: float
    loss: float


class Judge:
    """Of the common adapters of a run, on its test images."""

    def __init__(self, learning: PublicLearning, transformer: FriendlyTransformer, test: Labelled) -> None:
        ones = torch.ones(learning.public.sizes.width, dtype=torch.float64)
        # On shares tokens have lost their mean, and a head reads them without factor and offset of the last norm.
        self._norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=learning.epsilon)
        outputs = block_outputs(transformer, test.images).double()
        self._test = Features(outputs=outputs - outputs.mean(-1, keepdim=True), labels=test.labels)

    @torch.no_grad()
    def logits(self, parameters: AdapterParameters) -> torch.Tensor:
        """Float64 [N, classes], of all images."""
        return logits(parameters, self._norm, self._test.outputs)

    def judged(self, parameters: AdapterParameters) -> AdaptersJudged:
        """How well these adapters do."""
        found = self.logits(parameters)
        answers = found.argmax(-1)
        return AdaptersJudged(
            accuracy=(answers == self._test.labels).double().mean().item(),
            balanced_accuracy=balanced(answers, self._test.labels),
            loss=cross_entropy(found, self._test.labels).item(),
        )


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


Events = list[dict[str, Any]]

_GOES_ON: Final = "not yet, or the run was killed"


def summarise(
    folder: Folder,
    experiment: AdaptationExperiment,
    known: Known,
    *,
    ends: Mapping[str, str],
    wall_seconds: float,
) -> AdaptationFigures:
    """All figures; ends: what became of the dealer and of the data owners, of those that are over."""
    owners, judged = owner_names(experiment.clients), known.judged
    logs = {name: folder.events(name) for name in (DEALER, MODEL_OWNER, *owners)}
    sessions, seed = msgspec.to_builtins(told(logs[DEALER]))
    last = max(judged)
    return {
        "name": experiment.name,
        "reveal": experiment.adaptation.reveal,
        "protects": PROTECTS[experiment.adaptation.reveal],
        "classes": list(known.classes),
        "parameters": known.parameters,
        "before": cast("JudgedFigures", asdict(judged[0])),
        "final_accuracy": judged[last].accuracy if last else None,
        "final_balanced_accuracy": judged[last].balanced_accuracy if last else None,
        "final_loss": judged[last].loss if last else None,
        "rounds": _rounds(experiment, logs, owners, judged),
        "owners": {name: _owner(logs[name], ends.get(name, _GOES_ON)) for name in owners},
        "batches": _batches([event for name in owners for event in _batches_of(logs[name])], logs[MODEL_OWNER]),
        "dealer_bytes": {
            name: sum(event["material"] for event in _batches_of(logs[name])) for name in (MODEL_OWNER, *owners)
        },
        "noise": _noise(folder, experiment, logs[MODEL_OWNER]),
        "parties": {name: _party(name, events) for name, events in logs.items()},
        "ended": ends.get(DEALER, _GOES_ON),
        "wall_seconds": wall_seconds,
        "configuration": msgspec.to_builtins(experiment),
        "seed": seed,
        "sessions": sessions,
    }


def _noise(folder: Folder, experiment: AdaptationExperiment, events: Events) -> SumNoiseFigures | None:
    """events: of the model owner."""
    policy = noise_policy(experiment.adaptation)
    if policy is None:
        return None
    noise = SumNoise(policy, read_learning(folder), owners=experiment.clients)
    sums = len({event["round"] for event in events if event["event"] == "sum" and event["told"]})
    return {
        "deviation": policy.deviation,
        "largest_norm": noise.norm,
        "sums": sums,
        "delta": policy.delta,
        "epsilon": epsilon_of(policy.delta, sums * noise.cost) if sums else 0.0,
        "largest_epsilon": policy.largest_epsilon or None,
    }


def figures_of(folder: Folder, experiment: AdaptationExperiment) -> AdaptationFigures:
    """Those of a run that is over, by its summary, or that goes on, or was killed, so far. RunDirectoryError for one
    that has not begun to learn, and for a file that cannot be read; EventLogError."""
    if folder.run.summary.exists():
        try:
            return msgspec.json.decode(folder.run.summary.read_bytes(), type=AdaptationFigures)
        except (OSError, msgspec.MsgspecError) as error:
            raise RunDirectoryError(
                f"{folder.run.summary} cannot be read ({error}): restore it, or remove it"
            ) from None
    known = read_known(folder)
    logs = {name: folder.events(name) for name in (DEALER, *owner_names(experiment.clients))}
    ends = {name: event["detail"] for name, log in logs.items() for event in log if event["event"] == "ended"}
    last = max((log[-1]["time"] for log in logs.values() if log), default=known.began)
    return summarise(folder, experiment, known, ends=ends, wall_seconds=last - known.began)


def _party(name: str, events: Events) -> AdaptationParty:
    role: Literal["dealer", "model-owner", "data-owner"] = "data-owner"
    if name == DEALER:
        role = "dealer"
    elif name == MODEL_OWNER:
        role = "model-owner"
    return {"role": role, "phases": phases(events)}


def _batches_of(events: Events) -> Events:
    return [event for event in events if event["event"] == "batch"]


def _batches(batches: Events, model_owners: Events) -> BatchFigures:
    """batches: of all data owners; model_owners: what the model owner has logged."""

    def middle(key: str, events: Events) -> int | None:
        return median_low(event[key] for event in events) if events else None

    return {
        "count": len(batches),
        "refused": sum(event["refused"] for event in batches),
        "seconds": median(event["seconds"] for event in batches) if batches else None,
        "waited_seconds": median(event["waited_seconds"] for event in batches) if batches else None,
        "data_owner_bytes": middle("sent", batches),
        "model_owner_bytes": middle("received", batches),
        "material_to_data_owner_bytes": middle("material", batches),
        "material_to_model_owner_bytes": middle("material", _batches_of(model_owners)),
    }


def _rounds(
    experiment: AdaptationExperiment,
    logs: Mapping[str, Events],
    owners: tuple[str, ...],
    judged: Mapping[int, AdaptersJudged],
) -> list[AdaptationRound]:
    """Of every round of learning that the dealer has ended."""
    learned = {event["round"]: event for name in owners for event in logs[name] if event["event"] == "learned"}
    lost = {
        event["round"]: event["detail"] for name in owners for event in logs[name] if event["event"] == "round-lost"
    }
    refused: defaultdict[int, int] = defaultdict(int)
    for name in owners:
        for event in _batches_of(logs[name]):
            refused[event["round"]] += event["refused"]
    found: list[AdaptationRound] = []
    for event in logs[DEALER]:
        if event["event"] != "round-done" or event["round"] > experiment.federation.rounds:
            continue
        number = event["round"]
        told, judgement = learned.get(number, {}), judged.get(number)
        found.append(
            {
                "round": number,
                "status": "completed" if told else "lost" if event["status"] == "completed" else event["status"],
                "detail": lost.get(number) or event["detail"] or "",
                "survivors": event["survivors"],
                "dropped": event["dropped"],
                "images": told.get("images"),
                "refused_batches": refused[number],
                "train_loss": told.get("train_loss"),
                "train_accuracy": told.get("train_accuracy"),
                "accuracy": judgement.accuracy if judgement else None,
                "balanced_accuracy": judgement.balanced_accuracy if judgement else None,
                "loss": judgement.loss if judgement else None,
                "seconds": event["seconds"],
            }
        )
    return found


def _owner(events: Events, end: str) -> AdaptationOwner:
    batches, sessions = _batches_of(events), [event for event in events if event["event"] == "session"]
    return {
        "round": max((event["round"] for event in events if event["event"] == "learned"), default=0),
        "batches": len(batches),
        "refused": sum(event["refused"] for event in batches),
        "sessions": len(sessions),
        "seconds": sum(event["seconds"] for event in batches),
        "waited_seconds": sum(event["waited_seconds"] for event in batches),
        "bytes_sent": sum(event["sent"] for event in batches),
        "bytes_received": sum(event["received"] for event in batches),
        "weights_bytes": sum(event["weights_bytes"] for event in sessions),
        "ended": end,
    }
