"""When the model owner opens the sum of its shares of a round: a decision over all of its sessions.

A data owner that the secure sum counts among the survivors says who they are, as it has confirmed it there. When every
one of them has said the same, the round is final, and the sum of the model owner's shares of just these owners may be
told, once, to whoever asks; every other list is refused from then on, and no sum of another round before it is told
again. Two different lists, a survivor that the model owner has no share of, and too few survivors cost the round; so
does a survivor that does not say anything in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tacit.protocol.core.errors import Code, RemoteProtocolError


@dataclass(frozen=True, kw_only=True)
class OpeningPolicy:
    """What a model owner opens."""

    rounds: int
    """The most sums."""
    owners: int
    """The most data owners that learn."""
    smallest_cohort: int
    """The fewest survivors, without those who may collude."""
    colluders: int
    """How many of the data owners may collude (n_C)."""


@dataclass
class RoundSums:
    """Of one model owner. opened: how many sums have been told already; current: the round of the last of them."""

    policy: OpeningPolicy
    opened: int = 0
    current: int = 0
    kept: dict[int, set[str]] = field(default_factory=dict)
    """By round, the owners of whose parameters the model owner keeps a share."""
    said: dict[int, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """By round, the survivors as they have said it."""
    lost: dict[int, str] = field(default_factory=dict)
    """Why there is no sum of a round, for those rounds that are lost."""
    owners: set[str] = field(default_factory=set)
    """Who has begun a round."""

    def check_begin(self, owner: str, number: int, based: int) -> None:
        """Refuse an owner that may not learn in this round, or from these parameters."""
        if self.opened >= self.policy.rounds:
            raise RemoteProtocolError(
                Code.POLICY,
                f"the model owner opens {self.policy.rounds} rounds, and all of them are open: ask it for more",
            )
        if owner not in self.owners and len(self.owners) >= self.policy.owners:
            raise RemoteProtocolError(
                Code.POLICY, f"the model owner lets {self.policy.owners} data owners learn, and as many do"
            )
        if number <= self.current:
            raise RemoteProtocolError(Code.SESSION, f"round {number} is over: that of {self.current} has been opened")
        if based != self.current:
            raise RemoteProtocolError(
                Code.SESSION,
                f"it begins with the parameters of round {based}, and those of round {self.current} are the last",
            )

    def begin(self, owner: str) -> None:
        """This owner learns."""
        self.owners.add(owner)

    def keep(self, owner: str, number: int) -> None:
        """The model owner has a share of what this owner has learned in the round."""
        self.kept.setdefault(number, set()).add(owner)

    def say(self, owner: str, number: int, survivors: tuple[str, ...]) -> None:
        """An owner says who the survivors of a round are, and may make it final, or lose it."""
        if not survivors or number == self.current or number in self.lost:
            return
        if (why := self._objection(owner, number, survivors)) is not None:
            self.lose(number, why)
            return
        said = self.said.setdefault(number, {})
        said[owner] = survivors
        if said.keys() == set(survivors):
            self.opened, self.current = self.opened + 1, number
            self._forget(number)

    def _objection(self, owner: str, number: int, survivors: tuple[str, ...]) -> str | None:
        policy, kept = self.policy, self.kept.get(number, set())
        if number < self.current:
            return f"a later round, {self.current}, has been opened"
        if list(survivors) != sorted(set(survivors)) or owner not in survivors:
            return f"{owner} names survivors that are in no order, or without itself"
        if strange := [name for name in survivors if name not in kept]:
            return f"{strange[0]} is said to have survived, and has left no share of what it learned"
        if len(survivors) - policy.colluders < policy.smallest_cohort:
            return (
                f"{len(survivors)} data owners survived, of whom {policy.colluders} may collude; the model owner opens "
                f"sums of {policy.smallest_cohort} others at least"
            )
        if self.opened >= policy.rounds:
            return f"the model owner opens {policy.rounds} rounds, and all of them are open"
        if other := [name for name, said in self.said.get(number, {}).items() if said != survivors]:
            return f"{owner} and {other[0]} were told different survivors of one sum"
        return None

    def lose(self, number: int, reason: str) -> None:
        """There is no sum of this round, and there will be none."""
        if number > self.current and number not in self.lost:
            self.lost[number] = reason
            self.kept.pop(number, None)
            self.said.pop(number, None)

    def verdict(self, number: int) -> str | None:
        """Empty if the sum of the round may be told; why not, if it never may; None as long as it is not known."""
        if number == self.current:
            return ""
        if number < self.current:
            return self.lost.get(number, f"a later round, {self.current}, has been opened")
        return self.lost.get(number)

    def silent(self, number: int) -> Sequence[str]:
        """Survivors who have not said yet who survived."""
        said = self.said.get(number, {})
        return sorted({name for survivors in said.values() for name in survivors} - said.keys())

    def _forget(self, number: int) -> None:
        """What is not needed any more once this round is open."""
        for store in (self.kept, self.said):
            for past in [each for each in store if each <= number]:
                del store[past]
        for past in [each for each in self.lost if each < number]:
            del self.lost[past]
