"""An adaptation on one machine: the model owner's model and ranges are prepared here, then every party is a process.

The supervisor has more than any real party: the model, the adapters and all test images. It therefore evaluates the
common adapters of every round in the clear.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import msgspec
import torch

from tacit.models.adapters.federated import Schedule
from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.training import resolve_device
from tacit.parties.adaptation import standing
from tacit.parties.adaptation.events import AdaptersEvaluated, AdaptersUpdated, MarginReduced, PreparationStarted
from tacit.parties.adaptation.noise import SumNoise, noise_policy
from tacit.parties.adaptation.rehearsed import Lesson, rehearsed_learning
from tacit.parties.hosting.model_owner import kept_salt
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import claim, mark_release, writing
from tacit.parties.runs.events import PartyFailed
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.state import parse_event
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event
from tacit.simulate.adaptation.clear import Judge
from tacit.simulate.adaptation.plan import AdaptationPlan, Folder, Recorded, owner_names
from tacit.simulate.adaptation.results import AdaptationSummary, AdaptersMetrics
from tacit.simulate.adaptation.setting import AdaptationSetting, setting
from tacit.simulate.adaptation.summary import Known, keep, summarise
from tacit.simulate.federation.party_files import DEALER, MODEL_OWNER, SUMS
from tacit.simulate.federation.processes import Message, Show, results
from tacit.simulate.insecure.revealed_outputs import check_enrolled


def make_folder(experiment: AdaptationExperiment, folder: Folder) -> None:
    """Make the folder of a new run. RunDirectoryError, OSError."""
    claim(folder.path, *(folder.path / part for part in ("events", "journal", "logs", "adapters")))
    mark_release(folder.path)
    folder.run.keep_experiment(experiment_toml(experiment))


def prepare(
    experiment: AdaptationExperiment,
    folder: Folder,
    *,
    seed: int,
    device: str,
    show: Show,
    recorded: Recorded | None = None,
) -> tuple[AdaptationSetting, AdaptationPlan]:
    """Train the model owner's model, and rehearse the training, for the model owner to use. ValueError, OSError,
    FloatingPointError."""
    # The fork server uses the other cores, and small products gain nothing from a second thread.
    torch.set_num_threads(1)
    show(PreparationStarted(time=time.time(), what="the model owner's model"))
    found = setting(experiment, folder.path, seed=seed)
    show(PreparationStarted(time=time.time(), what="bounds, by a rehearsal on the model owner's own images"))
    state = folder.files.state(MODEL_OWNER)
    state.make()
    model, own = found.served.prepared(salt=kept_salt(state.salt)), experiment.adaptation
    schedule = Schedule(
        rounds=experiment.federation.rounds,
        learning_rate=own.learning_rate,
        decay=own.decay,
        decay_rounds=own.decay_rounds,
    )
    lesson = Lesson(
        adapter=experiment.adapter,
        schedule=schedule,
        batch=own.batch,
        batches=own.batches,
        classes=len(found.classes),
        seed=seed,
        names=found.classes,
    )
    transformer, images, labels = found.served.transformer, found.own.images, found.own.labels
    learning, margin = rehearsed_learning(model, transformer, images, labels, lesson, margin=own.margin)
    if own.selection == "enrolment":
        check_enrolled(model.public.sizes, own.batch * own.batches * experiment.federation.rounds)
    policy = noise_policy(own)
    if policy is not None:
        # Refuse rounds beyond the privacy budget before any training.
        SumNoise(policy, learning, owners=experiment.clients).rounds(experiment.federation.rounds)
    if margin < own.margin:
        show(MarginReduced(time=time.time(), margin=margin))
    with writing(folder.learning):
        folder.learning.write_bytes(msgspec.msgpack.encode(learning))
    return found, AdaptationPlan(
        experiment=experiment,
        folder=folder,
        classes=found.classes,
        owners=found.owners,
        model=model,
        learning=learning,
        seed=seed,
        device=device,
        recorded=recorded,
    )


async def _run_parties(plan: AdaptationPlan, show: Show) -> dict[str, Any]:
    """Run the parties to the end of the rounds; return the ends of the dealer's sums and of every data owner."""

    def told(name: str, message: Message) -> None:
        show(parse_event(message["event"]))

    def lost(name: str, how: str) -> dict[str, Any]:
        show(PartyFailed(time=time.time(), party=name, reason=how))
        return {"code": Code.LEFT.name, "detail": how}

    plan.enrol()
    return await results(
        plan.programs(),
        told,
        listening={DEALER: (DEALER, SUMS), MODEL_OWNER: (MODEL_OWNER,)},
        wanted=(DEALER, *owner_names(plan.experiment.clients)),
        # The others' result of a round does not depend on one data owner, as long as enough remain.
        lost=lost,
        logs=plan.folder.run.logs,
    )


async def adapt(
    experiment: AdaptationExperiment, folder: Folder, *, device: str, show: Show, recorded: Recorded | None = None
) -> AdaptationSummary:
    """Run everything from the model to the summary and the report, and write both. recorded: in an audit.

    show: receives every event of the parties, and those of this process, which have no party.

    ValueError or OSError for unusable input, FloatingPointError for a training of the model that diverges, and
    ProcessError, which names the failed party.
    """
    resolve_device(device)
    began, clock = time.monotonic(), time.time()
    seed = experiment.federation.seed
    seed = secrets.randbits(53) if seed is None else seed
    found, plan = await asyncio.to_thread(
        prepare, experiment, folder, seed=seed, device=device, show=show, recorded=recorded
    )
    judge = Judge(plan.learning, found.served.transformer, found.test)
    first = plan.learning.initial()
    rounds: dict[int, AdaptersMetrics] = {}
    known = Known(began=clock, classes=found.classes, parameters=first.count, judged=rounds)

    def judged(number: int, parameters: AdapterParameters) -> None:
        rounds[number] = metrics = judge.judged(parameters)
        keep(folder, known)
        show(AdaptersEvaluated(time=time.time(), round=number, **msgspec.structs.asdict(metrics)))

    judged(0, first)

    def shown(event: Event) -> None:
        show(event)
        if isinstance(event, AdaptersUpdated) and event.round not in rounds:
            # All data owners have the same parameters; the reporting one has persisted them.
            parameters, number, refused = standing.load(folder.of_owner(event.party), first)
            standing.save(folder.adapters(number), parameters, round=number, refused=refused)
            judged(number, parameters)

    ends = await _run_parties(plan, shown)
    summary = summarise(
        folder,
        experiment,
        known,
        ends={name: end["detail"] for name, end in ends.items()},
        wall_seconds=time.monotonic() - began,
    )
    summary.write(folder.run.summary)
    await asyncio.to_thread(_report, folder, experiment, summary)
    return summary


def _report(folder: Folder, experiment: AdaptationExperiment, summary: AdaptationSummary) -> None:
    # Imported here: drawing takes a second to load, and only the end of the run needs it.
    from tacit.simulate.adaptation.page import write_report

    with writing(folder.run.path / "report.html"):
        write_report(folder, experiment, summary)
