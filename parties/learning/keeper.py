"""The server's work on the task: it holds the global model and applies the sums. The protection's server side decides
which coordinates have enough contributors, and may transform the result (parties/protections)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs

from tacit.models.layout import Flat, Layout, LayoutEntry
from tacit.models.training import CPU
from tacit.parties.learning.task import HELD_OUT_METRICS, LOSS_UNIT, own_means, read_task, update_units
from tacit.parties.protections.sides import Basis, Moved
from tacit.parties.session.events import HeldOut, RoundEnded
from tacit.parties.session.task import Octets, ServerTask, UnusableSumError
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total
from tacit.secagg.ring import Words

_SQUARES_KEPT: Final = 0.99
_ADAPTIVITY: Final = 1e-3
"""Beta 2 and tau of FedAdam, as in the paper's experiments."""


class Keeper(ServerTask):
    """The server's side of the task.

    seed: of the server's own training, if it trains; None draws from the operating system's randomness."""

    def __init__(
        self,
        configuration: Configuration,
        model: torch.nn.Module,
        *,
        seed: int | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.configuration = configuration
        task = read_task(configuration)
        self._training = task.training
        self.layout = task.layout(model)
        self._units = update_units(configuration, self.layout)
        self.fixed = self.layout.fixed_bytes(model)
        """Fixed tensors, encoded for sending."""
        self.side = task.protection.server(Basis(configuration, task, model, seed, device))
        self.model = model
        self.flat: Flat = self.layout.flatten(model)
        self.velocity: Flat | None = None
        """Momentum of the server's optimizer for the present model: the last step, float32 [D], and with Adam the mean
        of squares too, [2D]."""
        optimizer, size = self._training.server_optimizer, self.layout.size
        if optimizer != "none" or (self._training.sends_gradients and self._training.momentum):
            self.velocity = np.zeros(2 * size if optimizer == "adam" else size, np.float32)
        parts = [np.full(entry.size, entry.part == "trained") for entry in self.layout.entries]
        self._trained = np.concatenate(parts) if parts else np.ones(0, np.bool_)
        self._former = self.flat, self.velocity

    @property
    def bytes(self) -> bytes:
        """The encoded model: little-endian float32."""
        return self.flat.astype("<f4").tobytes()

    def reconfigure(self, configuration: Configuration) -> None:
        """Continue with another configuration of the same task, as another number of clients needs."""
        self.configuration = configuration
        self.side.basis = replace(self.side.basis, configuration=configuration)

    def decode(self, words: Words, contributors: int) -> Total:
        total = self.configuration.packing().decode(words, contributors=contributors)
        self.side.check(total, contributors)
        return total

    def mean(self, total: Total) -> tuple[npt.NDArray[np.float64], Moved]:
        """The mean of the updates [D], and the coordinates that it moves [D]: those with enough contributors."""
        mean, moved = total.mean()
        return mean, moved & self.side.moved(total)

    def replace(self, model: Octets) -> None:
        """Replace the model, little-endian float32 bytes. The new one is under another key, so the velocity, which
        nobody re-encrypts, is reset."""
        if self.velocity is not None:
            self.velocity = np.zeros_like(self.velocity)
        self.flat = np.frombuffer(model, "<f4").astype(np.float32)
        self.layout.load_into(self.model, self.flat)

    def apply(self, total: Total, vectors: Mapping[str, Words] | None = None, *, round: int = 1) -> None:
        """Move the model by the mean, except coordinates without contributors; then apply the protection's server side.

        vectors: of every client, if the protection needs them; round: determines the learning rate and the server's
        draws. ValueError, which changes nothing, for an invalid sum, and for one that makes the model not finite;
        UnusableSumError for one without contributors."""
        if not total.metrics.get("samples") and not np.any(total.weights):
            raise UnusableSumError("no client has contributed to it: they have no samples, or kept everything back")
        mean, moved = self.mean(total)
        step, velocity = mean, self.velocity
        if self._training.sends_gradients:
            if velocity is not None:
                # v = m v + g, as in torch.optim.SGD; coordinates without contributors keep their velocity.
                mean = np.where(moved, self._training.momentum * velocity.astype(np.float64) + mean, velocity)
                velocity = mean.astype(np.float32)
            step = -self._training.in_round(round).learning_rate * mean
        elif velocity is not None:
            step, velocity = self._stepped(mean, moved & self._trained, velocity)
        packing = self.configuration.packing()
        alone = {name: packing.decode(words, contributors=1) for name, words in (vectors or {}).items()}
        clients = {name: (self._moved(*one.mean()), np.asarray(one.weights)) for name, one in alone.items()}
        flat = self.side.finish(self._moved(step, moved), clients, round)
        self.layout.check_finite(flat)
        self.layout.load_into(self.model, flat)
        self._former, self.flat, self.velocity = (self.flat, self.velocity), flat, velocity

    def _stepped(
        self, mean: npt.NDArray[np.float64], moved: Moved, velocity: Flat
    ) -> tuple[npt.NDArray[np.float64], Flat]:
        """The step of the server's optimizer where the mean update moves a trained parameter, and its memory after it:
        FedAvgM (Hsu et al. 2019), FedAdam (Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2)."""
        training, size = self._training, len(mean)
        last, squares = velocity[:size].astype(np.float64), velocity[size:].astype(np.float64)
        if training.server_optimizer == "adam":
            first = training.server_momentum * last + (1 - training.server_momentum) * mean
            second = _SQUARES_KEPT * squares + (1 - _SQUARES_KEPT) * mean**2
            step = training.server_rate * first / (np.sqrt(second) + _ADAPTIVITY)
            squares = np.where(moved, second, squares)
        else:
            first = training.server_momentum * last + mean
            step = training.server_rate * first
        memory = np.concatenate([np.where(moved, first, last), squares]).astype(np.float32)
        return np.where(moved, step, mean), memory

    @property
    def velocity_layout(self) -> Layout:
        if self.velocity is None or len(self.velocity) == self.layout.size:
            return self.layout
        return Layout(tuple(LayoutEntry(name, (self.layout.size,)) for name in ("first", "second")))

    def undo(self) -> None:
        """Undo the last `apply`."""
        self.flat, self.velocity = self._former
        self.layout.load_into(self.model, self.flat)

    def event(self, total: Total | None, ended: RoundEnded) -> RoundEnded:
        metrics = total.metrics if total else {}
        samples = metrics.get("samples", 0)
        return structs.replace(
            ended,
            samples=samples,
            train_accuracy=metrics["correct"] / samples if samples and "correct" in metrics else None,
            train_loss=metrics["loss"] * LOSS_UNIT / samples if samples and "loss" in metrics else None,
            clipped=metrics.get("clipped"),
            held_out=_held_out(ended.round - 1, metrics),
            metrics=own_means(self._training.metrics, metrics),
        )

    def _moved(self, step: npt.NDArray[np.float64], moved: Moved) -> Flat:
        return np.where(moved, self._units.moved(self.flat, step), self.flat)


def _held_out(round: int, metrics: Mapping[str, int]) -> HeldOut | None:
    """Metrics of the model after this round, with which the next one began; None if there are none."""
    images, correct, loss = (metrics.get(name, 0) for name in HELD_OUT_METRICS)
    if not images:
        return None
    return HeldOut(round=round, images=images, accuracy=correct / images, loss=loss * LOSS_UNIT / images)
