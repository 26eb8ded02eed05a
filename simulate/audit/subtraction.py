"""Two sums, and what the first has more than the second: runs whose server leaves clients out, and what it learns so.

The server is one of the audit's own (tacit.simulate.federation.cheats), and all clients are as ever. Each
has one image, so that its updates are the same in every round, as they are where a client takes all of its images: who
draws others anew is another one in the second sum, and the difference of both is of no use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tacit.models.data import load, read
from tacit.parties.protections.none import NoProtection
from tacit.parties.runs.directory import RunDirectory, write_arrays
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.event_log import read as read_events
from tacit.parties.session.events import ClientRoundEnded
from tacit.protocol.core.errors import Code
from tacit.secagg.packing import Total
from tacit.simulate.audit.arms import SMALL, AuditArm
from tacit.simulate.audit.figures import ServerAttempt
from tacit.simulate.audit.views import DIFFERENCE, RunTerms, UpdateView, without
from tacit.simulate.conformance.peer.training_cases import TAKES_PART, refuses_round
from tacit.simulate.federation.recording import OpenedSum, Record

SUBTRACTION: Final = "subtraction"
_CLIENTS: Final = 10
_GROUP: Final = 2
_CORRUPT, _DROPOUT = 0.05, 0.34
"""With which groups of two fit; the same without groups."""
_MOST_TEST_IMAGES: Final = 1000


def subtraction_arms(base: Experiment) -> Iterator[AuditArm]:
    """The secure sum of the experiment alone, without groups and with them; none without a secure sum, and in
    semi-honest mode, in which groups bind no server that lies, no second one."""
    mode = base.aggregation.mode
    groups = {"active": (0, _GROUP), "semi-honest": (0,), "none": ()}[mode]
    for size in groups:
        kind = f"groups of {size}" if size else "no groups"
        # With groups one that nobody lets pass comes before these.
        rounds = 2 + _CLIENTS // size if size else 1 + _CLIENTS
        experiment = msgspec.structs.replace(
            base,
            federation=msgspec.structs.replace(base.federation, clients=_CLIENTS, group_size=size, rounds=rounds),
            aggregation=msgspec.structs.replace(
                base.aggregation, corrupt=_CORRUPT, dropout=_DROPOUT, threshold=0, ring_bits=0
            ),
            protection=NoProtection(),
            encryption=None,
            # Whatever its owner would say to so few clients.
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
    """The same with an image for every client, drawn by the seed, in the file at the path (.npz), which is written."""
    source = read(experiment.data)
    mean, std = load(experiment.data, image_size=experiment.model.image_size, source=source).normalisation
    generator = np.random.default_rng(seed)
    labels, clients = source.train.labels, experiment.clients
    # That of the largest label says how many classes there are.
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
    """What the first sum of a recorded server has more than each later one; nothing if it opened none."""
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
            round=first.round, what=DIFFERENCE, clients=left, model=model, first=model, mean=mean, known=known
        )


def attempted(arm: AuditArm, run: RunDirectory, clients: Sequence[str]) -> ServerAttempt:
    """What the clients did when the first of them was left out alone, in the second round."""
    groups = bool(arm.experiment.federation.group_size)
    expected = refuses_round(Code.MEMBERS) if groups else TAKES_PART
    answers = dict.fromkeys(_answer(run, client) for client in clients[1:])
    seen = ", ".join(answers)
    return ServerAttempt(
        case="leaves-out-of-group" if groups else "leaves-out",
        does=f"leaves a client {'of a group ' if groups else ''}out of a round that begins next to the first model",
        expected=expected,
        seen=seen,
        holds=seen == expected,
    )


def _answer(run: RunDirectory, client: str) -> str:
    for event in read_events(run.events(client)):
        if isinstance(event, ClientRoundEnded) and event.round == 2:
            return TAKES_PART if event.code is None else refuses_round(Code[event.code])
    return "does not end the round"


def _total(opened: OpenedSum, terms: RunTerms) -> Total:
    sizes = terms.configuration.packing().tensor_sizes
    return Total(values=opened.values, weights=opened.weights, metrics={}, tensor_sizes=sizes)
