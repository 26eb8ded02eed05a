"""Runs with custom functions: the experiment that names them, so that other processes of this machine find them, and
the results of such a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs, to_builtins

from tacit.models.workload import Workload, reference
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment, built
from tacit.parties.runs.kept_functions import KeptFunctions, find
from tacit.parties.runs.summary import Summary
from tacit.parties.session.events import RoundEnded

if TYPE_CHECKING:
    from torch import nn

Function = Callable[..., Any]


class FederationError(Exception):
    """A federation failed, or rounds were not completed; the message names the failing parties and the reasons."""

    def __init__(self, message: str, result: FederationResult | None = None) -> None:
        super().__init__(message)
        self.result = result
        """Partial result of the run; None at a client, and before there is one."""


@dataclass(frozen=True)
class FederationResult:
    directory: Path
    """The run directory, as `tacit simulate` leaves it (docs/run-directory.md)."""
    experiment: Experiment = field(repr=False)
    summary: Summary | None = field(repr=False)
    """Content of summary.json; None if the run ended before it was written."""
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict, repr=False)
    """Results of `evaluate`, by round."""

    @property
    def completed(self) -> int:
        """Rounds with a sum."""
        return self.summary.completed if self.summary else 0

    @cached_property
    def model(self) -> nn.Module:
        """The model after the last completed round, in evaluation mode. FileNotFoundError if there is none."""
        from tacit.models import checkpoint
        from tacit.models.layout import Layout

        run, experiment = RunDirectory(self.directory), self.experiment
        find(self.directory)
        own = Workload.named(experiment.model, experiment.training)
        model = own.network(experiment.model, classes=1, channels=1, seed=0)
        layout = Layout.of(model)
        layout.load_into(model, checkpoint.load(run.plain_model if experiment.encryption else run.model, layout)[0])
        return model.eval()

    def checked(self, reasons: Mapping[str, list[str]]) -> FederationResult:
        """Return this result. FederationError if rounds are missing; reasons: failures, each with its reporters."""
        rounds = self.experiment.federation.rounds
        if self.completed == rounds:
            return self
        where = self.directory / "logs"
        lines = [f"{self.completed} of {rounds} rounds were completed; what the parties said is in {where}"]
        # The server's reason only repeats the clients' failures.
        for reason, who in sorted(reasons.items(), key=lambda entry: "server" in entry[1]):
            lines.append(f"{', '.join(sorted(who, key=lambda name: (len(name), name)))}: {reason}" if who else reason)
        raise FederationError("\n  ".join(lines), self)


@dataclass(frozen=True)
class Round:
    event: RoundEnded = field(repr=False)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Result of `evaluate`."""

    @property
    def number(self) -> int:
        return self.event.round

    @property
    def completed(self) -> bool:
        """Whether there is a sum, and a new model."""
        return self.event.status == "completed"


_SECTIONS: Final = {"model": "model", "data": "data", "training": "train"}
"""Sections that name functions, with the parameters that take them."""
_MOST_KEPT: Final = 64 << 20
"""Most bytes of stored functions of a script, with which a command can resume its run."""


def named_functions(
    where: str, functions: Mapping[str, Function | None], *, keep: bool
) -> tuple[dict[str, str], KeptFunctions | None]:
    """Names of functions by their sections, for other processes of this machine, and those to store in the run
    directory. keep: whether it may store some. ValueError, which `where` begins, for a function that others cannot
    find."""
    named: dict[str, str] = {}
    kept: dict[str, Function] = {}
    for section, one in functions.items():
        if one is None:
            continue
        key = _SECTIONS[section]
        try:
            named[section] = reference(key, one)
        except ValueError as error:
            if not keep or not callable(one):
                raise ValueError(f"{where}: {error}") from None
            kept[key] = one
    scripted = {
        _SECTIONS[section]: functions[section] for section, name in named.items() if name.startswith("__main__:")
    }
    found: KeptFunctions | None = None
    try:
        if keep and (kept or scripted):
            found = KeptFunctions.of({**kept, **{key: one for key, one in scripted.items() if one is not None}})
            if not kept and len(found.pickled) > _MOST_KEPT:
                found = None
    except ValueError as error:
        if kept:
            raise ValueError(f"{where}: {error}") from None
    if found is not None:
        named |= {section: f"{found.module}:{kind}" for section, kind in _SECTIONS.items() if kind in kept}
    return named, found


def experiment_of(
    where: str, named: Mapping[str, str], *, clients: int, rounds: int, keys: Mapping[str, Any], seed: int | None = None
) -> Experiment:
    """An experiment with these functions; keys: more keys and sections of an experiment file. ValueError, which `where`
    begins, for an invalid experiment."""
    ours: dict[str, dict[str, Any]] = {section: {"factory": name} for section, name in named.items()}
    ours["policy"] = {"factories": [name for section, name in named.items() if section != "data"]}
    ours["federation"] = {"clients": clients, "rounds": rounds} | ({} if seed is None else {"seed": seed})
    sections = {section: {**keys.get(section, {}), **values} for section, values in ours.items()}
    return built({"name": "own", **keys, **sections}, where)


def with_kept(experiment: Experiment, module: str) -> Experiment:
    """The experiment of a script with the functions stored in this module of its run directory."""
    changed = {
        section: structs.replace(getattr(experiment, section), factory=f"{module}:{key}")
        for section, key in _SECTIONS.items()
        if getattr(experiment, section).factory.startswith("__main__:")
    }
    names = (changed.get(section, getattr(experiment, section)).factory for section in ("model", "training"))
    policy = structs.replace(experiment.policy, factories=tuple(filter(None, names)))
    return structs.replace(experiment, **changed, policy=policy)


_FREE: Final = {"federation.rounds", "policy.factories", *(f"{section}.factory" for section in _SECTIONS)}
"""Keys that may change in a run: its length, and the locations of its functions."""


def differences(began: Experiment, now: Experiment, *, free: Collection[str] = ()) -> list[str]:
    """Keys whose value differs from that at the run's start, each with both values; ignores `free` keys, and the
    distribution over this machine."""
    found = []
    first, second = to_builtins(began), to_builtins(now)
    for section in sorted({*first, *second} - {"simulate", "deadlines", "name"}):
        parts = [one.get(section) for one in (first, second)]
        if not all(isinstance(part, dict) for part in parts):
            parts = [{"": part} for part in parts]
        for name in sorted({*parts[0], *parts[1]}):
            setting = f"{section}.{name}".rstrip(".")
            before, after = (part.get(name) for part in parts)
            if before != after and setting not in _FREE and setting not in free:
                found.append(f"{setting} = {after!r}, which was {before!r}")
    return found
