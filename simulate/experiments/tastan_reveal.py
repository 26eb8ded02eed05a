"""What Tastan and Nandakumar 2025 tell data owners of outputs of blocks, and what comes of it: a table of our own.

Real parties adapt a model (simulate/adaptation) three times with the same images, batches and first adapters: data
owners are told nothing, outputs of sampled blocks, or of all. The same rounds in the clear stand beside it. What one
data owner was told is then used to copy blocks (tastan_reveal_runs.py). Loads no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tacit.models.adapters.configuration import AdaptationConfiguration, Reveal
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import FederationSection
from tacit.simulate.experiments.study import Claim, ClaimVerdict, verdict
from tacit.simulate.experiments.tastan_tables import PAPER, TWIN, VIT

CLEAR: Final = "in the clear"
REVEALS: Final[tuple[Reveal, ...]] = ("none", "sampled", "all")
ROWS: Final = (CLEAR, *REVEALS)
AS_ACCURATE: Final = 0.01
"""How far below the rounds in the clear the accuracy may be on average."""
AGREES: Final = 0.9
"""Share of the images with the victim's label from which on blocks count as copied."""


class CopyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a data owner made of what it was told."""

    told: int
    """Outputs of single images."""
    ordered: float
    """Share of those that were given to their own image, but for the last block's."""
    errors: list[float]
    """Of each copy, on pairs that were held out."""
    agreement: float
    """Of the victim with copies in the place of its blocks, with the victim: a share of the test images."""
    without: float
    """The same with these blocks left out."""


class RevealFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row with one seed."""

    row: str
    seed: int
    accuracy: float
    """Balanced, on the test images after the last round, 0 to 1."""
    data_owner_bytes: float | None = None
    """Sent for one batch by a data owner: the median. None, here and below: not by parties."""
    model_owner_bytes: float | None = None
    seconds: float | None = None
    """Of one batch online: the median."""
    waited_seconds: float | None = None
    """For the material of a batch: the median."""
    refused: int | None = None
    """Batches that were out of range."""
    copied: CopyFigures | None = None
    """None: nothing was told."""


@dataclass(frozen=True, kw_only=True)
class RevealSize:
    """The settings of one size."""

    experiment: AdaptationExperiment
    """Without data, seed, known classes and what is told."""
    copy_epochs: int
    copy_learning_rate: float
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RevealTable(Claim):
    """The table."""

    small: RevealSize
    full: RevealSize

    def size(self, *, small: bool) -> RevealSize:
        """Its settings."""
        return self.small if small else self.full


def of(figures: Sequence[RevealFigures], row: str) -> list[RevealFigures]:
    """Those of a row, in the order of the seeds."""
    return [entry for entry in figures if entry.row == row]


def judge(figures: Sequence[RevealFigures]) -> list[ClaimVerdict]:
    """What holds of the three ways, by criteria that were fixed before the runs."""
    pairs = zip(of(figures, "none"), of(figures, CLEAR), strict=True)
    found = [
        verdict(
            {"none less in the clear": [one.accuracy - other.accuracy for one, other in pairs]},
            claim=f"with none it is at most {100 * AS_ACCURATE:.0f} point less accurate than in the clear",
            above=-AS_ACCURATE,
        )
    ]
    for row in ("sampled", "all"):
        copied = [entry.copied for entry in of(figures, row) if entry.copied is not None]
        agreement, ordered = ([getattr(each, name) for each in copied] for name in ("agreement", "ordered"))
        found.append(
            ClaimVerdict(
                claim=f"{row}: one data owner copies the blocks",
                criterion=f"with copies in their place the victim keeps its label for {100 * AGREES:.0f} % of the test "
                "images or more, the mean over the seeds",
                holds=statistics.mean(agreement) >= AGREES,
                detail=f"agreement {100 * statistics.mean(agreement):.1f} %, without the blocks "
                f"{100 * statistics.mean(each.without for each in copied):.1f} %; "
                f"{100 * statistics.mean(ordered):.1f} % of the secret orders found",
            )
        )
    return found


READING: Final = (
    "the paper measures no attack; the rows have the same images, batches and first adapters, and parties are "
    "processes of one machine, a thread each, over loopback",
    "sent, seconds and waiting are medians over all batches of all data owners: seconds are those of a pass and its "
    "step, waiting is for the dealer's material, as all data owners learn at once",
    "what a data owner was told for its batches is derived, not recorded: by the same rule and in fresh secret orders, "
    "of outputs computed in the clear, which those of a pass equal but for fixed-point rounding; those are "
    "of its own images alone",
    "the relative orders, which a data owner is told too, are not used: it matches outputs",
    "blocks before the first output that is told are not copied, and the model is put together with its own for these, "
    "its own last norm and its own head; sampled never tells the output of the last block but one, so that the last "
    "two are copied as one",
    "with none no output of a block is told: there is nothing to copy from, and what follows from adapters and head, "
    "which are opened in every row, was not attacked",
)
SMALL_DIFFERENCES: Final = (
    *READING,
    "the first half of the classes of digits, or of the images of --data, is the owner's, and three data owners adapt "
    "to the second half; resized to 16 x 16",
    "a vision transformer of width 32, depth 4 and patches of 8 x 8 pixels, with its own functions, trained for 20 "
    "epochs on the owner's images, in place of ViT-B/16 at 384 x 384",
    "30 rounds of one batch of 16 images for each data owner, the learning rate 0.1, 0.01 after 20",
)
FULL_DIFFERENCES: Final = (
    *READING,
    "the first half of the classes of CIFAR-10 is the owner's, who trains ViT-B on it for 5 epochs, and the data "
    "owners adapt to the second half",
    "a round has 16 batches of each data owner; the paper's text gives it one",
)


def experiment(
    *,
    model: ModelConfiguration,
    training: TrainingConfiguration,
    clients: int,
    rounds: int,
    epochs: int,
    adaptation: AdaptationConfiguration,
) -> AdaptationExperiment:
    """What parties run by."""
    return AdaptationExperiment(
        federation=FederationSection(clients=clients, rounds=rounds),
        model=model,
        data=DataConfiguration(partition="iid"),
        training=training,
        adaptation=msgspec.structs.replace(adaptation, backbone_epochs=epochs),
    )


REVEAL: Final = RevealTable(
    name="tastan-reveal",
    paper=PAPER,
    shows="accuracy, costs and copied blocks by what data owners are told of outputs of blocks; not in the paper",
    claim="data owners who are told outputs of blocks in secret orders, or of sampled blocks, cannot extract the model",
    small=RevealSize(
        experiment=experiment(
            model=msgspec.structs.replace(TWIN, patch_size=8),
            training=TrainingConfiguration(batch_size=32, learning_rate=2e-3),
            clients=3,
            rounds=30,
            epochs=20,
            adaptation=AdaptationConfiguration(learning_rate=0.1, decay_rounds=(20,)),
        ),
        copy_epochs=150,
        copy_learning_rate=1e-2,
        differences=SMALL_DIFFERENCES,
    ),
    full=RevealSize(
        experiment=experiment(
            model=VIT,
            training=TrainingConfiguration(batch_size=16, learning_rate=1e-5),
            clients=5,
            rounds=50,
            epochs=5,
            adaptation=AdaptationConfiguration(batches=16, learning_rate=1e-3, decay_rounds=(25, 40)),
        ),
        copy_epochs=40,
        copy_learning_rate=1e-3,
        differences=FULL_DIFFERENCES,
    ),
)
