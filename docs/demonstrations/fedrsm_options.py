"""What fewer pairs of stimuli and an adaptive number of layers come to: FedRSM on the LeNet of `fedrsm-table2 --small`.

All clients train in this process, one after the other, and their vectors are added in the clear. What is chosen on
the paper's 50 pairs is chosen once more on fewer, of the same models, by sides with a memory of their own.

    python docs/demonstrations/fedrsm_options.py [SEEDS]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from typing import ClassVar

import numpy as np
import torch
from msgspec import structs

from tacit.models.data import load
from tacit.models.layers import Layer
from tacit.models.layout import Flat
from tacit.models.partition import divide
from tacit.models.representation import PAIRS
from tacit.models.training import EVALUATION_BATCH, evaluate
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.fedrsm import FedRSM, FedRSMClient
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.protections.sides import Basis
from tacit.simulate.experiments.data import find
from tacit.simulate.experiments.fedrsm_table2 import SMALL_MODELS, experiment
from tacit.simulate.federation.client_role import client_seed
from tacit.simulate.federation.server_role import prepare_stimuli

CPU = torch.device("cpu")
COUNTS = (PAIRS, 20, 10, 5, 3)
ARMS: dict[str, Protection] = {
    "fedavg": NoProtection(),
    "one layer": FedRSM(),
    "one layer, never the classifier": FedRSM(send_classifier=True),
    "two layers": FedRSM(masked_layers=2),
    "adaptive, at most three": FedRSM(masked_layers=3, adaptive=True),
}


class Watched(FedRSMClient):
    """Chooses on other numbers of pairs too, and counts."""

    agreed: ClassVar[Counter[int]] = Counter()
    seconds: ClassVar[dict[int, list[float]]] = {count: [] for count in COUNTS}

    def __init__(self, basis: Basis, protection: FedRSM) -> None:
        super().__init__(basis, protection)
        self._others = {count: FedRSMClient(basis, structs.replace(protection, pairs=count)) for count in COUNTS}

    def choose(self, trained: torch.nn.Module, model: Flat) -> list[Layer]:
        layout = self.basis.layout
        learnt = layout.flatten(trained)
        found: dict[int, list[Layer]] = {}
        for count, other in self._others.items():
            layout.load_into(trained, learnt)
            begin = time.perf_counter()
            found[count] = other.choose(trained, model)
            self.seconds[count].append(time.perf_counter() - begin)
            self.agreed[count] += found[count] == found[PAIRS]
        return found[PAIRS]


def run(protection: Protection, seed: int) -> tuple[float, list[int]]:
    """Test accuracy in percent after the last round, and how many layers each client kept back in each round."""
    chosen = structs.replace(
        experiment("fedavg", SMALL_MODELS["lenet"], small=True),
        data=find(None, small=True, clients=5, halved=False).configuration,
        protection=protection,
    )
    data = load(chosen.data, image_size=chosen.model.image_size)
    labels = data.y_train.numpy()
    chosen = structs.replace(chosen, aggregation=structs.replace(chosen.aggregation, max_weight=len(labels)))
    task = Task(
        model=chosen.model,
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
    shares = divide(labels, chosen.data, clients=chosen.federation.clients, seed=seed, centres=data.centres)
    for index, share in enumerate(shares):
        x, y = data.share(np.setdiff1d(share, chosen.protection.shown(labels, data.classes)))
        clients.append(Learner(configuration, x, y, seed=client_seed(seed, index), device=CPU))
    kept = []
    for round in range(1, chosen.federation.rounds + 1):
        total = np.zeros(packing.length, packing.ring.word)
        for client in clients:
            update = client.update(round, keeper.bytes)
            kept.append(len(update.local.layers))
            packing.ring.add_into(total, update.words)
        keeper.apply(keeper.decode(total, len(clients)))
    judged = evaluate(keeper.model, data.x_test, data.y_test, batch_size=EVALUATION_BATCH, device=CPU)
    return 100 * judged.accuracy, kept


def main(seeds: int) -> None:
    torch.set_num_threads(1)
    for name, protection in ARMS.items():
        found = [run(protection, seed) for seed in range(seeds)]
        counts = Counter(count for _, kept in found for count in kept)
        print(name, *(f"{accuracy:.2f}" for accuracy, _ in found), "layers:", dict(sorted(counts.items())), flush=True)
    # A task travels as bytes and comes back as FedRSM itself, whose clients are therefore watched.
    FedRSM.client = lambda protection, basis: Watched(basis, protection)  # type: ignore[method-assign]
    for seed in range(seeds):
        run(FedRSM(), seed)
    choices = Watched.agreed[PAIRS]
    for count in COUNTS:
        milliseconds = 1000 * statistics.median(Watched.seconds[count])
        print(f"{count} pairs: {Watched.agreed[count]} of {choices} as on {PAIRS}, {milliseconds:.2f} ms a choice")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
