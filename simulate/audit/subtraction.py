"""A server that subtracts: runs in which it omits clients from rounds, and the differences of two opened sums.

The server is one of the audit's own (tacit.simulate.federation.cheats). Each client has one image, so that its updates
are the same in every round: for a client that draws new images the difference is useless.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tacit.models.data import load
from tacit.models.data import read as read_images
from tacit.parties.protections.none import NoProtection
from tacit.parties.runs.directory import write_arrays
from tacit.parties.runs.experiment import Experiment
from tacit.secagg.packing import Total
from tacit.simulate.audit.arms import SMALL, AuditArm
from tacit.simulate.audit.views import DIFFERENCE, RunTerms, UpdateView, without
from tacit.simulate.federation.recording import OpenedSum, Record

SUBTRACTION: Final = "subtraction"
_CLIENTS: Final = 10
_GROUP: Final = 2
_CORRUPT, _DROPOUT = 0.05, 0.34
"""Fractions for which groups of two are possible; the same without groups."""
_MOST_TEST_IMAGES: Final = 1000


def subtraction_arms(base: Experiment) -> Iterator[AuditArm]:
    """Yield configurations with the experiment's secure sum alone, without groups and with them.

    In semi-honest mode groups bind no malicious server, and without a secure sum there is nothing to subtract.
    """
    mode = base.aggregation.mode
    groups = {"active": (0, _GROUP), "semi-honest": (0,), "none": ()}[mode]
    for size in groups:
        kind = f"groups of {size}" if size else "no groups"
        # With groups, these follow a round that all clients refuse.
        rounds = 2 + _CLIENTS // size if size else 1 + _CLIENTS
        experiment = msgspec.structs.replace(
            base,
            federation=msgspec.structs.replace(base.federation, clients=_CLIENTS, group_size=size, rounds=rounds),
            aggregation=msgspec.structs.replace(
                base.aggregation, corrupt=_CORRUPT, dropout=_DROPOUT, threshold=0, ring_bits=0
            ),
            protection=NoProtection(),
            encryption=None,
            # So few clients may be less than the owners accept.
            policy=msgspec.structs.replace(
                base.policy, modes=(mode,), smallest_cohort=SMALL, threshold_floor=0, least_corrupt=_CORRUPT
            ),
        )
        yield AuditArm(
            name=f"subtraction-{kind.replace(' ', '-')}",
            about=f"secure sum, {kind}, a server that leaves out one after the other of {_CLIENTS} clients",
            experiment=experiment,
            subtracts=True,
        )


def one_image_each(experiment: Experiment, path: Path, seed: int) -> Experiment:
    """Return the experiment with one image for every client, drawn by the seed; write them to the path (.npz)."""
    source = read_images(experiment.data)
    mean, std = load(experiment.data, image_size=experiment.model.image_size, source=source).normalisation
    generator = np.random.default_rng(seed)
    labels, clients = source.train.labels, experiment.clients
    # The largest label's image fixes the number of classes.
    last = int(labels.argmax())
    others = generator.permutation(np.delete(np.arange(len(labels)), last))
    chosen = {
        "train": (source.train, np.sort(np.append(others[: clients - 1], last))),
        "test": (source.test, np.sort(generator.permutation(len(source.test.labels))[:_MOST_TEST_IMAGES])),
    }
    arrays = {}
    for part, (samples, indices) in chosen.items():
        arrays[f"x_{part}"] = samples.images.pixels(indices, size=experiment.model.image_size)
        arrays[f"y_{part}"] = samples.labels[indices]
    write_arrays(path, **arrays)
    data = msgspec.structs.replace(
        experiment.data,
        source=str(path.resolve()),
        directory="",
        classes=(),
        centres=(),
        partition="iid",
        mean=mean,
        std=std,
    )
    return msgspec.structs.replace(experiment, data=data)


def differences(records: Sequence[Record], terms: RunTerms) -> Iterator[UpdateView]:
    """Subtract each later sum of a recorded server from its first one; none if it opened none."""
    sums = [record for record in records if isinstance(record, OpenedSum)]
    if not sums:
        return
    first, *others = sums
    model = terms.keeper().flat
    for other in others:
        left = tuple(name for name in first.survivors if name not in other.survivors)
        if not left:
            continue
        mean, known = without(_total(first, terms), [_total(other, terms)]).mean()
        yield UpdateView(
            round=first.round, kind=DIFFERENCE, clients=left, model=model, first=model, mean=mean, known=known
        )


def _total(opened: OpenedSum, terms: RunTerms) -> Total:
    sizes = terms.configuration.packing().tensor_sizes
    return Total(values=opened.values, weights=opened.weights, metrics={}, tensor_sizes=sizes)
