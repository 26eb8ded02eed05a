"""Plan of an audit: configurations, attacks and colluding parties. Errors list the accepted values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tacit.models.attacks.closed_form import POSITIONS, PROJECTION, PatchEmbedding
from tacit.models.configuration import DataConfiguration
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.audit.arms import AuditArm, arms_of, default_arms, default_experiment
from tacit.simulate.audit.attacks import ATTACKS, Attack, Budget, usual
from tacit.simulate.audit.results import Unattackable
from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.audit.subtraction import SUBTRACTION, subtraction_arms
from tacit.simulate.audit.views import WIRE, RunTerms
from tacit.simulate.federation.hosting import shares
from tacit.simulate.federation.processes import SERVER
from tacit.simulate.federation.run import party_names

_ELSEWHERE: Final = {
    "data-owner": "it is a party of an adaptation; give the TOML or the run of one (`tacit config --adaptation`)",
    "model-owner": "it is a party of an adaptation; give the TOML or the run of one (`tacit config --adaptation`)",
}


class AdversaryError(ValueError):
    """The audit cannot be made; the message lists the accepted values."""


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """Plan of an audit.

    adversaries: each a set of colluding parties; empty: those of `usual_adversaries`. configured: the given
    experiment's arm, if any. unattackable: attacks that the configuration rules out, not in `attacks`. images: largest
    number attacked per kind of observation.
    """

    arms: tuple[AuditArm, ...]
    attacks: tuple[Attack, ...]
    adversaries: tuple[tuple[str, ...], ...] = ()
    configured: str = ""
    unattackable: tuple[Unattackable, ...] = ()
    images: int
    budget: Budget
    out: Path

    @property
    def names(self) -> list[str]:
        return [attack.name for attack in self.attacks] + [name for one in self.unattackable for name in one.attacks]


def audit_plan(
    experiment: Experiment | None,
    *,
    adversaries: Sequence[str],
    attacks: Sequence[str],
    images: int,
    data: Path | None,
    full: bool,
    seed: int,
    out: Path,
) -> AuditPlan:
    """Return the plan; experiment None: all bundled protections. AdversaryError, ExperimentError."""
    base = experiment or default_experiment()
    _check(base)
    if data is not None:
        base = msgspec.structs.replace(base, data=images_of(base.data, data))
    clients = base.clients
    # A round has one sum, and a client learns it only when the next one begins.
    rounds = images + 1
    base = msgspec.structs.replace(base, federation=msgspec.structs.replace(base.federation, rounds=rounds))
    names = attacks or usual(base.model.name)
    for name in names:
        if name not in ATTACKS:
            raise AdversaryError(f"there is no attack {name!r}: expected {', '.join(ATTACKS)}")
    arms = tuple(default_arms(base) if experiment is None else arms_of(base))
    configured = "" if experiment is None else arms[-1].name
    chosen = [ATTACKS[name] for name in dict.fromkeys(names)]
    aimed = [attack for attack in chosen if _aims(attack, arms)]
    ruled_out = _ruled_out(aimed if not attacks else chosen, arms, adversaries, seed)
    refused = {name for one in ruled_out for name in one.attacks}
    left = tuple(attack for attack in aimed if attack.name not in refused)
    if SUBTRACTION in [attack.name for attack in left] and (not adversaries or SERVER in adversaries):
        arms += tuple(subtraction_arms(base))
    return AuditPlan(
        arms=arms,
        attacks=left,
        configured=configured,
        unattackable=ruled_out,
        adversaries=tuple(colluding(given, clients) for given in adversaries),
        images=images,
        budget=Budget(full=full, seed=seed),
        out=out,
    )


def _aims(attack: Attack, arms: Sequence[AuditArm]) -> bool:
    if attack.of_differences:
        return any(arm.experiment.aggregation.mode != "none" for arm in arms)
    return any(attack.against(arm.experiment) for arm in arms)


def _ruled_out(
    attacks: Sequence[Attack], arms: Sequence[AuditArm], adversaries: Sequence[str], seed: int
) -> tuple[Unattackable, ...]:
    """Return the attacks that are ruled out, joined by their reasons. ValueError as the start of a server."""
    first = arms[0].experiment
    subject = AuditedRun.of(first, seed)
    images = first.training.fedsgd_images
    if not first.training.sends_gradients:
        images = min(map(len, shares(first, subject.data.source, subject.seed)))
    reasons: dict[tuple[str, str], list[str]] = {}
    for attack in attacks:
        if reason := _reason(attack, arms, adversaries, subject, images):
            reasons.setdefault(reason, []).append(attack.name)
    return tuple(
        Unattackable(attacks=tuple(names), reason=reason, remedy=remedy) for (reason, remedy), names in reasons.items()
    )


def _reason(
    attack: Attack, arms: Sequence[AuditArm], adversaries: Sequence[str], subject: AuditedRun, images: int
) -> tuple[str, str] | None:
    """Return why this attack is ruled out, and the change that allows it; None if it can be tried."""
    if not _aims(attack, arms):
        return "the configuration has nothing that they are made for", f"add {attack.target}"
    if missing := [need for need in attack.needs if not any(need.met(arm.experiment) for arm in arms)]:
        return missing[0].reason, f"set {missing[0].remedy}"
    if attack.of_differences and adversaries and SERVER not in adversaries:
        return "no server alone is among the adversaries", f"add --as {SERVER}"
    if attack.with_keys and adversaries and not any(SERVER in one and "client" in one for one in adversaries):
        return "no server with a member is among the adversaries", f"add --as {SERVER}+client-1"
    if images != 1:
        return (
            f"they read an update of one image, and here it is of {images}",
            'set training.algorithm = "fedsgd", training.fedsgd_images = 1 and policy.least_images = 1',
        )
    if attack.of_embeddings:
        model = subject.first_model()
        try:
            PatchEmbedding.of(model)
        except ValueError as error:
            return str(error), "take a vision transformer with a trained position embedding"
        trained = {entry.name for entry in subject.task.layout(model).entries}
        if fixed := [name for name in (PROJECTION, POSITIONS) if name not in trained]:
            return f"{fixed[0]} is not trained, and so never sent", 'set model.tune = "all", or add it to model.train'
    return None


def colluding(given: str, clients: int) -> tuple[str, ...]:
    """Parse the colluding parties of "server+client-2". "client" is the last one. AdversaryError for others."""
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


def usual_adversaries(terms: RunTerms) -> tuple[tuple[str, ...], ...]:
    """Return the server alone; the server with all clients but two, and but one, whose sum alone remains hidden; and
    one client. Without a secure sum, the server colludes with one member, who has the key of an encrypted model."""
    clients = terms.clients
    if not terms.configuration.secure:
        return (SERVER,), (SERVER, clients[-1]), (clients[-1],)
    return (SERVER,), (SERVER, *clients[2:]), (SERVER, *clients[1:]), (clients[-1],)


def present(adversary: Sequence[str], terms: RunTerms) -> list[str]:
    """Return the adversary's parties in a run; none if some are missing, if no party is left to attack, or if a server
    needs no colluding client."""
    configuration = terms.configuration
    if len(adversary) > 1 and not (configuration.secure or configuration.encrypted):
        return []
    there = {SERVER, WIRE, *terms.clients}
    honest = [client for client in terms.clients if client not in adversary]
    return list(adversary) if there.issuperset(adversary) and honest else []


def _check(experiment: Experiment) -> None:
    data, training = experiment.data, experiment.training
    refused = {
        "data.factory": bool(data.factory),
        'data.statistics = "sum"': data.statistics == "sum",
        "training.momentum of a server": training.sends_gradients and training.momentum > 0,
        "federation.fraction": experiment.federation.fraction != 1,
        "training.decay_rounds": bool(training.decay_rounds),
        "training.warmup_rounds or cosine_rounds": bool(training.warmup_rounds or training.cosine_rounds),
        "training.server_optimizer": training.server_optimizer != "none",
    }
    if found := [key for key, there in refused.items() if there]:
        raise AdversaryError(f"an audit cannot read runs with {', '.join(found)} yet: leave it out of what is audited")


def images_of(section: DataConfiguration, path: Path) -> DataConfiguration:
    """Return the section with these images, and their mean and deviation. AdversaryError if there are none."""
    if not path.exists():
        raise AdversaryError(
            f"--data {path}: there is nothing; give an .npz file, or the directory of CIFAR-10's files"
        )
    source = {"source": "cifar10", "directory": str(path)} if path.is_dir() else {"source": str(path), "directory": ""}
    return msgspec.structs.replace(section, **source, classes=())
