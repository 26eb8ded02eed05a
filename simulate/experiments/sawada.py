"""Common parts of the studies of Sawada et al. 2024: the compared schemes, and the paper's settings.

The studies of Aso et al. 2023, of the same group, have the same model and training in the full size, and the same twin.
"""

from __future__ import annotations

from typing import Any, Final

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.binary_weights import BinaryWeights, LockedBinaryWeights
from tacit.parties.protections.fixed_position import FixedPosition
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.experiment import Aggregation, Deadlines, Experiment, FederationSection

PAPER: Final = (
    "Sawada, Imaizumi and Kiya 2024, Enhancing Security Using Random Binary Weights in Privacy-Preserving Federated "
    "Learning"
)
ZERO_PROBABILITIES: Final = (0.2, 0.5, 0.8)
CLIENTS: Final = 5
ROUNDS: Final = 10
"""m of Fig. 6; the text does not give the number of epochs in Fig. 5."""
SETTINGS: Final = (
    ("data", "CIFAR-10: 50,000 training and 10,000 test images, resized bilinearly from 32 x 32 to 224 x 224"),
    ("model", "vit_small_patch16_224, pre-trained with ImageNet or not"),
    ("clients", "5"),
    ("algorithm", "FedSGD (Eq. 10 and 12), learning rate 0.0001"),
    ("R, the probability of a zero", "0.2, 0.5 and 0.8, the same for all layers; new binary weights in every epoch"),
)
SILENT: Final = (
    "the number of epochs (Fig. 6 has m = 10): 10 rounds",
    "the batch size: 16",
    "the division of the images: at random, equal shares",
    "momentum, weight decay and the order of images: plain SGD in a random order",
)
LOCAL_EPOCH: Final = (
    "an epoch is a round: every client takes the SGD steps of its epoch before the updates are averaged, where the "
    "paper averages the gradients of every batch; to first order in the learning rate both move the model alike"
)
SECURE_SUM: Final = (
    "updates are clipped to 0.25, rounded to 24 bits at random and summed by secure aggregation; the paper's server "
    "sees floats in the clear"
)

AGGREGATION: Final = Aggregation(value_bits=24)
POLICY: Final = ClientPolicy(uncoordinated_weights=True)
"""The paper's clients draw their weights independently."""
BINARY: Final[dict[str, Protection]] = {
    f"binary-weights-{zero}": BinaryWeights(zero_probability=zero) for zero in ZERO_PROBABILITIES
}
FIXED: Final[dict[str, Protection]] = {"fixed-position": FixedPosition()}


def locked(zero: float) -> dict[str, Protection]:
    return {f"locked-binary-weights-{zero}": LockedBinaryWeights(zero_probability=zero)}


def full(*, pretrained: bool, **sections: Any) -> Experiment:
    return Experiment(
        federation=FederationSection(clients=CLIENTS, rounds=ROUNDS),
        model=ModelConfiguration(name="vit_small_patch16_224", image_size=224, pretrained=pretrained),
        training=TrainingConfiguration(
            algorithm="fedavg", epochs=1, batch_size=16, learning_rate=1e-4, optimizer="sgd", weight_decay=0.0
        ),
        # On a CPU an epoch of 10,000 images takes hours.
        deadlines=Deadlines(join=600.0, train=86400.0, phase=600.0),
        **{"aggregation": AGGREGATION, "policy": POLICY, **sections},
    )


SMALL_DIFFERENCES: Final = (
    "digits (8 x 8, grey) or the images of --data, resized to 16 x 16, instead of CIFAR-10 at 224 x 224",
    "a vision transformer of width 32, depth 2 and 4 x 4 patches, 18,602 parameters for digits, instead of ViT-S/16",
)


def small(*, rounds: int, **sections: Any) -> Experiment:
    return Experiment(
        federation=FederationSection(clients=CLIENTS, rounds=rounds),
        model=ModelConfiguration(image_size=16, patch_size=4, width=32, depth=2, heads=4),
        **{"aggregation": AGGREGATION, "policy": POLICY, **sections},
    )
