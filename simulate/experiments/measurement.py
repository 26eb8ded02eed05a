"""A table of a paper that is no study of federations: measured by one command, and written when all is done.

`prepare` checks everything before anything starts, and `measure` does the work. Its findings present themselves:
verdicts, the lines of a page, the rows of table.json and a plot (page.py writes them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tacit.simulate.experiments.study import Claim, ClaimVerdict

if TYPE_CHECKING:  # Drawing takes a second to load, which whoever asks for the list of tables need not wait for.
    from matplotlib.figure import Figure

Progress = Callable[[str], None]
"""Gets a line for a person."""


class Findings(Protocol):
    """What was measured."""

    def verdicts(self) -> list[ClaimVerdict]:
        """Whether the paper's claims hold."""

    def lines(self) -> list[str]:
        """The tables of table.md, between its head and the command."""

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table, for programs."""

    def runs(self) -> Sequence[Any]:
        """Every single measurement, for programs."""

    def draw(self) -> Figure:
        """The plot."""


class PreparedMeasurement(Protocol):
    """A table that can be measured: its settings and data are checked."""

    @property
    def differences(self) -> tuple[str, ...]:
        """Where the settings are not the paper's, as sentences."""

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> Findings:
        """Everything with every seed. Raises ValueError or OSError for data, model or device that cannot be used,
        FloatingPointError for a training that diverges, ProcessError for a party that fails."""


class Measurement(Protocol):
    """A table or figure, and how to measure it."""

    @property
    def claim(self) -> Claim:
        """What the paper says."""

    def prepare(self, *, small: bool, data: Path | None) -> PreparedMeasurement:
        """Its twin, or with the paper's settings. Raises ValueError or OSError for data that this size does not
        take."""

    def summary(self) -> list[str]:
        """Lines for the list of experiments: rows, and what both sizes take."""
