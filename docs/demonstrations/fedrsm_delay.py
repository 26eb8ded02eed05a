"""How far FedRSM is behind FedAvg after 8, 10 and 16 rounds: the transformer of `fedrsm-table2 --small`, more seeds.

All clients train in this process, one after the other, and their vectors are added in the clear: the models are those
of a run with processes, in less time. Images are divided by Dirichlet (alpha = 1), the default of a run, where the
twin divides them evenly.

    python docs/demonstrations/fedrsm_delay.py [SEEDS]
"""

from __future__ import annotations

import statistics
import sys

import numpy as np
import torch
from msgspec import structs

from tacit.models.data import load
from tacit.models.partition import divide
from tacit.models.training import EVALUATION_BATCH, evaluate
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.task import Task, configure
from tacit.simulate.experiments.fedrsm_table2 import SMALL_MODELS, experiment
from tacit.simulate.federation.client_role import client_seed
from tacit.simulate.federation.server_role import prepare_stimuli

CPU = torch.device("cpu")
ROUNDS = (8, 10, 16)


def accuracies(method: str, seed: int) -> list[float]:
    """Test accuracy in percent after each of ROUNDS."""
    chosen = experiment(method, SMALL_MODELS["vit"], small=True)
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
    found = []
    for round in range(1, max(ROUNDS) + 1):
        total = np.zeros(packing.length, packing.ring.word)
        for client in clients:
            packing.ring.add_into(total, client.update(round, keeper.bytes).words)
        keeper.apply(keeper.decode(total, len(clients)))
        if round in ROUNDS:
            judged = evaluate(keeper.model, data.x_test, data.y_test, batch_size=EVALUATION_BATCH, device=CPU)
            found.append(100 * judged.accuracy)
    return found


def main(seeds: int) -> None:
    torch.set_num_threads(1)
    plain = np.array([accuracies("fedavg", seed) for seed in range(seeds)])
    print("fedavg", *(f"{mean:.1f}" for mean in plain.mean(axis=0)))
    for method in ("fedrsm", "fedrsm-lowest"):
        differences = np.array([accuracies(method, seed) for seed in range(seeds)]) - plain
        errors = [statistics.stdev(column) / seeds**0.5 for column in differences.T]
        print(
            method,
            *(f"{mean:+.1f} ± {error:.1f}" for mean, error in zip(differences.mean(axis=0), errors, strict=True)),
        )
        print(
            f"  single seeds after {ROUNDS[0]} rounds: {differences[:, 0].min():+.1f} to {differences[:, 0].max():+.1f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
