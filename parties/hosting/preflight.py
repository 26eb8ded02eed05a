"""Check a party's prerequisites before a session: one finding per line, with the remedy.

A check returns the text of its finding, optionally with a value for later checks, and raises if a prerequisite is
missing. A check whose dependencies did not pass is skipped.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch

from tacit.models.configuration import KEEPING_BYTES, TRAINING_BYTES, DataConfiguration
from tacit.models.data import normalise, read, statistics
from tacit.models.datasets.samples import Images, Samples, Source
from tacit.models.training import EVALUATION_BATCH, pass_bytes, resolve_device
from tacit.models.workload import check_installed
from tacit.parties.hosting.client import own_images as client_source
from tacit.parties.hosting.data_owner import (
    AnswersFile,
    OwnImages,
    interface_of,
    own_answers,
    own_images,
    wanted,
)
from tacit.parties.hosting.folder import MENDABLE, AnswersError, PartyFolder, available_memory
from tacit.parties.hosting.learner import Learned, own_source, read_learned
from tacit.parties.hosting.model_owner import kept_salt, read_model
from tacit.parties.hosting.party_file import (
    ClientFile,
    DataOwnerFile,
    DealerFile,
    ListeningFile,
    ModelOwnerFile,
    PartyFile,
    PartyFileError,
    ServerFile,
)
from tacit.parties.hosting.probe import DEALER, MODEL_OWNER, SERVER, SUMS, TEACHER, NotReady, Peer, State, probe
from tacit.parties.hosting.protocols import PROTOCOLS
from tacit.parties.hosting.server import (
    ServerImages,
    begun_run,
    check_roster,
    first_configuration,
    server_images,
    standing_in,
    task_of,
)
from tacit.parties.inference.private_model import AskedModel, OwnedModel
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.policy import ProposedTask
from tacit.parties.learning.task import class_digest, configure
from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import PartyKeys, generate, load
from tacit.parties.links.roster import check_own, read_roster
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.tokens import TokenFile
from tacit.parties.protections.sides import TaskError
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.results import Result
from tacit.parties.session.journal import JournalFile
from tacit.protocol.core.blob import NO_BLOB
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.messages import Blob
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.audit import audited_of
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.quota import Spent
from tacit.protocol.inference.results import Agreed, InferenceEnded
from tacit.protocol.inference.schedule import Sizes, pass_rounds, weight_bytes
from tacit.protocol.session.client_session import check_group, journalled_group
from tacit.protocol.session.rounds import JournalEntry
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.configuration import Configuration

ANSWER_SECONDS: Final = 4.0
"""Timeout of an answer; a reachable peer answers at once."""
_CLOCK_SECONDS: Final = 60.0
"""Permitted lead of a file's time over the clock."""
_EVENTS_MEGABYTES: Final = 50
"""Space for event logs, journal and report, which are small."""
_MEGABYTE: Final = 1_000_000
_FLOAT: Final = 4
_WIDE: Final = 3
"""Memory of a pass without gradients, in multiples of the inputs and outputs of its widest module (measured)."""
_SHOWN_CLASSES: Final = 8
_MENDABLE: Final = (NotReady, RemoteProtocolError, TaskError, AnswersError, *MENDABLE)


class Finding(msgspec.Struct, frozen=True):
    """Result of a check. `absent`: there is no peer to test against, which may change by itself."""

    check: str
    state: State
    detail: str


class Readiness(Result, frozen=True, kw_only=True, tag="tacit.preflight.1"):
    """Findings of a party before it starts."""

    role: str
    findings: list[Finding]


@dataclass(frozen=True)
class CheckResult:
    """A finding, and a value for the checks that follow."""

    finding: Finding
    value: Any = None

    @property
    def passed(self) -> bool:
        """Whether checks that depend on this one can run."""
        return self.finding.state in ("ok", "warning")


@dataclass(frozen=True)
class PlannedRun:
    """An experiment, the known facts of its images, and the server's future proposal."""

    experiment: Experiment
    images: ServerImages
    proposal: Configuration
    kept: float
    """Bytes for each image of a training batch."""
    widest: float
    """Bytes for each image of an evaluation batch, in one module."""


Look = Callable[..., str | tuple[str, Any]]


def check(name: str) -> Callable[[Look], Callable[..., CheckResult]]:
    """Turn a function of files and values into a check, which also takes results in place of values, and further
    results that must have passed."""

    def decorate(look: Look) -> Callable[..., CheckResult]:
        @wraps(look)
        def run(*given: object, needs: Sequence[CheckResult] = ()) -> CheckResult:
            if left_out := _skipped(name, [one for one in (*given, *needs) if isinstance(one, CheckResult)]):
                return left_out
            try:
                found = look(*(one.value if isinstance(one, CheckResult) else one for one in given))
            except _MENDABLE as error:
                return _failed(name, error)
            return _passed(name, *((found,) if isinstance(found, str) else found))

        return run

    return decorate


def _passed(name: str, detail: str, value: object = None) -> CheckResult:
    return CheckResult(Finding(name, "ok", " ".join(detail.split())), value)


def _failed(name: str, error: Exception) -> CheckResult:
    state = error.state if isinstance(error, NotReady) else "wrong"
    detail = error.detail if isinstance(error, RemoteProtocolError) else str(error)
    return CheckResult(Finding(name, state, " ".join(detail.split())))


def _skipped(name: str, needs: Sequence[CheckResult]) -> CheckResult | None:
    lacking = [need.finding.check for need in needs if not need.passed]
    return CheckResult(Finding(name, "untested", f"waits for {', '.join(lacking)}")) if lacking else None


# Checks of every party: its own host.


@check("key")
def check_key(file: PartyFile) -> tuple[str, PartyKeys]:
    """The key file exists, only its owner can read it, and its keys match."""
    keys = load(Path(file.key))
    return f"{file.key} is of {keys.name}, and its owner's alone", keys


@check("roster")
def check_roster_file(file: PartyFile, keys: PartyKeys) -> tuple[str, Roster]:
    """The roster has this party with these keys and this role; for private inference it has one dealer."""
    roster = read_roster(Path(file.roster))
    check_own(roster, keys, file.enrolled, where=file.roster)
    PartyFolder(Path(file.directory)).check_roster(roster)
    if not isinstance(file, ServerFile | ClientFile):
        _ = roster.dealer
    groups = f" in {len(roster.groups)} groups" if roster.groups else ""
    return f"fingerprint {roster.fingerprint}, {len(roster.clients)} clients{groups}; compare it by telephone", roster


@check("folder")
def check_folder(file: PartyFile) -> str:
    """All files of the party can be written."""
    folder = PartyFolder(Path(file.directory))
    folder.check()
    if folder.is_held():
        return f"{folder.path}; a process of this party has it now"
    for part in (folder.path, *(folder.path / name for name in ("events", "journal", "logs", "runs", "answers"))):
        there = _nearest(part)
        if not there.is_dir():
            raise NotReady(f"{there} is no folder: move it away, or name another folder as `directory`")
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError:
            raise NotReady(
                f"{there} cannot be written by this user: give it the folder, or name another `directory`"
            ) from None
    return f"{folder.path}, which can be written"


@check("clock")
def check_clock(file: PartyFile) -> str:
    """The clock is not behind the party's own files, and is synchronised.

    No message contains a time, and no deadline uses this clock; logs do, and people compare them."""
    now = time.time()
    for path in map(Path, (file.key, file.roster)):
        ahead = path.stat().st_mtime - now if path.exists() else 0.0
        if ahead > _CLOCK_SECONDS:
            raise NotReady(f"it is {ahead / 60:.0f} min behind the file {path}: set it right, or touch the file")
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    synchronised = clock_is_synchronised()
    if synchronised is None:
        raise NotReady(
            f"{shown}; this system does not say whether it is synchronised: compare it with the others", "untested"
        )
    if not synchronised:
        raise NotReady(
            f"{shown}; nothing synchronises it: switch NTP on (timedatectl set-ntp true), for the logs' times",
            "warning",
        )
    return f"{shown}, synchronised"


def clock_is_synchronised() -> bool | None:
    """Return the kernel's answer; None if there is none."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None
    # A struct timex of zeros, which is more than 200 bytes long, asks and changes nothing; 5 is TIME_ERROR.
    answer = int(adjtimex(ctypes.create_string_buffer(1024)))
    return None if answer < 0 else answer != 5


@check("device")
def check_device(file: DealerFile) -> str:
    return f"it computes on {resolve_device(file.device).type}"


@check("disk")
def check_disk(file: PartyFile, model_bytes: int = 0) -> str:
    """There is disk space for logs and models."""
    needed = (_EVENTS_MEGABYTES + file.log.megabytes * (file.log.files + 1)) * _MEGABYTE
    # A model is written beside the former one, which it then replaces.
    needed += 2 * model_bytes
    free = shutil.disk_usage(_nearest(Path(file.directory))).free
    room = f"{free / _MEGABYTE:,.0f} MB free, {needed / _MEGABYTE:,.0f} MB needed"
    if free < needed:
        raise NotReady(f"{room} for logs (log.megabytes, log.files) and models: make room, or name another `directory`")
    return room


def _nearest(path: Path) -> Path:
    path = Path(os.path.abspath(path))
    return next(place for place in (path, *path.parents) if place.exists())


def _check_idle(file: PartyFile, doing: str) -> None:
    """NotReady if a process of this party holds its folder and its links; doing: the activity of that process."""
    if PartyFolder(Path(file.directory)).is_held():
        raise NotReady(f"a process of this party {doing}", "untested")


def _check_memory(own: float, what: str = "weights, images, and the longest round of a pass") -> str:
    """own: memory of a party beyond a process that has loaded the same libraries and read the same images, as this one
    has."""
    available = available_memory()
    needed = own + 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    least = f"about {math.ceil(needed / _MEGABYTE):,} MB needed, {math.ceil(own / _MEGABYTE):,} of them for {what}"
    if available is None:
        raise NotReady(f"{least}; this system does not say what is available", "untested")
    room = f"{least}, {available / _MEGABYTE:,.0f} MB available"
    if available < needed:
        raise NotReady(f"{room}: take a host with more memory, raise its limit, or choose a smaller model")
    return room


# Checks of the parties of a federation. The server owns the experiment; a client may receive a copy, like the roster.


@check("images")
def check_client_images(file: ClientFile) -> str | tuple[str, Source]:
    """Every training image can be read; the client's own function is called in the session only."""
    if factory := file.data.factory:
        check_installed("data.factory", factory)
        return f"{factory} is installed, and is asked for data on the day"
    source = client_source(file)
    return _described_images(source.train, "training", file.data.source), source


@check("images")
def check_server_images(file: ServerFile, experiment: Experiment | None) -> str | tuple[str, Source]:
    """Every test image can be read, if there are any."""
    own = file.data
    if own is None:
        return "none: accuracy will be that of the clients on their own images, by the secure sum"
    classes = own.classes or (experiment.data.classes if experiment else ())
    source = read(msgspec.structs.replace(own, classes=classes))
    if not len(source.test.images):
        raise NotReady(f"data.source {own.source!r} holds no test images: name others, or leave out [data]")
    return _described_images(source.test, "test", own.source), source


def _described_images(samples: Samples, part: str, where: str) -> str:
    _decode_some(samples.images)
    kind = {1: "grey", 3: "coloured"}.get(samples.images.channels, f"{samples.images.channels}-channel")
    return f"{len(samples.images):,} {kind} {part} images in {where}, of {len(np.unique(samples.labels))} classes"


def _decode_some(images: Images) -> None:
    """Decode a sample of the images that stands for all. ValueError, OSError."""
    statistics(images, image_size=32)


@check("experiment")
def check_client_experiment(file: ClientFile, experiment: Experiment | None, roster: Roster) -> tuple[str, PlannedRun]:
    """An experiment was given, and implies a model."""
    experiment = _named(experiment).numbered(len(roster.clients))
    agreed = _agreed_data(experiment)
    proposed = ProposedTask(experiment.outline(), len(roster.clients), roster.group_sizes, wanted=experiment)
    for name, _, accepted in file.policy.task_complaints(proposed):
        if name in experiment.factories:
            # A task that is not accepted is not imported either.
            raise ValueError(f'{name} = "{experiment.factories[name]}": this client accepts {accepted}')
    if len(experiment.protection.shown(np.arange(len(agreed.classes)), len(agreed.classes))):
        scheme = experiment.protection.scheme
        raise NotReady(f'protection.scheme = "{scheme}" shows images that the server has', "untested")
    plan = _plan(experiment, ServerImages(agreed.classes, agreed.mean, agreed.std), roster)
    return _described_plan(plan), plan


def _agreed_data(experiment: Experiment) -> DataConfiguration:
    """The experiment's [data]; placeholders stand in for values from a future secure sum. NotReady."""
    agreed = experiment.data
    if agreed.factory:
        return agreed
    if agreed.channels:
        agreed = standing_in(agreed, agreed.channels)
    if not agreed.classes or not agreed.mean:
        raise NotReady(
            "the experiment leaves data.classes, data.channels, data.mean or data.std to the server's own file",
            "untested",
        )
    return agreed


@check("experiment")
def check_server_experiment(file: ServerFile, experiment: Experiment | None, roster: Roster) -> tuple[str, PlannedRun]:
    """The experiment can run with this roster and these images, and after the last run."""
    begun = begun_run(PartyFolder(Path(file.directory)), experiment)
    if experiment is None and begun is not None:
        experiment = begun.experiment
    experiment = _named(experiment)
    check_roster(experiment, roster)
    experiment = experiment.numbered(len(roster.clients))
    plan = _plan(experiment, server_images(file, experiment), roster)
    where = "" if begun is None else f"; goes on after round {begun.completed}, in {begun.run.path}"
    return _described_plan(plan) + where, plan


def _named(experiment: Experiment | None) -> Experiment:
    if experiment is None:
        raise NotReady(
            "no experiment was named; name its file to test it: tacit preflight PARTY.toml EXPERIMENT.toml", "untested"
        )
    return experiment


def _plan(experiment: Experiment, images: ServerImages, roster: Roster) -> PlannedRun:
    """Configure the experiment, with a model that takes no memory. ValueError."""
    task = task_of(experiment, images)
    # The owner's function may read weights.
    with nullcontext() if task.model.factory else torch.device("meta"):
        model = task.build()
    # Without its values: the digest is compared when the server proposes it.
    fixed = Blob(digest=NO_BLOB.digest, size=task.layout(model).fixed_size(model))
    terms = experiment.terms(len(roster.clients))
    proposal = configure(terms, task, model, ring_bits=experiment.ring_bits, fixed=fixed)
    kept = widest = 0
    if not task.model.factory:
        # Two images, since batch normalisation fails with one.
        shape = 2, task.channels, task.model.image_size, task.model.image_size
        kept, widest = pass_bytes(model.train(), torch.empty(shape, device="meta"))
    return PlannedRun(experiment, images, proposal, kept / 2, widest / 2)


def _described_plan(plan: PlannedRun) -> str:
    clients, cohort = str(plan.experiment.clients), plan.proposal.clients
    if cohort < plan.experiment.clients:
        clients += f" ({cohort} in a round)"
    rounds, parameters = plan.experiment.federation.rounds, sum(plan.proposal.tensor_sizes)
    return f"{plan.experiment.name}: {parameters:,} parameters, clients: {clients}, rounds: {rounds}"


@check("classes")
def check_client_classes(file: ClientFile, experiment: Experiment | None, source: Source | None) -> str:
    """The list of classes equals the server's."""
    own = _own(file, source).class_names
    agreed = () if experiment is None else experiment.data.classes
    if not agreed:
        return f"{_described_classes(own)}; compare the digest with the server's"
    if own == agreed:
        return f"{_described_classes(own)}, as the experiment has them"
    lacking, surplus = ([name for name in one if name not in other] for one, other in ((agreed, own), (own, agreed)))
    parts = [
        f"{what} {', '.join(names[:_SHOWN_CLASSES])}{', ...' * (len(names) > _SHOWN_CLASSES)}"
        for what, names in (("lacks", lacking), ("has more:", surplus))
        if names
    ]
    difference = " and ".join(parts) or "has another order"
    raise NotReady(f"this party's list {difference}: set data.classes to the list of the experiment")


@check("classes")
def check_server_classes(plan: PlannedRun) -> str:
    """There is a list of classes, which clients compare."""
    if plan.experiment.data.factory:
        raise NotReady("clients have data of their own, of which no class is known here", "untested")
    return _described_classes(plan.images.class_names)


def _described_classes(names: Sequence[str]) -> str:
    digest = class_digest(names).hex()[:16]
    shown = ", ".join(names[:_SHOWN_CLASSES]) + ", ..." * (len(names) > _SHOWN_CLASSES)
    return f"{len(names)} ({shown}), digest {' '.join(digest[at : at + 4] for at in range(0, len(digest), 4))}"


def _own(file: ClientFile, source: Source | None) -> Source:
    if source is None:
        raise NotReady(f'data.factory = "{file.data.factory}": its data are what that returns', "untested")
    return source


@check("policy")
def check_policy(file: ClientFile, roster: Roster, plan: PlannedRun) -> str:
    """This client's policy accepts the server's future proposal."""
    proposal, own = plan.proposal, file.policy
    clients, sizes = len(roster.clients), roster.group_sizes
    if plan.experiment.data.statistics == "sum":
        own.check(first_configuration(plan.experiment, plan.images, clients), clients=clients, groups=sizes)
    if proposal.fixed.size and own.fixed_part:
        pinned = Blob(digest=bytes.fromhex(own.fixed_part), size=proposal.fixed.size)
        proposal = msgspec.structs.replace(proposal, fixed=pinned)
    own.check(proposal, clients=clients, groups=sizes)
    parameters = own.check_cohort(proposal, proposal.clients)
    return f"accepts {proposal.scheme}, {proposal.mode} mode, threshold {parameters.threshold} of {proposal.clients}"


@check("journal")
def check_journal(file: ClientFile, keys: PartyKeys, roster: Roster) -> str:
    """The client's former rounds can be read, and it is in its former group."""
    _check_idle(file, "has it now")
    folder = PartyFolder(Path(file.directory))
    lines = JournalFile(folder.journal(keys.name), tokens=TokenFile(folder.tokens)).read()
    check_group(journalled_group(lines), roster, keys.name)
    stages = sum(isinstance(line, JournalEntry) for line in lines)
    if lines:
        return f"{stages} rounds"
    if file.policy.largest_epsilon:
        raise NotReady(
            "there is none: unless the server knows what this client has spent of its privacy budget, its owner states "
            "it at the first start: tacit client --spent EPSILON, 0 for one that was in no round",
            "warning",
        )
    if folder.events(keys.name).exists():
        raise NotReady("there is none, and this client ran before: restore it, if it was in a round", "warning")
    return "none: this client was in no round yet"


@check("memory")
def check_client_memory(file: ClientFile, source: Source | None, plan: PlannedRun) -> str:
    """There is memory for the model, an update, its masks, the images, and a batch's activations for gradients."""
    training, own = plan.experiment.training, _own(file, source).train
    trained = TRAINING_BYTES[training.optimizer] * sum(plan.proposal.tensor_sizes)
    images = _pixel_bytes(plan, own) + (plan.kept + plan.widest) * min(training.batch_size, len(own.images))
    # The received model, kept between rounds, and its fixed tensors, both encoded and decoded.
    sent = plan.proposal.state.size + 2 * plan.proposal.fixed.size
    # The vector, a mask that is added to it, and its encoding during sending.
    return _check_memory(trained + sent + 3 * _vector_bytes(plan.proposal) + images, "model, vectors and images")


@check("memory")
def check_server_memory(roster: Roster, source: Source | None, plan: PlannedRun) -> str:
    """There is memory for the model, for vectors that arrive concurrently, and for evaluation of a batch."""
    images = 0.0
    if source is not None:
        batch = min(EVALUATION_BATCH, len(source.test.images))
        images = _pixel_bytes(plan, source.test) + _WIDE * plan.widest * batch
    if plan.proposal.secure:
        # Clients in groups may have twice as many vectors in transit (protocol/sum/vector_sum.py).
        vectors = min(plan.proposal.clients, (2 if roster.groups else 1) * UPLOADS) + 1
    else:
        # All may wait for the first client's vector, and the total is float64.
        vectors = plan.proposal.clients + 2
    kept = KEEPING_BYTES * sum(plan.proposal.tensor_sizes) + 2 * plan.proposal.fixed.size
    return _check_memory(kept + vectors * _vector_bytes(plan.proposal) + images, "model, vectors and images")


def _pixel_bytes(plan: PlannedRun, samples: Samples) -> int:
    return _FLOAT * len(samples.images) * len(plan.images.mean) * plan.experiment.model.image_size**2


def _vector_bytes(proposal: Configuration) -> int:
    packing = proposal.packing()
    return int(packing.length * np.dtype(packing.ring.word).itemsize)


@check("training")
def check_training(file: ClientFile, source: Source, plan: PlannedRun) -> str:
    """The images fit the task, and there is a model to train on them."""
    size, device = plan.experiment.model.image_size, resolve_device(file.device)
    data = normalise(source, image_size=size, mean=plan.images.mean, std=plan.images.std)
    learner = Learner(plan.proposal, data.x_train, data.y_train, seed=None, device=device, start=file.start)
    largest = f"; {learner.uncounted} of them do not count: aggregation.max_weight = {plan.proposal.max_weight}"
    largest = largest if learner.uncounted else ""
    return f"{len(data.y_train)} images of {size} x {size} pixels fit the model, on {device.type}{largest}"


# Checks of the parties of private inference, and of adaptation.


@check("model")
def check_model(file: ModelOwnerFile) -> tuple[str, OwnedModel]:
    """The model can be read, and offered."""
    device, salt = resolve_device(file.device), PartyFolder(Path(file.directory)).salt
    kept = salt.exists()
    model = PROTOCOLS[file.protocol].prepared(read_model(file), kept_salt(salt) if kept else None)
    audited = audited_of(file.policy.audit_fraction)
    terms = model.terms(results=file.results, most_images=file.most_images, most_batch=file.most_batch, audited=audited)
    sizes = terms.sizes
    which = model.commitment.hex() if kept else "without a commitment before its first start"
    if (learning := file.adaptation) is not None:
        which = f"{which}; {len(learning.classes)} classes are learned beside it"
    return f"{which}: {_takes(sizes)}, {sizes.blocks} blocks, {_gives(model.public)}, on {device.type}", model


@check("memory")
def check_model_owner_memory(file: ModelOwnerFile, model: OwnedModel) -> str:
    """There is memory for the weights, and a pass of as many images as are offered."""
    return _check_memory(_pass_bytes(model.public.sizes, file.most_batch))


@check("images")
def check_inference_images(file: DataOwnerFile) -> tuple[str, OwnImages]:
    """The images for inference can be decoded."""
    found = own_images(file.images)
    _decode_some(found.samples().images)
    labels = "" if found.labels is None else f", of {len(set(found.labels))} classes"
    return f"{len(found.names):,} in {file.images}{labels}", found


@check("images")
def check_learning_images(file: DataOwnerFile) -> str:
    """The training images can be decoded, and fill at least one batch."""
    found = own_source(file)
    _decode_some(found.train.images)
    return f"{len(found.train.images):,} training images of {len(found.class_names)} classes"


@check("learned")
def check_learned(file: DataOwnerFile) -> tuple[str, Learned]:
    """The trained adapters can be read."""
    found = read_learned(PartyFolder(Path(file.directory)))
    return f"{len(found.classes)} classes, after round {found.round}, beside the model {found.weights}", found


@check("answers")
def check_answers(file: DataOwnerFile, images: OwnImages, learned: Learned | None) -> tuple[str, AnswersFile]:
    """Former results can be read."""
    _check_idle(file, "writes them now")
    known = own_answers(PartyFolder(Path(file.directory)), images, learned)
    if known.by is None:
        return "none yet", known
    return f"{known.count} of {len(images.names)} images are answered, by the model {known.by.weights}", known


@check("terms")
def check_terms(
    file: DataOwnerFile,
    keys: PartyKeys,
    roster: Roster,
    images: OwnImages,
    answers: AnswersFile,
    offer: Sequence[bytes],
) -> tuple[str, Agreed]:
    """The policy and former results match the model owner's offer."""
    if answers.count == len(images.names):
        raise NotReady(f"all {len(images.names)} images are answered: nobody will be asked", "untested")
    request, policy = wanted(file, images, answers)
    owner = InferenceDataOwner(keys.name, roster, request=request, policy=policy, patience=math.inf, spent=Spent())
    owner.start(0.0)
    agreed = None
    for output in owner.feed(offer, 0.0):
        if isinstance(output, InferenceEnded):
            raise NotReady(f"{output.culprit}: {output.detail}")
        if isinstance(output, Agreed):
            agreed = output
    assert agreed is not None
    terms = agreed.terms
    public = _public(file, terms)
    interface_of(public, answers)
    return f"model {terms.weights.hex()}, {_gives(public)}; {_takes(terms.sizes)}", agreed


@check("memory")
def check_data_owner_memory(agreed: Agreed) -> str:
    """There is memory for the masked weights, the images, and a pass."""
    sizes = agreed.terms.sizes
    pixels = _FLOAT * agreed.images * sizes.channels * sizes.side**2
    return _check_memory(_pass_bytes(sizes, agreed.batch) + pixels)


@check("pixels")
def check_pixels(file: DataOwnerFile, images: OwnImages, answers: AnswersFile, agreed: Agreed) -> str:
    """All images can be resized to the model's input."""
    device = resolve_device(file.device)
    interface = interface_of(_public(file, agreed.terms), answers)
    prepared = images.prepared(interface, side=agreed.terms.sizes.side, first=answers.count)
    return f"{len(prepared):,} images fit the model, {agreed.batch} at a time, on {device.type}"


def _public(file: DataOwnerFile, terms: Terms) -> AskedModel:
    """The model owner's description of its model. ValueError for another protocol, or an unsuitable model."""
    return PROTOCOLS[file.protocol].session().agreed_plan(terms).public


def _gives(public: AskedModel) -> str:
    what = "features" if public.interface is not None and not public.interface.classes else "classes"
    return f"{public.sizes.classes} {what}"


def _takes(sizes: Sizes) -> str:
    return f"it takes images of {sizes.channels} x {sizes.side} x {sizes.side}"


def _pass_bytes(sizes: Sizes, batch: int) -> int:
    """Least bytes for either owner: the weights, as numbers, and the values that both open in a round."""
    longest = max(each.model_owner_bytes + each.data_owner_bytes for each in pass_rounds(sizes, batch))
    return sum(weight_bytes(sizes)) + longest


# Checks of addresses: the party's own, and those of its peers.


@check("address")
def check_address(file: ListeningFile, keys: PartyKeys, roster: Roster) -> str:
    """The party can listen, and its published addresses lead to it."""
    _check_idle(file, f"listens at {file.bind} now: `tacit status` says how it stands")
    return asyncio.run(_listen(file, keys, roster))


async def _listen(file: ListeningFile, keys: PartyKeys, roster: Roster) -> str:
    own, seconds = roster.member(keys.name), ANSWER_SECONDS
    async with await ServerEndpoint.bind(file.bind, keys=keys, roster=roster) as endpoint:
        for address in file.advertise:
            try:
                # A key unknown to all: an endpoint that refuses it has shown that it has this party's key.
                await ClientEndpoint.connect(address, keys=generate("preflight"), server=own, connect_deadline=seconds)
            except NotAdmittedError:
                continue
            except EndpointError as error:
                raise NotReady(f"advertise = {address!r} does not lead back here: {error}", "warning") from None
        reached = f", reached at {', '.join(file.advertise)}" if file.advertise else ""
        return f"can listen at {endpoint.address}{reached}"


def check_peers(peers: Sequence[Peer], file: PartyFile, keys: CheckResult, roster: CheckResult) -> list[CheckResult]:
    """Probe all peers at once; four findings for each: name, TCP, CURVE, version. The value of the last is the frames
    of the peer's answer."""

    async def all_peers() -> list[list[CheckResult]]:
        return await asyncio.gather(*(_check_peer(peer, file, keys, roster) for peer in peers))

    return list(chain(*asyncio.run(all_peers())))


async def _check_peer(peer: Peer, file: PartyFile, keys: CheckResult, roster: CheckResult) -> list[CheckResult]:
    tokens = TokenFile(PartyFolder(Path(file.directory)).tokens, probe=True)
    address = attrgetter(peer.address_key)(file)
    stages = probe(peer, address, keys.value, roster.value, seconds=ANSWER_SECONDS, tokens=tokens)
    results: list[CheckResult] = []
    for stage in ("name", "tcp", "curve", "version"):
        name, needs = peer.prefix + stage, results[-1:]
        if stage == "tcp":
            needs = [keys, roster, *needs]
        result = _skipped(name, needs)
        try:
            if result is None and stage == "tcp":
                _check_idle(file, f"has its link to the {peer.what} now: `tacit status` says how it stands")
            results.append(result or _passed(name, *await anext(stages)))
        except _MENDABLE as error:
            results.append(_failed(name, error))
    return results


# The checks of each role, in the order in which they are shown.


def preflight(file: PartyFile, experiment: Experiment | None) -> Iterator[Finding]:
    """Check all prerequisites of this party, one after the other. PartyFileError for an experiment in a role without
    one."""
    if experiment is not None and not isinstance(file, ServerFile | ClientFile):
        raise PartyFileError(f'role = "{file.role}": private inference has no experiment: leave the file out')
    return (result.finding for result in _results(file, experiment))


def _results(file: PartyFile, experiment: Experiment | None) -> Iterator[CheckResult]:
    yield (keys := check_key(file))
    yield (roster := check_roster_file(file, keys))
    yield (folder := check_folder(file))
    yield check_clock(file)
    match file:
        case ServerFile():
            yield from _server(file, experiment, keys, roster)
        case ClientFile():
            yield from _client(file, experiment, keys, roster, folder)
        case DealerFile():
            yield check_device(file)
            yield check_disk(file)
            yield check_address(file, keys, roster)
        case ModelOwnerFile():
            yield (model := check_model(file))
            yield check_model_owner_memory(file, model)
            yield check_disk(file)
            yield check_address(file, keys, roster)
            yield from check_peers([DEALER], file, keys, roster)
        case DataOwnerFile(adaptation=None):
            yield from _data_owner(file, keys, roster, folder)
        case DataOwnerFile(learns=None):
            yield (images := check_inference_images(file))
            yield (learned := check_learned(file, needs=[folder]))
            yield check_answers(file, images, learned)
            yield check_disk(file)
            yield from check_peers([DEALER, TEACHER], file, keys, roster)
        case DataOwnerFile():
            yield check_learning_images(file)
            yield check_disk(file)
            yield from check_peers([DEALER, SUMS, TEACHER], file, keys, roster)


def _server(
    file: ServerFile, experiment: Experiment | None, keys: CheckResult, roster: CheckResult
) -> Iterator[CheckResult]:
    yield (source := check_server_images(file, experiment))
    yield (plan := check_server_experiment(file, experiment, roster, needs=[source]))
    yield check_server_classes(plan)
    yield check_server_memory(roster, source, plan)
    yield check_disk(file, _model_bytes(plan))
    yield check_address(file, keys, roster)


def _client(
    file: ClientFile, experiment: Experiment | None, keys: CheckResult, roster: CheckResult, folder: CheckResult
) -> Iterator[CheckResult]:
    yield check_journal(file, keys, roster, needs=[folder])
    yield (source := check_client_images(file))
    yield (plan := check_client_experiment(file, experiment, roster))
    yield (classes := check_client_classes(file, experiment, source))
    yield check_policy(file, roster, plan)
    yield (memory := check_client_memory(file, source, plan))
    yield check_disk(file, _model_bytes(plan))
    yield check_training(file, source, plan, needs=[classes, memory])
    yield from check_peers([SERVER], file, keys, roster)


def _data_owner(
    file: DataOwnerFile, keys: CheckResult, roster: CheckResult, folder: CheckResult
) -> Iterator[CheckResult]:
    yield (images := check_inference_images(file))
    yield (answers := check_answers(file, images, None, needs=[folder]))
    yield check_disk(file)
    peers = check_peers([DEALER, MODEL_OWNER], file, keys, roster)
    yield from peers
    yield (terms := check_terms(file, keys, roster, images, answers, peers[-1]))
    yield (memory := check_data_owner_memory(terms))
    yield check_pixels(file, images, answers, terms, needs=[memory])


def _model_bytes(plan: CheckResult) -> int:
    """Bytes of the model that the party will keep; 0 if unknown."""
    return _FLOAT * sum(plan.value.proposal.tensor_sizes) if plan.passed else 0
