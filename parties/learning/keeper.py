"""The server's work on the task: it holds the global model and applies the sums.

It adds the mean of the updates, or takes one step against the mean of the gradients, with momentum if it is asked
for; which coordinates have contributors enough, and what more is done with them, the protection's side says
(parties/protections).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs

from tacit.models.layout import Flat
from tacit.models.training import CPU
from tacit.parties.learning.task import HELD_OUT_METRICS, LOSS_UNIT, read_task, update_units
from tacit.parties.protections.sides import Basis, Moved
from tacit.parties.session.events import HeldOut, RoundEnded
from tacit.parties.session.task import Octets, ServerTask, UnusableSumError
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total
from tacit.secagg.ring import Words


class Keeper(ServerTask):
    """The server's side.

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
        self.configuration = configuration
        task = read_task(configuration)
        self._training = task.training
        self.layout = task.layout(model)
        self._units = update_units(configuration, self.layout)
        self.fixed = self.layout.fixed_bytes(model)
        """The part that is not trained, as it is sent."""
        self.side = task.protection.server(Basis(configuration, task, model, seed, device))
        self.model = model
        self.flat: Flat = self.layout.flatten(model)
        self.velocity: Flat | None = None
        """With momentum of the server, what it steps against: float32 [D], which belongs to the present model."""
        if self._training.sends_gradients and self._training.momentum:
            self.velocity = np.zeros_like(self.flat)
        self._former = self.flat, self.velocity

    @property
    def bytes(self) -> bytes:
        """The model as it is sent: little-endian float32."""
        return self.flat.astype("<f4").tobytes()

    def reconfigure(self, configuration: Configuration) -> None:
        """Go on with another configuration of the same task, as another number of clients needs."""
        self.configuration = configuration
        self.side.basis = replace(self.side.basis, configuration=configuration)

    def decode(self, words: Words, contributors: int) -> Total:
        """The sums. ValueError if they cannot be sums of honest contributions."""
        total = self.configuration.packing().decode(words, contributors=contributors)
        self.side.check(total, contributors)
        return total

    def mean(self, total: Total) -> tuple[npt.NDArray[np.float64], Moved]:
        """The mean of the updates [D], and which coordinates it moves [D]: those with contributors enough."""
        mean, moved = total.mean()
        return mean, moved & self.side.moved(total)

    def replace(self, model: Octets) -> None:
        """Take this model, little-endian float32 bytes, in the place of the present one. It is under another key, and
        so the velocity, which nobody encrypts again, begins anew."""
        if self.velocity is not None:
            self.velocity = np.zeros_like(self.velocity)
        self.flat = np.frombuffer(model, "<f4").astype(np.float32)
        self.layout.load_into(self.model, self.flat)

    def apply(self, total: Total, vectors: Mapping[str, Words] | None = None, *, round: int = 1) -> None:
        """Move the model by the mean; where nobody contributed it stays. Then what the protection does with it.

        vectors: of every client, if the protection needs them; round: learning rate and what the server itself draws
        follow from it.
        ValueError, which changes nothing, for a dishonest one, and for a sum that leads to a model that is not finite;
        UnusableSumError for one to which nobody has contributed.
        """
        if not total.metrics.get("samples") and not np.any(total.weights):
            raise UnusableSumError("no client has contributed to it; their own logs say why")
        mean, moved = self.mean(total)
        step, velocity = mean, self.velocity
        if self._training.sends_gradients:
            if velocity is not None:
                # v = m v + g, as torch.optim.SGD has it; where nobody contributed it waits.
                mean = np.where(moved, self._training.momentum * velocity.astype(np.float64) + mean, velocity)
                velocity = mean.astype(np.float32)
            step = -self._training.in_round(round).learning_rate * mean
        packing = self.configuration.packing()
        alone = {name: packing.decode(words, contributors=1) for name, words in (vectors or {}).items()}
        clients = {name: (self._moved(*one.mean()), np.asarray(one.weights)) for name, one in alone.items()}
        flat = self.side.finish(self._moved(step, moved), clients, round)
        self.layout.check_finite(flat)
        self.layout.load_into(self.model, flat)
        self._former, self.flat, self.velocity = (self.flat, self.velocity), flat, velocity

    def undo(self) -> None:
        """Take the last `apply` back."""
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
        )

    def _moved(self, step: npt.NDArray[np.float64], moved: Moved) -> Flat:
        return np.where(moved, self._units.moved(self.flat, step), self.flat)


def _held_out(round: int, metrics: Mapping[str, int]) -> HeldOut | None:
    """Metrics of the model after this round, which the next one began with; None if there are none."""
    images, correct, loss = (metrics.get(name, 0) for name in HELD_OUT_METRICS)
    if not images:
        return None
    return HeldOut(round=round, images=images, accuracy=correct / images, loss=loss * LOSS_UNIT / images)
