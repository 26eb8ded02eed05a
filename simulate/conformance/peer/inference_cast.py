"""Two parties of private inference that are ours, each with a link to the third: how a case is played.

What our machines say to the live party goes through the lie of the case. Then everything that comes is heard until the
live party has ended the session towards both of ours, or has completed it; or until it is silent for too long.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from tacit.protocol.core.codec import Envelope
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.messages import Abort, Kinds, Message
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, MaterialOver
from tacit.protocol.inference.results import InferenceEnded
from tacit.simulate.conformance.peer.cast import Cast, Line
from tacit.simulate.conformance.peer.inference_cases import (
    BOTH,
    COMPLETES,
    OTHER_SESSION,
    OTHERS,
    InferenceCase,
    Scene,
    ends,
)
from tacit.simulate.conformance.peer.keyring import Keyring
from tacit.simulate.conformance.peer.script import PeerVerdict, Saying, saying, verdict
from tacit.simulate.world.inference import MemoryInference, Side, Told
from tacit.simulate.world.network import Parcel


@dataclass
class Observed:
    """One case. roles: what our two parties are called in verdicts, by name."""

    roles: Mapping[str, str]
    case: InferenceCase
    liar: str = ""
    """Who has told the lie, once it is told."""
    aborts: dict[str, Abort] = field(default_factory=dict)
    """By whom of ours the live party has told."""
    reproach: str = ""
    """What is wrong, in other words."""
    found: str = ""
    """What has come of the session, if that is looked at."""
    held: bool = False
    """Whether a session came to its regular end."""

    def words(self) -> str:
        """The verdict."""
        told: dict[tuple[Code, str], list[str]] = {}
        for name, abort in self.aborts.items():
            role = self.roles.get(name, OTHERS)
            if self.case.witness in ("", role):
                told.setdefault((abort.code, abort.culprit), []).append(role)
        words = []
        for (code, culprit), roles in told.items():
            blames = "" if self.case.anyone or culprit == self.liar else f", blames {culprit or 'nobody'}"
            words.append(ends(code, BOTH if len(roles) == len(self.roles) else roles[0]) + blames)
        words += [each for each in (self.reproach, self.found) if each]
        words += [COMPLETES] if self.held else []
        if not self.liar and self.case.lies and self.held:
            words.append("it is over before the lie")
        return ", ".join(words)


class OneSession(MemoryInference):
    """Our two parties in one session with the live one, of which a cast hears what they tell. of_world, more: as of a
    world without one."""

    def __init__(self, cast: InferenceCast, *of_world: Any, **more: Any) -> None:
        super().__init__(*of_world, **more, seed=os.urandom(32), roster=cast.roster)
        self.outside = cast.live
        self._cast = cast

    def note(self, told: Told) -> None:
        super().note(told)
        self._cast.note(told)


class InferenceCast(Cast):
    """roles: what ours are called in verdicts, by name; liars: who tells the lies, unless a case says that both do."""

    SPOKEN: ClassVar[Kinds] = INFERENCE_MESSAGES
    """By owners with each other; with the dealer they speak private inference."""
    world: OneSession | None = None
    """That of the session, once it has begun."""

    def __init__(
        self,
        keyring: Keyring,
        live: str,
        lines: Sequence[Line],
        *,
        roles: Mapping[str, str],
        liars: Collection[str] | None = None,
        wait: float,
    ) -> None:
        super().__init__(live, lines, wait=wait)
        self.roster = keyring.roster
        self._liars: Collection[str] = roles if liars is None else liars
        self._roles = roles
        self._links: dict[tuple[str, bytes], Link] = {}
        """By whom of ours, and the session."""
        self._former: dict[str, dict[type[Message], Saying]] = {}
        self.past: set[bytes] = set()
        """Sessions of earlier cases."""
        self._replaced: set[bytes] = set()
        """Sessions of this case that we have left for another one."""
        self._sessions: set[bytes] = set()
        """All sessions of this case."""
        self._silent: set[str] = set()
        self._liars_before: set[str] = set()
        self.case: InferenceCase
        self.observed: Observed
        self.involved: set[str] = set()
        """Who of ours has something to do with the live party in this session."""
        self.done: set[str] = set()
        """Who of ours is finished with the live party."""
        self.refused: set[str] = set()
        """Who of ours was told that it has ended with a code."""

    def kinds(self, own: str) -> Kinds:
        return INFERENCE_MESSAGES if self.roster.dealer.name in (own, self.live) else self.SPOKEN

    async def play(self, case: InferenceCase) -> PeerVerdict:
        self.case, self.observed = case, Observed(self._roles, case)
        self.past |= self._sessions
        self._sessions, self._replaced, self._silent, self._liars_before = set(), set(), set(), set()
        self._former, self._links = {name: {} for name in self.lines}, {}
        self._restart()
        try:
            await self.open()
            await self.begin()
            await self.listen(self._settled)
        except TimeoutError:
            self.observed.reproach = f"nothing more comes for {self.wait:g} s"
        self.conclude()
        await self._dismiss()
        return verdict(case, self.observed.words())

    async def begin(self) -> None:
        """Begin a session with the live party. TimeoutError when it does not come."""
        raise NotImplementedError

    async def feed(self, parcel: Parcel, message: Message | None) -> None:
        """Something of this session has come; message: None if it cannot be read."""
        if self.world is not None:
            self.world.put(parcel)
            await self.go_on(self.world)

    def note(self, told: Told) -> None:
        """One of our machines has come to the regular end, or refuses what the live party says."""
        ended = told.output
        if not isinstance(ended, InferenceEnded):
            return
        if ended.code is None:
            if told.side == self._side and told.party not in self._silent:
                self.done.add(told.party)
        elif not self.observed.aborts and not self.observed.reproach:
            self.observed.reproach = f"breaks a rule: {ended.code.name}, {ended.detail}"

    def conclude(self) -> None:
        """See whether the session has come to its regular end."""
        owners = [] if self.world is None else self.world.shells
        machines = [machine for owner in owners for side, machine in owner.machines() if side == self._side]
        closed = bool(machines) and all(machine.state.name == "CLOSED" for machine in machines)
        self.observed.held = closed and self.involved <= self.done and not self.refused

    async def relay(self, parcel: Parcel) -> None:
        own, packet, case = parcel.sender, parcel.packet, self.case
        said, session = saying(packet), packet.envelope.session
        # What the live party has ended towards one of ours it must end towards the other by itself.
        if session in self._replaced or (self.observed.aborts and isinstance(said.message, Abort)):
            return
        if not packet.envelope.sequence:
            self._links.pop((own, NO_SESSION), None)
            self._links[own, session] = self.link(own, session)
        self._sessions |= {session} - {NO_SESSION}
        if own in self._silent:
            return
        lies: Sequence[Saying] = [said]
        if (own in self._liars or case.together) and own not in self._liars_before:
            acts = packet.kind is case.at
            lies = [] if acts else list(case.lie(Scene(own, self._former[own], self._openings(own)), said))
            if lies != [said]:
                self.observed.liar = own
                self._liars_before.add(own)
            if acts:
                await self._act(own)
                return
        self._former[own][packet.kind] = said
        for lie in lies:
            await self._say(self._links[own, session], lie)
        if case.act == "stops" and own == self.observed.liar:
            self._silent.add(own)

    async def hear(self, parcel: Parcel, envelope: Envelope | None, message: Message | None) -> None:
        own, session = parcel.receiver, NO_SESSION if envelope is None else envelope.session
        if session in self.past or session == OTHER_SESSION:
            return
        if isinstance(message, Abort):
            self.observed.aborts.setdefault(own, message)
        if session in self._replaced:
            return
        if isinstance(message, Abort):
            self.done.add(own)
            self.refused.add(own)
        await self.feed(parcel, message)

    @property
    def _side(self) -> Side:
        """Of the exchanges with the live party."""
        return "dealer" if self.live == self.roster.dealer.name else "owners"

    def _openings(self, own: str) -> tuple[tuple[int, int], ...]:
        owners = [] if self.world is None else self.world.shells
        sizes = (enumerate(owner.openings) for owner in owners if owner.name == own)
        return tuple((step, size) for step, size in chain(*sizes) if size)

    def _restart(self) -> None:
        """Nobody of ours is in a session."""
        self.world = None
        self.involved, self.done, self.refused = set(), set(), set()

    async def _act(self, own: str) -> None:
        """What else than a lie a case has us do."""
        if self.case.act == "begins again":
            self._replaced |= self._sessions
            self._restart()
            await self.begin()
            return
        self._silent.add(own)
        if self.case.act == "hangs up":
            self.done.add(own)
            await self.lines[own].close()

    def link(self, own: str, session: bytes) -> Link:
        """A new one of ours to the live party."""
        return Link(own, self.live, session, Traffic(), self.kinds(own))

    async def _say(self, link: Link, said: Saying) -> None:
        if said.envelope.get("session") == OTHER_SESSION:
            link = self.link(link.own, OTHER_SESSION)
        elif isinstance(said.message, Abort | MaterialOver):
            self.done.add(link.own)
        await self.say(said, link)

    def _settled(self) -> bool:
        """Whether nothing more is to come."""
        observed, witness = self.observed, self.case.witness
        if witness and observed.aborts and not observed.reproach:
            return any(self._roles[name] == witness for name in observed.aborts)
        return bool(observed.reproach) or (bool(self.involved) and self.involved <= self.done)

    async def _dismiss(self) -> None:
        """Let the live party end what it has not ended."""
        abort = Saying(Abort(code=Code.LEFT, detail="the next test begins another session", culprit=""), round=0)
        left = self.involved - self.done
        for (own, session), link in self._links.items():
            if own in left and session not in self._replaced:
                await self._say(link, abort)
