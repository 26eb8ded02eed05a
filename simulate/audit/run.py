"""An audit from its arms to its figures: run each with recordings, attack it, judge.

The unprotected arm comes first, and in it the server alone, whoever else is asked for. An attack whose images there are
no better than those of the blind attacker, or that picks no image from others if it has none, is said not to have
attacked anything. Recordings hold what their parties received and drew, keys among it; they are removed when their arm
has been attacked, and when the audit is interrupted. Last, where there is a secure sum, a server tries to cheat a
client.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import torch

from tacit.parties.runs.directory import RunDirectory, claim
from tacit.simulate.audit.arms import UNPROTECTED, AuditArm
from tacit.simulate.audit.attacks import CLOSED_FORM, Attack, Budget, Observations
from tacit.simulate.audit.attempts import PLAYED, attempts, why_not
from tacit.simulate.audit.figures import (
    NOT_ATTACKED,
    NOTHING_SEEN,
    AttackRow,
    AuditFigures,
    ClosedFormLimit,
    Score,
    ServerAttempt,
)
from tacit.simulate.audit.limits import limits_of
from tacit.simulate.audit.pooling import pooled
from tacit.simulate.audit.scores import Pixels, judge, nearest, score
from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.audit.subtraction import attempted, differences, one_image_each
from tacit.simulate.audit.views import TAP, WIRE, UpdateView, observed, on_the_wire
from tacit.simulate.federation.processes import SERVER, in_daemon_thread
from tacit.simulate.federation.recording import read
from tacit.simulate.federation.roles import Plan
from tacit.simulate.federation.run import new_plan, simulate

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """True and recovered images of a row, pixels 0 to 1, for the grid."""

    true: list[Pixels] = field(repr=False)
    recovered: list[Pixels] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What an audit is to do."""

    arms: tuple[AuditArm, ...]
    attacks: tuple[Attack, ...]
    adversaries: tuple[tuple[str, ...], ...] = ()
    """Each the parties that work together; none: those of `usual_adversaries`."""
    images: int
    """So many of each row are attacked, at most."""
    budget: Budget
    out: Path


async def audit(order: Order, tell: Tell) -> tuple[AuditFigures, list[Pictures]]:
    """Run and attack everything. RunDirectoryError for a directory in use; ValueError for a run that cannot be audited;
    and as `simulate` raises."""
    claim(order.out)
    found = _Found()
    for arm in order.arms:
        tell(f"{arm.name}: running it")
        try:
            subject, recordings = await _recorded(order, arm)
            adversaries = order.adversaries or usual_adversaries(subject)
            if arm.subtracts:
                run = RunDirectory(order.out / "runs" / arm.name)
                found.attempts.append(attempted(arm, run, subject.terms.clients))
                adversaries = ((SERVER,),)
            # Every attack proves itself on single uploads, whoever is asked for.
            first = [(SERVER,)] if arm.name == UNPROTECTED else []
            for adversary in dict.fromkeys([*first, *adversaries]):
                if parties := _present(adversary, subject):
                    if arm.subtracts:
                        observations = list(differences(list(read(recordings, SERVER)), subject.terms))
                    elif parties == [WIRE]:
                        observations = on_the_wire(recordings / TAP, subject.terms)
                    else:
                        observations = observed(recordings, parties, subject.terms)
                    # A search of hours holds up nobody who interrupts it.
                    attack = partial(_attack_all, order, arm, subject, recordings, parties, observations, found, tell)
                    await in_daemon_thread(attack)
            if arm.name == UNPROTECTED and any(attack.name == CLOSED_FORM for attack in order.attacks):
                tell("where the closed form stops")
                await in_daemon_thread(partial(found.limit, subject))
        finally:
            # Keys are in them.
            shutil.rmtree(order.out / "recordings", ignore_errors=True)
    if not order.adversaries or (SERVER,) in order.adversaries:
        modes = [arm.experiment.aggregation.mode for arm in order.arms]
        found.no_attempts = why_not(modes)
        if PLAYED in modes:
            found.attempts = [*await attempts(order.out / "runs" / "attempts", tell), *found.attempts]
    return found.audit(order.budget), found.pictures


@dataclass
class _Found:
    """What there is so far."""

    rows: list[AttackRow] = field(default_factory=list)
    pictures: list[Pictures] = field(default_factory=list)
    blind: list[Score] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """By attack, why it did not work where nothing is protected; empty if it did."""

    observations: Observations = field(default_factory=Observations)
    limits: tuple[ClosedFormLimit, ...] = ()
    no_limits: str = ""
    attempts: list[ServerAttempt] = field(default_factory=list)
    no_attempts: str = ""

    def limit(self, subject: AuditedRun) -> None:
        """Find where the closed form stops, or why it cannot be used."""
        try:
            self.limits = limits_of(subject)
        except ValueError as error:
            self.no_limits = str(error)

    def audit(self, budget: Budget) -> AuditFigures:
        return AuditFigures(
            seed=budget.seed,
            full=budget.full,
            rows=tuple(self.rows),
            blind=judge(self.blind, self.blind) if self.blind else None,
            observations=tuple(self.observations.rows),
            limits=self.limits,
            no_limits=self.no_limits,
            attempts=tuple(self.attempts),
            no_attempts=self.no_attempts,
        )


def _attack_all(
    order: Order,
    arm: AuditArm,
    subject: AuditedRun,
    recordings: Path,
    parties: Sequence[str],
    observations: Sequence[UpdateView],
    found: _Found,
    tell: Tell,
) -> None:
    for attack in () if observations else order.attacks:
        # If these are the first, it cannot prove itself.
        failed = found.failed.setdefault(
            attack.name, "on the unprotected case no round came so far that it could be tried"
        )
        why = failed or "no round came so far that this adversary saw anything of others"
        found.rows.append(_unseen(attack, arm, parties, why))
        found.pictures.append(Pictures(true=[], recovered=[]))
    for (what, cohort), several in _kinds(observations).items():
        tell(f"{arm.name}: labels and single coordinates of {what} ({cohort})")
        place = arm.name, arm.about, "+".join(parties)
        found.observations.add(subject, recordings, place, several[: order.images])
        for attack in order.attacks:
            # It has proved itself, and what it is against is not there.
            if attack.name in found.failed and not (attack.against(arm.experiment) and attack.suits(several[0])):
                continue
            several_rounds = [pooled(subject, several)] if attack.pools else []
            for seen, views, why in [
                (what, several, ""),
                *((f"{what}, {one.about}", one.views, one.why_not) for one in several_rounds),
            ]:
                tell(f"{arm.name}: {attack.name} on {seen} ({cohort})")
                failed = found.failed.get(attack.name, "")
                chosen = [] if failed else views[: order.images]
                row, shown, floor = _attacked(attack, arm, subject, parties, seen, cohort, chosen, order)
                if attack.name not in found.failed:
                    # The first rows are those of single uploads that nothing protects.
                    found.failed[attack.name] = failed = "" if row.figures and row.figures.succeeded else _failure(row)
                if failed or why:
                    row = msgspec.structs.replace(row, verdict=NOT_ATTACKED, why=failed or why)
                found.rows.append(row)
                found.pictures.append(shown)
                found.blind = found.blind or floor


def _unseen(attack: Attack, arm: AuditArm, parties: Sequence[str], why: str) -> AttackRow:
    """Of an adversary that had nothing to attack: all rounds ended too early."""
    return AttackRow(
        attack=attack.name,
        arm=arm.name,
        about=arm.about,
        adversary="+".join(parties),
        what=NOTHING_SEEN,
        cohort=0,
        verdict=NOT_ATTACKED,
        why=why,
        seconds=0.0,
        figures=None,
        scores=(),
    )


async def _recorded(order: Order, arm: AuditArm) -> tuple[AuditedRun, Path]:
    experiment = msgspec.structs.replace(
        arm.experiment, federation=msgspec.structs.replace(arm.experiment.federation, seed=order.budget.seed)
    )
    directory = order.out / "runs" / arm.name
    directory.parent.mkdir(exist_ok=True)
    recordings = order.out / "recordings" / arm.name
    wire = None
    if arm.subtracts:
        experiment = one_image_each(experiment, recordings / "images.npz", order.budget.seed)
    elif (WIRE,) in order.adversaries:
        recordings.mkdir(parents=True)
        wire = recordings / TAP
    plan: Plan = new_plan(
        experiment, directory, report=False, recordings=recordings, wire=wire, subtracts=arm.subtracts
    )
    await simulate(plan, lambda event: None)
    return AuditedRun.of(experiment, plan.split_seed), recordings


def usual_adversaries(subject: AuditedRun) -> tuple[tuple[str, ...], ...]:
    """The server alone; with all clients but two, and but one, of whose sum nothing else is left; with a member who has
    the key of the model; and one client."""
    clients = subject.terms.clients
    if not subject.terms.configuration.secure:
        return (SERVER,), (SERVER, clients[-1]), (clients[-1],)
    return (SERVER,), (SERVER, *clients[2:]), (SERVER, *clients[1:]), (clients[-1],)


def _present(adversary: Sequence[str], subject: AuditedRun) -> list[str]:
    """Its parties in this run; none where it has not all of them, leaves nobody to attack, or where a server needs
    nobody's help."""
    configuration = subject.terms.configuration
    if len(adversary) > 1 and not (configuration.secure or configuration.encrypted):
        return []
    there = {SERVER, WIRE, *subject.terms.clients}
    honest = [client for client in subject.terms.clients if client not in adversary]
    return list(adversary) if there.issuperset(adversary) and honest else []


def _kinds(observations: Sequence[UpdateView]) -> dict[tuple[str, int], list[UpdateView]]:
    sorts: dict[tuple[str, int], list[UpdateView]] = defaultdict(list)
    for observation in observations:
        sorts[observation.what, len(observation.clients)].append(observation)
    return sorts


def _attacked(
    attack: Attack,
    arm: AuditArm,
    subject: AuditedRun,
    parties: Sequence[str],
    what: str,
    cohort: int,
    observations: Sequence[UpdateView],
    order: Order,
) -> tuple[AttackRow, Pictures, list[Score]]:
    scores, floor, why, seconds = list[Score](), list[Score](), "", 0.0
    true, recovered = list[Pixels](), list[Pixels]()
    blind, sought = subject.blind(), 1
    for observation in observations:
        images = [(client, subject.true_images(client, observation.round)) for client in observation.clients]
        truths = [(client, image) for client, several in images for image in subject.pixels(several)]
        sought = len(truths)
        sight = subject.sight(observation)
        began = time.perf_counter()
        try:
            found = attack.recover(sight, order.budget)
        except ValueError as error:
            why = str(error)
            found = torch.zeros(0)
        seconds += time.perf_counter() - began
        others = subject.candidates(observation.round)
        guessed = score(truths[0][0], observation.round, blind, nearest(blind, truths)[1], others)
        if not isinstance(found, torch.Tensor):
            decoys = subject.decoys(observation.round)
            # In a tie it is none of the true ones.
            hit = found(torch.cat([decoys, *(several for _, several in images)])) >= len(decoys)
            scores.append(Score(client=truths[0][0], round=observation.round, psnr=None, ssim=None, identified=hit))
            floor.append(guessed)
            continue
        for image in subject.pixels(found) if len(found) else []:
            client, true_image = nearest(image, truths)
            scores.append(score(client, observation.round, image, true_image, others))
            floor.append(guessed)
            true.append(true_image)
            recovered.append(image)
    figures = judge(scores, floor, sought=sought) if scores else None
    row = AttackRow(
        attack=attack.name,
        arm=arm.name,
        about=arm.about,
        adversary="+".join(parties),
        what=what,
        cohort=cohort,
        verdict=figures.verdict if figures else NOT_ATTACKED,
        why=why if figures is None else "",
        seconds=seconds,
        figures=figures,
        scores=tuple(scores),
    )
    return row, Pictures(true=true, recovered=recovered), floor


def _failure(row: AttackRow) -> str:
    if row.figures is None:
        return f"on the unprotected case it cannot be used: {row.why}"
    told = f"{row.figures.decibels} dB" if row.figures.decibels else f"{row.figures.identified:.0%} identified"
    return f"on the unprotected case it fails, with {told}"
