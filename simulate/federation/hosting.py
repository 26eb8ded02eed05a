"""Assignment of clients to processes in a simulation, and the largest weight of a client's update.

Clients share processes if the experiment has workers, or to save memory: they then train one after the other, with
deadlines extended accordingly. A client named by a fault always has its own process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import msgspec
import numpy as np

from tacit.models.configuration import KEEPING_BYTES, TRAINING_BYTES, check_memory, gigabytes, parameters
from tacit.models.datasets.samples import Indices, Source
from tacit.models.partition import divide
from tacit.parties.hosting.folder import available_memory
from tacit.parties.runs.events import ProcessesShared
from tacit.parties.runs.experiment import Experiment, ExperimentError

PROCESS_BYTES: Final = 60e6
"""Memory of a client process, without shared memory and its model (measured)."""
OTHER_BYTES: Final = 600e6
"""Memory of supervisor, fork server and server, whose loaded modules all share."""
PARAMETER_BYTES: Final = 48
"""Bytes of a client per model parameter: while it trains (parties/hosting/preflight.py), and while it masks."""


@dataclass(frozen=True)
class Hosting:
    processes: Mapping[str, tuple[str, ...]]
    reason: str = ""
    """Reason for sharing processes; empty without sharing."""

    @property
    def turns(self) -> int:
        """Largest number of clients that take turns in a process."""
        return max(len(clients) for clients in self.processes.values())

    def patient(self, experiment: Experiment) -> Experiment:
        """Return the experiment with deadlines extended for all that take turns."""
        turns, deadlines = self.turns, experiment.deadlines
        patient = msgspec.structs.replace(
            deadlines,
            train=min(deadlines.train * turns, experiment.policy.longest_train),
            phase=min(deadlines.phase + turns - 1, experiment.policy.longest_phase),
        )
        return msgspec.structs.replace(experiment, deadlines=patient)

    def event(self, experiment: Experiment) -> ProcessesShared:
        shared = [clients for clients in self.processes.values() if len(clients) > 1]
        deadlines = self.patient(experiment).deadlines
        return ProcessesShared(
            clients=sum(map(len, shared)),
            workers=len(shared),
            turns=self.turns,
            reason=self.reason,
            train_seconds=deadlines.train,
            phase_seconds=deadlines.phase,
            neighbours=experiment.graph_parameters().neighbours if experiment.aggregation.mode != "none" else 0,
        )


def check(experiment: Experiment) -> None:
    """Raise ExperimentError if the machine cannot hold the model of the server and that of one training client."""
    each = KEEPING_BYTES + TRAINING_BYTES[experiment.training.optimizer]
    try:
        check_memory(experiment.model, bytes_each=each, available=available_memory())
    except ValueError as error:
        raise ExperimentError(str(error)) from None


def choose(experiment: Experiment, clients: Sequence[str], alone: Collection[str], *, ray_cores: int = 0) -> Hosting:
    """Assign these clients to processes; alone: those that need their own; ray_cores: of Ray, if it hosts them."""
    own = {name: (name,) for name in clients}
    sharing, workers, reason = [name for name in clients if name not in alone], experiment.simulate.workers, ""
    if workers:
        reason = f"simulate.workers = {workers}"
    elif ray_cores:
        workers, reason = ray_cores, f"Ray has {ray_cores} core{'s' * (ray_cores > 1)}"
    elif (available := available_memory()) is not None and (needed := memory(experiment, len(own))) > available:
        workers = len(os.sched_getaffinity(0))
        reason = f"{len(own)} processes would take {gigabytes(needed)}, and there are {gigabytes(available)}"
    if not workers or workers >= len(sharing):
        return Hosting(own)
    shared = {f"worker-{number + 1}": tuple(sharing[number::workers]) for number in range(workers)}
    return Hosting(shared | {name: (name,) for name in clients if name in alone}, reason)


def memory(experiment: Experiment, processes: int) -> float:
    """Estimate the bytes of a run with its clients in so many processes, without their images."""
    per_client = PARAMETER_BYTES * (parameters(experiment.model, classes=1, channels=1) or 0)
    return OTHER_BYTES + processes * PROCESS_BYTES + experiment.clients * per_client


STEP: Final = 100
"""Granularity of a computed weight, so that the ring hardly ever depends on the random split."""


def shares(experiment: Experiment, source: Source, seed: int) -> list[Indices]:
    """Return the training images of every client: its part without the server's stimuli, limited to data.limit.
    ValueError of `divide`."""
    labels = source.train.labels
    parts = divide(labels, experiment.data, clients=experiment.clients, seed=seed, centres=source.train.centres)
    shown = experiment.protection.shown(labels, len(source.class_names))
    own, limit = [np.setdiff1d(part, shown) for part in parts], experiment.data.limit
    if not limit:
        return own
    draws = [np.random.default_rng([seed, client]) for client in range(len(own))]
    return [np.sort(draw.permutation(part)[:limit]) for part, draw in zip(own, draws, strict=True)]


def largest_weight(experiment: Experiment, parts: Sequence[Indices]) -> int:
    """Return the weight that these shares need: images of the largest one, without its validation set."""
    if not experiment.protection.counts_samples(experiment.training):
        return 1
    held_out = Fraction(str(experiment.training.held_out))
    return max(len(part) - math.floor(held_out * len(part)) for part in parts)


def weighed(experiment: Experiment, parts: Sequence[Indices]) -> Experiment:
    """Return the experiment with a sufficient max_weight. ValueError if it sets a smaller one."""
    needed, given = largest_weight(experiment, parts), experiment.aggregation.max_weight
    if given and given < needed:
        raise ValueError(
            f"aggregation.max_weight = {given}: the largest client has {needed:,} samples to train on; leave the key "
            f"out, and it is computed, or set it to {needed} or more"
        )
    computed = -(-needed // STEP) * STEP
    aggregation = msgspec.structs.replace(experiment.aggregation, max_weight=given or computed)
    return msgspec.structs.replace(experiment, aggregation=aggregation)
