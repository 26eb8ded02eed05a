"""Computation of a federation: the task that the server proposes, and the configuration that follows from it.

The task (model and training settings, shape of the data, protection) travels inside the configuration, so that its hash
is part of everything that the members sign. The protocol enforces properties of a protection by fields of the
configuration: `configure` derives them, at the server, and again at every client, which compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import numpy as np

from tacit.models.configuration import ModelConfiguration
from tacit.models.description import OWN_VIT, ModelDescription
from tacit.models.layout import Flat, Layout
from tacit.models.update_units import UpdateUnits
from tacit.models.workload import LARGEST_METRIC, Workload
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.protections.catalogue import protection_hook
from tacit.parties.protections.encryption import Encryption, check_together
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.protections.sides import OtherClassesError, TaskError, Work
from tacit.parties.session.task import check_derived
from tacit.protocol.core.blob import NO_BLOB, StateLayout, announce
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.messages import BODY_LIMIT, Blob
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.sum.configuration import Configuration, Proposal
from tacit.protocol.sum.states import SumLabel

if TYPE_CHECKING:
    from torch import nn

METRICS: Final = ("samples", "correct", "loss", "clipped")
"""Metrics that clients report within the secure sum. `loss` counts in units of LOSS_UNIT."""

OWN_METRICS: Final = ("samples", "clipped")
"""Metrics of clients with a custom training step, of which nothing else is known."""

HELD_OUT_METRICS: Final = ("held_out", "held_out_correct", "held_out_loss")
"""Additional metrics of held-out images: their number, and the results of the round's initial model on them."""

LOSS_UNIT: Final = 2.0**-16

_OWN: Final = "own"
"""Weight of a custom training step's metrics, whose names are appended."""
_OWN_UNIT: Final = 2.0**-14


def own_metrics(names: Sequence[str], values: Flat, weight: int) -> dict[str, int]:
    """Return a client's addends for metrics of these names; values are clipped to LARGEST_METRIC."""
    whole = np.rint((np.clip(values, -LARGEST_METRIC, LARGEST_METRIC) + LARGEST_METRIC) / _OWN_UNIT).astype(np.int64)
    return {_OWN: weight} | {f"{_OWN}_{name}": int(value) * weight for name, value in zip(names, whole, strict=True)}


def own_means(names: Sequence[str], total: Mapping[str, int]) -> dict[str, float]:
    """Return their weighted means from the sum; none without weight."""
    weight = total.get(_OWN, 0)
    return {name: total[f"{_OWN}_{name}"] * _OWN_UNIT / weight - LARGEST_METRIC for name in names if weight}


class TaskLabel:
    CLASSES: Final = Label(b"tacit/1 names of classes")


class Task(Work, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that all members share to work on the same model."""

    protection: Protection = NoProtection()
    encryption: Encryption | None = None

    def encode(self) -> bytes:
        return encode_structure(self)

    def build(
        self, seed: int = 0, workload: Workload | None = None, *, start: ModelConfiguration | None = None
    ) -> nn.Module:
        """Build the model, with weights from the seed, or from the start that a client's own section [model] names.

        workload: None imports the task's. ValueError for a model that does not fit the protection; FactoryError."""
        from tacit.models.adapters.tuning import tuned

        workload = workload or Workload.named(self.model, self.training)
        network = workload.network(start or self.model, classes=self.classes, channels=self.channels, seed=seed)
        network = tuned(network, self.model, classes=self.classes, seed=seed)
        model = self.protection.build(network, self, seed)
        freeze(model, self.model.train)
        return model


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Leave requires_grad only on parameters whose names match a pattern. ValueError for a pattern that matches
    none."""
    if not patterns:
        return
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f'model.train: "{pattern}" matches no parameter of this model; it has {", ".join(names[:8])}'
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))


def model_description(
    task: Task, layout: Layout, class_names: Sequence[str], *, white: int = 255, encrypted: bool = False
) -> ModelDescription:
    """The description of the task's model, for its file; white: the number of a white pixel; encrypted: whether it is
    under a key of the clients."""
    from tacit.models.networks import arguments

    model = task.model
    return ModelDescription(
        architecture=model.factory or (OWN_VIT if model.name == "vit" else model.name),
        arguments=arguments(model, classes=task.classes, channels=task.channels),
        image_size=model.image_size,
        channels=task.channels,
        classes=tuple(class_names),
        mean=task.mean,
        std=task.std,
        white=white,
        trained="patterns" if model.train else model.tune,
        trained_values=sum(entry.size for entry in layout.entries if entry.part == "trained"),
        patterns=model.train,
        rank=model.rank if model.tune in ("lora", "parallel") else 0,
        encrypted=encrypted,
    )


def class_digest(names: Sequence[str]) -> bytes:
    """Digest of a list of classes, for Work.class_digest."""
    return digest(TaskLabel.CLASSES, *(name.encode() for name in names))


def check_classes(task: Work | StatisticsTask, names: Sequence[str]) -> None:
    """Raise OtherClassesError unless these are the classes of the task, in its order."""
    if len(names) != task.classes or class_digest(names) != task.class_digest:
        shown = ", ".join(names[:8]) + ", ..." * (len(names) > 8)
        raise OtherClassesError(
            f"the images here have {len(names)} classes ({shown}), the server's task has {task.classes}, and the lists "
            "differ: set data.classes to that of the server"
        )


def read_task(configuration: Configuration) -> Task:
    """The task in a configuration; RemoteProtocolError if there is none."""
    return decode_structure(configuration.task, Task, limit=BODY_LIMIT, read=protection_hook)


def configure(
    terms: Proposal, task: Task, model: nn.Module, *, ring_bits: int | None = None, fixed: Blob | None = None
) -> Configuration:
    """The configuration of a task on a model that it built, under these terms; their other fields are ignored.

    ring_bits: of a word of the sum; None takes the smallest sufficient number. fixed: the announced fixed tensors; None
    takes those of this model. ValueError, naming key, value and remedy, if the task is incompatible with the terms,
    with the model, or with itself."""
    protection, encryption, training = task.protection, task.encryption, task.training
    check_together(protection, encryption, terms, training)
    protection.fits(model, task)
    chosen = {name: getattr(terms, name) for name in Proposal.__struct_fields__}
    if not protection.counts_samples(training):
        chosen["max_weight"] = 1
    facts, layout = protection.facts(), task.layout(model)
    if fixed is None:
        fixed = announce(layout.fixed_bytes(model), SumLabel.FIXED) if layout.fixed else NO_BLOB
    if encryption is not None:
        encryption.fits(layout)
        # One key serves both; it is renewed as often as the stricter one requires.
        renewals = filter(None, [facts.rekey_every, encryption.rekey_every])
        facts = replace(facts, group_key=True, rekey_every=min(renewals, default=0))
    judged = HELD_OUT_METRICS if training.held_out else ()
    own = (_OWN, *(f"{_OWN}_{name}" for name in training.metrics)) if training.metrics else ()
    metrics = (OWN_METRICS if training.factory else METRICS) + own + judged
    metrics += protection.metrics(model, terms.clients)
    packing = Proposal(**chosen).packing_of(
        form=facts.form, tensor_sizes=layout.tensor_sizes, metrics=metrics, ring_bits=ring_bits
    )
    return Configuration(
        **chosen,
        **asdict(facts),
        scheme=training.algorithm,
        encrypted=encryption is not None,
        initial_model=encryption.initial_model if encryption else "server",
        spending=protection.spending,
        ring_bits=packing.ring.bits,
        tensor_sizes=layout.tensor_sizes,
        metrics=metrics,
        state=StateLayout(type="float32", count=layout.size),
        layout=layout.digest(),
        fixed=fixed,
        task=task.encode(),
    )


def update_units(configuration: Configuration, layout: Layout) -> UpdateUnits:
    """Units of updates. Without secure aggregation models are averaged directly."""
    return UpdateUnits(layout, configuration.clip if configuration.secure else None)


def check_configuration(said: Configuration, task: Task, model: nn.Module) -> None:
    """Raise TaskError, naming the field, unless a server's configuration is the one that follows from its task."""
    derived = configure(said, task, model, ring_bits=said.ring_bits, fixed=said.fixed)
    if said.fixed.size != task.layout(model).fixed_size(model):
        raise TaskError("the fixed part of the server's model has another length than that of the model built here")
    if (derived.layout, derived.tensor_sizes) != (said.layout, said.tensor_sizes):
        if task.model.factory:
            raise TaskError(f"the model of {task.model.factory} has other tensors here than at the server's")
        raise TaskError("the model built here has other tensors than the server's: install the same versions of timm")
    check_derived(said, derived)
