"""Runs of `foundation`: real parties, and the same training in the clear.

A finished run folder is reused: the command resumes after it.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from tacit.parties.inference.tables import BoundError
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.protocol.core.events import Event
from tacit.simulate.adaptation.clear import InTheClear, Judge
from tacit.simulate.adaptation.plan import Folder, read_learning
from tacit.simulate.adaptation.results import AdaptationSummary
from tacit.simulate.adaptation.run import adapt, make_folder
from tacit.simulate.adaptation.setting import setting
from tacit.simulate.adaptation.summary import state_of
from tacit.simulate.experiments import foundation_settings as columns
from tacit.simulate.experiments.data import StudyImages, sample, stored
from tacit.simulate.experiments.foundation_settings import FoundationRow
from tacit.simulate.experiments.measures import Prepared, Row
from tacit.simulate.experiments.results import AdaptedRun, PartCost, Run
from tacit.simulate.federation.memory import status_bytes
from tacit.simulate.federation.party_files import MODEL_OWNER
from tacit.simulate.federation.processes import ProcessError, Show, warm_up


@dataclass(frozen=True)
class Peaks:
    """Peak memory of the running processes, by name."""

    bytes: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        for party in multiprocessing.active_children():
            # A process that has just ended had its peak before.
            with suppress(OSError):
                if party.pid is not None and (found := status_bytes("VmHWM", party.pid)):
                    self.bytes[party.name] = found


@dataclass(frozen=True, kw_only=True)
class PreparedFoundation(Prepared):
    test_images: int
    images: StudyImages

    @property
    def data(self) -> str:
        return self.images.description

    def start(self, begin: object) -> None:
        warm_up()

    def measure(self, row: Row, seed: int, show: Show) -> Run:
        """See Prepared; ProcessError also for a lost round."""
        assert isinstance(row, FoundationRow), "checked before"
        folder = Folder(self.request.out / "runs" / row.directory / str(seed))
        shutil.rmtree(folder.path, ignore_errors=True)
        experiment, peaks = self._experiment(row, seed), Peaks()

        def shown(event: Event) -> None:
            peaks.look()
            show(event)

        begin = time.perf_counter()
        make_folder(experiment, folder)
        try:
            summary = self.request.run(adapt(experiment, folder, device=self.request.device, show=shown))
        except BoundError as error:
            # Also a result: other rows continue.
            nothing = dict.fromkeys(quantity.name for quantity in columns.COLUMNS)
            return Run(seed=seed, values=nothing, seconds=time.perf_counter() - begin, refused=str(error))
        if summary.failed or len(summary.completed) < experiment.federation.rounds:
            raise ProcessError(f"{row.name}, seed {seed}: a round was lost: {summary.ended}")
        found, learned = setting(experiment, folder.path, seed=seed), read_learning(folder)
        judge, clear = Judge(learned, found.served.transformer, found.test), InTheClear(learned, found, seed=seed)
        *_, together = clear.rounds()
        values = {
            columns.SHARES: summary.final_accuracy,
            columns.CLEAR: judge.judged(together).accuracy,
            columns.ALONE: statistics.mean(judge.judged(one).accuracy for one in clear.alone()),
        }
        counts = {
            columns.BATCHES: summary.batches.count,
            columns.REFUSED: summary.batches.refused,
            columns.IMAGES: summary.kept.images,
        }
        return Run(
            seed=seed,
            values={one.name: None if value is None else 100 * value for one, value in values.items()}
            | {one.name: value for one, value in counts.items()},
            seconds=time.perf_counter() - begin,
            adaptation=adapted(folder, summary, peaks.bytes),
        )

    def _experiment(self, row: FoundationRow, seed: int) -> AdaptationExperiment:
        replace, base, request = msgspec.structs.replace, row.experiment, self.request
        place = request.out / "data" / f"{row.images}.npz"
        train = row.images + base.adaptation.own_images
        sample(self.images, place, train=train, test=self.test_images)
        images = stored(self.images, place)
        return replace(
            base,
            federation=replace(base.federation, seed=seed),
            data=replace(images, partition=base.data.partition, alpha=base.data.alpha),
            model=replace(base.model, checkpoint=str(request.checkpoint and request.checkpoint.resolve())),
        )


def adapted(folder: Folder, summary: AdaptationSummary, peak_bytes: dict[str, int]) -> AdaptedRun:
    """Return the cost of a run, round by round and by part."""
    names = tuple(summary.owners)
    parties = state_of(folder, names).parties
    owners, passes, batches = len(names), summary.kept, summary.batches
    sent = dict.fromkeys(range(1, len(summary.rounds) + 1), 0)
    for name in (*names, MODEL_OWNER):
        for batch in parties[name].batches:
            sent[batch.round] += batch.sent + batch.received + batch.preprocessing_bytes
        # Passes precede the first round's batches.
        for kept in parties[name].kept:
            sent[1] += kept.sent + kept.received + kept.preprocessing_bytes
    sent[1] += sum(one.weights_bytes for one in summary.owners.values())
    images = max(passes.images, 1)
    return AdaptedRun(
        accuracies=[one.accuracy for one in summary.rounds if one.accuracy is not None],
        seconds=list(accumulate(one.seconds for one in summary.rounds)),
        sent_bytes=list(accumulate(sent.values())),
        parts={
            "an image's pass": PartCost(
                count=passes.images,
                online_seconds=passes.online_seconds / owners / images,
                waiting_seconds=passes.preprocessing_wait_seconds / owners / images,
                rounds=passes.rounds,
                data_owner_megabytes=passes.data_owner_bytes / images / 1e6,
                model_owner_megabytes=passes.model_owner_bytes / images / 1e6,
                dealer_megabytes=_dealer(passes) / images / 1e6,
            ),
            "a step": PartCost(
                count=batches.count,
                online_seconds=batches.online_seconds or 0.0,
                waiting_seconds=batches.preprocessing_wait_seconds or 0.0,
                rounds=batches.rounds,
                data_owner_megabytes=(batches.data_owner_bytes or 0) / 1e6,
                model_owner_megabytes=(batches.model_owner_bytes or 0) / 1e6,
                dealer_megabytes=_dealer(batches) / 1e6,
            ),
        },
        peak_bytes=_by_role(peak_bytes, names),
    )


def _dealer(part: object) -> int:
    return sum(getattr(part, f"preprocessing_to_{owner}_bytes") or 0 for owner in ("data_owner", "model_owner"))


def _by_role(peak_bytes: dict[str, int], names: Iterable[str]) -> dict[str, int]:
    owners = set(names)
    found = {name: peak for name, peak in peak_bytes.items() if name not in owners}
    return {"data owner": max((peak_bytes.get(name, 0) for name in owners), default=0), **found}
