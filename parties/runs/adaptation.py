"""The experiment of `tacit adapt`, and a data owner's trained adapters.

The experiment is that of `tacit simulate` with two more sections, [adapter] and [adaptation] (docs/adaptation-file.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, convert, structs

from tacit.models.adapters.configuration import AdaptationConfiguration, AdapterConfiguration, ParallelConfiguration
from tacit.models.configuration import place
from tacit.parties.protections.none import NoProtection
from tacit.parties.runs.experiment import Experiment, FederationSection
from tacit.parties.runs.results import Result
from tacit.parties.runs.served import served_experiment
from tacit.protocol.adaptation.sums import LARGEST, LARGEST_SUM


class AdaptationExperiment(Experiment, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An experiment with the sections [adapter] and [adaptation]. Raises as Experiment does."""

    name: Annotated[
        str, Meta(description="Name of the experiment, for reports and folders.", min_length=1, max_length=64)
    ] = "adaptation"
    federation: Annotated[FederationSection, Meta(description="Participants and duration.")] = FederationSection(
        clients=4
    )
    adapter: Annotated[AdapterConfiguration, Meta(description="Adapters that are trained beside the model.")] = (
        ParallelConfiguration()
    )
    adaptation: Annotated[
        AdaptationConfiguration, Meta(description="Training beside a model that data owners do not receive.")
    ] = AdaptationConfiguration()

    def __post_init__(self) -> None:
        super().__post_init__()
        if key := next(iter(self.factories), ""):
            raise ValueError(f'{key} = "{self.factories[key]}": only a federation of `tacit simulate` takes it')
        if self.encryption is not None or not isinstance(self.protection, NoProtection):
            raise ValueError("what is learned beside a model has no [protection] and no [encryption]: leave them out")
        if self.data.statistics == "sum":
            raise ValueError('data.statistics = "sum": images are prepared as the model owner says; leave it out')
        if self.federation.fraction != 1:
            fraction = self.federation.fraction
            raise ValueError(
                f"federation.fraction = {fraction}: every data owner takes part in every step; leave it out"
            )
        if not self.terms().secure:
            raise ValueError(
                'aggregation.mode = "none": the shares of single data owners would be seen; take "active" or '
                '"semi-honest"'
            )
        own = self.adaptation
        if not own.backbone and not own.known_classes and not self.model.checkpoint:
            raise ValueError(
                'adaptation.known_classes = []: a model owner needs images of its own to train on; with backbone = "" '
                "name at least one class, or a model that is trained already as model.checkpoint"
            )
        needed = own.smallest_cohort + own.colluders
        if self.clients < needed:
            raise ValueError(
                f"federation.clients = {self.clients}: sums of {own.smallest_cohort} data owners beside "
                f"{own.colluders} who may collude need {needed}; take more, or lower adaptation.smallest_cohort"
            )
        most = LARGEST_SUM // LARGEST
        if own.weights == "counts" and self.clients > most:
            raise ValueError(
                f'federation.clients = {self.clients}: with adaptation.weights = "counts" {most} '
                "data owners can be added"
            )

    @property
    def kind(self) -> str:
        return str(type(self.adapter).__struct_config__.tag)

    @property
    def pretrained(self) -> bool:
        """Whether the model owner's model is an unmodified checkpoint."""
        return not self.adaptation.backbone and not self.adaptation.known_classes

    def with_adapter(self, kind: str) -> AdaptationExperiment:
        return structs.replace(self, adapter=convert({"kind": kind}, AdapterConfiguration))

    def check_place(self) -> None:
        """Check that images and model exist, as far as possible without torch. ValueError, OSError."""
        place(self.data)
        if self.adaptation.backbone:
            served_experiment(Path(self.adaptation.backbone))
        if self.pretrained and not Path(self.model.checkpoint).is_file():
            raise ValueError(f"model.checkpoint {self.model.checkpoint!r} is no file")


class LearnedRound(msgspec.Struct, frozen=True, kw_only=True):
    """A round of training whose sum all data owners received, or that was lost: then its metrics are null."""

    round: int
    lost: str | None
    """Reason of the loss."""
    owners: int | None
    """Data owners in the sum."""
    images: int | None
    train_loss: float | None
    train_accuracy: float | None


class LearnedAdapters(Result, frozen=True, kw_only=True, tag="tacit.learned.1"):
    """The common adapters that a data owner has trained with others, beside a model that it does not receive."""

    adapters: str
    """Path of the adapters' file."""
    round: int
    """Round that ended with these adapters; 0 before the first."""
    rounds: list[LearnedRound]
    planned: int
    """Planned number of rounds."""
    classes: list[str]
    """Class names, in the order of the head."""
    weights: str
    """The commitment to the model, in hexadecimal digits."""
    kept_images: int
    """Images that passed the blocks, in any number of passes; shares of them are kept."""
    batches: int
    refused_batches: int | None
    """Batches of all data owners, in all rounds, that were out of range and ignored. Revealed with the last round's
    sum; null before, and for a data owner that missed a sum."""
    data_owner_bytes: int
    """Bytes of shares that the data owner sent, in batches and with images."""
    model_owner_bytes: int
    """Bytes of shares that the model owner sent."""
    dealer_bytes: int
    """Bytes of correlated randomness that the dealer sent to this data owner."""

    def view(self) -> Iterator[str]:
        if self.round:
            yield f"the common adapters after round {self.round} are in {self.adapters}"
        if self.refused_batches:
            yield f"{self.refused_batches} batches of all data owners were out of range, and taught nothing"
