"""Random binary weights (Sawada et al. 2024) on a convolutional network, where the paper has transformers alone.

LeNet with the settings of `fedrsm-table2 --small`, images divided evenly, and the schemes of `sawada-fig5` but for the
fixed position embedding, which LeNet has none of.

All clients train in this process, one after the other, and their vectors are added in the clear.

    python docs/demonstrations/binary_weights_cnn.py [SEEDS]
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from msgspec import structs
from one_process import rounds

from tacit.models.configuration import DataConfiguration
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.simulate.experiments.criteria import half_width
from tacit.simulate.experiments.fedrsm_table2 import SMALL_MODELS, experiment
from tacit.simulate.experiments.sawada import BINARY, locked


def accuracies(protection: Protection, seed: int) -> list[float]:
    """Test accuracy in percent after each round."""
    chosen = experiment("fedavg", SMALL_MODELS["lenet"], small=True)
    chosen = structs.replace(chosen, data=DataConfiguration(partition="iid"), protection=protection)
    return [each.accuracy() for each in rounds(chosen, seed)]


def main(seeds: int) -> None:
    torch.set_num_threads(1)
    plain = np.array([accuracies(NoProtection(), seed) for seed in range(seeds)])
    print("unprotected", *(f"{mean:.1f}" for mean in plain.mean(axis=0)), flush=True)
    for name, protection in (BINARY | locked(0.8)).items():
        found = np.array([accuracies(protection, seed) for seed in range(seeds)])
        print(name, *(f"{mean:.1f}" for mean in found.mean(axis=0)))
        apart = found[:, -1] - plain[:, -1]
        print(
            f"  less unprotected, at the end: {apart.mean():+.1f} ± {half_width(apart.tolist()):.1f} (95 %)", flush=True
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
