"""Fault injection: parties that die, freeze, come back, have a slow link or cheat, at a chosen moment.

A fault strikes a party when it enters a phase of a round, before it sends that phase's message. A client trains in
parallel with ADVERTISE_KEYS and SHARE_KEYS; it enters TRAIN when only its training separates it from MASKED_INPUT.
Killing is SIGKILL and freezing SIGSTOP, to the party's own process, which cannot react. The rest of the federation is
not informed: its reaction is genuine. cheats.py has the lies of clients.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from tacit.parties.session.shell import Hooks
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.sum.states import Phase
from tacit.simulate.federation.cheats import CHEATS, Cheat, CheatingClient

PHASES: Final = tuple(phase for phase in Phase if phase is not Phase.SESSION)
_MOMENT: Final = re.compile(r"(?P<party>[a-z0-9-]+)@(?P<what>[A-Za-z_]+)(:(?P<round>[1-9][0-9]*))?")
_SPEED: Final = re.compile(r"(?P<party>[a-z0-9-]+):(?P<kilobits>[0-9]+(\.[0-9]+)?)")
_BITS_PER_KILOBIT: Final = 1000


class FaultError(ValueError):
    """An invalid fault; the message says which are valid."""


class Kind(StrEnum):
    DROP = "drop"
    """Killed; it does not return."""
    RESTART = "restart"
    """Killed, and restarted under the same identity."""
    STALL = "stall"
    """Frozen for good."""


@dataclass(frozen=True)
class Fault:
    kind: Kind
    party: str
    phase: Phase
    round: int


@dataclass(frozen=True)
class Lie:
    party: str
    cheat: Cheat
    round: int


@dataclass(frozen=True)
class Faults:
    """All faults of a run; `kilobits` limits the speed of a party's link, in 1,000 bits a second."""

    moments: tuple[Fault, ...] = ()
    kilobits: tuple[tuple[str, float], ...] = ()
    lies: tuple[Lie, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        struck = {fault.party for fault in self.moments} | {lie.party for lie in self.lies}
        return frozenset(struck | dict(self.kilobits).keys())

    def of(self, party: str) -> Hooks | None:
        """Return the hooks of one party, if it has faults."""
        moments = tuple(fault for fault in self.moments if fault.party == party)
        speed = dict(self.kilobits).get(party)
        return FaultyHooks(moments, speed) if moments or speed else None

    def machine(self, party: str) -> Callable[..., TrainingClient]:
        cheats: dict[int, tuple[Cheat, ...]] = {}
        for lie in self.lies:
            if lie.party == party:
                cheats[lie.round] = (*cheats.get(lie.round, ()), lie.cheat)
        return partial(CheatingClient, cheats=cheats) if cheats else TrainingClient

    def after_kill(self, party: str) -> Faults | None:
        """Return the remaining faults of a killed party for its restart; None if it does not return.

        Of several moments the earliest has struck; the others of that round cannot come any more.
        """
        own = [fault for fault in self.moments if fault.party == party]
        struck = min(own, key=lambda fault: (fault.round, PHASES.index(fault.phase)), default=None)
        if struck is None or struck.kind is not Kind.RESTART:
            return None
        later = tuple(fault for fault in own if fault.round > struck.round)
        lies = tuple(lie for lie in self.lies if lie.party == party and lie.round > struck.round)
        return Faults(later, tuple(limit for limit in self.kilobits if limit[0] == party), lies)


def read_faults(
    *,
    drop: Iterable[str] = (),
    stall: Iterable[str] = (),
    restart: Iterable[str] = (),
    slow: Iterable[str] = (),
    cheat: Iterable[str] = (),
    parties: Iterable[str],
) -> Faults:
    """Parse faults: PARTY@PHASE[:ROUND], PARTY:KBIT for slow links, CLIENT@HOW[:ROUND] for cheats.

    FaultError for anything else.
    """
    known = tuple(parties)
    given = ((Kind.DROP, drop), (Kind.STALL, stall), (Kind.RESTART, restart))
    moments = tuple(_moment(kind, text, known) for kind, texts in given for text in texts)
    for fault in moments:
        if fault.kind is Kind.RESTART and fault.party == "server":
            raise FaultError("--restart server: a restarted server is a new session; use --drop and --resume")
    return Faults(moments, tuple(_speed(text, known) for text in slow), tuple(_lie(text, known) for text in cheat))


class FaultyHooks(Hooks):
    """Strikes at its moments; delays traffic of a slow link."""

    def __init__(self, moments: tuple[Fault, ...], kilobits: float | None) -> None:
        super().__init__()
        self._moments = moments
        self._kilobits = kilobits

    def entering(self, round: int, phases: set[Phase]) -> None:
        # A client whose training ends before the shares arrive skips TRAIN.
        reached = {*phases, Phase.TRAIN} if Phase.MASKED_INPUT in phases else phases
        for fault in self._moments:
            if fault.round == round and fault.phase in reached:
                os.kill(os.getpid(), signal.SIGSTOP if fault.kind is Kind.STALL else signal.SIGKILL)

    async def moved(self, count: int) -> None:
        if self._kilobits:
            await asyncio.sleep(count * 8 / (self._kilobits * _BITS_PER_KILOBIT))


def _moment(kind: Kind, text: str, parties: tuple[str, ...]) -> Fault:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise FaultError(f"--{kind} {text}: write PARTY@PHASE or PARTY@PHASE:ROUND, such as client-2@MASKED_INPUT:3")
    phase = match["what"].upper()
    if phase not in {known.value for known in PHASES}:
        raise FaultError(f"--{kind} {text}: {match['what']} is no phase; they are {', '.join(PHASES)}")
    return Fault(kind, _party(f"--{kind} {text}", match["party"], parties), Phase(phase), int(match["round"] or 1))


def _lie(text: str, parties: tuple[str, ...]) -> Lie:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise FaultError(f"--cheat {text}: write CLIENT@HOW or CLIENT@HOW:ROUND, such as client-2@words:3")
    cheat = CHEATS.get(match["what"].lower())
    if cheat is None:
        raise FaultError(f"--cheat {text}: {match['what']} is no cheat; they are {', '.join(CHEATS)}")
    clients = tuple(name for name in parties if name != "server")
    return Lie(_party(f"--cheat {text}", match["party"], clients, "client"), cheat, int(match["round"] or 1))


def _speed(text: str, parties: tuple[str, ...]) -> tuple[str, float]:
    match = _SPEED.fullmatch(text)
    if match is None or not float(match["kilobits"]):
        raise FaultError(f"--slow {text}: write PARTY:KBIT with a speed above 0, such as client-2:500")
    return _party(f"--slow {text}", match["party"], parties), float(match["kilobits"])


def _party(option: str, name: str, parties: tuple[str, ...], role: str = "party") -> str:
    if name not in parties:
        shown = parties if len(parties) <= 8 else (*parties[:3], "...", parties[-1])
        raise FaultError(f"{option}: {name} is no {role} of this run; they are {', '.join(shown)}")
    return name
