"""From what somebody asks of an audit to what it does: who attacks, what, with which attacks. Refusals say what would
be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tacit.models.configuration import DataConfiguration
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.audit.arms import arms_of, default_arms, default_experiment
from tacit.simulate.audit.attacks import ATTACKS, Budget, usual
from tacit.simulate.audit.run import Order
from tacit.simulate.audit.subtraction import SUBTRACTION, subtraction_arms
from tacit.simulate.audit.views import WIRE
from tacit.simulate.federation.processes import SERVER
from tacit.simulate.federation.run import party_names

_ELSEWHERE: Final = {
    "data-owner": "it is a party of an adaptation; give the TOML or the run of one (`tacit config --adaptation`)",
    "model-owner": "it is a party of an adaptation; give the TOML or the run of one (`tacit config --adaptation`)",
}


class AdversaryError(ValueError):
    """Nobody can attack so; the message says what would be accepted."""


def default_order(
    experiment: Experiment | None,
    *,
    adversaries: Sequence[str],
    attacks: Sequence[str],
    images: int,
    data: Path | None,
    full: bool,
    seed: int,
    out: Path,
) -> Order:
    """Return the order of an audit; experiment None: all bundled protections. AdversaryError, ExperimentError."""
    base = experiment or default_experiment()
    _check(base)
    if data is not None:
        base = msgspec.structs.replace(base, data=images_of(base.data, data))
    clients = base.clients
    # Of a round there is one sum, and what a client knows of it, it knows when the next one begins.
    rounds = images + 1
    base = msgspec.structs.replace(base, federation=msgspec.structs.replace(base.federation, rounds=rounds))
    names = attacks or usual(base.model.name)
    for name in names:
        if name not in ATTACKS:
            raise AdversaryError(f"there is no attack {name!r}: expected {', '.join(ATTACKS)}")
    arms = tuple(default_arms(base) if experiment is None else arms_of(base))
    if SUBTRACTION in names and (not adversaries or SERVER in adversaries):
        arms += tuple(subtraction_arms(base))
    return Order(
        arms=arms,
        attacks=tuple(ATTACKS[name] for name in dict.fromkeys(names)),
        adversaries=tuple(parties(given, clients) for given in adversaries),
        images=images,
        budget=Budget(full=full, seed=seed),
        out=out,
    )


def parties(given: str, clients: int) -> tuple[str, ...]:
    """The parties that work together: "server+client-2". "client" is the last one. AdversaryError for others."""
    known = party_names(clients)
    if given == WIRE:
        return (WIRE,)
    named = [known[-1] if name == "client" else name for name in given.split("+")]
    for name in named:
        if name in _ELSEWHERE:
            raise AdversaryError(f"--as {given}: {_ELSEWHERE[name]}")
        if name not in known:
            raise AdversaryError(f"--as {given}: there is no party {name!r}; expected {WIRE} alone, {', '.join(known)}")
    if len(set(named)) < len(named):
        raise AdversaryError(f"--as {given}: name every party once")
    if len([name for name in named if name != known[0]]) >= clients:
        raise AdversaryError(f"--as {given}: nobody is left to attack; leave one client out")
    return tuple(named)


def _check(experiment: Experiment) -> None:
    """Refuse what would be read wrongly."""
    data, training = experiment.data, experiment.training
    refused = {
        "data.factory": bool(data.factory),
        'data.statistics = "sum"': data.statistics == "sum",
        "training.momentum of a server": training.sends_gradients and training.momentum > 0,
        "federation.fraction": experiment.federation.fraction != 1,
        "training.decay_rounds": bool(training.decay_rounds),
    }
    if found := [key for key, there in refused.items() if there]:
        raise AdversaryError(f"an audit cannot read runs with {', '.join(found)} yet: leave it out of what is audited")


def images_of(section: DataConfiguration, path: Path) -> DataConfiguration:
    """The section with these images, and the mean and deviation of them. AdversaryError if there are none."""
    if not path.exists():
        raise AdversaryError(
            f"--data {path}: there is nothing; give an .npz file, or the directory of CIFAR-10's files"
        )
    source = {"source": "cifar10", "directory": str(path)} if path.is_dir() else {"source": str(path), "directory": ""}
    return msgspec.structs.replace(section, **source, classes=())
