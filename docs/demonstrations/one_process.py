"""A federation whose clients train in this process, one after the other, and whose vectors are added in the clear: its
models are those of a run with processes, in less time. For fedrsm_delay.py, fedrsm_options.py and quantisation.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tacit.models.data import Dataset, load
from tacit.models.partition import divide
from tacit.models.training import EVALUATION_BATCH, evaluate
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.task import Task, configure
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.federation.hosted_parties import client_seed, prepare_stimuli
from tacit.simulate.federation.hosting import weighed
from tacit.simulate.world.federation import added

CPU = torch.device("cpu")


@dataclass(frozen=True)
class FinishedRound:
    """What a round left."""

    number: int
    model: torch.nn.Module
    data: Dataset
    kept: list[int]
    """How many layers each client kept back."""
    clipped: int
    """Coordinates of all updates that were clipped."""

    def accuracy(self) -> float:
        """On the test images, in percent."""
        data = self.data
        return 100 * evaluate(self.model, data.x_test, data.y_test, batch_size=EVALUATION_BATCH, device=CPU).accuracy


def rounds(chosen: Experiment, seed: int) -> Iterator[FinishedRound]:
    """All rounds of an experiment."""
    data = load(chosen.data, image_size=chosen.model.image_size)
    labels = data.y_train.numpy()
    divided = divide(labels, chosen.data, clients=chosen.clients, seed=seed, centres=data.centres)
    parts = [np.setdiff1d(part, chosen.protection.shown(labels, data.classes)) for part in divided]
    chosen = weighed(chosen, parts)
    task = Task(
        model=chosen.model.architecture,
        training=chosen.training,
        protection=chosen.protection,
        encryption=chosen.encryption,
        classes=data.classes,
        channels=data.channels,
        stimuli=prepare_stimuli(chosen.protection, data),
    )
    model = task.build(seed=seed)
    configuration = configure(chosen.terms(), task, model)
    keeper, packing = Keeper(configuration, model, seed=seed), configuration.packing()
    clients = []
    for index, part in enumerate(parts):
        x, y = data.share(part)
        clients.append(Learner(configuration, x, y, seed=client_seed(seed, index), device=CPU))
    for number in range(1, chosen.federation.rounds + 1):
        updates = [client.update(number, keeper.bytes) for client in clients]
        total = added(packing, [update.words for update in updates])
        keeper.apply(keeper.decode(total, len(clients)))
        kept, clipped = [len(update.local.layers) for update in updates], sum(update.clipped for update in updates)
        yield FinishedRound(number, keeper.model, data, kept, clipped)
