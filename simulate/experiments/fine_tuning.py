"""`fine-tuning`: parts of a pretrained vision transformer that a federation trains, with and without noise on updates.

Real parties train all parameters of a checkpoint, low-rank products, parallel adapters, or the head alone. The noise
per sent coordinate is equal, so its norm grows with their number, while the largest norm of an update is fixed: at the
same epsilon, noise on all parameters is compared with noise on one in a hundred. A table of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration, Tuning
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.experiment import Aggregation, Deadlines, Experiment, FederationSection
from tacit.simulate.experiments.criteria import differences, verdict
from tacit.simulate.experiments.federations import TEST_ACCURACY, Arm, Federations
from tacit.simulate.experiments.measures import Values
from tacit.simulate.experiments.results import FederatedRun, Quantity, StudyResult, StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Size, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINED: Final = Quantity(name="trained", decimals=0)
SENT: Final = Quantity(name="sent by a client in a round", unit="MB")
EPSILON_UPDATE: Final = Quantity(name="epsilon of updates", decimals=0)
EPSILON_SUM: Final = Quantity(name="epsilon of sums", decimals=0)
TRAINING: Final = Quantity(name="training of a client in a round", unit="s", decimals=1)
COLUMNS: Final = (TEST_ACCURACY, TRAINED, SENT, TRAINING, EPSILON_UPDATE, EPSILON_SUM)

RATES: Final[dict[Tuning, float]] = {"head": 1e-2, "parallel": 3e-3, "lora": 3e-3, "all": 2e-5}
"""Learning rates, chosen by three epochs in one place."""
RATES_TEXT: Final = ", ".join(f"{rate:g} ({tune})" for tune, rate in RATES.items())
EPOCHS: Final = 2
NOISES: Final = (0.0, 0.03)
"""Standard deviation of the noise of a coordinate, as a multiple of the largest norm of an update."""
MEAN: Final = (0.485, 0.456, 0.406)
"""Mean of ImageNet's pixels, as in the checkpoint's training."""
STD: Final = (0.229, 0.224, 0.225)
NORM: Final = 1.0
CLIP: Final = 4.0
"""Clip of a coordinate; beyond the largest norm and the noise, so that no client's noise is clipped."""


def row(tune: Tuning, noise: float) -> str:
    return f"{tune}, noise {noise:g}" if noise else tune


def arm(tune: Tuning, noise: float, *, image_size: int, clients: int, rounds: int) -> Arm:
    """Return one row; the checkpoint is that of the command."""
    protection: Protection = GaussianNoise(dp_clip=NORM, dp_noise=noise) if noise else NoProtection()
    experiment = Experiment(
        federation=FederationSection(clients=clients, rounds=rounds),
        model=ModelConfiguration(
            name="vit_small_patch14_dinov2", image_size=image_size, checkpoint="that of --checkpoint", tune=tune
        ),
        training=TrainingConfiguration(epochs=EPOCHS, batch_size=8, learning_rate=RATES[tune], weight_decay=0.01),
        protection=protection,
        aggregation=Aggregation(clip=CLIP),
        policy=ClientPolicy(largest_clip=CLIP),
        deadlines=Deadlines(train=3600.0, phase=600.0),
    )
    return Arm(name=row(tune, noise), experiment=experiment)


def measured(arm: Arm, run: FederatedRun) -> Values:
    each = arm.experiment.clients * len(run.accuracies)
    return {
        TEST_ACCURACY.name: 100 * run.accuracy,
        TRAINED.name: float(run.parameters),
        SENT.name: run.cost.sent / each / 1e6,
        TRAINING.name: run.cost.training_seconds / each,
        EPSILON_UPDATE.name: run.epsilon_update,
        EPSILON_SUM.name: run.epsilon_sum,
    }


def size(*, image_size: int, clients: int, images: int, rounds: int, differences: tuple[str, ...]) -> Size:
    rows = tuple(
        arm(tune, noise, image_size=image_size, clients=clients, rounds=rounds) for tune in RATES for noise in NOISES
    )
    measure = Federations(
        values=measured, classes=(10,), images_per_client={10: images}, checkpoint=True, mean=MEAN, std=STD
    )
    return Size(rows=rows, measure=measure, differences=differences)


def _withstands(tune: Tuning) -> Claim:
    noise = NOISES[-1]
    names = [row(one, level) for one in ("all", tune) for level in (0.0, noise)]

    def judge(rows: Mapping[str, StudyRow]) -> Verdict:
        whole, part = (differences(rows[names[at]], rows[names[at + 1]]) for at in (0, 2))
        return verdict(
            {"loss of all less that of the part": [one - other for one, other in zip(whole, part, strict=True)]},
            claim=f"with noise {noise:g}, {tune} loses less accuracy than all parameters do",
            above=0.0,
        )

    return Claim(rows=tuple(names), judge=judge)


def draw(result: StudyResult) -> Figure:
    """Plot accuracy over bytes, a panel without and one with noise."""
    from matplotlib.figure import Figure

    from tacit.simulate.report.figures import PALETTE

    figure = Figure(figsize=(9.0, 3.6))
    panels = figure.subplots(1, len(NOISES), sharey=True)
    for axes, noise in zip(panels, NOISES, strict=True):
        for tune, colour in zip(RATES, PALETTE, strict=False):
            for found in (one for one in result.finished if one.name == row(tune, noise)):
                values = found.values(TEST_ACCURACY.name)
                axes.plot(found.values(SENT.name), values, "o", color=colour, label=tune)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("sent by a client in a round (MB)")
        epsilons = [value for one in result.finished for value in one.values(EPSILON_SUM.name)]
        title = f"noise {noise:g} of the norm" + f", epsilon {max(epsilons):,.0f} of sums" * bool(epsilons)
        axes.set_title(title if noise else "without noise", fontsize=9.5)
        axes.grid(axis="y")
    panels[0].set_ylabel("test accuracy (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(RATES))
    return figure


STUDY: Final = Study(
    name="fine-tuning",
    paper="A table of our own",
    shows="accuracy, bytes and epsilon by what of a pretrained vision transformer is trained",
    claim="adapters and heads send less than all parameters, and withstand noise at the same epsilon",
    settings=(
        ("model", "DINOv2 ViT-S/14, a checkpoint of timm's (--checkpoint)"),
        ("data", "CIFAR-10, or a part of it (--data)"),
        ("training", f"AdamW, batches of 8, {EPOCHS} epochs a round; learning rates {RATES_TEXT}"),
        ("noise", f"updates of a norm of {NORM:g} at most, and on each coordinate noise of {NOISES[-1]:g} of that"),
    ),
    columns=COLUMNS,
    full=size(image_size=224, clients=5, images=1000, rounds=10, differences=()),
    small=size(
        image_size=56, clients=3, images=60, rounds=3,
        differences=("56 x 56 pixels, three clients with 60 training images each, and 180 test images; three rounds",),
    ),
    claims=tuple(_withstands(tune) for tune in RATES if tune != "all"),
    draw=draw,
)  # fmt: skip
