"""One data owner that trains beside a model owner's model, with the dealer: each a process, over CURVE on loopback TCP.

It is a round of `tacit adapt` at this data owner: its images pass the blocks, then batches follow back to back. The end
of a round is left out: both owners keep the shares, and request no sum of them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import torch

from tacit.parties.adaptation.data_owner import LearnerSettings, PrivateLearner
from tacit.parties.adaptation.events import ImagesKept, LearningSessionLost
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.hosting.party_file import DealerFile, ModelOwnerFile, TeachingSection
from tacit.parties.inference.data_owner import DataOwnerSettings, PassCosts
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links.roster import read_roster
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.protocol.core.events import Event
from tacit.simulate.adaptation.plan import SimulatedDealer, SimulatedModelOwner
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.bench.ends import BenchmarkError, highest_bytes
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.party_files import (
    DEALER,
    LISTEN,
    MODEL_OWNER,
    NO_QUOTA,
    NOT_YET,
    PartyFiles,
    PartyProgram,
    hold_party,
)
from tacit.simulate.federation.processes import Program, results
from tacit.simulate.private_inference.inference import DATA_OWNER

_PATIENCE: Final = 120.0
_SMALLEST_COHORT: Final = 3
"""Required by the settings; no sums are requested."""


@dataclass(frozen=True, kw_only=True)
class LearningSession:
    """Settings of a session of one round."""

    model: PrivateModel = field(repr=False)
    learning: PublicLearning = field(repr=False)
    own: Labelled
    """The data owner's images; they repeat if the batches need more."""
    ahead: int | None
    """See DataOwnerSettings."""
    cores: frozenset[int]
    """Cores of the processor for all parties."""


@dataclass(frozen=True)
class SessionCosts:
    """The cost of a session."""

    passes: tuple[ImagesKept, ...]
    """Passes of images through the blocks, at the data owner; likewise the batches."""
    batches: tuple[PassCosts, ...]
    peak_bytes: dict[str, int]
    """Peak memory of each process, with all that it has loaded."""


def learn(session: LearningSession, show: Callable[[int], object]) -> SessionCosts:
    """Run the parties; show: receives the number of every completed batch. ProcessError if a party fails, OSError if
    they cannot be run here, BenchmarkError for a batch out of range."""
    peaks: dict[str, int] = {}

    def progress(name: str, message: dict[str, Any]) -> None:
        for party in multiprocessing.active_children():
            # The data owner may have ended after its last batch; use the peak of the batches before.
            with suppress(OSError, BenchmarkError):
                if party.pid is not None:
                    peaks[party.name] = highest_bytes(party.pid)
        if "done" in message:
            show(message["done"])

    with TemporaryDirectory() as folder:
        files = PartyFiles(Path(folder))
        files.enrol({MODEL_OWNER: "server", DEALER: "dealer", DATA_OWNER: "client"})
        programs = _programs(files, session)
        listening = {DEALER: (DEALER,), MODEL_OWNER: (MODEL_OWNER,)}
        found = asyncio.run(results(programs, progress, listening=listening, wanted=(DATA_OWNER,)))[DATA_OWNER]
    passes = msgspec.convert(found["passes"], tuple[ImagesKept, ...])
    batches = msgspec.convert(found["batches"], tuple[PassCosts, ...])
    if any(batch.refused for batch in batches):
        raise BenchmarkError(
            "a batch was out of range of what the model owner has rehearsed: nothing was learned by it"
        )
    return SessionCosts(passes, batches, peaks)


def _programs(files: PartyFiles, session: LearningSession) -> dict[str, Program]:
    learning, cores = session.learning, session.cores
    section = TeachingSection(
        classes=tuple(str(number) for number in range(learning.classes)),
        rounds=1,
        adapter=learning.adapter,
        batch=learning.batch,
        batches=learning.batches,
        learning_rate=learning.schedule.learning_rate,
    )
    dealer = DealerFile(bind=LISTEN, answer=_PATIENCE, **files.common(DEALER))
    owner = ModelOwnerFile(
        bind=LISTEN,
        dealer=NOT_YET,
        model="given by this process",
        answer=_PATIENCE,
        policy=NO_QUOTA,
        adaptation=section,
        **files.common(MODEL_OWNER),
    )
    hooks = partial(SimulatedModelOwner, session.model, ahead=session.ahead)
    state = files.state(MODEL_OWNER)
    state.make()
    state.learning.write_bytes(msgspec.msgpack.encode(learning))
    own = {"files": files, "learning": learning, "ahead": session.ahead, "cores": cores}
    return {
        DEALER: (hold_party, {"program": PartyProgram(files, DEALER, dealer, SimulatedDealer, cores)}),
        MODEL_OWNER: (hold_party, {"program": PartyProgram(files, MODEL_OWNER, owner, hooks, cores)}),
        DATA_OWNER: (_data_owner, {**own, "own": session.own}),
    }


async def _data_owner(
    control: Control,
    *,
    files: PartyFiles,
    addresses: dict[str, str],
    learning: PublicLearning,
    ahead: int | None,
    cores: frozenset[int],
    own: Labelled,
) -> dict[str, Any]:
    """Train, and return the cost of every pass and batch. BenchmarkError as soon as a session is lost: the cost of
    another one does not count."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, cores)
    found: list[PassCosts] = []
    passes: list[ImagesKept] = []

    def keep(costs: PassCosts) -> None:
        found.append(costs)
        control.send({"done": len(found)})

    def tell(event: Event) -> None:
        if isinstance(event, LearningSessionLost):
            raise BenchmarkError(event.detail)
        if isinstance(event, ImagesKept):
            passes.append(event)

    owner = DataOwnerSettings(
        model_owner_address=addresses[MODEL_OWNER],
        dealer_address=addresses[DEALER],
        keys=files.keys(DATA_OWNER),
        roster=read_roster(files.roster),
        patience=_PATIENCE,
        ahead=ahead,
    )
    settings = LearnerSettings(
        owner=owner,
        batch=learning.batch,
        batches=learning.batches,
        rounds=1,
        smallest_cohort=_SMALLEST_COHORT,
        seed=(learning.seed, 0),
    )
    event_log = EventLog(EventFile(files.path / f"{DATA_OWNER}.jsonl", DATA_OWNER), tell)
    owner_of_images = PrivateLearner(settings, own.images, own.labels, event_log, on_batch=keep)
    try:
        await owner_of_images.learn(1, None, ())
    finally:
        await owner_of_images.close()
    return {"passes": passes, "batches": found}
