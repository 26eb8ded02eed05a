"""A member whose update is well formed, and leads to a model that nobody can use."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.models.configuration import DataConfiguration, ModelConfiguration
from tacit.models.data import load
from tacit.parties.hosting.folder import OpenedParty, PartyFolder
from tacit.parties.hosting.party_file import ServerFile
from tacit.parties.hosting.server import HostedRun, ServerHooks, ServerImages, serve
from tacit.parties.learning.learner import Draft, Learner, Update
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment, FederationSection
from tacit.parties.session.events import ListeningStarted, RoundEnded
from tacit.protocol.core.events import Event as LoggedEvent
from tacit.protocol.session.events import ClientLeft
from tacit.protocol.sum.configuration import Configuration

SIZE = 16
CHEAT = "client-4"


class Poisoner(Learner):
    """Running means and variances far down, everything else up, within the clip, in round 1."""

    poisoned = False

    def encode(self, draft: Draft) -> Update:
        honest = super().encode(draft)
        if Poisoner.poisoned:
            return honest
        Poisoner.poisoned = True
        packing, limit = self._configuration.packing(), self._configuration.clip * self._configuration.max_weight
        values = np.full(packing.values_length, limit, np.float32)
        for entry, part in zip(self.layout.entries, self.layout.split(values).values(), strict=True):
            if entry.part == "averaged":
                part[...] = -limit
        metrics = dict.fromkeys(packing.metrics, 0) | {"samples": 1}
        return replace(honest, words=packing.encode(values, 1, metrics, np.random.default_rng()).words)


def learner(kind: type[Learner]) -> Any:
    def made(configuration: Configuration) -> Learner:
        x = torch.rand(6, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
        return kind(configuration, x, torch.arange(6) % 10, seed=None, device=torch.device("cpu"))

    return made


@pytest.mark.asyncio
@pytest.mark.threat("client/poisons-the-model")
async def test_a_model_that_cannot_be_evaluated_is_not_saved_and_the_run_goes_on(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(
        federation=FederationSection(clients=4, rounds=2),
        model=ModelConfiguration(name="convnet", image_size=SIZE),
        data=DataConfiguration(),
    )
    data = load(experiment.data, image_size=SIZE)
    images = ServerImages(data.source.class_names, *data.normalisation, test=data)
    told: list[LoggedEvent] = []
    listening = asyncio.Event()

    def tell(event: LoggedEvent) -> None:
        told.append(event)
        if isinstance(event, ListeningStarted):
            federation.address = event.address
            listening.set()

    run = RunDirectory.create(tmp_path / "run")
    file, folder = ServerFile(key="", bind="tcp://127.0.0.1:*"), PartyFolder(tmp_path / "server")
    folder.make()
    party = OpenedParty(file, federation.keys["server"], federation.roster, folder)
    monkeypatch.setattr(ServerHooks, "images", lambda hooks, file, experiment: images)
    server = asyncio.create_task(serve(party, HostedRun(experiment, run, 0, weights_seed=1), tell, ServerHooks()))
    await listening.wait()
    first = run.model.read_bytes()
    clients = [
        federation.join(name, make=learner(Poisoner if name == CHEAT else Learner)) for name in federation.clients
    ]
    ended = await federation.all_of(server, *clients)
    assert [one.code for one in ended] == [None] * 5
    spoiled, good = (event for event in told if isinstance(event, RoundEnded))
    assert (spoiled.status, spoiled.code, spoiled.culprit) == ("aborted", "VECTOR", "")
    assert "cannot be evaluated" in spoiled.detail
    assert good.status == "completed"
    assert 0 <= good.accuracy <= 1
    assert run.model.read_bytes() != first


class Failing(Learner):
    """Its own images make a training fail, as some that are broken do."""

    def encode(self, draft: Draft) -> Update:
        assert draft.failure
        return super().encode(draft)


def with_images(kind: type[Learner], samples: int, value: float) -> Any:
    def made(configuration: Configuration) -> Learner:
        x = torch.full((samples, 1, 8, 8), value)
        return kind(configuration, x, torch.arange(samples) % 3, seed=None, device=torch.device("cpu"))

    return made


@pytest.mark.asyncio
@pytest.mark.threat("server/finds-samples")
@pytest.mark.parametrize(
    "victim",
    [
        with_images(Learner, 5, 1.0),
        with_images(Learner, 6, 1.0),
        with_images(Learner, 7, 1.0),
        with_images(Failing, 6, np.nan),
    ],
    ids=["fewer", "as many", "more", "broken"],
)
async def test_what_a_server_sees_of_a_client_does_not_depend_on_its_data(federation: Any, victim: Any) -> None:
    """Of samples fewer than max_weight, as many, or more, and of a training that fails."""
    server = await federation.serve(rounds=1)
    first, *others = federation.clients
    await federation.all_of(server, federation.join(first, make=victim), *map(federation.join, others))
    ((done, total),) = federation.rounds
    assert done.survivors == federation.clients
    assert done.dropped == ()
    assert total is not None
    assert not federation.events("server", ClientLeft)
