"""What a federation computes: the task that the server proposes, how a client works on it, how the server applies it.

The task (model and training settings, shape of the data) travels inside the configuration, so that its hash is part of
everything that the members sign. An update is a pair of values and weight: FedAvg sends samples * (trained - global)
with the number of samples, FedSGD the gradient with weight one; a protection may set weights to zero, for whole tensors
or for coordinates (update_weights.py). The server learns the two sums only, and the sums of
the metrics; it adds the mean of the updates, or takes one step against the mean of the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from tacit.models.configuration import ModelConfiguration, ProtectionConfiguration, TrainingConfiguration
from tacit.models.layout import Layout
from tacit.models.training import LocalStatistics, gradient, train
from tacit.models.vision_transformer import build
from tacit.parties.update_weights import UpdateWeights, check_protection, round_seeds
from tacit.protocol.codec import decode_structure, encode_structure
from tacit.protocol.configuration import Configuration
from tacit.protocol.messages import BODY_LIMIT
from tacit.secagg.packing import Total, WeightForm
from tacit.secagg.ring import Words

METRICS: Final = ("samples", "correct", "loss", "clipped")
"""What clients report within the secure sum. `loss` counts in units of LOSS_UNIT."""

LOSS_UNIT: Final = 2.0**-16

Flat = npt.NDArray[np.float32]


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every member must know to work on the same model."""

    model: ModelConfiguration
    training: TrainingConfiguration
    protection: ProtectionConfiguration = ProtectionConfiguration()
    classes: int
    channels: int

    def encode(self) -> bytes:
        """Canonical bytes, for Configuration.task."""
        return encode_structure(self)

    def build(self, seed: int = 0) -> torch.nn.Module:
        """The model, with weights from the seed."""
        return build(self.model, classes=self.classes, channels=self.channels, seed=seed)


def read_task(configuration: Configuration) -> Task:
    """The task in a configuration; RemoteProtocolError if there is none."""
    return decode_structure(configuration.task, Task, limit=BODY_LIMIT)


class TaskError(Exception):
    """A client cannot work on the task; the message says why and what to change."""


@dataclass(frozen=True)
class Update:
    """A client's contribution to a round: ring words, and what its own log may know."""

    words: Words
    values: Flat
    """What the words encode: clipped, times the weight."""
    statistics: LocalStatistics
    clipped: int


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
        self._layout = Layout.of(self._model)
        self._x, self._y, self._seed, self._device = x, y, seed, device
        if self._layout.digest() != configuration.layout or self._layout.tensor_sizes != configuration.tensor_sizes:
            raise TaskError(
                "the model built here has other tensors than the server's: install the same versions of timm"
            )
        self._weights = UpdateWeights(self._layout, self._task.protection, seed=seed)
        if self._task.protection.scheme != configuration.protection:
            raise TaskError(
                f"the server's task has protection.scheme = {self._task.protection.scheme}, its configuration "
                f"{configuration.protection}: it contradicts itself"
            )
        sampled = configuration.scheme == "fedavg" and not self._task.protection.binary
        if sampled and len(x) > configuration.max_weight:
            raise TaskError(
                f"this client has {len(x)} samples and aggregation.max_weight is {configuration.max_weight}: "
                "raise it to the largest number of samples of any client"
            )

    def update(self, round: int, model: bytes) -> Update:
        """Train from this model and encode the difference. FloatingPointError if training diverges."""
        flat = np.frombuffer(model, "<f4")
        self._layout.load_into(self._model, flat)
        seeds = round_seeds(self._seed, round)
        if self._configuration.scheme == "fedavg":
            statistics = train(
                self._model, self._x, self._y, self._task.training, seed=_integer(seeds[0]), device=self._device
            )
            values, samples = self._layout.flatten(self._model) - flat, statistics.samples
        else:
            values, statistics = gradient(
                self._model, self._x, self._y, batch_size=self._task.training.batch_size, device=self._device
            )
            samples = 1
        weights, multipliers = self._weights.of(round, samples)
        clip = np.float32(self._configuration.clip)
        clipped = int(np.count_nonzero((np.abs(values) > clip) & (multipliers > 0)))
        np.clip(values, -clip, clip, out=values)
        metrics = {
            "samples": statistics.samples,
            "correct": statistics.correct,
            "loss": round_half_even(statistics.loss_sum / LOSS_UNIT),
            "clipped": clipped,
        }
        values *= multipliers
        encoded = self._packing.encode(values, weights, metrics, np.random.default_rng(seeds[1]))
        return Update(encoded.words, values, statistics, clipped)


class Keeper:
    """The server's side: holds the global model and applies the sums."""

    def __init__(self, configuration: Configuration, model: torch.nn.Module) -> None:
        self._configuration = configuration
        task = read_task(configuration)
        self._rate = task.training.learning_rate
        self.layout = Layout.of(model)
        check_protection(self.layout, task.protection)
        self.model = model
        self.flat: Flat = self.layout.flatten(model)

    @property
    def bytes(self) -> bytes:
        """The model as it is sent: little-endian float32."""
        return self.flat.astype("<f4").tobytes()

    def decode(self, words: Words, contributors: int) -> Total:
        """The sums. ValueError if they cannot be sums of honest contributions."""
        return self._configuration.packing().decode(words, contributors=contributors)

    def apply(self, total: Total) -> None:
        """Move the model by the mean; where nobody contributed it stays."""
        mean, moved = total.mean()
        if self._configuration.form is WeightForm.COORDINATE:
            moved &= total.weights >= self._configuration.min_contributors
        step = mean if self._configuration.scheme == "fedavg" else -self._rate * mean
        self.flat = np.where(moved, self.flat + step, self.flat).astype(np.float32)
        self.layout.load_into(self.model, self.flat)


def round_half_even(value: float) -> int:
    """The nearest integer; metrics are integers."""
    return int(np.rint(value))


def _integer(seeds: np.random.SeedSequence) -> int:
    return int(seeds.generate_state(1, np.uint64)[0] >> np.uint64(1))
