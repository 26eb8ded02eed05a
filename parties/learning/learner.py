"""A client's work on the task: from the model of a round to its update.

An update is a pair of values and weight: FedAvg sends samples * (trained - global) with the number of samples, FedSGD
the gradient with weight one. Protections override this (parties/protections).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tacit.models import checkpoint
from tacit.models.data import split
from tacit.models.interruption import Proceed, to_the_end
from tacit.models.layout import Flat, Layout
from tacit.models.training import (
    EVALUATION_BATCH,
    NOTHING,
    Evaluation,
    LocalStatistics,
    drawn,
    evaluate,
    gradient,
    judge,
)
from tacit.models.tripwire import suspicious
from tacit.models.workload import Labelled, Workload, samples_of
from tacit.parties.learning.remembered import Remembered
from tacit.parties.learning.task import (
    HELD_OUT_METRICS,
    LOSS_UNIT,
    Task,
    check_configuration,
    own_metrics,
    read_task,
    update_units,
)
from tacit.parties.protections.encryption import GroupModel
from tacit.parties.protections.sides import (
    Basis,
    CraftedModelError,
    Group,
    Memory,
    Protected,
    TaskError,
    Trained,
    integer,
    round_seeds,
)
from tacit.protocol.core.primitives import digest
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.plain import PlainPacking
from tacit.secagg.ring import Words

_SHOWN: Final = 4


@dataclass(frozen=True)
class LocalWork:
    """A client's activity in a round, for its own log."""

    kept: int = 0
    layers: tuple[str, ...] = ()
    training_seconds: float = 0.0
    choosing_seconds: float = 0.0
    uncounted: int = 0
    """Training samples not counted in the update's weight, because aggregation.max_weight is smaller."""


@dataclass(frozen=True)
class Update:
    """A client's contribution to a round: words, and facts for its own log."""

    words: Words
    values: npt.NDArray[np.floating[Any]]
    """Values that the words add to the sum: times the weight, and clipped if the sum is secure."""
    statistics: LocalStatistics
    clipped: int
    local: LocalWork = LocalWork()
    group: Group | None = None
    """The members, with the key of the model, if they have one."""
    failure: str = ""
    """Reason why training failed, in which case the update is empty."""


@dataclass(frozen=True)
class Draft:
    """A client's training result of a round, before it is clipped and encoded."""

    values: Flat
    """The step from the model (models/update_units.py), or the gradient, encrypted if the model is."""
    protected: Protected = field(repr=False)
    """The same before encryption, with its weights."""
    statistics: LocalStatistics
    held_out: LocalStatistics
    """Metrics of the initial model of the round, on held-out images."""
    rounding: np.random.SeedSequence
    local: LocalWork
    remembered: Remembered = field(repr=False)
    group: Group | None
    failure: str = ""


@dataclass(frozen=True)
class Learned:
    values: Flat
    samples: int
    statistics: LocalStatistics
    held_out: LocalStatistics


class Learner:
    """A client's side: from the model of a round to its update.

    x: float32 [N, C, S, S]; y: int64 [N]; for custom data x is the training step's input, and y None.
    workload: None imports the task's. seed: None draws batches and rounding from the operating system's
    randomness. tripwire: whether a model that looks crafted is refused (models/tripwire.py).
    client: its number, which a custom training step may use.
    start: a .safetensors file of weights for the model that this client makes with encryption.initial_model =
    "clients"; "": random ones. TaskError if the server contradicts itself, or this client cannot take part; ValueError
    if the protection or the file does not fit the model; OSError if the file cannot be read."""

    def __init__(
        self,
        configuration: Configuration,
        x: Any,
        y: torch.Tensor | None,
        *,
        seed: int | None,
        device: torch.device,
        workload: Workload | None = None,
        tripwire: bool = True,
        start: str = "",
        client: int = 0,
    ) -> None:
        self._configuration = configuration
        self._packing = configuration.packing()
        self.task = task = read_task(configuration)
        workload = workload or Workload.named(task.model, task.training)
        self._model = task.build(workload=workload)
        check_configuration(configuration, task, self._model)
        self.layout = task.layout(self._model)
        self._units = update_units(configuration, self.layout)
        self._needs_fixed = configuration.fixed.size > 0
        """Whether the fixed tensors of the model are still to come."""
        self._x, self._y, self._held_out = divided(x, y, task)
        counts = task.protection.counts_samples(task.training)
        self.uncounted = max(0, samples_of(self._x) - configuration.max_weight) if counts else 0
        """Samples that the weight of an update does not count, since max_weight is smaller. Refusing here would let a
        server find their number."""
        self._seed, self._device, self._tripwire = seed, device, tripwire
        self._first_buffers = self.layout.local(self._model)
        """Initial values of the local buffers."""
        self._side = task.protection.client(Basis(configuration, task, self._model, seed, device, workload, client))
        self.remembered = Remembered(self._side.memory, self._side.memory)
        self._has_memory = bool(self._form())
        self._group_model: GroupModel | None = None
        if task.encryption is not None:
            given = checkpoint.load(Path(start), self.layout)[0] if start else None
            self._group_model = GroupModel(
                self.layout,
                task.encryption,
                lambda seed: self.layout.flatten(task.build(seed, workload)) if given is None else given.copy(),
            )

    @property
    def run(self) -> bytes:
        return self.task.run

    @property
    def remembers(self) -> bool:
        """Whether this client keeps state of a finished round beyond the data that it sent."""
        return self._has_memory or self._group_model is not None

    def take_up(self, remembered: Remembered) -> None:
        """Restore persisted state. TaskError if it does not fit the protection."""
        plain = None if self._group_model is None else np.empty(self.layout.size, np.float32)
        remembered.check_form(self._form(), plain)
        self.remembered = remembered

    @property
    def personal(self) -> bool:
        return self.task.protection.own_models(self.task.training)

    @property
    def reads_alone(self) -> bool:
        """Whether the server cannot evaluate this client's model: it is personal, or encrypted."""
        return self.personal or self._group_model is not None

    def take_fixed(self, data: bytes) -> None:
        """Take the fixed tensors of the server's model. TaskError if they are not those of this model."""
        try:
            self.layout.load_fixed(self._model, data)
        except ValueError as error:
            raise TaskError(str(error)) from None
        self._needs_fixed, self._first_buffers = False, self.layout.local(self._model)

    def plain(self, model: bytes, key: GroupKey | None) -> Flat:
        """The server's model in the clear, float32 [size], with the client's own part in it, if any; its local buffers
        are loaded."""
        self._side.memory = self.remembered.at(self._digest(model))
        self.layout.load_local(self._model, {**self._first_buffers, **self._side.memory})
        if self._group_model is not None:
            return self._side.merge(self._group_model.plain(model, key))
        return self._side.merge(np.frombuffer(model, "<f4").astype(np.float32, copy=False))

    def reencrypt(self, order: Reencrypt) -> bytes:
        """The re-encrypted model that the server requests, empty if this client does not have it. TaskError without
        encryption."""
        if self._group_model is None:
            raise TaskError("the server asks for an encrypted model, and its task has no encryption")
        if order.source != "remembered":
            return self._group_model.reencrypt(order)
        plain = self.remembered.plain
        if plain is None or self.remembered.plain_round < order.round:
            return b""
        return self._group_model.key(order.key).encrypt(plain).astype("<f4").tobytes()

    def evaluate(self, flat: Flat, x: torch.Tensor, y: torch.Tensor, *, batch_size: int) -> Evaluation:
        self.layout.load_into(self._model, flat)
        return evaluate(self._model, x, y, batch_size=batch_size, device=self._device)

    def whole(self, flat: Flat) -> tuple[Layout, Flat]:
        """A plain model with the fixed tensors, for a checkpoint."""
        self.layout.load_into(self._model, flat)
        layout = Layout.of(self._model)
        return layout, layout.flatten(self._model)

    def shared(self, path: Path) -> Flat:
        """The summed part of a whole model from a checkpoint: float32 [size]. Raises as checkpoint.load."""
        whole = Layout.of(self._model)
        return self.layout.concatenate(whole.split(checkpoint.load(path, whole)[0]))

    def update(self, round: int, model: bytes, group: Group | None = None) -> Update:
        """Train from the server's model, keep and encode the result. Raises as `learn` does."""
        draft = self.learn(round, model, group)
        self.keep(draft)
        return self.encode(draft)

    def learn(self, round: int, model: bytes, group: Group | None = None, *, proceed: Proceed = to_the_end) -> Draft:
        """Train from the server's model. If that fails, the draft changes nothing, and has the reason.

        Nothing is kept of it before `keep`. TaskError if the server went back to before the kept state;
        CraftedModelError, before it trains, if the tripwire detects a crafted model."""
        if self._needs_fixed:
            raise TaskError("the part of the server's model that is not trained has not come")
        began_with = self._digest(model)
        self.remembered.check_round(round, began_with)
        flat = self.plain(model, group.key if group else None)
        self.layout.load_into(self._model, flat)
        if self._tripwire and (found := suspicious(self._model)):
            shown = ", ".join(map(str, found[:_SHOWN])) + ", ..." * (len(found) > _SHOWN)
            raise CraftedModelError(
                f"the server's model of round {round} has patterns of known attacks on images ({shown}): ask its "
                "operator where it comes from; if it is honest, as a pruned one may be, set policy.tripwire = false"
            )
        buffers = self.layout.local(self._model)
        seeds, failure, began = round_seeds(self._seed, round), "", time.perf_counter()
        try:
            learned = self._train(round, flat, seeds[0], proceed)
        except (ArithmeticError, ValueError, RuntimeError) as error:
            # An outcome that depends on the client's data must look to the server like any other update.
            failure = " ".join(str(error).split()) or type(error).__name__
            self.layout.load_into(self._model, flat)
            self.layout.load_local(self._model, buffers)
            learned = Learned(np.zeros_like(flat), 0, NOTHING, NOTHING)
        trained, buffers = time.perf_counter(), self.layout.local(self._model)
        own = np.asarray(learned.statistics.own or (0.0,) * len(self.task.training.metrics), np.float32)
        protected = self._side.protect(Trained(round, flat, learned.values, learned.samples, seeds[2], group, own))
        if not len(protected.own):
            protected = replace(protected, own=own)
        local = LocalWork(
            kept=protected.kept,
            layers=protected.layers,
            training_seconds=trained - began,
            choosing_seconds=time.perf_counter() - trained,
            uncounted=self.uncounted,
        )
        values = protected.values
        if group is not None and self._group_model is not None:
            values = self._group_model.key(group.key).encrypt(values)
        remembered = self.remembered.then(round, began_with, {**self._side.memory, **buffers})
        return Draft(
            values, protected, learned.statistics, learned.held_out, seeds[1], local, remembered, group, failure
        )

    def _train(self, round: int, flat: Flat, seed: np.random.SeedSequence, proceed: Proceed) -> Learned:
        """Train the model, which has the weights `flat`. Raises if the update is not to be used."""
        held_out, training = NOTHING, self.task.training
        if self._held_out is not None:
            held_out = judge(
                self._model, *self._held_out, batch_size=EVALUATION_BATCH, device=self._device, proceed=proceed
            )
        if not training.sends_gradients:
            statistics = self._side.train(self._x, self._y, round=round, seed=integer(seed), proceed=proceed)
            values, samples = self._units.step(flat, self.layout.flatten(self._model)), statistics.samples
            samples -= self.uncounted
        else:
            assert self._y is not None
            x, y = drawn(self._x, self._y, training.fedsgd_images, integer(seed))
            values, statistics = gradient(
                self._model, x, y, batch_size=training.batch_size, device=self._device, proceed=proceed
            )
            samples = 1
        self.layout.check_finite(values)
        return Learned(values, samples, statistics, held_out)

    def keep_model(self, round: int, plain: Flat) -> None:
        """Keep the server's model after this round, in the clear: without its key nothing else is left of it."""
        self.remembered = replace(self.remembered, plain=plain, plain_round=round)

    def keep(self, draft: Draft) -> None:
        self.remembered = draft.remembered

    def _form(self) -> Memory:
        return {**self._side.form(), **self.layout.local(self._model)}

    def _digest(self, model: bytes) -> bytes:
        return digest(SumLabel.MODEL, model) if self._has_memory else b""

    def encode(self, draft: Draft) -> Update:
        weights, multipliers = draft.protected.weights, draft.protected.multipliers
        values: npt.NDArray[np.floating[Any]]
        if isinstance(self._packing, PlainPacking):
            clipped, values = 0, draft.values.astype(np.float64)
        else:
            clip = np.float32(self._configuration.clip)
            clipped = int(np.count_nonzero((np.abs(draft.values) > clip) & (multipliers > 0)))
            values = np.clip(draft.values, -clip, clip)
        values *= multipliers
        reported, held_out = self._side.reported(draft.statistics), draft.held_out
        metrics = draft.protected.metrics | {"samples": reported.samples, "clipped": clipped}
        if not self.task.training.factory:
            metrics |= {"correct": reported.correct, "loss": round(reported.loss_sum / LOSS_UNIT)}
        if names := self.task.training.metrics:
            counts = self.task.protection.counts_samples(self.task.training)
            metrics |= own_metrics(names, draft.protected.own, draft.statistics.samples if counts else 1)
        if self.task.training.held_out:
            judged = held_out.samples, held_out.correct, round(held_out.loss_sum / LOSS_UNIT)
            metrics |= dict(zip(HELD_OUT_METRICS, judged, strict=True))
        if isinstance(self._packing, PlainPacking):
            encoded = self._packing.encode(draft.values, weights, metrics)
        else:
            encoded = self._packing.encode(values, weights, metrics, np.random.default_rng(draft.rounding))
        return Update(encoded.words, values, draft.statistics, clipped, draft.local, draft.group, draft.failure)


def divided(x: Any, y: torch.Tensor | None, task: Task) -> tuple[Any, torch.Tensor | None, Labelled | None]:
    """Images and labels for training, and held-out ones; custom data are not divided."""
    if y is None or not task.training.held_out:
        return x, y, None
    trained, kept = split(x, task.training.held_out, task.run)
    # Only the divided part is copied.
    return (x[trained], y[trained], (x[kept], y[kept])) if len(kept) else (x, y, None)
