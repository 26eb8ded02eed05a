"""Whether a party can do its part of an experiment: images, classes, policy, memory, and everything put together.

The experiment is the server's. To a client it is handed out of band, like the roster, and tells before the day what the
server will propose then; without it the images are read, and the digest of their classes is there to be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tacit.models.data import normalise, statistics
from tacit.models.datasets.samples import Samples
from tacit.models.device import resolve_device
from tacit.models.size import KEEPING_BYTES, TRAINING_BYTES
from tacit.models.workload import check_installed
from tacit.parties.hosting.preflight.checks import Check, NotFit, Untested
from tacit.parties.hosting.preflight.subjects import ClientSubject, ServerSubject, chosen
from tacit.parties.hosting.resources import available_memory
from tacit.parties.hosting.server import ServerImages, first_configuration
from tacit.parties.hosting.server_host import check_roster
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.task import class_digest
from tacit.parties.session.journal import JournalFile
from tacit.protocol.session.groups import check_group, journalled_group
from tacit.protocol.session.rounds import JournalEntry
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.configuration import Configuration

_LIST: Final = 8
"""Classes that are named in a line."""
SIZE: Final = 32
"""Pixels to which images in files are brought, where no experiment says to how many."""
_FLOAT: Final = 4


def client_images(subject: ClientSubject) -> str:
    """Every training image can be read; data of one's own are asked for on the day."""
    if factory := subject.file.data.factory:
        check_installed("data.factory", factory)
        return f"{factory} is installed, and is asked for data on the day"
    return _read(subject.source.train, "training", subject.file.data.source)


def server_images(subject: ServerSubject) -> str:
    """Every test image can be read, if there are any."""
    own = subject.file.data
    if own is None or subject.source is None:
        return "none: accuracy will be that of the clients on their own images, by the secure sum"
    if not len(subject.source.test.images):
        raise NotFit(f"data.source {own.source!r} holds no test images: name others, or leave out [data]")
    return _read(subject.source.test, "test", own.source)


def client_experiment(subject: ClientSubject) -> str:
    """An experiment was named, and a model follows from it."""
    return _described(subject)


def server_experiment(subject: ServerSubject) -> str:
    """The experiment can be run with this roster, these images, and after the last run."""
    begun = subject.begun
    if subject.experiment is None and begun is not None:
        subject.experiment = begun.experiment
    check_roster(chosen(subject), subject.roster)
    where = "" if begun is None else f"; goes on after round {begun.completed}, in {begun.run.path}"
    return _described(subject) + where


def client_classes(subject: ClientSubject) -> str:
    """The list of classes is the server's."""
    own = subject.source.class_names
    agreed = () if subject.experiment is None else subject.experiment.data.classes
    if not agreed:
        return f"{_classes(own)}; compare the digest with the server's"
    if own != agreed:
        raise NotFit(f"{_difference(own, agreed)}: set data.classes to the list of the experiment")
    return f"{_classes(own)}, as the experiment has them"


def server_classes(subject: ServerSubject) -> str:
    """There is a list of classes, which clients compare."""
    if chosen(subject).data.factory:
        raise Untested("clients have data of their own, of which no class is known here")
    return _classes(subject.known.class_names)


def policy(subject: ClientSubject) -> str:
    """This client's policy accepts what the server will propose."""
    proposal, own = subject.proposal, subject.file.policy
    if (experiment := chosen(subject)).data.statistics == "sum":
        agreed = subject.agreed
        own.check(first_configuration(experiment, ServerImages(agreed.classes, agreed.mean, agreed.std)))
    own.check(proposal)
    own.check_groups(proposal, [len(group) for group in subject.roster.groups])
    parameters = own.check_cohort(proposal, proposal.clients)
    return f"accepts {proposal.scheme}, {proposal.mode} mode, threshold {parameters.threshold} of {proposal.clients}"


def journal(subject: ClientSubject) -> str:
    """What the client did before can be read, and it is in the group that it was in."""
    if subject.running:
        raise Untested("a process of this party has it now")
    lines = JournalFile(subject.folder.journal(subject.keys.name)).read()
    check_group(journalled_group(lines), subject.roster, subject.keys.name)
    stages = sum(isinstance(line, JournalEntry) for line in lines)
    return f"{stages} stages of rounds" if lines else "empty: this client was in no round yet"


def client_memory(subject: ClientSubject) -> str:
    """There is memory for the model, an update, its masks, and the images."""
    experiment, proposal = chosen(subject), subject.proposal
    size, channels = experiment.model.image_size, len(subject.agreed.mean)
    trained = TRAINING_BYTES[experiment.training.optimizer] * sum(proposal.tensor_sizes)
    images = _FLOAT * len(subject.source.train.images) * channels * size * size
    # The vector, a mask that is added to it, and its bytes on their way.
    return fits(trained + 3 * _vector_bytes(proposal) + images, "model, vectors and images")


def server_memory(subject: ServerSubject) -> str:
    """There is memory for the model, and for the vectors that come at a time."""
    proposal, source = subject.proposal, subject.source
    size, channels = chosen(subject).model.image_size, len(subject.known.mean)
    images = 0 if source is None else _FLOAT * len(source.test.images) * channels * size * size
    # Of clients in groups twice as many vectors may be under way (protocol/sum/vector_sum.py).
    vectors = min(proposal.clients, (2 if subject.roster.groups else 1) * UPLOADS) + 1
    needed = KEEPING_BYTES * sum(proposal.tensor_sizes) + vectors * _vector_bytes(proposal) + images
    return fits(needed, "model, vectors and images")


def training(subject: ClientSubject) -> str:
    """The client's part begins as it will on the day: its images as the task wants them, and the model for them."""
    experiment, device = chosen(subject), resolve_device(subject.file.device)
    agreed = subject.agreed
    data = normalise(subject.source, image_size=experiment.model.image_size, mean=agreed.mean, std=agreed.std)
    Learner(subject.proposal, data.x_train, data.y_train, seed=None, device=device)
    size = experiment.model.image_size
    return f"{len(data.y_train)} images of {size} x {size} pixels fit the model, on {device.type}"


def _described(subject: ClientSubject | ServerSubject) -> str:
    experiment, proposal = chosen(subject), subject.proposal
    parameters = sum(proposal.tensor_sizes)
    subject.model_bytes = _FLOAT * parameters
    wanted = experiment.federation
    return f"{experiment.name}: {parameters:,} parameters, clients: {wanted.clients}, rounds: {wanted.rounds}"


def _read(samples: Samples, part: str, where: str) -> str:
    # Decodes as many as stand for all.
    statistics(samples.images, image_size=SIZE)
    kind = {1: "grey", 3: "coloured"}.get(samples.images.channels, f"{samples.images.channels}-channel")
    return f"{len(samples.images):,} {kind} {part} images in {where}, of {len(np.unique(samples.labels))} classes"


def _classes(names: Sequence[str]) -> str:
    digest = class_digest(names).hex()[:16]
    shown = ", ".join(names[:_LIST]) + ", ..." * (len(names) > _LIST)
    return f"{len(names)} ({shown}), digest {' '.join(digest[at : at + 4] for at in range(0, len(digest), 4))}"


def _difference(own: Sequence[str], agreed: Sequence[str]) -> str:
    """How one list of classes is not the other."""
    lacking, surplus = ([name for name in one if name not in other] for one, other in ((agreed, own), (own, agreed)))
    parts = [
        f"{what} {', '.join(names[:_LIST])}{', ...' * (len(names) > _LIST)}"
        for what, names in (("lacks", lacking), ("has more:", surplus))
        if names
    ]
    return "this party's list " + (" and ".join(parts) or "has another order")


def _vector_bytes(proposal: Configuration) -> int:
    packing = proposal.packing()
    return int(packing.length * np.dtype(packing.ring.word).itemsize)


def fits(needed: int, what: str) -> str:
    """What is said where there is memory for this; NotFit, Untested."""
    available = available_memory()
    least = f"at least {math.ceil(needed / 1e6):,} MB needed for {what}"
    if available is None:
        raise Untested(f"{least}; this system does not say what is available")
    room = f"{least}, {available / 1e6:,.0f} MB available"
    if available < needed:
        raise NotFit(f"{room}: take a host with more memory, raise its limit, or choose a smaller model")
    return room


CLIENT_IMAGES: Final = Check("images", client_images)
CLIENT_EXPERIMENT: Final = Check("experiment", client_experiment)
CLIENT_CLASSES: Final = Check("classes", client_classes, needs=("images",))
POLICY: Final = Check("policy", policy, needs=("roster", "experiment"))
JOURNAL: Final = Check("journal", journal, needs=("roster", "folder"))
CLIENT_MEMORY: Final = Check("memory", client_memory, needs=("images", "experiment"))
TRAINING: Final = Check("training", training, needs=("images", "experiment", "classes", "memory"))
SERVER_IMAGES: Final = Check("images", server_images)
SERVER_EXPERIMENT: Final = Check("experiment", server_experiment, needs=("roster", "images"))
SERVER_CLASSES: Final = Check("classes", server_classes, needs=("experiment",))
SERVER_MEMORY: Final = Check("memory", server_memory, needs=("experiment",))
