"""A first secure sum, of counts, sums and squares of pixels, by which all parties then normalise their images.

It is a separate session before training, of the scheme "statistics": a sum without a model, whose metrics are integers,
and so exact (models/moments.py). Nothing else leaves a client, and the server learns only the totals of all survivors.
The sum is plain under any protection of the training: it has no noise, and no key of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from tacit.models.configuration import MOST_SUMMED_CHANNELS
from tacit.models.moments import Moments
from tacit.parties.session.events import RoundEnded, StatisticsSummed
from tacit.parties.session.task import ServerTask, check_derived
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.sum.configuration import Configuration, Proposal
from tacit.secagg.packing import Total, WeightForm
from tacit.secagg.ring import Words

SCHEME: Final = "statistics"


class StatisticsTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that make all clients count their pixels alike."""

    image_size: Annotated[int, Meta(ge=8, le=1024)]
    """Height and width to which images in files are resized."""
    channels: Annotated[int, Meta(ge=1, le=MOST_SUMMED_CHANNELS)]
    classes: Annotated[int, Meta(ge=1, le=65_536)]
    class_digest: Annotated[bytes, Meta(max_length=32)]


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the sum, as a run directory keeps it."""

    clients: int
    """Clients in the sum."""
    pixels: int
    """Pixels of all clients, in one channel."""
    mean: tuple[float, ...]
    std: tuple[float, ...]


def metrics_of(channels: int) -> tuple[str, ...]:
    return "pixels", *(f"{kind}-{channel}" for channel in range(channels) for kind in ("sum", "squares"))


def configure_statistics(terms: Proposal, task: StatisticsTask) -> Configuration:
    """The configuration of the first sum under the terms of an experiment. ValueError if they leave no room for it."""
    chosen = {name: getattr(terms, name) for name in Proposal.__struct_fields__} | {"max_weight": 1}
    metrics = metrics_of(task.channels)
    packing = Proposal(**chosen).packing_of(form=WeightForm.SCALAR, tensor_sizes=(), metrics=metrics, ring_bits=None)
    return Configuration(
        **chosen,
        scheme=SCHEME,
        ring_bits=packing.ring.bits,
        form=WeightForm.SCALAR,
        tensor_sizes=(),
        metrics=metrics,
        task=encode_structure(task),
    )


def read_statistics_task(said: Configuration) -> StatisticsTask:
    """The task in a server's configuration. TaskError if the task implies another configuration, RemoteProtocolError if
    there is none."""
    task = decode_structure(said.task, StatisticsTask, limit=BODY_LIMIT)
    check_derived(said, configure_statistics(said, task))
    return task


def statistics_words(configuration: Configuration, own: Moments) -> Words:
    """A client's contribution. ValueError for more pixels than a metric can count, 2^32."""
    numbers = [own.pixels, *(number for pair in zip(own.sums, own.squares, strict=True) for number in pair)]
    metrics = dict(zip(configuration.metrics, numbers, strict=True))
    # Nothing is rounded.
    generator = np.random.default_rng(0)
    return configuration.packing().encode(np.zeros(0, np.float32), 1, metrics, generator).words


class StatisticsKeeper(ServerTask):
    outside = True

    def __init__(self, configuration: Configuration) -> None:
        self._packing = configuration.packing()
        self.found: Statistics | None = None
        """None until a sum was opened."""

    def decode(self, words: Words, contributors: int) -> Total:
        """The sums. ValueError if they cannot be sums of honest contributions."""
        total = self._packing.decode(words, contributors=contributors)
        moments_of(total.metrics).check(contributors)
        return total

    def apply(self, total: Total, vectors: Mapping[str, Words] | None = None, *, round: int = 1) -> None:
        found = moments_of(total.metrics)
        mean, std = found.normalisation()
        self.found = Statistics(clients=int(total.weights), pixels=found.pixels, mean=mean, std=std)

    def undo(self) -> None:
        self.found = None

    @property
    def finished(self) -> bool:
        return self.found is not None

    def event(self, total: Total | None, ended: RoundEnded) -> StatisticsSummed:
        found = self.found if total else None
        return StatisticsSummed(
            status=ended.status,
            code=ended.code,
            detail=ended.detail,
            culprit=ended.culprit,
            cohort=ended.cohort,
            survivors=ended.survivors,
            pixels=None if found is None else found.pixels,
            mean=None if found is None else list(found.mean),
            std=None if found is None else list(found.std),
        )


def moments_of(metrics: Mapping[str, int]) -> Moments:
    channels = (len(metrics) - 1) // 2
    sums, squares = (tuple(metrics[f"{kind}-{at}"] for at in range(channels)) for kind in ("sum", "squares"))
    return Moments(metrics["pixels"], sums, squares)
