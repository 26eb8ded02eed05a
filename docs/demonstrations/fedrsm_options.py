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

import torch
from msgspec import structs
from one_process import rounds

from tacit.models.layers import Layer
from tacit.models.layout import Flat
from tacit.models.representation import PAIRS
from tacit.parties.protections.fedrsm import FedRSM, FedRSMClient
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.protections.sides import Basis
from tacit.simulate.experiments.data import find
from tacit.simulate.experiments.fedrsm_table2 import SMALL_MODELS, experiment

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
        data=find(None, clients=5, halved=False).configuration,
        protection=protection,
    )
    finished = list(rounds(chosen, seed))
    return finished[-1].accuracy(), [count for each in finished for count in each.kept]


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
