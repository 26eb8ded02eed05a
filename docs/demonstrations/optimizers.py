"""Server optimisers, FedProx and a schedule on images that clients share unevenly, plain and under the secure sum.

    tacit experiment docs/demonstrations/optimizers.py --small --seeds 0-2
    tacit experiment docs/demonstrations/optimizers.py --seeds 0-2 --data CIFAR10.npz

The small size takes digits, the full one CIFAR-10.
"""

from __future__ import annotations

from typing import Any, Final

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.simulate.experiments.federations import Arm, Federations
from tacit.simulate.experiments.study import Size, Study

CLIENTS, ROUNDS, ALPHA = 5, 10, 0.1
METHODS: Final[dict[str, dict[str, Any]]] = {
    "FedAvg": {},
    "FedAvgM": {"server_optimizer": "momentum", "server_momentum": 0.9, "server_learning_rate": 0.5},
    "FedAdam": {"server_optimizer": "adam", "server_momentum": 0.9, "server_learning_rate": 0.003},
    "FedProx": {"proximal": 0.1},
    "FedAvg, warm-up and cosine": {"warmup_rounds": 2, "cosine_rounds": ROUNDS - 2},
}
MODES: Final = {"plain": "none", "secure sum": "active"}


def size(model: ModelConfiguration, images: int, difference: str) -> Size:
    rows = tuple(
        Arm(
            name=f"{method}, {name}",
            experiment=Experiment(
                federation=FederationSection(clients=CLIENTS, rounds=ROUNDS),
                model=model,
                training=TrainingConfiguration(epochs=2, batch_size=16, learning_rate=1e-3, **keys),
                aggregation=Aggregation(mode=mode),
                policy=ClientPolicy(modes=(mode,)),
            ),
        )
        for method, keys in METHODS.items()
        for name, mode in MODES.items()
    )
    classes, share = ((10,), {10: images}) if images else ((), {})
    return Size(
        rows=rows,
        measure=Federations(alpha=ALPHA, classes=classes, images_per_client=share),
        differences=(difference,),
    )


STUDY: Final = Study(
    name="optimizers",
    paper="A table of our own",
    shows=f"accuracy by optimiser and schedule, {CLIENTS} clients, classes by Dirichlet({ALPHA:g})",
    claim="none; a comparison",
    settings=(("training", f"AdamW, batches of 16, 2 epochs in each of {ROUNDS} rounds, learning rate 0.001"),),
    full=size(
        ModelConfiguration(image_size=32, patch_size=8, width=64, depth=2, heads=4),
        200,
        "a small vision transformer, 200 training images of CIFAR-10 a client",
    ),
    small=size(ModelConfiguration(image_size=8, patch_size=4, width=32, depth=1, heads=2), 0, "digits of 8 x 8 pixels"),
)
