"""What a federation computes: the task that the server proposes, how a client works on it, how the server applies it.

The task (model and training settings, shape of the data) travels inside the configuration, so that its hash is part of
everything that the members sign. An update is a pair of values and weight: FedAvg sends samples * (trained - global)
with the number of samples, FedSGD the gradient with weight one; a protection may set weights to zero, for whole tensors
or for coordinates (update_weights.py), or add noise (models/gaussian_noise.py). The server learns the two sums only,
and the sums of the metrics; it adds the mean of the updates, or takes one step against the mean of the gradients. Only
to distil (coupled_models.py) it needs the vectors of the clients one by one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta

from tacit.models import split
from tacit.models.configuration import ModelConfiguration, ProtectionConfiguration, TrainingConfiguration
from tacit.models.fedcg import CoupledModel, couple
from tacit.models.gaussian_noise import noise_bytes, noisy, shortened
from tacit.models.layout import Layout
from tacit.models.representation import Stimuli
from tacit.models.training import NOTHING, Evaluation, LocalStatistics, evaluate, gradient, train
from tacit.models.vision_transformer import build
from tacit.parties.learning.coupled_models import Distiller, Imitation
from tacit.parties.learning.group_model import GroupModel
from tacit.parties.learning.layer_masking import (
    LayerMasking,
    check_layers,
    pack_uploads,
    unpack_uploads,
    upload_metrics,
)
from tacit.parties.learning.local_part import LocalPart
from tacit.parties.learning.update_weights import (
    Group,
    UpdateWeights,
    Weights,
    check_protection,
    round_seeds,
)
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.protocol.sum import counting
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total, WeightForm
from tacit.secagg.ring import Words

METRICS: Final = ("samples", "correct", "loss", "clipped")
"""What clients report within the secure sum. `loss` counts in units of LOSS_UNIT."""

LOSS_UNIT: Final = 2.0**-16

CPU: Final = torch.device("cpu")
NO_VECTORS: Final[Mapping[str, Words]] = MappingProxyType({})

Flat = npt.NDArray[np.float32]
Octets = bytes


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every member must know to work on the same model."""

    model: ModelConfiguration
    training: TrainingConfiguration
    protection: ProtectionConfiguration = ProtectionConfiguration()
    classes: Annotated[int, Meta(ge=1, le=65_536)]
    channels: Annotated[int, Meta(ge=1, le=256)]
    stimuli: Stimuli | None = None
    """The server's images for fedrsm, prepared for the model; no client's own may be among them."""

    def encode(self) -> bytes:
        """Canonical bytes, for Configuration.task."""
        return encode_structure(self)

    def build(self, seed: int = 0) -> torch.nn.Module:
        """The model, with weights from the seed. ValueError for one that does not fit the protection."""
        network = build(self.model, classes=self.classes, channels=self.channels, seed=seed)
        if not self.protection.distils:
            return network
        split.extractor(Layout.of(network), self.model, self.protection.split)
        return couple(
            network,
            split.first_shared(self.model, self.protection.split),
            shape=(self.channels, self.model.image_size, self.model.image_size),
            classes=self.classes,
            # A LeNet has sigmoids of its own.
            squash=self.model.name != "lenet",
            seed=seed,
        )

    def private(self, model: torch.nn.Module) -> frozenset[str]:
        """Names of the tensors that never leave a client. ValueError if there is nothing to tell them from others."""
        if not self.protection.splits:
            return frozenset()
        network, prefix = (model.network, "network.") if isinstance(model, CoupledModel) else (model, "")
        found = split.extractor(Layout.of(network), self.model, self.protection.split)
        return frozenset(f"{prefix}{name}" for name in found)

    def metrics(self, clients: int) -> tuple[str, ...]:
        """Names of what clients report within the secure sum. ValueError if the model does not fit the protection."""
        if not self.protection.masks_layers:
            return METRICS
        return METRICS + upload_metrics(len(check_layers(self.build(), self.protection)), clients)


def read_task(configuration: Configuration) -> Task:
    """The task in a configuration; RemoteProtocolError if there is none."""
    return decode_structure(configuration.task, Task, limit=BODY_LIMIT)


class TaskError(Exception):
    """A client cannot work on the task; the message says why and what to change."""


@dataclass(frozen=True)
class LocalWork:
    """What a client did in a round, for its own log."""

    kept: int = 0
    """Coordinates that it kept back as whole tensors."""
    layers: tuple[str, ...] = ()
    """The layers that it chose to keep back."""
    training_seconds: float = 0.0
    choosing_seconds: float = 0.0
    """How long it took to choose them."""


@dataclass(frozen=True)
class Update:
    """A client's contribution to a round: ring words, and what its own log may know."""

    words: Words
    values: Flat
    """What the words encode: clipped, times the weight."""
    statistics: LocalStatistics
    clipped: int
    local: LocalWork = LocalWork()


@dataclass(frozen=True)
class Draft:
    """What a client learnt in a round, before it is known to which coordinates it may contribute."""

    values: Flat
    """The difference to the model, or the gradient, encrypted if the model is."""
    weights: Weights
    multipliers: Flat
    """What the weights multiply the values by: () or [D]."""
    statistics: LocalStatistics
    rounding: np.random.SeedSequence
    local: LocalWork
    uploads: dict[str, int] = field(default_factory=dict)
    """Metrics that say which layers it sends."""


class Learner:
    """A client's side: from the model of a round to its update.

    x: float32 [N, C, S, S]; y: int64 [N]; seed: None draws batches and rounding from the operating system's randomness.
    """

    def __init__(
        self, configuration: Configuration, x: torch.Tensor, y: torch.Tensor, *, seed: int | None, device: torch.device
    ) -> None:
        self._configuration = configuration
        self._packing = configuration.packing()
        self._task = read_task(configuration)
        self._model = self._task.build()
        self.layout = Layout.of(self._model)
        self._x, self._y, self._seed, self._device = x, y, seed, device
        if self.layout.digest() != configuration.layout or self.layout.tensor_sizes != configuration.tensor_sizes:
            raise TaskError(
                "the model built here has other tensors than the server's: install the same versions of timm"
            )
        protection = self._task.protection
        self._masking = self._layer_masking(protection)
        self._own: LocalPart | None = None
        if protection.splits:
            self._own = LocalPart(self.layout, self._task.private(self._model))
        self._imitation: Imitation | None = None
        if isinstance(self._model, CoupledModel):
            self._imitation = Imitation(self._model, seed=_integer(round_seeds(seed, 0)[0]), device=device)
        self._weights = UpdateWeights(self.layout, protection, seed=seed, dropout=configuration.dropout)
        self._group_model = GroupModel(
            self.layout, protection, lambda first: self.layout.flatten(self._task.build(first))
        )
        for key, task, said in (
            ("scheme", protection.scheme, configuration.protection),
            ("min_contributors", protection.min_contributors, configuration.min_contributors),
            ("rekey_every", protection.rekey_every, configuration.rekey_every),
            ("enforce", protection.enforce, configuration.enforce),
            ("skip_masked_layers", protection.skip_masked_layers, configuration.skip_zeros),
            (
                "initial_model",
                protection.initial_model if protection.encrypted else "server",
                configuration.initial_model,
            ),
            ("scheme needs a group key", protection.group_key, configuration.group_key),
        ):
            if task != said:
                raise TaskError(
                    f"the server's task has protection.{key} = {task}, its configuration {said}: it contradicts itself"
                )
        sampled = configuration.scheme == "fedavg" and not protection.alike
        if sampled and len(x) > configuration.max_weight:
            raise TaskError(
                f"this client has {len(x)} samples and aggregation.max_weight is {configuration.max_weight}: "
                "raise it to the largest number of samples of any client"
            )

    @property
    def personal(self) -> bool:
        """Whether this client's model is not the server's."""
        return self._own is not None

    def plain(self, model: bytes, key: GroupKey | None) -> Flat:
        """The server's model in the clear, float32 [size], with the client's own part in it, if it has one."""
        flat = self._group_model.plain(model, key)
        return flat if self._own is None else self._own.merge(flat)

    def reencrypt(self, order: Reencrypt) -> bytes:
        """The model that the server asks for."""
        return self._group_model.reencrypt(order)

    def evaluate(self, flat: Flat, x: torch.Tensor, y: torch.Tensor, *, batch_size: int) -> Evaluation:
        """How well a plain model does on these images."""
        self.layout.load_into(self._model, flat)
        return evaluate(self._model, x, y, batch_size=batch_size, device=self._device)

    def update(self, round: int, model: bytes, group: Group | None = None) -> Update:
        """Train from the server's model and encode the result. Raises as `learn` does."""
        return self.encode(self.learn(round, model, group))

    def learn(self, round: int, model: bytes, group: Group | None = None) -> Draft:
        """Train from the server's model. FloatingPointError, or ValueError naming a tensor, if training diverges."""
        flat = self.plain(model, group.key if group else None)
        self.layout.load_into(self._model, flat)
        seeds = round_seeds(self._seed, round)
        began = time.perf_counter()
        if self._configuration.scheme == "fedavg":
            statistics = self._train(round, _integer(seeds[0]))
            values, samples = self.layout.flatten(self._model) - flat, statistics.samples
        else:
            values, statistics = gradient(
                self._model, self._x, self._y, batch_size=self._task.training.batch_size, device=self._device
            )
            samples = 1
        self.layout.check_finite(values)
        trained = time.perf_counter()
        kept: frozenset[str] = frozenset()
        masked: tuple[str, ...] = ()
        uploads: dict[str, int] = {}
        if self._own is not None:
            self._own.keep(self.layout.flatten(self._model))
            kept = self._own.names
        elif self._masking is not None:
            choice = self._masking.choose(self._model, flat)
            kept, masked = choice.tensors, choice.layers
            uploads = pack_uploads(choice.sent, self._configuration.clients)
        chosen = time.perf_counter()
        if self._task.protection.noisy:
            values = self._noisy(values, seeds[2])
        if group is not None and self._task.protection.encrypted:
            values = self._group_model.key(group.key).encrypt(values)
        weights, multipliers = self._weights.of(round, samples, group, kept=kept)
        local = LocalWork(
            kept=sum(entry.size for entry in self.layout.entries if entry.name in kept),
            layers=masked,
            training_seconds=trained - began,
            choosing_seconds=chosen - trained,
        )
        return Draft(values, weights, multipliers, statistics, seeds[1], local, uploads)

    def counts(self, draft: Draft) -> Words:
        """To which coordinates the client would contribute, as words of the sum of counts."""
        return counting.packing(self._configuration).encode(draft.multipliers > 0)

    def encode(self, draft: Draft, limits: bytes | None = None) -> Update:
        """The draft as words. limits: a bitmap of the only coordinates to contribute to."""
        weights, multipliers = draft.weights, draft.multipliers
        if limits is not None:
            allowed = np.unpackbits(np.frombuffer(limits, np.uint8), count=self.layout.size).view(np.bool_)
            weights, multipliers = np.where(allowed, weights, False), multipliers * allowed
        clip = np.float32(self._configuration.clip)
        clipped = int(np.count_nonzero((np.abs(draft.values) > clip) & (multipliers > 0)))
        values = np.clip(draft.values, -clip, clip)
        values *= multipliers
        # What is accounted for is the noise of the update; numbers without noise would reveal more.
        statistics = NOTHING if self._task.protection.noisy else draft.statistics
        metrics = draft.uploads | {
            "samples": statistics.samples,
            "correct": statistics.correct,
            "loss": round_half_even(statistics.loss_sum / LOSS_UNIT),
            "clipped": clipped,
        }
        encoded = self._packing.encode(values, weights, metrics, np.random.default_rng(draft.rounding))
        return Update(encoded.words, values, draft.statistics, clipped, draft.local)

    def _train(self, round: int, seed: int) -> LocalStatistics:
        training = self._task.training
        if self._imitation is not None:
            return self._imitation.train(self._x, self._y, training, round=round, seed=seed)
        return train(self._model, self._x, self._y, training, seed=seed, device=self._device)

    def _layer_masking(self, protection: ProtectionConfiguration) -> LayerMasking | None:
        if not protection.masks_layers:
            return None
        if self._task.stimuli is None:
            raise TaskError("the server's task has no stimuli, without which no layer can be chosen")
        size = self._task.model.image_size
        shape = (self._task.channels, size, size)
        return LayerMasking(self._model, protection, self._task.stimuli, shape=shape, device=self._device)

    def _noisy(self, values: Flat, seed: np.random.SeedSequence) -> Flat:
        protection = self._task.protection
        count = noise_bytes(len(values))
        random = os.urandom(count) if self._seed is None else np.random.default_rng(seed).bytes(count)
        deviation = protection.dp_noise * (protection.dp_clip or 1.0)
        return noisy(shortened(values, protection.dp_clip), deviation, random)


class Keeper:
    """The server's side: holds the global model and applies the sums.

    seed: of the server's own training, if it trains; None draws from the operating system's randomness.
    """

    def __init__(
        self,
        configuration: Configuration,
        model: torch.nn.Module,
        *,
        seed: int | None = None,
        device: torch.device = CPU,
    ) -> None:
        self._configuration = configuration
        task = read_task(configuration)
        self._rate = task.training.learning_rate
        self.layout = Layout.of(model)
        check_protection(self.layout, task.protection)
        self._private = task.private(model)
        self._distiller: Distiller | None = None
        if isinstance(model, CoupledModel):
            self._distiller = Distiller(
                model, task.protection, task.training, private=self._private, seed=seed, device=device
            )
        self._layers = check_layers(model, task.protection) if task.protection.masks_layers else ()
        self.model = model
        self.flat: Flat = self.layout.flatten(model)

    @property
    def bytes(self) -> bytes:
        """The model as it is sent: little-endian float32."""
        return self.flat.astype("<f4").tobytes()

    def decode(self, words: Words, contributors: int) -> Total:
        """The sums. ValueError if they cannot be sums of honest contributions."""
        total = self._configuration.packing().decode(words, contributors=contributors)
        if self._layers:
            self.senders(total, contributors)
        return total

    def senders(self, total: Total, contributors: int) -> dict[str, int]:
        """How many clients sent each layer, by name, where they choose what they send. ValueError as `decode` does."""
        counts = unpack_uploads(
            total.metrics, len(self._layers), self._configuration.clients, contributors=contributors
        )
        return {layer.name: int(count) for layer, count in zip(self._layers, counts, strict=True)}

    def mean(self, total: Total) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """The mean of the updates [D], and which coordinates it moves [D]: those with contributors enough."""
        mean, moved = total.mean()
        if self._configuration.form is WeightForm.COORDINATE:
            moved &= total.weights >= self._configuration.min_contributors
        elif self._layers:
            moved &= self._senders_by_coordinate(total) >= self._configuration.min_contributors
        return mean, moved

    def _senders_by_coordinate(self, total: Total) -> npt.NDArray[np.int64]:
        counts = self.senders(total, self._configuration.clients)
        by_tensor = {name: counts[layer.name] for layer in self._layers for name in layer.tensors}
        return np.repeat([by_tensor[entry.name] for entry in self.layout.entries], self.layout.tensor_sizes)

    def replace(self, model: Octets) -> None:
        """Take this model, little-endian float32 bytes, in the place of the present one."""
        self.flat = np.frombuffer(model, "<f4").astype(np.float32)
        self.layout.load_into(self.model, self.flat)

    def apply(self, total: Total, vectors: Mapping[str, Words] = NO_VECTORS) -> None:
        """Move the model by the mean; where nobody contributed it stays. Distil, where the scheme does so.

        vectors: of every client, where the scheme needs them. ValueError, after which nothing has changed, if one of
        them is that of no honest client.
        """
        mean, moved = self.mean(total)
        step = mean if self._configuration.scheme == "fedavg" else -self._rate * mean
        flat = self._moved(step, moved)
        if self._distiller is not None:
            flat = self._distiller.distil(flat, [self._client(name, words) for name, words in vectors.items()])
        self.layout.load_into(self.model, flat)
        self.flat = flat

    def _moved(self, step: npt.NDArray[np.float64], moved: npt.NDArray[np.bool_]) -> Flat:
        flat: Flat = np.where(moved, self.flat + step, self.flat).astype(np.float32)
        self.layout.mend_variances(flat)
        return flat

    def _client(self, name: str, words: Words) -> tuple[Flat, int]:
        """The model of one client, and its number of samples."""
        alone = self._configuration.packing().decode(words, contributors=1)
        weights = {
            int(weight)
            for entry, weight in zip(self.layout.entries, alone.weights, strict=True)
            if entry.name not in self._private
        }
        if len(weights) != 1 or 0 in weights:
            raise ValueError(f"{name} gives the tensors that it shares the weights {sorted(weights)}, not one above 0")
        return self._moved(*alone.mean()), weights.pop()


def round_half_even(value: float) -> int:
    """The nearest integer; metrics are integers."""
    return int(np.rint(value))


def _integer(seeds: np.random.SeedSequence) -> int:
    return int(seeds.generate_state(1, np.uint64)[0] >> np.uint64(1))
