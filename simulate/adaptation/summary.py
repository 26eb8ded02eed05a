"""summary.json of an adaptation: its figures, made from the event logs, and the evaluation of its adapters.

Only a simulation can evaluate the adapters in the clear, beside the model that they were learned for. The supervisor
keeps these results on the disk from before the first round on, so that figures can be made of a run that goes on, or
was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from statistics import median, median_low
from typing import Final, Literal, cast

import msgspec
import torch
from torch.nn.functional import cross_entropy

from tacit.models.adapters.federated import Features, balanced
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, logits
from tacit.models.file_system import replace_file
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.adaptation.events import BatchEnded
from tacit.parties.adaptation.noise import SumNoise, noise_policy
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import RunDirectoryError, writing
from tacit.parties.runs.reveals import PROTECTS
from tacit.parties.runs.state import PartyState, RunState
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


_GOES_ON: Final = "not yet, or the run was killed"


def state_of(folder: Folder, owners: Sequence[str]) -> RunState:
    """The state that the logs of all parties lead to; it is open. EventLogError for a log that cannot be read."""
    names = (DEALER, MODEL_OWNER, *owners)
    state = RunState(server=DEALER, parties={name: PartyState(name) for name in names})
    # Of one time, the dealer's events come first: so does its log.
    for event in sorted((event for name in names for event in folder.events(name)), key=attrgetter("time")):
        state.take(event)
    return state


def summarise(
    folder: Folder,
    experiment: AdaptationExperiment,
    known: Known,
    *,
    ends: Mapping[str, str],
    wall_seconds: float,
) -> AdaptationFigures:
    """All figures; ends: what became of the dealer and of the data owners, of those that are over.

    EventLogError for a log that cannot be read.
    """
    owners = owner_names(experiment.clients)
    return _figures(folder, experiment, known, state_of(folder, owners), ends=ends, wall_seconds=wall_seconds)


def _figures(
    folder: Folder,
    experiment: AdaptationExperiment,
    known: Known,
    state: RunState,
    *,
    ends: Mapping[str, str],
    wall_seconds: float,
) -> AdaptationFigures:
    owners, judged = owner_names(experiment.clients), known.judged
    parties, last = state.parties, max(judged)
    batches = [batch for name in owners for batch in parties[name].batches]
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
        "rounds": _rounds(experiment, state, batches, judged),
        "owners": {name: _owner(parties[name], ends.get(name, _GOES_ON)) for name in owners},
        "batches": _batches(batches, parties[MODEL_OWNER].batches),
        "dealer_bytes": {
            name: sum(batch.material for batch in parties[name].batches) for name in (MODEL_OWNER, *owners)
        },
        "noise": _noise(folder, experiment, sums=len(parties[MODEL_OWNER].revealed)),
        "parties": {name: _party(party) for name, party in parties.items()},
        "ended": ends.get(DEALER, _GOES_ON),
        "wall_seconds": wall_seconds,
        "configuration": msgspec.to_builtins(experiment),
        "seed": msgspec.to_builtins(state.seed),
        "sessions": msgspec.to_builtins(state.origins),
    }


def _noise(folder: Folder, experiment: AdaptationExperiment, *, sums: int) -> SumNoiseFigures | None:
    """sums: how many the model owner revealed."""
    policy = noise_policy(experiment.adaptation)
    if policy is None:
        return None
    noise = SumNoise(policy, read_learning(folder), owners=experiment.clients)
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
    known, owners = read_known(folder), owner_names(experiment.clients)
    state = state_of(folder, owners)
    summed = [state.parties[name] for name in (DEALER, *owners)]
    ends = {party.name: party.ended for party in summed if party.ended is not None}
    last = max((party.heard for party in summed if party.heard is not None), default=known.began)
    return _figures(folder, experiment, known, state, ends=ends, wall_seconds=last - known.began)


def _party(party: PartyState) -> AdaptationParty:
    role: Literal["dealer", "model-owner", "data-owner"] = "data-owner"
    if party.name == DEALER:
        role = "dealer"
    elif party.name == MODEL_OWNER:
        role = "model-owner"
    return {"role": role, "phases": phases(party)}


def _batches(batches: Sequence[BatchEnded], model_owners: Sequence[BatchEnded]) -> BatchFigures:
    """batches: of all data owners; model_owners: the same batches at the model owner."""

    def middle(values: list[int]) -> int | None:
        return median_low(values) if values else None

    return {
        "count": len(batches),
        "refused": sum(batch.refused for batch in batches),
        "seconds": median(batch.seconds for batch in batches) if batches else None,
        "waited_seconds": median(batch.waited_seconds for batch in batches) if batches else None,
        "data_owner_bytes": middle([batch.sent for batch in batches]),
        "model_owner_bytes": middle([batch.received for batch in batches]),
        "material_to_data_owner_bytes": middle([batch.material for batch in batches]),
        "material_to_model_owner_bytes": middle([batch.material for batch in model_owners]),
    }


def _rounds(
    experiment: AdaptationExperiment,
    state: RunState,
    batches: Sequence[BatchEnded],
    judged: Mapping[int, AdaptersJudged],
) -> list[AdaptationRound]:
    """Of every round of learning that the dealer has ended."""
    refused: Counter[int] = Counter()
    for batch in batches:
        refused[batch.round] += batch.refused
    found: list[AdaptationRound] = []
    for round in state.rounds:
        number, result = round.number, round.result
        if result is None or number > experiment.federation.rounds:
            continue
        learned, judgement = state.learned.get(number), judged.get(number)
        found.append(
            {
                "round": number,
                "status": "completed" if learned else "lost" if result.status == "completed" else result.status,
                "detail": state.unlearned.get(number) or result.detail,
                "survivors": result.survivors,
                "dropped": msgspec.to_builtins(result.dropped),
                "images": learned.images if learned else None,
                "refused_batches": refused[number],
                "train_loss": learned.train_loss if learned else None,
                "train_accuracy": learned.train_accuracy if learned else None,
                "accuracy": judgement.accuracy if judgement else None,
                "balanced_accuracy": judgement.balanced_accuracy if judgement else None,
                "loss": judgement.loss if judgement else None,
                "seconds": result.seconds,
            }
        )
    return found


def _owner(party: PartyState, end: str) -> AdaptationOwner:
    batches = party.batches
    return {
        "round": party.learned,
        "batches": len(batches),
        "refused": sum(batch.refused for batch in batches),
        "sessions": len(party.openings),
        "seconds": sum(batch.seconds for batch in batches),
        "waited_seconds": sum(batch.waited_seconds for batch in batches),
        "bytes_sent": sum(batch.sent for batch in batches),
        "bytes_received": sum(batch.received for batch in batches),
        "weights_bytes": sum(opening.weights_bytes for opening in party.openings),
        "ended": end,
    }
