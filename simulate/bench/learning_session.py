"""One data owner that learns beside a model owner's model, with the dealer: each a process, over CURVE on loopback TCP.

It is a round of `tacit adapt` at this data owner, with its batches one after the other. What comes behind them, once a
round, is not there: the shares are kept at both owners, and no sum of them is asked for.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import torch

from tacit.models.adapters.configuration import Reveal
from tacit.parties.adaptation.data_owner import LearnerSettings
from tacit.parties.adaptation.events import LearningSessionLost
from tacit.parties.adaptation.model_owner import TeachingSettings
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.data_owner import DataOwnerSettings, PassCosts
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.events import ListeningStarted
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.events import Event
from tacit.protocol.core.roster import Roster
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.bench.ends import BenchmarkError, highest_bytes
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import Program, results
from tacit.simulate.insecure.revealing_parties import Revealing, learner, teacher
from tacit.simulate.private_inference.inference import DATA_OWNER, DEALER, MODEL_OWNER

_LISTEN: Final = "tcp://127.0.0.1:*"
_PATIENCE: Final = 120.0
_SMALLEST_COHORT: Final = 3
"""Required by the settings; no sums are requested."""


@dataclass(frozen=True, kw_only=True)
class LearningSession:
    """Settings of a session of one round."""

    model: PrivateModel = field(repr=False)
    learning: PublicLearning = field(repr=False)
    reveal: Reveal
    """Which outputs of blocks the data owner receives."""
    own: Labelled
    """The data owner's images; they come again where the batches need more."""
    ahead: int | None
    """See DataOwnerSettings."""
    cores: frozenset[int]
    """Cores of the processor for all parties."""


@dataclass(frozen=True)
class SessionCosts:
    """The cost of a session."""

    batches: tuple[PassCosts, ...]
    """At the data owner."""
    peak_bytes: dict[str, int]
    """Peak memory of each process, with all that it has loaded."""


def learn(session: LearningSession, show: Callable[[int], object]) -> SessionCosts:
    """Run the parties; show: receives the number of every batch that is over. ProcessError if a party fails, OSError if
    they cannot be run here, BenchmarkError for a batch that was out of range."""
    keys = {name: generate(name) for name in (MODEL_OWNER, DEALER, DATA_OWNER)}
    roster = Roster(
        (keys[MODEL_OWNER].member("server"), keys[DEALER].member("dealer"), keys[DATA_OWNER].member("client"))
    )
    peaks: dict[str, int] = {}

    def progress(name: str, message: dict[str, Any]) -> None:
        for party in multiprocessing.active_children():
            # The data owner may have ended after its last batch; then its peak is that of the batches before.
            with suppress(OSError, BenchmarkError):
                if party.pid is not None:
                    peaks[party.name] = highest_bytes(party.pid)
        show(message["done"])

    with TemporaryDirectory() as logs:

        def process(name: str) -> dict[str, Any]:
            return {"process": _Process(keys[name], roster, Path(logs), session.cores)}

        own = {"learning": session.learning, "reveal": session.reveal, "ahead": session.ahead}
        programs: dict[str, Program] = {
            DEALER: (_dealer, process(DEALER)),
            MODEL_OWNER: (_model_owner, {**process(MODEL_OWNER), **own, "model": session.model}),
            DATA_OWNER: (_data_owner, {**process(DATA_OWNER), **own, "own": session.own}),
        }
        listening = {DEALER: str, MODEL_OWNER: str}
        found = asyncio.run(results(programs, progress, listening=listening, wanted=(DATA_OWNER,)))[DATA_OWNER]
    batches = msgspec.convert(found, tuple[PassCosts, ...])
    if any(batch.refused for batch in batches):
        raise BenchmarkError(
            "a batch was out of range of what the model owner has rehearsed: nothing was learned by it"
        )
    return SessionCosts(batches, peaks)


@dataclass(frozen=True)
class _Process:
    """Settings common to all processes."""

    keys: PartyKeys
    roster: Roster
    logs: Path
    cores: frozenset[int]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings common to all parties."""
        return {"keys": self.keys, "roster": self.roster, "patience": _PATIENCE}

    def set_up(self) -> None:
        """Use one thread, on these cores."""
        torch.set_num_threads(1)
        os.sched_setaffinity(0, self.cores)

    def event_log(self, control: Control) -> EventLog:
        """Return a temporary event log, which sends the party's address to the supervisor. BenchmarkError as soon as a
        session is lost: the cost of another one does not count."""

        def tell(event: Event) -> None:
            if isinstance(event, ListeningStarted):
                control.send({"address": event.address})
            elif isinstance(event, LearningSessionLost):
                raise BenchmarkError(event.detail)

        return EventLog(EventFile(self.logs / f"{self.keys.name}.jsonl", self.keys.name), tell)


async def _dealer(control: Control, *, process: _Process, addresses: dict[str, str]) -> None:
    process.set_up()
    await DealerParty(DealerSettings(address=_LISTEN, **process.settings), process.event_log(control)).run()


async def _model_owner(
    control: Control,
    *,
    process: _Process,
    addresses: dict[str, str],
    model: PrivateModel,
    learning: PublicLearning,
    reveal: Reveal,
    ahead: int | None,
) -> None:
    process.set_up()
    settings = TeachingSettings(
        address=_LISTEN,
        dealer_address=addresses[DEALER],
        most_images=learning.batch * learning.batches,
        most_batch=learning.batch,
        ahead=ahead,
        learning=learning,
        opening=OpeningPolicy(rounds=1, owners=1, smallest_cohort=_SMALLEST_COHORT, colluders=0),
        **process.settings,
    )
    await teacher(Revealing(reveal), settings, model, process.event_log(control)).run()


async def _data_owner(
    control: Control,
    *,
    process: _Process,
    addresses: dict[str, str],
    learning: PublicLearning,
    reveal: Reveal,
    ahead: int | None,
    own: Labelled,
) -> list[PassCosts]:
    """Learn, and return the cost of every batch."""
    process.set_up()
    owner = DataOwnerSettings(
        model_owner_address=addresses[MODEL_OWNER], dealer_address=addresses[DEALER], ahead=ahead, **process.settings
    )
    settings = LearnerSettings(
        owner=owner,
        batch=learning.batch,
        batches=learning.batches,
        rounds=1,
        smallest_cohort=_SMALLEST_COHORT,
        seed=(learning.seed, 0),
    )
    found: list[PassCosts] = []

    def keep(costs: PassCosts) -> None:
        found.append(costs)
        control.send({"done": len(found)})

    owner_of_images = learner(
        Revealing(reveal), settings, own.images, own.labels, process.event_log(control), on_batch=keep
    )
    try:
        await owner_of_images.learn(1, None, ())
    finally:
        await owner_of_images.close()
    return found
