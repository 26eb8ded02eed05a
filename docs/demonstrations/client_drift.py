"""Why adapters lose to linear probing where clients have one class or two each: clients drift between two means.

The clients of `tacit experiment tastan-table1 --small` at alpha = 0.01 take about as many steps as there, from the same
backbone, but send what they have learned after fewer of them.

    python docs/demonstrations/client_drift.py FILE.npz [SEED]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from tacit.models.adapters.configuration import LinearProbeConfiguration
from tacit.models.adapters.federated import FullBatches, OneEpoch, RoundWork, Schedule
from tacit.simulate.experiments.adaptation import AdaptationSettings, adaptations
from tacit.simulate.experiments.adaptation_images import ByDirichlet
from tacit.simulate.experiments.adaptation_methods import BesideBlocks, Setting
from tacit.simulate.experiments.adaptation_runs import prepare
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.tastan_tables import OURS, PROBING, TABLE1, TWIN_BLOCK

CPU = torch.device("cpu")
METHODS = {PROBING: BesideBlocks(configuration=LinearProbeConfiguration()), OURS: BesideBlocks()}
RATE = 0.05
"""That of the table with --data."""


def main(file: str, seed: int) -> None:
    torch.set_num_threads(1)
    size = TABLE1.size(small=True)
    assert isinstance(size.measure, AdaptationSettings)
    request = Request(seeds=(seed,), data=Path(file), device="cpu", out=Path("."))
    work = prepare(size.measure, adaptations(size.rows), request)
    backbone = work.backbone(TWIN_BLOCK.owned, seed, lambda event: print(event.text))
    target = work.tasks[TWIN_BLOCK.adapted_to]
    shares = ByDirichlet(clients=5, alpha=0.01).divide(target.train.labels.numpy(), None, seed=seed)
    clients = [target.train.part(share) for share in shares]
    for number, client in enumerate(clients, start=1):
        print(f"client {number} has of each class:", *np.bincount(client.labels.numpy(), minlength=target.classes))
    setting = Setting(
        backbone=backbone,
        classes=target.classes,
        device=CPU,
        clients=clients,
        test=target.test,
        clients_outputs=[work.outputs(backbone, client) for client in clients],
        test_outputs=work.outputs(backbone, target.test),
    )
    steps = round(float(np.mean([np.ceil(len(share) / size.measure.batch_size) for share in shares])))
    ways: dict[str, tuple[int, RoundWork]] = {
        f"an epoch, {steps} steps on average": (size.measure.rounds, OneEpoch(size.measure.batch_size)),
        "4 steps": (size.measure.rounds * (steps // 4), FullBatches(size.measure.batch_size, 4)),
        "1 step": (size.measure.rounds * steps, FullBatches(size.measure.batch_size, 1)),
    }
    for name, (rounds, batches) in ways.items():
        schedule = Schedule(rounds=rounds, learning_rate=RATE, decay_rounds=(rounds // 2, rounds * 4 // 5))
        found = [
            f"{what} {method.learn(setting, schedule, batches, seed=seed):.3f}" for what, method in METHODS.items()
        ]
        print(f"a mean after {name}, {rounds} rounds:", *found, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
