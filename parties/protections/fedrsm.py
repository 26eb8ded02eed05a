"""FedRSM (Chen et al. 2023): after training a client chooses the layers that it keeps back in this round.

Layers are ranked by the alteration of their representational consistency (models/representation.py). The paper's text
and its evaluation differ in the masked layers: docs/fedrsm.md compares them, `mask` and `send_classifier` choose.

The number of clients that sent each layer is summed along with the metrics: several counts share one metric, each in
the bits that the number of clients needs. Counts of layer i start at bit i * bits of metric 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Flat
from tacit.models.stimuli import stimulus_indices
from tacit.parties.protections.protection import (
    Disclosure,
    Facts,
    MinContributors,
    WholeTensors,
    check_contributors,
    check_trained,
)
from tacit.parties.protections.sides import Basis, ClientSide, Moved, Protected, ServerSide, TaskError, Trained, without
from tacit.protocol.sum.configuration import Proposal
from tacit.secagg.packing import METRIC_BITS, Total

if TYPE_CHECKING:
    from torch import nn

    from tacit.models.layers import Layer

FEWEST_PAIRS: Final = 3
"""A correlation of two is always 1."""
MOST_METRICS: Final = 24


class FedRSM(WholeTensors, frozen=True, kw_only=True, tag="fedrsm"):
    """Clients keep back the layers that training changed most, or least."""

    takes_factories: ClassVar[bool] = False
    about: ClassVar[str] = "Every client keeps back the layers that training changed most."
    remembers: ClassVar[bool] = True

    min_contributors: MinContributors = 1
    granularity: Annotated[
        Literal["layer", "block", "stage"],
        Meta(
            description='Unit that is kept back as a whole: "layer", a convolution or linear map with the '
            'normalisation that follows; "block", a residual block of a ResNet or a block of a vision '
            'transformer; "stage", the residual blocks of one width of a ResNet.'
        ),
    ] = "layer"
    mask: Annotated[
        Literal["highest", "lowest"],
        Meta(description="Whether layers that training changed most or least are kept back."),
    ] = "highest"
    masked_layers: Annotated[
        int, Meta(description="Number of layers that a client keeps back in a round; 0 sends all.", ge=0, le=10_000)
    ] = 1
    adaptive: Annotated[
        bool,
        Meta(
            description="Keep back at most masked_layers, and only those before the widest gap in the ranking, one at "
            "least."
        ),
    ] = False
    send_classifier: Annotated[
        bool,
        Meta(
            description="Never keep back the last layer, which makes the logits. The costs that Chen et al. "
            "report rule it out for them."
        ),
    ] = False
    pairs: Annotated[
        int,
        Meta(
            description="Pairs of stimuli on which a client compares its models; fewer take less time, and "
            "vary the choice of layers more.",
            ge=FEWEST_PAIRS,
            le=10_000,
        ),
    ] = 50

    def facts(self) -> Facts:
        return replace(super().facts(), min_contributors=self.min_contributors)

    def disclosures(self, clients: int) -> tuple[Disclosure, ...]:
        often = f"whenever all others of {clients} clients keep that layer back"
        server = Disclosure(
            "server",
            "how many clients sent each layer, and, where one alone did, its update of the layer, without its name",
            often,
        )
        if self.min_contributors > 1:
            return (server,)
        model = "the update of one client in a layer that it alone sent, by the step of the model"
        return (server, Disclosure("client", model, f"protection.min_contributors = 1: {often}"))

    def strengths(self) -> dict[str, float]:
        return {"masked_layers": min(self.masked_layers, 1) if self.adaptive else self.masked_layers}

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        check_contributors(self.min_contributors, terms, lost_later=False)
        super().check(terms, training)
        check_trained(self.scheme, training)

    def shown(self, labels: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
        return stimulus_indices(labels, classes)

    def metrics(self, model: nn.Module, clients: int) -> tuple[str, ...]:
        return upload_metrics(len(self.layers(model)), clients)

    def layers(self, model: nn.Module) -> tuple[Layer, ...]:
        """The layers of the model. ValueError if it has none of this granularity, or would be masked as a whole."""
        from tacit.models.layers import layers

        found = layers(model, self.granularity)
        if self.masked_layers >= len(found):
            raise ValueError(
                f"protection.masked_layers = {self.masked_layers}: this model has {len(found)} layers, and at least "
                "one must be sent; lower it"
            )
        return found

    def client(self, basis: Basis) -> FedRSMClient:
        return FedRSMClient(basis, self)

    def server(self, basis: Basis) -> FedRSMServer:
        return FedRSMServer(basis, self)


class FedRSMClient(ClientSide):
    """Chooses the layers; keeps the consistency of its last round."""

    def __init__(self, basis: Basis, protection: FedRSM) -> None:
        from tacit.models.representation import Representation

        super().__init__(basis)
        if basis.work.stimuli is None:
            raise TaskError("the server's task has no stimuli, without which no layer can be chosen")
        self._protection = protection
        self.layers = protection.layers(basis.model)
        self._representation = Representation(
            basis.model,
            basis.work.stimuli,
            granularity=protection.granularity,
            shape=basis.work.shape,
            device=basis.device,
            count=protection.pairs,
        )
        # A model is consistent with itself, and before the first training the two are the same.
        self.memory = {"consistency": np.ones(len(self.layers))}

    def protect(self, trained: Trained) -> Protected:
        masked = self.choose(self.basis.model, trained.model)
        kept = {name for layer in masked for name in layer.tensors}
        return replace(
            without(trained, self.basis.layout, kept),
            metrics=pack_uploads(
                np.array([layer not in masked for layer in self.layers]), self.basis.configuration.clients
            ),
            layers=tuple(layer.name for layer in masked),
        )

    def choose(self, trained: nn.Module, model: Flat) -> list[Layer]:
        """Choose layers to keep back after training `model`, float32 [D], to `trained`, which holds `model`
        afterwards."""
        from tacit.models.representation import alteration, consistency

        local = self._representation.distances(trained)
        self.basis.layout.load_into(trained, model)
        now = consistency(self._representation.distances(trained), local)
        changed = alteration(now, self.memory["consistency"])
        self.memory = {"consistency": now}
        return [self.layers[place] for place in kept_back(self._protection, changed)]


def kept_back(protection: FedRSM, changed: npt.NDArray[np.float64]) -> list[int]:
    """Positions of the kept layers, in order, after alterations [layers]."""
    ranked = changed if protection.mask == "lowest" else -changed
    order = np.argsort(ranked[: len(ranked) - protection.send_classifier], kind="stable")
    count = protection.masked_layers
    if protection.adaptive and count:
        # Of equal gaps the first. Without a next layer there is no gap behind the last.
        count = int(np.argmax(np.diff(ranked[order])[:count])) + 1 if len(order) > 1 else 1
    return sorted(order[:count].tolist())


class FedRSMServer(ServerSide):
    """Counts the clients that sent each layer."""

    def __init__(self, basis: Basis, protection: FedRSM) -> None:
        super().__init__(basis)
        self._layers = protection.layers(basis.model)
        self._fewest = protection.min_contributors

    def check(self, total: Total, contributors: int) -> None:
        self.senders(total, contributors)

    def moved(self, total: Total) -> Moved:
        counts = self.senders(total, self.basis.configuration.clients)
        by_tensor = {name: counts[layer.name] for layer in self._layers for name in layer.tensors}
        layout = self.basis.layout
        senders = np.repeat([by_tensor[entry.name] for entry in layout.entries], layout.tensor_sizes)
        return np.asarray(senders >= self._fewest)

    def senders(self, total: Total, contributors: int) -> dict[str, int]:
        """Number of senders of each layer, by name. ValueError for an impossible sum of so many contributions."""
        counts = unpack_uploads(
            total.metrics, len(self._layers), self.basis.configuration.clients, contributors=contributors
        )
        return {layer.name: int(count) for layer, count in zip(self._layers, counts, strict=True)}


def upload_metrics(layers: int, clients: int) -> tuple[str, ...]:
    """Names of the metrics that carry the counts of so many layers. ValueError if they are too many."""
    metrics = -(-layers // _counts_per_metric(clients))
    if metrics > MOST_METRICS:
        raise ValueError(
            f'protection.scheme = "fedrsm": among {clients} clients the senders of at most '
            f"{MOST_METRICS * _counts_per_metric(clients)} layers can be counted, and this model has {layers}; set "
            'protection.granularity to "block", or take a smaller model'
        )
    return tuple(f"uploads-{number}" for number in range(metrics))


def pack_uploads(sent: npt.NDArray[np.bool_], clients: int) -> dict[str, int]:
    """The metrics of a client that sends these layers [L]."""
    bits, each = clients.bit_length(), _counts_per_metric(clients)
    return {
        name: sum(int(flag) << bits * place for place, flag in enumerate(sent[each * number : each * (number + 1)]))
        for number, name in enumerate(upload_metrics(len(sent), clients))
    }


def unpack_uploads(
    metrics: Mapping[str, int], layers: int, clients: int, *, contributors: int
) -> npt.NDArray[np.int64]:
    """Number of clients that sent each layer [L]. ValueError for an impossible sum of so many honest contributions."""
    bits, each = clients.bit_length(), _counts_per_metric(clients)
    names = upload_metrics(layers, clients)
    counts = [metrics[names[layer // each]] >> bits * (layer % each) & (1 << bits) - 1 for layer in range(layers)]
    if max(counts) > contributors:
        raise ValueError(f"layer {counts.index(max(counts))} counts {max(counts)} of {contributors} contributors")
    return np.array(counts, np.int64)


def _counts_per_metric(clients: int) -> int:
    return METRIC_BITS // clients.bit_length()
