"""Runs of functions of one's own: the experiment that names them, so that other processes of this machine find them,
and what such a run leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.models.workload import Workload, reference
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment, built
from tacit.parties.runs.summary import Summary

if TYPE_CHECKING:
    from torch import nn

Function = Callable[..., Any]


class FederationError(Exception):
    """A federation failed, or not all of its rounds were completed; the message says who failed, and why."""

    def __init__(self, message: str, result: FederationResult | None = None) -> None:
        super().__init__(message)
        self.result = result
        """What there is of the run; None at a client, and before there is one."""


@dataclass(frozen=True)
class FederationResult:
    """What a run has left."""

    directory: Path
    """The run directory, as `tacit simulate` leaves it (docs/run-directory.md)."""
    experiment: Experiment = field(repr=False)
    summary: Summary | None = field(repr=False)
    """That of summary.json; None where the run ended before one could be made."""

    @property
    def completed(self) -> int:
        """Rounds that have a sum."""
        return self.summary.completed if self.summary else 0

    @cached_property
    def model(self) -> nn.Module:
        """The model after the last completed round, in evaluation mode. FileNotFoundError if there is none."""
        from tacit.models import checkpoint
        from tacit.models.layout import Layout

        run, experiment = RunDirectory(self.directory), self.experiment
        own = Workload.named(experiment.model, experiment.training)
        model = own.network(experiment.model, classes=1, channels=1, seed=0)
        layout = Layout.of(model)
        layout.load_into(model, checkpoint.load(run.plain_model if experiment.encryption else run.model, layout)[0])
        return model.eval()

    def checked(self, reasons: Mapping[str, list[str]]) -> FederationResult:
        """This result. FederationError if rounds are missing; reasons: failures, each with who reported it."""
        rounds = self.experiment.federation.rounds
        if self.completed == rounds:
            return self
        where = self.directory / "logs"
        lines = [f"{self.completed} of {rounds} rounds were completed; what the parties said is in {where}"]
        # What the server says is the echo of what happened to clients.
        for reason, who in sorted(reasons.items(), key=lambda entry: "server" in entry[1]):
            lines.append(f"{', '.join(sorted(who, key=lambda name: (len(name), name)))}: {reason}" if who else reason)
        raise FederationError("\n  ".join(lines), self)


def experiment_of(
    where: str,
    model: Function,
    data: Function,
    train: Function | None,
    *,
    clients: int,
    rounds: int,
    keys: Mapping[str, Any],
    seed: int | None = None,
) -> Experiment:
    """An experiment of these functions; keys: more keys and sections of an experiment file. ValueError, which `where`
    begins, for a function that other processes cannot find, and for what is no experiment."""
    given = {"model": ("model", model), "data": ("data", data), "training": ("train", train)}
    try:
        named = {section: reference(key, one) for section, (key, one) in given.items() if one is not None}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    ours: dict[str, dict[str, Any]] = {section: {"factory": name} for section, name in named.items()}
    ours["policy"] = {"factories": [name for section, name in named.items() if section != "data"]}
    ours["federation"] = {"clients": clients, "rounds": rounds} | ({} if seed is None else {"seed": seed})
    sections = {section: {**keys.get(section, {}), **values} for section, values in ours.items()}
    return built({"name": "own", **keys, **sections}, where)
