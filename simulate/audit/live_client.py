"""A client of ours in a process of its own, for a server that cheats: all of a client but its training.

Link, keys, machine and journal are those of any client; what it contributes is drawn at random, since no cheat of a
secure sum depends on it. When a session ends, which a refusal may do, it joins again, until it is stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from tacit.models.interruption import Proceed
from tacit.models.training import LocalStatistics
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import PartyKeys
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import Diary, EventLog
from tacit.parties.session.journal import JournalFile, MemoryFile
from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.core.roster import Roster
from tacit.protocol.sum.configuration import Configuration, Mode, Policy
from tacit.simulate.conformance.peer.script import draw_update
from tacit.simulate.federation.child import Control

_PATIENCE: Final = 60.0
_GRACE: Final = 0.2


class DrawingLearner:
    """Learns nothing: it draws its updates."""

    reads_alone = remembers = False

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def learn(self, round: int, model: bytes, group: None, *, proceed: Proceed) -> None:
        """Nothing is learnt."""

    def keep(self, draft: None) -> None:
        """Nothing is remembered."""

    def encode(self, draft: None) -> Update:
        """A random update that the configuration admits."""
        drawn = draw_update(self._configuration)
        statistics = LocalStatistics(samples=1, correct=0, loss_sum=0.0)
        return Update(drawn.words, drawn.values.astype(np.float32), statistics, 0)


drawing = cast(Callable[[Configuration], Learner], DrawingLearner)
"""Makes one, for whoever wants a learner."""


async def live_client(
    control: Control, *, address: str, keys: PartyKeys, roster: Roster, mode: Mode, folder: Path
) -> dict[str, Any]:
    """The client's process: it accepts this mode alone."""
    settings = ClientSettings(
        address=address,
        keys=keys,
        roster=roster,
        policy=Policy(modes=(mode,)),
        journal=JournalFile(folder / "journal.jsonl"),
        memory=MemoryFile(folder / "memory.safetensors"),
        patience=_PATIENCE,
        grace=_GRACE,
    )
    with EventLog(folder / "events.jsonl", keys.name) as log:
        while True:
            with contextlib.suppress(EndpointError, LocalProtocolError):
                await ClientParty(settings, drawing, Diary(log, lambda event, fields: None)).run()
