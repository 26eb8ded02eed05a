"""The parties that are tested, and what follows from their files and the experiment: images, models, the proposal."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch

from tacit.models.configuration import DataConfiguration
from tacit.models.data import read
from tacit.models.datasets.samples import Source
from tacit.parties.hosting.answers import Answers
from tacit.parties.hosting.client_host import own_images
from tacit.parties.hosting.data_owner_host import own_answers
from tacit.parties.hosting.inference_host import kept_salt
from tacit.parties.hosting.learned import Learned, read_learned
from tacit.parties.hosting.own_images import OwnImages
from tacit.parties.hosting.own_images import own_images as inference_images
from tacit.parties.hosting.party_file import Kind
from tacit.parties.hosting.party_schema import (
    ClientFile,
    DataOwnerFile,
    DealerFile,
    ListeningFile,
    ModelOwnerFile,
    ServerFile,
)
from tacit.parties.hosting.preflight.checks import Subject, Untested
from tacit.parties.hosting.server import ServerImages, standing_in, task_of
from tacit.parties.hosting.server_host import HostedRun, begun_run, server_images
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.learning.task import configure
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.served import read_served
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.results import Agreed
from tacit.protocol.sum.configuration import Configuration

Listening = TypeVar("Listening", bound=ListeningFile)


@dataclass(frozen=True)
class Attempt:
    """What came of the attempt to open a link."""

    error: EndpointError | None = None
    answer: Message | None = None
    """To the question that was asked then; an abort where it cannot be read."""
    frames: tuple[bytes, ...] = field(default=(), repr=False)
    """Of the answer."""


class ConnectingSubject(Subject[Kind]):
    """Who connects to others."""

    @cached_property
    def attempts(self) -> dict[str, Attempt]:
        """What came of opening links, once that was tried, by the key of the address."""
        return {}


class ListeningSubject(Subject[Listening]):
    """To whom others connect."""


class ClientSubject(ConnectingSubject[ClientFile]):
    """A client, and the experiment that its owner was told of, if any."""

    @cached_property
    def source(self) -> Source:
        """Its images. ValueError, OSError; Untested if its data are of its own."""
        if self.file.data.factory:
            raise Untested(f'data.factory = "{self.file.data.factory}": its data are what that returns')
        return own_images(self.file)

    @cached_property
    def agreed(self) -> DataConfiguration:
        """What the experiment says of images; where a sum will say it, something in its place. Untested if it does not
        say all."""
        agreed = chosen(self).data
        if agreed.factory:
            return agreed
        if agreed.channels:
            agreed = standing_in(agreed, agreed.channels)
        if not agreed.classes or not agreed.mean:
            raise Untested(
                "the experiment leaves data.classes, data.channels, data.mean or data.std to the server's own file"
            )
        return agreed

    @cached_property
    def proposal(self) -> Configuration:
        """What a server with this experiment will propose. Untested if that is not known; ValueError."""
        experiment, agreed = chosen(self), self.agreed
        for name, value, accepted in self.file.policy.complaints(experiment):
            if name in experiment.factories:
                # What is not accepted is not imported either.
                raise ValueError(f'{name} = "{value}": this client accepts {accepted}')
        if len(experiment.protection.shown(np.arange(len(agreed.classes)), len(agreed.classes))):
            raise Untested(f'protection.scheme = "{experiment.protection.scheme}" shows images that the server has')
        return proposed(experiment, ServerImages(agreed.classes, agreed.mean, agreed.std))


class ServerSubject(ListeningSubject[ServerFile]):
    """A server, and the experiment that it is to run; without one, the one that it has begun."""

    @cached_property
    def begun(self) -> HostedRun | None:
        """The run that it would go on with. RunDirectoryError, ExperimentError, OSError."""
        return begun_run(self.folder, self.experiment)

    @cached_property
    def known(self) -> ServerImages:
        """What it knows of images. ValueError, OSError."""
        return server_images(self.file, chosen(self))

    @cached_property
    def source(self) -> Source | None:
        """Its test images, if it has any. ValueError, OSError."""
        own = self.file.data
        if own is None:
            return None
        classes = own.classes or (self.experiment.data.classes if self.experiment else ())
        return read(msgspec.structs.replace(own, classes=classes))

    @cached_property
    def proposal(self) -> Configuration:
        """What it will propose. ValueError, OSError."""
        return proposed(chosen(self), self.known)


class _InferenceSubject(Subject[Kind]):
    @cached_property
    def roster(self) -> Roster:
        """That of everybody, in which there is one dealer. RosterFileError, ValueError."""
        found = super().roster
        _ = found.dealer
        return found


class DealerSubject(_InferenceSubject[DealerFile], ListeningSubject[DealerFile]):
    """A dealer, which knows of no session before it has begun."""


class ModelOwnerSubject(
    _InferenceSubject[ModelOwnerFile], ListeningSubject[ModelOwnerFile], ConnectingSubject[ModelOwnerFile]
):
    """A model owner."""

    @cached_property
    def model(self) -> PrivateModel:
        """As data owners are offered it, if it has been offered once. ValueError, OSError."""
        salt = kept_salt(self.folder.salt) if self.folder.salt.exists() else None
        return read_served(Path(self.file.model)).prepared(salt=salt)


class DataOwnerSubject(_InferenceSubject[DataOwnerFile], ConnectingSubject[DataOwnerFile]):
    """A data owner."""

    offered: Agreed | None = None
    """What both owners would agree on, once the terms have been heard and accepted."""

    @cached_property
    def images(self) -> OwnImages:
        """What it will ask about. ValueError, OSError."""
        return inference_images(self.file.images)

    @cached_property
    def answers(self) -> Answers:
        """What it knows of them already. AnswersError."""
        return own_answers(self.folder, self.images, self.learned)

    @cached_property
    def learned(self) -> Learned | None:
        """With what it asks, if it is not the model alone. ValueError, OSError."""
        return None if self.file.adaptation is None else read_learned(self.folder)


def chosen(subject: ClientSubject | ServerSubject) -> Experiment:
    """The experiment. Untested if there is none."""
    if subject.experiment is None:
        raise Untested("no experiment was named; name its file to test it: tacit preflight PARTY.toml EXPERIMENT.toml")
    return subject.experiment


def proposed(experiment: Experiment, known: ServerImages) -> Configuration:
    """The configuration that follows from an experiment, of a model that takes no memory. ValueError."""
    task = task_of(experiment, known)
    bare = msgspec.structs.replace(task.model, pretrained=False, checkpoint="")
    # A function of one's own may read weights.
    with nullcontext() if bare.factory else torch.device("meta"):
        model = msgspec.structs.replace(task, model=bare).build()
    return configure(experiment.terms(), task, model, ring_bits=experiment.aggregation.ring_bits or None)
