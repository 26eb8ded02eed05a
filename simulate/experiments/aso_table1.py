"""Table I of Aso et al. 2023: test accuracy with and without model encryption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tacit.models.configuration import TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.encryption import Encryption
from tacit.parties.runs.experiment import Aggregation
from tacit.simulate.experiments import sawada
from tacit.simulate.experiments.criteria import differences
from tacit.simulate.experiments.federations import TEST_ACCURACY, Arm, Federations
from tacit.simulate.experiments.results import StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Size, Study

CLIP: Final = 16.0
"""Beyond the largest coordinate: clipping would affect an encrypted gradient in other places than a plain one."""
SUMS: Final[dict[str, dict[str, Any]]] = {
    "plain-sum": {
        "aggregation": Aggregation(mode="none", value_bits=32, clip=CLIP),
        "policy": ClientPolicy(modes=("none",), largest_clip=CLIP, accept_known_plaintext=True),
    },
    "secure-sum": {
        "aggregation": Aggregation(mode="active", value_bits=32, clip=CLIP),
        "policy": ClientPolicy(largest_clip=CLIP),
    },
}
KNOWN_PLAINTEXT: Final = (
    "the server knows the plain first model, as in the paper, so that the encryption hides nothing from it "
    "(docs/threat-model.md): these runs compare accuracies"
)
ROUNDING: Final = (
    "in secure-sum updates are clipped to 16 and rounded to 32 bits at random, once encrypted, and added as integers; "
    "in plain-sum the server adds floats, as the paper's does (figures from before wire version 5 were clipped and "
    "rounded in both)"
)
SCHEMES: Final = {
    "unencrypted": None,
    # From the server's model, as in the paper.
    "orthogonal": Encryption(matrix="orthogonal", initial_model="server"),
    "gaussian": Encryption(matrix="gaussian", initial_model="server"),
}


def arms(*, small: bool) -> tuple[Arm, ...]:
    """Return arms without encryption and with both kinds of matrix, in the clear and under secure aggregation."""
    twin = TrainingConfiguration(algorithm="fedsgd", learning_rate=0.005, batch_size=256)
    return tuple(
        Arm(
            name=f"{how}-{name}",
            experiment=sawada.small(rounds=30, training=twin, encryption=encryption, **sections)
            if small
            else sawada.full(pretrained=True, encryption=encryption, **sections),
            pretrained=True,
            published={TEST_ACCURACY.name: "89.77" if how == "plain-sum" else "not in the table"},
        )
        for how, sections in SUMS.items()
        for name, encryption in SCHEMES.items()
    )


def _unchanged(how: str, name: str, article: str) -> Claim:
    plain, encrypted = f"{how}-unencrypted", f"{how}-{name}"

    def judge(rows: Mapping[str, StudyRow]) -> Verdict:
        images = rows[plain].federated[0].test_images
        off = [round(images * difference) for difference in differences(rows[encrypted], rows[plain])]
        clipped = sum(run.clipped for row in rows.values() for run in row.federated)
        return Verdict(
            claim=f"{how}: encryption with {article} {name} matrix does not change the accuracy",
            criterion=f"with every seed the two differ by at most one of the {images:,} test images",
            reproduced=max(map(abs, off)) <= 1,
            detail=f"differences of {', '.join(f'{value:+d}' for value in off)} images; "
            f"{clipped} coordinates were clipped",
        )

    return Claim(rows=(plain, encrypted), judge=judge)


STUDY: Final = Study(
    name="aso-table1",
    paper="Aso, Shiota and Kiya 2023, Enhanced Security with Encrypted Vision Transformer in Federated Learning",
    shows="Table I, test accuracy without and with model encryption",
    claim="encryption does not change the accuracy: 89.77 % without and with it",
    settings=(
        ("data", "CIFAR-10: 50,000 training and 10,000 test images, resized from 32 x 32 to 224 x 224"),
        ("model", "ViT with P = 16, N = 196 and D = 384, pre-trained with ImageNet: vit_small_patch16_224"),
        ("clients", "5, with 10,000 images each, drawn at random without duplicates"),
        ("algorithm", "FedSGD (Eq. 8)"),
        ("E_a", "random real numbers, invertible; E_b a permutation that fixes the class token"),
    ),
    silent=(
        "the learning rate: 0.0001, which later work of the same group uses",
        "the number of rounds: 10 of one epoch each",
        "the batch size: 16",
        "the distribution of E_a: normal (`gaussian`), and `orthogonal`, which loses no precision",
    ),
    full=Size(
        rows=arms(small=False),
        measure=Federations(classes=(10,)),
        differences=(
            "an epoch is a round: every client takes the SGD steps of its epoch before the updates are averaged, where "
            "the paper averages gradients; to first order in the learning rate both move the model alike",
            KNOWN_PLAINTEXT,
            ROUNDING,
        ),
    ),
    small=Size(
        rows=arms(small=True),
        measure=Federations(pretraining=TrainingConfiguration(epochs=8, batch_size=16, learning_rate=0.003)),
        differences=(
            "digits (8 x 8, grey) or the images of --data, resized to 16 x 16, instead of CIFAR-10 at 224 x 224",
            "a vision transformer of width 32, depth 2 and 4 x 4 patches instead of ViT-S/16",
            "pre-training: 8 epochs on one half of the training images, which has the same classes; the clients share "
            "the other half",
            "30 rounds of FedSGD, each with the gradient over all images of a client, learning rate 0.005",
            KNOWN_PLAINTEXT,
            ROUNDING,
        ),
    ),
    claims=tuple(
        _unchanged(how, name, article) for how in SUMS for name, article in (("orthogonal", "an"), ("gaussian", "a"))
    ),
)
