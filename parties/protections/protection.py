"""Interface of a protection: one object that declares its requirements, its effect, and its strength.

A protection is a frozen struct of its settings, tagged by `scheme`; it overrides the default behaviour in one file, and
is known once it is registered (catalogue.py, docs/adding-a-protection.md). Experiments are checked without torch: the
methods import it where they need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.models.configuration import TrainingConfiguration
from tacit.parties.protections.sides import Basis, ClientSide, ServerSide, Work
from tacit.protocol.sum.configuration import Proposal
from tacit.secagg.packing import WeightForm

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Facts:
    """Properties of a protection that the protocol enforces: fields of its Configuration."""

    form: WeightForm = WeightForm.SCALAR
    min_contributors: int = 0
    group_key: bool = False
    rekey_every: int = 0
    single_vectors: bool = False


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on every update of a client, for its privacy guarantee."""

    multiplier: float
    """Standard deviation of the noise of a coordinate, as a multiple of the norm; if the norm is 0, absolute."""
    norm: float
    """Largest Euclidean norm of an update; 0: unbounded, which guarantees nothing."""
    delta: float

    @property
    def deviation(self) -> float:
        return self.multiplier * (self.norm or 1.0)

    @property
    def room(self) -> float:
        """Room that aggregation.clip must leave beyond a coordinate of the update, so that its noise is not clipped."""
        return _ROOM * self.deviation


_ROOM: Final = 12
"""Standard deviations of noise that have room: a coordinate exceeds them with probability 2^-108, far below any delta
for all coordinates, clients and rounds together."""


@dataclass(frozen=True)
class Disclosure:
    """Information on single clients that a party learns, although updates are summed securely."""

    party: Literal["server", "client"]
    what: str
    condition: str
    """Condition of the disclosure, and its frequency."""
    alone: float | None = None
    """Expected share of the coordinates of a sum with exactly one contributor; None: it depends on data."""


class Protection:
    """Transformation of clients' updates before they are summed."""

    __slots__ = ()

    about: ClassVar[str]
    works_encrypted: ClassVar[bool] = False
    """Whether it is compatible with encryption: its effect on an update does not depend on the values."""
    personal: ClassVar[bool] = False
    """Whether every client has a personal model, which only it can evaluate."""
    takes_factories: ClassVar[bool] = True
    """Whether it is compatible with custom model, data and training, of which it knows nothing."""
    agreed_weights: ClassVar[bool] = False
    """Whether all clients contribute to the same tensors, or agree on the contributors of each coordinate."""
    remembers: ClassVar[bool] = False
    """Whether a client keeps state from one round to the next, without which it cannot continue."""

    @property
    def scheme(self) -> str:
        raise NotImplementedError

    def facts(self) -> Facts:
        return Facts()

    @property
    def contributors_vary(self) -> bool:
        """Whether each client alone chooses the tensors or coordinates that it contributes, so that some have few."""
        return self.facts().form is not WeightForm.SCALAR and not self.agreed_weights

    def disclosures(self, clients: int) -> tuple[Disclosure, ...]:
        """Disclosures of a secure sum over so many clients under this protection.

        The report, `tacit simulate` at its start, docs/choosing.md and the threat model state exactly this."""
        return ()

    def counts_samples(self, training: TrainingConfiguration) -> bool:
        """Whether a client's weight is the number of its samples; else clients count alike."""
        return not training.sends_gradients

    def own_models(self, training: TrainingConfiguration) -> bool:
        """Whether every client has a personal model: a part of it, or its buffers."""
        return self.personal or training.buffers == "local"

    def remembering(self, training: TrainingConfiguration) -> bool:
        """Whether a client keeps state from one round to the next."""
        return self.remembers or training.buffers == "local"

    def strengths(self) -> dict[str, float]:
        """Values that a policy may bound from below, by key; more is stronger, and 0 does not protect."""
        return {}

    def noise(self) -> Noise | None:
        return None

    @property
    def spending(self) -> bool:
        """Whether an update has a cost in a privacy budget, so that clients state their spending."""
        noise = self.noise()
        return noise is not None and noise.norm > 0

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        """Raise ValueError, naming key, value and remedy, if it is of no use under these terms."""

    def shown(self, labels: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
        """Indices of the training images [N] that the server of a simulation shows to all clients, see Work.stimuli."""
        return np.empty(0, np.int64)

    def build(self, network: nn.Module, work: Work, seed: int) -> nn.Module:
        """The trained model, made from the configured one. ValueError if the protection does not fit it."""
        return network

    def fits(self, model: nn.Module, work: Work) -> None:
        """Raise ValueError, naming key, value and remedy, if the model that was built does not fit the protection."""

    def metrics(self, model: nn.Module, clients: int) -> tuple[str, ...]:
        """Names of additional metrics that clients report within the sum. ValueError as in `fits`."""
        return ()

    def client(self, basis: Basis) -> ClientSide:
        return ClientSide(basis)

    def server(self, basis: Basis) -> ServerSide:
        return ServerSide(basis)


class Scheme(
    Protection, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="scheme", tag=True
):
    """Base of all protections: the settings are fields, the name is the tag."""

    @property
    def scheme(self) -> str:
        return name_of(type(self))


class WholeTensors(Scheme, frozen=True, kw_only=True):
    """Base of protections whose clients keep back whole tensors: a weight for every tensor, zero for kept ones."""

    def facts(self) -> Facts:
        return Facts(form=WeightForm.TENSOR)


def name_of(scheme: type[Scheme]) -> str:
    return str(scheme.__struct_config__.tag)


MinContributors = Annotated[
    int, Meta(description="Least number of contributors for a coordinate to move.", ge=1, le=1000)
]
RekeyEvery = Annotated[
    int,
    Meta(
        description="Rounds after which the clients agree on a new key; 0: only when the membership changes.",
        ge=0,
        le=100_000,
    ),
]


def check_contributors(fewest: int, terms: Proposal, *, lost_later: bool) -> None:
    """Raise ValueError if no cohort could have so many contributors to a coordinate.

    lost_later: whether contributors may still be lost after the weights are fixed.
    """
    asking, needed = f"protection.min_contributors = {fewest}:", fewest
    if lost_later:
        needed += terms.clients - terms.fewest_survivors(terms.clients)
        asking += f" with the tolerated dropouts (aggregation.dropout = {terms.dropout}) {needed}, but"
    if needed > terms.clients:
        raise ValueError(
            f"{asking} there are only {terms.clients} clients, so that no coordinate would ever move; lower it, or "
            f"take more clients{', or tolerate fewer dropouts' if lost_later else ''}"
        )


def check_trained(scheme: str, training: TrainingConfiguration) -> None:
    """Raise ValueError if clients send gradients, for a protection whose clients keep trained tensors."""
    if training.sends_gradients:
        raise ValueError(
            f'protection.scheme = "{scheme}": what stays with a client is what its training made of it, and '
            'training.algorithm = "fedsgd" trains nothing there; set it to "fedavg"'
        )
