"""A server that breaks no rule, and hands out a model that makes the sum tell of single images."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration
from tacit.models.workload import Workload
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import Task, configure, read_task
from tacit.parties.session.client import CRAFTED
from tacit.parties.session.events import RoundEnded, TrainingFailed
from tacit.protocol.core.errors import Code
from tacit.protocol.sum.configuration import Configuration
from tests.adversary.crafted import Imprinted, fishing, imprint

pytestmark = pytest.mark.threat("server/crafted-model")

HOLLOW = Workload(model=lambda: Imprinted(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), 64, 16))
"""A model of the members' own with room for an imprint, of random weights."""
FISHING = "head.weight: silent rows (0.67)"
IMPRINT = "bins.weight: scaled copies (1), bins.bias: bins (1), back.weight: scaled copies (1)"
REFUSED = (
    "the server's model of round 1 has patterns of known attacks on images ({}): ask its operator where it comes from; "
    "if it is honest, as a pruned one may be, set policy.tripwire = false"
)


def learner(configuration: Configuration, **options: Any) -> Learner:
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Learner(configuration, x, torch.arange(6) % 3, seed=5, device=torch.device("cpu"), **options)


def fishes(federation: Any) -> dict[str, Any]:
    federation.keeper = Keeper(federation.configuration, fishing(federation.keeper.model, 1))
    return {}


def imprints(federation: Any) -> dict[str, Any]:
    """With a model for which all members have the same function."""
    named = ModelConfiguration(factory="nets:hollow")
    task = Task(model=named.architecture, training=read_task(federation.configuration).training, classes=3, channels=1)
    model = task.build(workload=HOLLOW)
    federation.configuration = configure(federation.configuration, task, model)
    alike = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    crafted = imprint(model.get_submodule("model"), alike, bins=16)
    federation.keeper = Keeper(federation.configuration, crafted)
    return {"make": lambda configuration: learner(configuration, workload=HOLLOW)}


@pytest.mark.asyncio
@pytest.mark.parametrize(("craft", "found"), [(fishes, FISHING), (imprints, IMPRINT)], ids=["fishing", "imprint"])
async def test_a_crafted_model_is_refused_by_name(
    federation: Any, craft: Callable[[Any], dict[str, Any]], found: str
) -> None:
    """Clients say where the pattern is at home only, contribute nothing, and there is no sum."""
    options = craft(federation)
    server = await federation.serve(rounds=1)
    policy = ClientPolicy(factories=("nets:*",))
    updates: list[int] = []

    def note(round: int, update: Update) -> None:
        updates.append(round)

    clients = [federation.join(name, policy=policy, on_update=note, **options) for name in federation.clients]
    await federation.all_of(server, *clients)
    for name, client in zip(federation.clients, clients, strict=True):
        # Of who comes last the round may be over before it has looked.
        if federation.events(name, TrainingFailed):
            assert (client.result().code, client.result().detail) == (Code.LOCAL, REFUSED.format(found))
    assert not updates
    ((done, total),) = federation.rounds
    assert (done.survivors, total) == ((), None)
    told = [drop.detail for drop in federation.events("server", RoundEnded)[0].dropped]
    assert f"it gave up: {CRAFTED}" in told
    assert not re.search(r"silent|copies", (federation.directory / "server.events").read_text())


@pytest.mark.asyncio
async def test_whose_owner_switches_the_tripwire_off_trains(federation: Any) -> None:
    fishes(federation)
    server = await federation.serve(rounds=1)
    make = {"make": lambda configuration: learner(configuration, tripwire=False)}
    others = [federation.join(name, **make) for name in federation.clients[:3]]
    ended = await federation.all_of(federation.join("client-4"), server, *others)
    assert ended[0].detail == REFUSED.format(FISHING)
    assert federation.rounds[0][0].survivors == federation.clients[:3]


@pytest.mark.asyncio
async def test_who_knows_the_tripwire_passes(federation: Any) -> None:
    """Rows that are nearly zero silence the other classes as well. Nothing is promised here."""
    fishes(federation)
    head = federation.keeper.model.head.weight
    with torch.no_grad():
        noise = 1e-6 * torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
        head[head == 0] = noise[head == 0]
    federation.keeper = Keeper(federation.configuration, federation.keeper.model)
    server = await federation.serve(rounds=1)
    await federation.all_of(server, *map(federation.join, federation.clients))
    assert federation.rounds[0][0].survivors == federation.clients


def test_an_honest_model_is_trained_as_without_the_tripwire(federation: Any) -> None:
    watched, trusting = (
        learner(federation.configuration, tripwire=tripwire).update(1, federation.keeper.bytes)
        for tripwire in (True, False)
    )
    np.testing.assert_array_equal(watched.words, trusting.words)
