"""The section [adaptation] of PARTY.toml, one for each of the three roles: what a party is told where data owners
learn beside a model that they do not get.

Without the section a dealer, a model owner and a data owner hold private inference. Rounds and batches stand in the
files of all who need them, since nobody takes them from others: a difference is refused, by name.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tacit.models.adapters.configuration import (
    AdapterConfiguration,
    Batches,
    Colluders,
    ParallelConfiguration,
    SmallestCohort,
    TeachingConfiguration,
    Weights,
)
from tacit.parties.links.address import host_of
from tacit.parties.runs.explain import literal
from tacit.parties.runs.sections import Aggregation, Deadlines, Seconds
from tacit.protocol.adaptation.messages import Purpose
from tacit.protocol.inference.messages import MOST_IMAGES

Rounds = Annotated[int, Meta(description="Rounds of learning; the same for all parties.", ge=1, le=99_999)]


class SummingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[adaptation] of a dealer, who serves the sums of the data owners' shares too. ValueError if keys contradict."""

    sums: Annotated[
        str,
        Meta(
            description="Address to listen at for the sums, tcp://HOST:PORT, beside `bind`: an address of this host, "
            "0.0.0.0 for all of them, or [::] for all of IPv6 as well."
        ),
    ] = "tcp://0.0.0.0:7010"
    words: Annotated[
        int,
        Meta(
            description="Words of a share of what is learned: the number that `tacit model-owner` shows, which follows "
            "from its model, and is no secret.",
            ge=0,
            le=1 << 28,
        ),
    ] = 0
    rounds: Rounds = 10
    smallest_cohort: SmallestCohort = 3
    colluders: Colluders = 0
    aggregation: Annotated[Aggregation, Meta(description="The secure sum.")] = Aggregation()
    deadlines: Annotated[Deadlines, Meta(description="How long the dealer waits for data owners, in seconds.")] = (
        Deadlines()
    )

    def __post_init__(self) -> None:
        check_addresses(**{"adaptation.sums": self.sums})
        if not self.words:
            raise ValueError(
                "adaptation.words is missing: the number of words of a share, which `tacit model-owner` shows"
            )
        if self.aggregation.mode == "none":
            raise ValueError(
                'adaptation.aggregation.mode = "none": the shares of single data owners would be seen; take "active" '
                'or "semi-honest"'
            )


class TeachingSection(TeachingConfiguration, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[adaptation] of a model owner. ValueError if keys contradict."""

    purpose: Annotated[
        Purpose, Meta(description='What data owners come for: "learning", or "prediction" with what was learned.')
    ] = "learning"
    classes: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...],
        Meta(
            description="Names of the classes that data owners learn, in the order that numbers them; they are told.",
            max_length=4096,
        ),
    ] = ()
    rounds: Rounds = 10
    owners: Annotated[
        int, Meta(description="Data owners that learn at most; 0: all of the roster.", ge=0, le=10_000)
    ] = 0
    least_count: Annotated[
        int,
        Meta(
            description='With weights = "counts": the fewest images that a data owner has, one of which counts 16; who '
            "has twice as many, or more, counts 32.",
            ge=0,
            le=2**31,
        ),
    ] = 0
    adapter: Annotated[AdapterConfiguration, Meta(description="What is learned beside the model.")] = (
        ParallelConfiguration()
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.weights == "counts") != (self.least_count > 0):
            raise ValueError(
                f'adaptation.least_count = {self.least_count}: with weights = "counts" the fewest images of a data '
                "owner, and without it 0"
            )
        if len(set(self.classes)) < len(self.classes) or len(self.classes) < 2:
            raise ValueError(
                f"adaptation.classes = {literal(list(self.classes))}: two classes at least are learned, each once"
            )
        if (images := self.batch * self.batches * self.rounds) > MOST_IMAGES:
            raise ValueError(
                f"adaptation.rounds = {self.rounds}: with {self.batches} batches of {self.batch} a data owner goes "
                f"through {images} images, and a session has {MOST_IMAGES} at most; take fewer"
            )
        if 0 < self.most_rounds < self.rounds:
            raise ValueError(
                f"adaptation.most_rounds = {self.most_rounds}: {self.rounds} rounds could not be opened; lower "
                "adaptation.rounds"
            )


class LearningSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[adaptation] of a data owner. ValueError if keys contradict."""

    purpose: Annotated[
        Purpose,
        Meta(
            description='"learning", or "prediction": it asks about `images`, with what was learned in `directory`; no '
            "other key of this section is needed then."
        ),
    ] = "learning"
    sums: Annotated[str, Meta(description="Address at which the dealer serves the sums, tcp://HOST:PORT.")] = ""
    weights: Annotated[
        Weights,
        Meta(
            description='How much it counts in the mean: "equal", or "counts", by how many images it has, which it '
            "states then to the model owner; the same as the model owner has."
        ),
    ] = "equal"
    batches: Batches = 1
    rounds: Rounds = 10
    smallest_cohort: SmallestCohort = 3
    colluders: Colluders = 0
    grace: Annotated[Seconds, Meta(description="Seconds for a lost link to the sums to come back.")] = 10.0

    def __post_init__(self) -> None:
        if not self.sums and self.purpose == "learning":
            raise ValueError("adaptation.sums is missing: the address at which the dealer serves the sums")
        if self.sums:
            check_addresses(**{"adaptation.sums": self.sums})


def check_addresses(**addresses: Any) -> None:
    """ValueError, which names the key."""
    for key, address in addresses.items():
        try:
            host_of(address)
        except ValueError as error:
            raise ValueError(f"{key} = {literal(address)}: {error}") from None
