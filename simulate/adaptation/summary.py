"""Making of summary.json of an adaptation, from the event logs and the evaluation of its adapters.

The supervisor persists these evaluations from before the first round on, so that a running or killed adaptation has a
summary too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import median, median_low
from typing import Final, Literal

import msgspec

from tacit.models.file_system import replace_file
from tacit.parties.adaptation.events import BatchEnded, ImagesKept, LearningPassOver
from tacit.parties.adaptation.noise import SumNoise, noise_policy
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import RunDirectoryError, writing
from tacit.parties.runs.privacy import epsilon_of
from tacit.parties.runs.reveals import PROTECTS
from tacit.parties.runs.state import PartyState, RunState
from tacit.parties.runs.summary import phases
from tacit.simulate.adaptation.plan import Folder, owner_names, read_learning
from tacit.simulate.adaptation.results import (
    AdaptationParty,
    AdaptationRound,
    AdaptationSummary,
    AdaptersMetrics,
    BatchMetrics,
    DataOwnerMetrics,
    KeptMetrics,
    SumNoiseMetrics,
)
from tacit.simulate.federation.party_files import DEALER, MODEL_OWNER


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    began: float
    """Seconds since 1970."""
    classes: tuple[str, ...]
    parameters: int
    """Number of trained parameters."""
    judged: dict[int, AdaptersMetrics]
    """Common adapters on test images, by preceding round; 0: the initial ones."""


def keep(folder: Folder, known: Known) -> None:
    with writing(folder.judged):
        replace_file(folder.judged, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


def read_known(folder: Folder) -> Known:
    """Read the persisted evaluations. RunDirectoryError if there are none yet, or they cannot be read."""
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
    """Return the open state after the logs of all parties. EventLogError for a log that cannot be read."""
    names = (DEALER, MODEL_OWNER, *owners)
    state = RunState(server=DEALER, parties={name: PartyState(name) for name in names})
    # At equal times the dealer's events come first, like its log.
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
) -> AdaptationSummary:
    """Make the summary; ends: of the dealer and of the data owners that have ended.

    EventLogError for a log that cannot be read.
    """
    state = state_of(folder, owner_names(experiment.clients))
    return _summary(folder, experiment, known, state, ends=ends, wall_seconds=wall_seconds)


def read_summary(folder: Folder) -> AdaptationSummary:
    """Read the summary of a completed run. RunDirectoryError for a file that cannot be read."""
    path = folder.run.summary
    try:
        return msgspec.json.decode(path.read_bytes(), type=AdaptationSummary)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunDirectoryError(f"{path} cannot be read ({error}): restore it, or remove it") from None


def summary_so_far(folder: Folder, experiment: AdaptationExperiment) -> AdaptationSummary:
    """Return the summary of a completed run, or so far of a running or killed one. RunDirectoryError before the first
    round, and for a file that cannot be read; EventLogError."""
    if folder.run.summary.exists():
        return read_summary(folder)
    known, owners = read_known(folder), owner_names(experiment.clients)
    state = state_of(folder, owners)
    summed = [state.parties[name] for name in (DEALER, *owners)]
    ends = {party.name: party.ended for party in summed if party.ended is not None}
    last = max((party.heard for party in summed if party.heard is not None), default=known.began)
    return _summary(folder, experiment, known, state, ends=ends, wall_seconds=last - known.began)


def _summary(
    folder: Folder,
    experiment: AdaptationExperiment,
    known: Known,
    state: RunState,
    *,
    ends: Mapping[str, str],
    wall_seconds: float,
) -> AdaptationSummary:
    owners, parties = owner_names(experiment.clients), state.parties
    last = known.judged[number] if (number := max(known.judged)) else None
    batches = [batch for name in owners for batch in parties[name].batches]
    finished = state.learned.get(experiment.federation.rounds)
    return AdaptationSummary(
        name=experiment.name,
        reveal=experiment.adaptation.reveal,
        protects=PROTECTS[experiment.adaptation.reveal],
        classes=list(known.classes),
        parameters=known.parameters,
        before=known.judged[0],
        final_accuracy=last.accuracy if last else None,
        final_balanced_accuracy=last.balanced_accuracy if last else None,
        final_loss=last.loss if last else None,
        rounds=_rounds(experiment, state, known.judged),
        owners={name: _owner(parties[name], ends.get(name, _GOES_ON)) for name in owners},
        kept=_kept([kept for name in owners for kept in parties[name].kept], parties[MODEL_OWNER].kept),
        batches=_batches(batches, parties[MODEL_OWNER].batches, None if finished is None else finished.refused_batches),
        dealer_bytes={
            name: sum(each.preprocessing_bytes for each in _passes(parties[name])) for name in (MODEL_OWNER, *owners)
        },
        noise=_noise(folder, experiment, sums=len(parties[MODEL_OWNER].revealed)),
        parties={
            name: AdaptationParty(role=_ROLES.get(name, "data-owner"), phases=phases(party))
            for name, party in parties.items()
        },
        ended=ends.get(DEALER, _GOES_ON),
        wall_seconds=wall_seconds,
        configuration=msgspec.to_builtins(experiment),
        seed=state.seed,
        sessions=state.origins,
    )


_ROLES: Final[Mapping[str, Literal["dealer", "model-owner"]]] = {DEALER: "dealer", MODEL_OWNER: "model-owner"}


def _noise(folder: Folder, experiment: AdaptationExperiment, *, sums: int) -> SumNoiseMetrics | None:
    """sums: number of sums that the model owner revealed."""
    policy = noise_policy(experiment.adaptation)
    if policy is None:
        return None
    noise = SumNoise(policy, read_learning(folder), owners=experiment.clients)
    return SumNoiseMetrics(
        deviation=policy.deviation,
        largest_norm=noise.norm,
        sums=sums,
        delta=policy.delta,
        epsilon=epsilon_of(policy.delta, sums * noise.cost) if sums else 0.0,
        largest_epsilon=policy.largest_epsilon or None,
    )


def _passes(party: PartyState) -> list[LearningPassOver]:
    return [*party.kept, *party.batches]


def _kept(kept: Sequence[ImagesKept], model_owners: Sequence[ImagesKept]) -> KeptMetrics:
    """kept: passes of all data owners; model_owners: the same at the model owner."""
    images: defaultdict[str, int] = defaultdict(int)
    for each in kept:
        images[each.party] = max(images[each.party], each.images)
    return KeptMetrics(
        images=sum(images.values()),
        passes=len(kept),
        online_seconds=sum(each.seconds for each in kept),
        preprocessing_wait_seconds=sum(each.preprocessing_wait_seconds for each in kept),
        rounds=max((each.openings for each in kept), default=None),
        data_owner_bytes=sum(each.sent for each in kept),
        model_owner_bytes=sum(each.received for each in kept),
        preprocessing_to_data_owner_bytes=sum(each.preprocessing_bytes for each in kept),
        preprocessing_to_model_owner_bytes=sum(each.preprocessing_bytes for each in model_owners),
    )


def _batches(batches: Sequence[BatchEnded], model_owners: Sequence[BatchEnded], refused: int | None) -> BatchMetrics:
    """batches: of all data owners; model_owners: the same batches at the model owner; refused: of all."""

    def middle(values: list[int]) -> int | None:
        return median_low(values) if values else None

    return BatchMetrics(
        count=len(batches),
        refused=refused,
        online_seconds=median(batch.seconds for batch in batches) if batches else None,
        preprocessing_wait_seconds=median(batch.preprocessing_wait_seconds for batch in batches) if batches else None,
        rounds=middle([batch.openings for batch in batches]),
        data_owner_bytes=middle([batch.sent for batch in batches]),
        model_owner_bytes=middle([batch.received for batch in batches]),
        preprocessing_to_data_owner_bytes=middle([batch.preprocessing_bytes for batch in batches]),
        preprocessing_to_model_owner_bytes=middle([batch.preprocessing_bytes for batch in model_owners]),
    )


def _rounds(
    experiment: AdaptationExperiment,
    state: RunState,
    judged: Mapping[int, AdaptersMetrics],
) -> list[AdaptationRound]:
    found: list[AdaptationRound] = []
    for round in state.rounds:
        number, result = round.number, round.result
        if result is None or number > experiment.federation.rounds:
            continue
        learned, judgement = state.learned.get(number), judged.get(number)
        found.append(
            AdaptationRound(
                round=number,
                status="completed" if learned else "lost" if result.status == "completed" else result.status,
                detail=state.unlearned.get(number) or result.detail,
                survivors=result.survivors,
                dropped=result.dropped,
                images=learned.images if learned else None,
                train_loss=learned.train_loss if learned else None,
                train_accuracy=learned.train_accuracy if learned else None,
                accuracy=judgement.accuracy if judgement else None,
                balanced_accuracy=judgement.balanced_accuracy if judgement else None,
                loss=judgement.loss if judgement else None,
                seconds=result.seconds,
            )
        )
    return found


def _owner(party: PartyState, end: str) -> DataOwnerMetrics:
    passes = _passes(party)
    return DataOwnerMetrics(
        round=party.learned,
        kept_images=max((kept.images for kept in party.kept), default=0),
        batches=len(party.batches),
        sessions=len(party.openings),
        online_seconds=sum(each.seconds for each in passes),
        preprocessing_wait_seconds=sum(each.preprocessing_wait_seconds for each in passes),
        bytes_sent=sum(each.sent for each in passes),
        bytes_received=sum(each.received for each in passes),
        weights_bytes=sum(opening.weights_bytes for opening in party.openings),
        ended=end,
    )
