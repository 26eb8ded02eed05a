"""The sums of a round of adaptation: the weight of each data owner, and the model owner's decision to open its sum.

docs/spec/adaptation.md ("Which sums are told") has the rules. Weights are integers from LEAST to LARGEST, which is
twice LEAST, so that no data owner counts more than twice as much as another, whatever it states. Opening is one
decision across all sessions of the model owner: a round is final when all survivors have sent the same list, and the
sum of exactly their shares may then be revealed as long as no later round is final. Links are independent: an owner's
list may arrive before another owner's share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.inference.messages import MOST_IMAGES

LEAST: Final = 16
LARGEST: Final = 2 * LEAST
LARGEST_SUM: Final = 1 << 12
"""Largest sum of weights: times parameters below 2^6, with 44 fractional bits, it stays below 2^62, within a word;
parameters in range are below 2^3."""


def weight_of(count: int, least_count: int) -> int:
    """Return the weight of an owner with `count` images. least_count: images of the least weight; 0: all weigh 1."""
    return min(max(LEAST * count // least_count, LEAST), LARGEST) if least_count else 1


def sum_of_weights(owners: int, least_count: int) -> tuple[int, int]:
    return (LEAST * owners, LARGEST * owners) if least_count else (owners, owners)


MOST_LOST: Final = 64
"""Lost rounds after the last sum whose reasons are stored: a liar can lose any number of rounds."""


@dataclass(frozen=True, kw_only=True)
class OpeningPolicy:
    """What a model owner opens."""

    rounds: int
    because: str = ""
    """Reason to stop that the number does not give, for people."""
    owners: int
    smallest_cohort: int
    """Fewest survivors, not counting possible colluders."""
    colluders: int
    """Number of data owners that may collude (n_C)."""
    steps: int = MOST_IMAGES
    """Largest number of training steps per data owner and session. No quota counts them."""


@dataclass
class RoundSums:
    """Sums of one model owner. After a restart the model owner restores the persisted `opened`, `current`, `survivors`,
    `owners` and `counts`."""

    policy: OpeningPolicy
    opened: int = 0
    current: int = 0
    survivors: tuple[str, ...] = ()
    owners: set[str] = field(default_factory=set)
    """Owners that train, or have received a sum."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of images of each owner, as stated in its first round."""
    begun: dict[str, int] = field(default_factory=dict)
    """Round in which each owner trains, from the current parameters."""
    kept: dict[str, int] = field(default_factory=dict)
    """Round of each owner's share of parameters that the model owner holds."""
    said: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Survivors of that round, as each owner sent them."""
    since: dict[str, float] = field(default_factory=dict)
    """Time at which each owner first sent them."""
    lost: dict[int, str] = field(default_factory=dict)
    """Reasons of the lost rounds after the current one."""

    def check_begin(self, owner: str, number: int, based: int, count: int = 0) -> None:
        """Refuse an owner that may not train in this round, or from these parameters."""
        if (why := self._exhausted()) is not None:
            raise RemoteProtocolError(Code.POLICY, f"{why}: ask it for more")
        self._check_owner(owner)
        if number <= self.current:
            raise RemoteProtocolError(Code.SESSION, f"round {number} is over: that of {self.current} has been opened")
        if based != self.current:
            raise RemoteProtocolError(
                Code.SESSION,
                f"it begins with the parameters of round {based}, and those of round {self.current} are the last",
            )
        if (stated := self.counts.get(owner, count)) != count:
            raise RemoteProtocolError(Code.SESSION, f"it says that it has {count} images, and has said {stated} before")

    def begin(self, owner: str, number: int, count: int = 0) -> None:
        self.owners.add(owner)
        self.counts[owner] = count
        self.begun[owner] = number

    def keep(self, owner: str, number: int) -> None:
        """Record that the model owner holds this owner's share of the round. The share is void if another round has
        become final meanwhile, or this one is lost."""
        for store in (self.kept, self.said, self.since):
            store.pop(owner, None)
        if self.begun.pop(owner, None) == number and number not in self.lost:
            self.kept[owner] = number

    def check_ask(self, owner: str, survivors: tuple[str, ...]) -> None:
        """Refuse an owner that may receive no sum, or an invalid list of survivors."""
        self._check_owner(owner)
        if survivors and (list(survivors) != sorted(set(survivors)) or owner not in survivors):
            raise RemoteProtocolError(Code.MEMBERS, "it names survivors that are in no order, or without itself")

    def none_for(self, owner: str, number: int, survivors: tuple[str, ...]) -> str | None:
        """Return why this owner gets no sum whatever the others send; None: it must wait for the verdict."""
        if number <= self.current or number in self.lost:
            if number == self.current and survivors not in ((), self.survivors):
                return f"{owner} names other survivors of round {number} than all of them have confirmed"
            return self.verdict(number) or None
        if survivors and self.kept.get(owner) != number:
            return f"{owner} has left no share of what it learned in round {number}"
        return None

    def say(self, owner: str, number: int, survivors: tuple[str, ...], now: float) -> None:
        """Record an owner's request for a sum and its list of survivors, which may make the round final, or lose it."""
        self.owners.add(owner)
        if not survivors or number <= self.current or self.none_for(owner, number, survivors) is not None:
            return
        if (why := self._objection(owner, number, survivors)) is not None:
            self._lose(number, why)
            return
        self.said[owner] = survivors
        self.since.setdefault(owner, now)
        said = self._said_of(number)
        if all(said.get(name) == survivors for name in survivors):
            self.opened, self.current, self.survivors = self.opened + 1, number, survivors
            for store in (self.begun, self.kept, self.said, self.since, self.lost):
                store.clear()

    def give_up(self, number: int, since: float) -> str:
        """Give up waiting for the verdict after the deadline; return the reason. Silent survivors cost the round if an
        owner has already sent its list; otherwise the round continues for all others."""
        silent = self.silent(number)
        if silent and min(self.since[name] for name in self._said_of(number)) <= since:
            self._lose(number, f"no word on who survived from {', '.join(silent)}")
        if verdict := self.verdict(number):
            return verdict
        if number == self.current:
            return f"the sum of round {number} has not come in time"
        if silent:
            return f"time is left to survivors of round {number} who have not said who survived"
        return f"nobody who has learned in round {number} has said who survived"

    def verdict(self, number: int) -> str | None:
        """Return "" if the sum of the round may be revealed, the reason if it never may, None while undecided."""
        if number < self.current:
            return f"a later round, {self.current}, has been opened"
        return "" if number == self.current else self.lost.get(number)

    def silent(self, number: int) -> Sequence[str]:
        said = self._said_of(number)
        return sorted({name for survivors in said.values() for name in survivors} - said.keys())

    def _said_of(self, number: int) -> dict[str, tuple[str, ...]]:
        return {name: survivors for name, survivors in self.said.items() if self.kept[name] == number}

    def _objection(self, owner: str, number: int, survivors: tuple[str, ...]) -> str | None:
        policy = self.policy
        if len(survivors) - policy.colluders < policy.smallest_cohort:
            return (
                f"{len(survivors)} data owners survived, of whom {policy.colluders} may collude; the model owner opens "
                f"sums of {policy.smallest_cohort} others at least"
            )
        if (why := self._exhausted()) is not None:
            return why
        if other := [name for name, said in self._said_of(number).items() if said != survivors]:
            return f"{owner} and {other[0]} name different survivors of one sum"
        return None

    def _exhausted(self) -> str | None:
        policy = self.policy
        if self.opened < policy.rounds:
            return None
        because = f", {policy.because}" if policy.because else ""
        return f"the model owner opens {policy.rounds} rounds{because}, and all of them are open"

    def _lose(self, number: int, reason: str) -> None:
        """Mark a round as lost for good. Of too many the earliest is forgotten: no share of it remains, so that it
        becomes final only if it is trained anew."""
        self.lost[number] = reason
        if len(self.lost) > MOST_LOST:
            del self.lost[next(iter(self.lost))]
        for owner in [name for name, round in self.kept.items() if round == number]:
            for store in (self.kept, self.said, self.since):
                store.pop(owner, None)

    def _check_owner(self, owner: str) -> None:
        if owner not in self.owners and len(self.owners) >= self.policy.owners:
            raise RemoteProtocolError(
                Code.POLICY, f"the model owner lets {self.policy.owners} data owners learn, and as many do"
            )
