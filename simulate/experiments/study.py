"""A table or figure of a paper, as data: rows, their measurement, and claims about them.

A study may have two sizes. The full one has the paper's own settings; the small one is a twin that runs in minutes and
is set so that a true claim shows. By default rows are federations of `tacit simulate`, run by real parties; any other
measurement of a row with a seed can replace them. The engine (engine.py) makes the runs and stores their results
(results.py). Nothing here loads torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tacit.parties.runs.results import Table
from tacit.simulate.experiments.federations import TEST_ACCURACY, Federations
from tacit.simulate.experiments.measures import Measure, Row, StudyError
from tacit.simulate.experiments.page import points
from tacit.simulate.experiments.results import Quantity, StudyResult, StudyRow, Verdict

if TYPE_CHECKING:  # It takes a second to load, and listing the studies does not need it.
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Size:
    rows: tuple[Row, ...]
    measure: Measure = field(default_factory=Federations)
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    rows: tuple[str, ...]
    judge: Callable[[Mapping[str, StudyRow]], Verdict]
    """Receives exactly these rows."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure, and the paper's claims about it. StudyError if its parts contradict each other."""

    name: str
    """Letters, digits, dots and hyphens: also a directory name."""
    paper: str
    shows: str
    """The table or figure, and its subject."""
    claim: str
    settings: tuple[tuple[str, str], ...] = ()
    silent: tuple[str, ...] = ()
    """Settings that the paper omits, and their substitutes."""
    columns: tuple[Quantity, ...] = (TEST_ACCURACY,)
    full: Size
    small: Size | None = None
    claims: tuple[Claim, ...] = ()
    draw: Callable[[StudyResult], Figure] = points
    details: Callable[[StudyResult], Sequence[Table | str]] = lambda result: ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", self.name):
            raise StudyError(f"the name {self.name!r} has other characters than letters, digits, dots and hyphens")
        known: set[str] = set()
        for size in filter(None, (self.full, self.small)):
            places = [row.directory for row in size.rows]
            if len(set(places)) < len(places) or not places:
                raise StudyError(f"{self.name}: every size has rows, each with a name of its own")
            known |= {row.name for row in size.rows}
        for claim in self.claims:
            if unknown := ", ".join(sorted(set(claim.rows) - known)):
                raise StudyError(f"{self.name}: a claim is about rows that there are not: {unknown}")

    def size(self, *, small: bool) -> Size:
        found = self.small if small else self.full
        if found is None:
            raise StudyError(f"{self.name} has no small twin; leave --small out")
        return found

    def judge(self, rows: Sequence[StudyRow]) -> list[Verdict]:
        """Judge every claim whose rows have all run."""
        by_name = {row.name: row for row in rows if row.runs}
        return [
            claim.judge({name: by_name[name] for name in claim.rows})
            for claim in self.claims
            if by_name.keys() >= set(claim.rows)
        ]
