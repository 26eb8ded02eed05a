"""How far FedRSM is behind FedAvg after 8, 10 and 16 rounds: the transformer of `fedrsm-table2 --small`, more seeds.

All clients train in this process, one after the other, and their vectors are added in the clear: the models are those
of a run with processes, in less time. Images are divided as in the twin, evenly.

    python docs/demonstrations/fedrsm_delay.py [SEEDS]
"""

from __future__ import annotations

import statistics
import sys

import numpy as np
import torch
from msgspec import structs
from one_process import rounds

from tacit.models.configuration import DataConfiguration
from tacit.simulate.experiments.fedrsm_table2 import SMALL_MODELS, experiment

ROUNDS = (8, 10, 16)


def accuracies(method: str, seed: int) -> list[float]:
    """Test accuracy in percent after each of ROUNDS."""
    chosen = experiment(method, SMALL_MODELS["vit"], small=True)
    federation = structs.replace(chosen.federation, rounds=max(ROUNDS))
    chosen = structs.replace(chosen, federation=federation, data=DataConfiguration(partition="iid"))
    return [each.accuracy() for each in rounds(chosen, seed) if each.number in ROUNDS]


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
