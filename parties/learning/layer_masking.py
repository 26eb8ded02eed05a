"""FedRSM at a client (Chen et al. 2023): after training it chooses the layers that it keeps back in this round.

Layers are ranked by the alteration of their representational consistency (models/representation.py), which is that of
the trained model with the global one of the round; the consistency of the client's last round is kept in memory. The
paper's text says to send the layers with the highest alteration, its evaluation masks the one with the highest: both
are there, `mask` says which. Layers of equal rank are taken in the order of the model.

How many clients sent a layer is summed along with the metrics: several counts share one, each in as many bits as the
number of clients takes, so that no count runs into the next. Counts of layer i stand from bit i * bits of metric 0 up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacit.models.configuration import ProtectionConfiguration
from tacit.models.layers import Layer, layers
from tacit.models.layout import Flat, Layout
from tacit.models.representation import Representation, Stimuli, alteration, consistency
from tacit.secagg.packing import METRIC_BITS

MOST_METRICS: Final = 24
"""Metrics that may be spent on counts."""


@dataclass(frozen=True)
class Choice:
    """What a client keeps back in a round."""

    layers: tuple[str, ...]
    tensors: frozenset[str]
    sent: npt.NDArray[np.bool_]
    """Which of all layers it sends."""


class LayerMasking:
    """The choices of one client. Raises ValueError as `check_layers` and `Representation` do.

    shape: channels, height and width of the model's images.
    """

    def __init__(
        self,
        model: nn.Module,
        protection: ProtectionConfiguration,
        stimuli: Stimuli,
        *,
        shape: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        check_layers(model, protection)
        self._layout = Layout.of(model)
        self._protection = protection
        self._representation = Representation(
            model, stimuli, granularity=protection.granularity, shape=shape, device=device
        )
        # A model is consistent with itself, and before the first training the two are the same.
        self._consistency = np.ones(len(self._representation.layers))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers."""
        return self._representation.layers

    def choose(self, trained: nn.Module, model: Flat) -> Choice:
        """What to keep back after training `model`, float32 [size], to `trained`, which holds the former afterwards."""
        local = self._representation.distances(trained)
        self._layout.load_into(trained, model)
        now = consistency(self._representation.distances(trained), local)
        changed = alteration(now, self._consistency)
        self._consistency = now
        order = np.argsort(changed if self._protection.mask == "lowest" else -changed, kind="stable")
        masked = [self.layers[place] for place in np.sort(order[: self._protection.masked_layers])]
        return Choice(
            layers=tuple(layer.name for layer in masked),
            tensors=frozenset(name for layer in masked for name in layer.tensors),
            sent=np.array([layer not in masked for layer in self.layers]),
        )


def check_layers(model: nn.Module, protection: ProtectionConfiguration) -> tuple[Layer, ...]:
    """The layers of the model. ValueError if it has none of this granularity, or would be masked as a whole."""
    found = layers(model, protection.granularity)
    if protection.masked_layers >= len(found):
        raise ValueError(
            f"protection.masked_layers = {protection.masked_layers}: this model has {len(found)} layers, and at least "
            "one must be sent; lower it"
        )
    return found


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
    """How many clients sent each layer [L]. ValueError if that cannot be the sum of so many honest contributions."""
    bits, each = clients.bit_length(), _counts_per_metric(clients)
    names = upload_metrics(layers, clients)
    counts = [metrics[names[layer // each]] >> bits * (layer % each) & (1 << bits) - 1 for layer in range(layers)]
    if max(counts) > contributors:
        raise ValueError(f"layer {counts.index(max(counts))} counts {max(counts)} of {contributors} contributors")
    return np.array(counts, np.int64)


def _counts_per_metric(clients: int) -> int:
    return METRIC_BITS // clients.bit_length()
