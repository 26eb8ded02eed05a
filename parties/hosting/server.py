"""A server on its own host, and its work in any federation: it holds the model and keeps the run directory.

The same command resumes after the last finished round. Between two rounds the server adopts a later version of its
roster file, which it watches; no message can change the roster. A version that cannot be adopted is reported once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import torch
from msgspec import structs

from tacit.models import checkpoint
from tacit.models.configuration import DataConfiguration
from tacit.models.data import Dataset, normalise, read
from tacit.models.layout import Layout
from tacit.models.stimuli import Stimuli
from tacit.models.training import EVALUATION_BATCH, evaluate, resolve_device
from tacit.models.weights_file import WeightsWarning
from tacit.parties.hosting.folder import OpenedParty, PartyFolder, at_work, open_many_files
from tacit.parties.hosting.party_file import ServerFile
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.statistics import (
    Statistics,
    StatisticsKeeper,
    StatisticsTask,
    configure_statistics,
)
from tacit.parties.learning.task import LOSS_UNIT, Task, class_digest, configure, model_description
from tacit.parties.links.roster import RosterFileError, read_roster
from tacit.parties.links.tokens import TokenFile
from tacit.parties.runs.classes import TestClasses, described
from tacit.parties.runs.directory import (
    Progress,
    RunDirectory,
    RunDirectoryError,
    Seed,
    command_line,
    writing,
)
from tacit.parties.runs.events import ClassesEvaluated, InvocationRecorded, RunOpened
from tacit.parties.runs.experiment import LONGEST_SECONDS, Experiment, load
from tacit.parties.runs.own_functions import differences
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.summary import Summary, summarise
from tacit.parties.session.event_log import EventFile, EventLog, Tell
from tacit.parties.session.events import (
    ConfigurationProposed,
    InputNoted,
    ListeningStarted,
    RosterRefused,
    WorkMeasured,
)
from tacit.parties.session.server import Evaluation, ServerParty, ServerSettings
from tacit.parties.session.shell import Hooks, Stopwatch
from tacit.parties.session.spending import SpendingFile
from tacit.parties.session.task import UnusableSumError
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster, check_follows
from tacit.protocol.session.events import GatheringStarted
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total


class RosterWatch:
    """Watches a roster file that may change during a run.

    fits: raises ValueError for an unsuitable roster; keep: called with each adopted roster."""

    def __init__(self, path: Path, fits: Callable[[Roster], None], keep: Callable[[Roster], None], tell: Tell) -> None:
        self._path = path
        self._fits = fits
        self._keep = keep
        self._tell = tell
        self._seen: tuple[int, int, int] | None = None
        """File attributes at the last read."""

    def newer(self, held: Roster) -> Roster | None:
        """Return a later version of this roster from the file, if there is one that was not examined before."""
        try:
            now = os.stat(self._path)
        except OSError:
            # It may still be being written.
            return None
        seen = now.st_ino, now.st_mtime_ns, now.st_size
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            found = read_roster(self._path)
            if found.hash == held.hash:
                return None
            check_follows(held, found)
            self._fits(found)
        except (RosterFileError, RemoteProtocolError, ValueError) as error:
            detail = error.detail if isinstance(error, RemoteProtocolError) else str(error)
            self._tell(RosterRefused(reason=detail))
            return None
        self._keep(found)
        return found


@dataclass(frozen=True)
class ServerImages:
    class_names: Sequence[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test: Dataset | None = field(default=None, repr=False)
    """Test images to evaluate the model on; None: accuracy comes from the secure sum."""
    stimuli: Stimuli | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def none(cls) -> ServerImages:
        """Placeholder for clients with custom data, of which nothing needs to be known."""
        return cls((), (), ())


class ServerHooks(Hooks):
    """Points at which a simulation or an audit changes or records a server; the defaults are those of hosts."""

    sampling: bytes = b""
    """32 bytes that seed client sampling; empty: the operating system's randomness."""
    seed: int | None = None
    """Seed of the server's own training, if it trains; None draws from the operating system's randomness."""
    recorded_seed: Seed | None = None
    missing: Callable[[], Mapping[str, str]] | None = None
    """Clients that will not come, and the reasons, if one process starts them all: the others are then waited for
    without a limit."""

    def __init__(self, experiment: Experiment | None = None) -> None:
        """experiment: the experiment to run; None: the unfinished one."""
        super().__init__()
        self.experiment = experiment
        self.command = command_line()
        self.started = time.time()
        """Start time of the command, in seconds since 1970."""

    def machine(self) -> Callable[..., TrainingServer]:
        return TrainingServer

    def hosted(self, party: OpenedParty[ServerFile]) -> HostedRun:
        """Check the experiment and choose the run. ValueError for an experiment that this server and roster cannot run;
        raises as `choose_run` does."""
        experiment = self.experiment
        if experiment is not None:
            check_roster(experiment, party.roster)
            # Checked before there is a run, and once more by it.
            self.images(party.file, experiment)
            experiment = without_seed(experiment)
        hosted = choose_run(party.folder, experiment)
        check_changed(hosted.experiment, party.roster)
        return hosted

    def images(self, file: ServerFile, experiment: Experiment) -> ServerImages:
        """Describe the images. Raises as `server_images` does."""
        return server_images(file, experiment)

    def opened_sum(self, done: RoundDone, total: Total, keeper: Keeper, configuration: Configuration) -> None:
        """Called in a thread when a sum was applied, before the model is saved."""

    def summary(self, hosted: HostedRun, ended: Ended) -> Summary | None:
        """Summarise the run, for its directory too; None if the caller does."""
        summary = summarise(hosted.run, hosted.experiment, ended=ended.detail)
        summary.keep(hosted.run)
        return summary


STATISTICS_ATTEMPTS: Final = 3
"""Attempts at a sum of pixels before the server pauses."""
STATISTICS_PAUSE: Final = 60.0
LONGEST_STATISTICS_PAUSE: Final = 600.0


async def serve(party: OpenedParty[ServerFile], hosted: HostedRun, tell: Tell, hooks: ServerHooks) -> Ended:
    """Build or load the model, run the rounds, evaluate and save after each; returns how the session ended. Before the
    rounds the clients sum up statistics, if the experiment requires them and the run does not know them yet.

    ValueError, OSError and EndpointError carry a remedy for the owner."""
    experiment, run, address = hosted.experiment, hosted.run, party.file.bind
    device, known = resolve_device(party.file.device), hooks.images(party.file, experiment)
    # Built before the clients are asked for anything, so that after the first sum they find the server at once.
    task = task_of(experiment, known, hosted.weights_seed)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always", WeightsWarning)
        model = task.build(seed=hosted.weights_seed, start=experiment.model)
    notes = [*known.notes, *(str(each.message) for each in remarks if each.category is WeightsWarning)]
    whole = Layout.of(model)
    if hosted.completed:
        whole.load_into(model, checkpoint.load(run.model, whole)[0])
    if experiment.data.statistics == "sum":
        found, address, ended = await summed_statistics(party, hosted, known, tell, hooks)
        if found is None:
            return ended
        given = experiment.data.given(found.mean, found.std)
        known = hooks.images(party.file, structs.replace(experiment, data=given))
    task = task_of(experiment, known, hosted.weights_seed)

    def sized(roster: Roster) -> tuple[Configuration, int]:
        """The configuration for the clients of this roster, and the number of participants."""
        numbered, bits = experiment.numbered(len(roster.clients)), experiment.ring_bits
        return configure(numbered.terms(len(roster.clients)), task, model, ring_bits=bits), numbered.clients

    configuration, participants = sized(party.roster)
    keeper = Keeper(configuration, model, seed=hooks.seed, device=device)
    if hosted.completed and keeper.velocity is not None:
        keeper.velocity = checkpoint.load(run.velocity(hosted.completed), keeper.velocity_layout)[0]

    white = 255 if known.test is None else known.test.source.white
    description = model_description(
        task, keeper.layout, known.class_names, white=white, encrypted=task.encryption is not None
    ).metadata()

    def save(round: int) -> None:
        progress = Progress(round=round, split_seed=hosted.weights_seed, repeated=repeated)
        with writing(run.model):
            # A file for each round: at any crash the file of the model's round exists.
            if keeper.velocity is not None:
                checkpoint.save(run.velocity(round), layout=keeper.velocity_layout, flat=keeper.velocity, metadata={})
            metadata = {**progress.metadata(), **description}
            checkpoint.save(run.model, layout=whole, flat=whole.flatten(keeper.model), metadata=metadata)
            run.forget_velocities(but=round)

    judged_last: TestClasses | None = None
    repeated = hosted.repeated

    def judge(round: int, total: Total | None) -> Evaluation:
        nonlocal judged_last
        unknown = Evaluation()
        if experiment.evaluated_by_clients:
            return unknown
        if known.test is not None:
            judged = evaluate(
                keeper.model, known.test.x_test, known.test.y_test, batch_size=EVALUATION_BATCH, device=device
            )
            judged_last = described(round, known.class_names, judged.confusion)
            return Evaluation(judged.accuracy, judged.balanced_accuracy, judged.loss)
        # A custom training step reports no metrics.
        if total is None or not total.metrics["samples"] or experiment.training.factory:
            return unknown
        # Evaluation on the clients' images by secure sum: no client discloses its own.
        samples = total.metrics["samples"]
        correct, loss = total.metrics["correct"], total.metrics["loss"]
        return Evaluation(accuracy=correct / samples, loss=loss * LOSS_UNIT / samples)

    def after_round(done: RoundDone, total: Total | None) -> Evaluation:
        nonlocal repeated
        repeated += done.missed
        try:
            judged = judge(done.round, total)
        except (ArithmeticError, ValueError, RuntimeError) as error:
            if total is None:
                return Evaluation()
            keeper.undo()
            raise UnusableSumError(f"the model that it leads to cannot be evaluated: {error}") from error
        if total is not None:
            hooks.opened_sum(done, total, keeper, keeper.configuration)
            save(done.round)
        return judged

    if not hosted.completed:
        save(0)
    fits = partial(check_changed, experiment)
    settings: ServerSettings | None = replace(
        _settings(party, hosted, configuration, hooks),
        address=address,
        newer_roster=RosterWatch(Path(party.file.roster), fits, party.folder.keep_roster, tell).newer,
        resized=sized,
        participants=participants,
        sampling=hooks.sampling,
    )
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    origin = InvocationRecorded.now(hooks.command, started=hooks.started, device=place, seed=hooks.recorded_seed)
    with EventFile(run.events(party.name), party.name) as log:
        while settings is not None:
            # An event log counts the traffic of one session.
            event_log = EventLog(log, tell)
            keeper.reconfigure(settings.configuration)
            event_log.write(
                structs.replace(
                    describe(settings.configuration),
                    clients=settings.participants,
                    rounds=settings.completed + settings.rounds,
                    evaluates="images" if known.test else "sums",
                )
            )
            event_log.write(origin)
            for note in () if hosted.completed else notes:
                event_log.write(InputNoted(detail=note))
            session = ServerParty(
                settings, keeper, event_log, on_round=after_round, hooks=hooks, make_machine=hooks.machine()
            )
            with Stopwatch() as stopwatch:
                ended = await session.run()
            event_log.write(WorkMeasured(seconds=dict(stopwatch.seconds)))
            settings = session.successor
        if judged_last is not None:
            log.write(ClassesEvaluated(found=judged_last))
        return ended


async def summed_statistics(
    party: OpenedParty[ServerFile], hosted: HostedRun, known: ServerImages, tell: Tell, hooks: ServerHooks
) -> tuple[Statistics | None, str, Ended]:
    """Mean and deviation of the clients' pixels, from the run or from their own session, persisted before anybody
    continues; the listening address; how that session ended. None without a sum."""
    experiment, run, address = hosted.experiment, hosted.run, party.file.bind
    if (kept := run.kept_statistics()) is not None:
        return kept, address, Ended(None, "")
    configuration = first_configuration(experiment, known, len(party.roster.clients))
    keeper = StatisticsKeeper(configuration)

    def note(done: RoundDone, total: Total | None) -> Evaluation:
        if total is not None and keeper.found is not None:
            run.keep_statistics(keeper.found)
        return Evaluation()

    def follow(event: Event) -> None:
        nonlocal address
        if isinstance(event, ListeningStarted):
            # The clients reconnect to the same address.
            address = event.address
        tell(event)

    regather, began, pause = experiment.deadlines.regather, time.monotonic(), STATISTICS_PAUSE
    while True:
        new = replace(hosted, completed=0)
        settings = replace(_settings(party, new, configuration, hooks), address=address, rounds=STATISTICS_ATTEMPTS)
        with EventFile(run.events(party.name), party.name) as log:
            event_log = EventLog(log, follow)
            ended = await ServerParty(settings, keeper, event_log, on_round=note).run()
            if keeper.found is not None or ended.code is not None:
                return keeper.found, address, ended
            # A sum does not show which client's part is invalid: nobody can be excluded for it.
            detail = f"none of {STATISTICS_ATTEMPTS} rounds had a possible sum of the clients' pixels"
            over = hooks.missing is not None or 0 < regather <= time.monotonic() - began
            if over:
                return None, address, Ended(Code.THRESHOLD, detail)
            remedy = f"{detail}; they are asked again in {pause:g} s, or state data.mean and data.std in the experiment"
            event_log.write(GatheringStarted(detail=remedy))
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_STATISTICS_PAUSE)


def _settings(
    party: OpenedParty[ServerFile], hosted: HostedRun, configuration: Configuration, hooks: ServerHooks
) -> ServerSettings:
    folder, deadlines = party.folder, hosted.experiment.deadlines
    return ServerSettings(
        address=party.file.bind,
        keys=party.keys,
        roster=party.roster,
        configuration=configuration,
        rounds=hosted.left,
        completed=hosted.completed,
        smallest_cohort=hosted.experiment.policy.smallest_cohort,
        join_seconds=deadlines.join if hooks.missing is None else LONGEST_SECONDS,
        # A client that was lost before a restart does not delay it by `join` seconds.
        enough_seconds=deadlines.grace if hosted.completed and hooks.missing is None else None,
        grace=deadlines.grace,
        tokens=None if folder.shared else TokenFile(folder.tokens),
        spending=SpendingFile(folder.spending),
        missing=hooks.missing or dict,
        regather_seconds=deadlines.regather,
        repeats=True,
    )


def first_configuration(experiment: Experiment, known: ServerImages, clients: int) -> Configuration:
    """Configuration of the sum of statistics; known: classes and channels; clients: number in the roster."""
    task = StatisticsTask(
        image_size=experiment.model.image_size,
        channels=len(known.mean),
        classes=len(known.class_names),
        class_digest=class_digest(known.class_names),
    )
    # All of them, even if rounds sample clients: the model depends on these sums to its end.
    whole = msgspec.structs.replace(experiment.numbered(clients).federation, fraction=1.0)
    return configure_statistics(msgspec.structs.replace(experiment, federation=whole).terms(clients), task)


def standing_in(data: DataConfiguration, channels: int) -> DataConfiguration:
    """The section with values that any images could have, as placeholders for the clients' sum."""
    return data.given((0.5,) * channels, (0.5,) * channels)


def task_of(experiment: Experiment, known: ServerImages, weights_seed: int = 0) -> Task:
    """Task of all parties in a run that began from this seed, given the server's knowledge of the images."""
    return Task(
        model=experiment.model.architecture,
        training=experiment.training,
        protection=experiment.protection,
        encryption=experiment.encryption,
        # If nothing is known of them, there are functions that do not need it.
        classes=len(known.class_names) or 1,
        channels=len(known.mean) or 1,
        mean=known.mean,
        std=known.std,
        class_digest=class_digest(known.class_names) if known.class_names else b"",
        # The seed is the run's own, and on hosts nobody chose it.
        run=hashlib.sha256(b"%d" % weights_seed).digest(),
        stimuli=known.stimuli,
    )


def describe(configuration: Configuration) -> ConfigurationProposed:
    packing = configuration.packing()
    parameters = configuration.parameters(configuration.clients)
    return ConfigurationProposed(
        parameters=packing.values_length,
        ring_bits=packing.ring.bits,
        vector_bytes=packing.length * packing.ring.wire_bytes,
        step=packing.step,
        max_weight=configuration.max_weight,
        colluders=configuration.colluders,
        cohort=configuration.clients,
        threshold=parameters.threshold,
        neighbours=parameters.neighbours,
        configuration_hash=configuration.hash().hex(),
    )


@dataclass(frozen=True)
class HostedRun:
    experiment: Experiment
    run: RunDirectory
    completed: int
    weights_seed: int
    repeated: int = 0
    """Discarded rounds before that one."""

    @property
    def left(self) -> int:
        return self.experiment.federation.rounds + self.repeated - self.completed


def choose_run(folder: PartyFolder, experiment: Experiment | None) -> HostedRun:
    """The run of `begun_run`, or a new one. RunDirectoryError as there, or if there is nothing to run; OSError.

    The folder must be held. A new run draws its own seed of the weights, which nobody chooses."""
    if (begun := begun_run(folder, experiment)) is not None:
        begun.run.keep_experiment(experiment_toml(begun.experiment))
        return begun
    if experiment is None:
        raise RunDirectoryError(f"{folder.path} has no run to go on with: name an experiment file")
    new = folder.new_run(experiment.name)
    new.keep_experiment(experiment_toml(experiment))
    return HostedRun(experiment, new, 0, secrets.randbits(63))


_FREE: Final = ("federation.clients", "federation.fraction")
"""Keys that may change in a run, beside rounds and deadlines: clients check the new configuration as they did the
first."""


def begun_run(folder: PartyFolder, experiment: Experiment | None) -> HostedRun | None:
    """The last run, with changed keys, if no experiment is given or the given one of the same name continues it.

    RunDirectoryError if it is unfinished and the experiment is another one, or it cannot resume; ExperimentError,
    OSError."""
    run = folder.last_run()
    last = None if run is None else _begun(run)
    if last is None or experiment is None:
        return last
    named = [] if experiment.name == last.experiment.name else [f"name = {experiment.name!r}"]
    other = [*named, *differences(last.experiment, experiment, free=_FREE)]
    if not other:
        return replace(last, experiment=experiment)
    if last.left > 0 and last.run.model.is_file():
        rounds = last.experiment.federation.rounds
        raise RunDirectoryError(
            f"{last.run.path} has {rounds - last.left} of {rounds} rounds, of another experiment ({'; '.join(other)}): "
            "finish it by the same command without an experiment file, or move it away. Only rounds, deadlines, "
            "federation.clients and federation.fraction may change in a run"
        )
    return None


def _begun(run: RunDirectory) -> HostedRun | None:
    """A run as it was left; None if not even its experiment was written."""
    if not run.experiment.is_file():
        return None
    experiment = load(run.experiment, numbered=False)
    if not run.model.is_file():
        return HostedRun(experiment, run, 0, secrets.randbits(63))
    progress = run.progress()
    return HostedRun(experiment, run, progress.round, progress.split_seed, progress.repeated)


def without_seed(experiment: Experiment) -> Experiment:
    return msgspec.structs.replace(experiment, federation=msgspec.structs.replace(experiment.federation, seed=None))


def check_roster(experiment: Experiment, roster: Roster) -> None:
    """Raise ValueError, naming the key, if the clients of this roster cannot begin the experiment."""
    clients, there = experiment.federation.clients, len(roster.clients)
    if clients != "all" and clients > there:
        raise ValueError(
            f"federation.clients = {clients}: the roster has {there}; set it to {there}, or add the others"
        )
    check_changed(experiment, roster)


def check_changed(experiment: Experiment, roster: Roster) -> None:
    """Raise ValueError if the experiment cannot resume with this roster; it may have lost clients since it began."""
    if experiment.protection.facts().single_vectors:
        raise ValueError(
            f'protection.scheme = "{experiment.protection.scheme}": its server works with the update of every client, '
            'which is for `tacit simulate` only; between hosts take "fedsplit"'
        )
    if experiment.federation.group_size and not roster.groups:
        raise ValueError(
            f"federation.group_size = {experiment.federation.group_size}: between hosts the roster has the groups, and "
            "this one has none; make it with --group-size"
        )
    numbered = experiment.numbered(len(roster.clients))
    numbered.check_drawn(len(roster.clients), roster.group_sizes)
    cohort = len(roster.gather(roster.clients, numbered.cohort))
    terms = numbered.terms(len(roster.clients))
    terms.check_dropouts(grouped=bool(roster.groups))
    terms.check_groups(roster.group_sizes, cohort, experiment.policy.smallest_cohort)


def server_images(file: ServerFile, experiment: Experiment) -> ServerImages:
    """Describe this server's images. ValueError, naming a key that the experiment must have; OSError.

    Placeholders stand in for statistics that the clients are to sum up."""
    agreed, own = experiment.data, file.data
    if agreed.factory:
        return ServerImages.none()
    if agreed.statistics == "sum":
        agreed = standing_in(agreed, agreed.channels or _own_channels(file))
    if not agreed.mean:
        raise ValueError(
            "data.mean and data.std are missing in the experiment: hosts do not see each other's images, and all must "
            'normalise alike; `tacit data inspect` says those of a data set, and data.statistics = "sum" has the '
            "clients sum them up"
        )
    names, test, stimuli = agreed.classes, None, None
    notes: tuple[str, ...] = ()
    if own is not None:
        source = read(own if own.classes else msgspec.structs.replace(own, classes=agreed.classes))
        if not len(source.test.images):
            raise ValueError(f"data.source {own.source!r} of the server holds no test images")
        if names and source.class_names != names:
            raise ValueError("data.classes of the server's own file is another list than that of the experiment")
        names, notes = source.class_names, source.notes
        test = normalise(source, image_size=experiment.model.image_size, mean=agreed.mean, std=agreed.std)
    if not names:
        raise ValueError(
            "data.classes is missing in the experiment: a server without images does not know the classes; "
            "`tacit data inspect` lists those of a data set"
        )
    protection = experiment.protection
    if len(protection.shown(np.arange(len(names)), len(names))):
        if test is None:
            raise ValueError(
                f'protection.scheme = "{protection.scheme}" shows images of the server to all clients: give the server '
                "some, in [data] of its own file"
            )
        shown = protection.shown(test.source.test.labels, len(names))
        stimuli = Stimuli.of(test.normalised(test.source.test.images, shown))
    return ServerImages(names, agreed.mean, agreed.std, test=test, stimuli=stimuli, notes=notes)


def _own_channels(file: ServerFile) -> int:
    if file.data is None:
        raise ValueError(
            'data.channels is missing in the experiment: with data.statistics = "sum" a server without images must be '
            "told how many channels they have, 1 for grey images and 3 for coloured ones"
        )
    return read(file.data).test.images.channels


async def run_server(party: OpenedParty[ServerFile], *, show: Tell, hooks: ServerHooks | None = None) -> PartyOutcome:
    """Run or resume an experiment until all its rounds are done.

    ValueError and RunDirectoryError for an experiment that cannot start; OSError, EndpointError, EventLogError."""
    # Every peer that reaches the port can hold a descriptor for the duration of a handshake.
    open_many_files()
    hooks = hooks or ServerHooks()
    with at_work(party, show) as tell:
        hosted = hooks.hosted(party)
        tell(
            RunOpened(
                directory=str(hosted.run.path),
                experiment=hosted.experiment.name,
                completed=hosted.completed,
                rounds=hosted.completed + hosted.left,
            )
        )
        ended = Ended(None, "all rounds were done before")
        if hosted.left > 0:
            ended = await serve(party, hosted, tell, hooks)
        return PartyOutcome(ended, hooks.summary(hosted, ended), hosted.run)
