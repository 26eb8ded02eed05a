"""`tastan-reveal`: outputs of blocks that Tastan and Nandakumar 2025 reveal to data owners, and the consequences.

Real parties adapt a model (simulate/adaptation) three times with the same images, batches and initial adapters: data
owners receive no outputs, those of sampled blocks, or of all. The same rounds run in the clear for comparison. The
outputs of one data owner then serve to copy blocks (tastan_reveal_runs.py). A table of our own. Loads no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from tacit.models.adapters.configuration import AdaptationConfiguration
from tacit.models.configuration import TrainingConfiguration
from tacit.simulate.experiments import tastan_reveal_settings as columns
from tacit.simulate.experiments.criteria import verdict
from tacit.simulate.experiments.data import find
from tacit.simulate.experiments.measures import Prepared, Request, Row
from tacit.simulate.experiments.page import points
from tacit.simulate.experiments.results import StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Size, Study
from tacit.simulate.experiments.tastan_reveal_settings import CLEAR, COLUMNS, ROWS, RevealSettings, experiment
from tacit.simulate.experiments.tastan_tables import PAPER, TWIN, VIT

AS_ACCURATE: Final = 0.01
"""Largest mean loss of accuracy, compared with the rounds in the clear."""
AGREES: Final = 0.9
"""Fraction of images with the victim's label from which on blocks count as copied."""


@dataclass(frozen=True, kw_only=True)
class RevealedOutputs(RevealSettings):
    """Adapt a model by real parties, with another reveal in every row; see Measure."""

    def summary(self, rows: Sequence[Row]) -> str:
        rounds = self.experiment.federation.rounds
        return f"{self.experiment.model.name}, {rounds} rounds, {'CIFAR-10' if self.classes else 'digits or --data'}"

    def prepare(self, name: str, rows: Sequence[Row], request: Request) -> Prepared:
        # Imported here: it loads torch.
        from tacit.simulate.experiments.tastan_reveal_runs import PreparedReveals

        images = find(request.data, clients=self.experiment.clients, halved=False, classes=self.classes)
        return PreparedReveals(settings=self, images=images, request=request)


def _as_accurate(rows: Mapping[str, StudyRow]) -> Verdict:
    ours, clear = (rows[name].values(columns.ACCURACY.name) for name in ("none", CLEAR))
    return verdict(
        {"none less in the clear": [one - other for one, other in zip(ours, clear, strict=True)]},
        claim=f"with none it is at most {100 * AS_ACCURATE:.0f} point less accurate than in the clear",
        above=-AS_ACCURATE,
    )


def _copies(name: str, rows: Mapping[str, StudyRow]) -> Verdict:
    agreement, without, ordered = (
        statistics.mean(rows[name].values(quantity.name))
        for quantity in (columns.AGREEMENT, columns.WITHOUT, columns.ORDERED)
    )
    return Verdict(
        claim=f"{name}: one data owner copies the blocks",
        criterion=f"with copies in their place the victim keeps its label for {100 * AGREES:.0f} % of the test "
        "images or more, the mean over the seeds",
        reproduced=agreement >= AGREES,
        detail=f"agreement {100 * agreement:.1f} %, without the blocks {100 * without:.1f} %; {ordered:.1f} % of the "
        "secret orders found",
    )


READING: Final = (
    "the paper measures no attack; the rows have the same images, batches and first adapters, and parties are "
    "processes of one machine, a thread each, over loopback",
    "sent, online phase and waiting are medians over all batches of all data owners: the online phase is a pass and "
    "its step, waiting is for the dealer's preprocessing, as all data owners learn at once",
    "what was revealed to a data owner for its batches is derived, not recorded: by the same rule and in fresh secret "
    "orders, of outputs computed in the clear, which those of a pass equal but for fixed-point rounding; those are of "
    "its own images alone",
    "the relative orders, which are revealed too, are not used: it matches outputs",
    "blocks before the first output that is revealed are not copied, and the model is put together with its own for "
    "these, its own last norm and its own head; sampled never reveals the output of the last block but one, so that "
    "the last two are copied as one",
    "with none no output of a block is revealed: there is nothing to copy from, and what follows from adapters and "
    "head, which are opened in every row, was not attacked",
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


_ROWS: Final = tuple(Row(name=name) for name in ROWS)
STUDY: Final = Study(
    name="tastan-reveal",
    paper=PAPER,
    shows="accuracy, costs and copied blocks by the outputs of blocks that are revealed; not in the paper",
    claim="data owners to whom outputs of blocks are revealed in secret orders, or of sampled blocks, cannot extract "
    "the model",
    columns=COLUMNS,
    full=Size(
        rows=_ROWS,
        measure=RevealedOutputs(
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
            classes=(10,),
        ),
        differences=FULL_DIFFERENCES,
    ),
    small=Size(
        rows=_ROWS,
        measure=RevealedOutputs(
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
        ),
        differences=SMALL_DIFFERENCES,
    ),
    claims=(
        Claim(rows=("none", CLEAR), judge=_as_accurate),
        *(Claim(rows=(name,), judge=partial(_copies, name)) for name in ("sampled", "all")),
    ),
    draw=lambda result: points(result, columns.ACCURACY.name, columns.ONLINE.name, columns.AGREEMENT.name),
)
