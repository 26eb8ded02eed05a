"""An audit of a federation: run each configuration with recordings, attack it, and compare with the baseline.

The unprotected arm comes first, and in it the server alone, for any choice of adversaries. An attack that fails there
counts as not attacking anything. Recordings hold their parties' messages and draws, including keys; they are removed
after the attacks on their arm, and when the audit is interrupted.
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

from tacit.parties.runs.directory import claim
from tacit.simulate.audit.adversaries import AuditPlan, present, usual_adversaries
from tacit.simulate.audit.arms import UNPROTECTED, AuditArm
from tacit.simulate.audit.attacks import CLOSED_FORM, Attack, Observations
from tacit.simulate.audit.limits import closed_form_limits
from tacit.simulate.audit.page import Pictures
from tacit.simulate.audit.results import (
    NOT_ATTACKED,
    NOTHING_OBSERVED,
    AuditResult,
    ClosedFormResult,
    ImageAttackResult,
    ImageScore,
)
from tacit.simulate.audit.scores import Pixels, image_metrics, nearest, score
from tacit.simulate.audit.subjects import AuditedRun, pooled
from tacit.simulate.audit.subtraction import differences, one_image_each
from tacit.simulate.audit.views import TAP, WIRE, UpdateView, observed, on_the_wire
from tacit.simulate.federation.processes import SERVER, in_daemon_thread
from tacit.simulate.federation.recording import read
from tacit.simulate.federation.roles import Plan
from tacit.simulate.federation.run import new_plan, simulate

Progress = Callable[[str], None]


async def audit(plan: AuditPlan, progress: Progress) -> tuple[AuditResult, list[Pictures]]:
    """Run and attack everything. RunDirectoryError for a directory in use; ValueError for an unsupported run; otherwise
    as `simulate`."""
    claim(plan.out)
    found = _Audit(plan, progress)
    for arm in plan.arms:
        progress(f"{arm.name}: running it")
        try:
            subject, recordings = await _recorded(plan, arm)
            adversaries = plan.adversaries or usual_adversaries(subject.terms)
            if arm.subtracts:
                adversaries = ((SERVER,),)
            # Validate every attack on single uploads, for any choice of adversaries.
            first = [(SERVER,)] if arm.name == UNPROTECTED else []
            for adversary in dict.fromkeys([*first, *adversaries]):
                if parties := present(adversary, subject.terms):
                    if arm.subtracts:
                        views = list(differences(list(read(recordings, SERVER)), subject.terms))
                    elif parties == [WIRE]:
                        views = on_the_wire(recordings / TAP, subject.terms)
                    else:
                        views = observed(recordings, parties, subject.terms)
                    # A long search must not delay Ctrl-C.
                    await in_daemon_thread(partial(found.attack, arm, subject, recordings, parties, views))
            if arm.name == UNPROTECTED and CLOSED_FORM in plan.names:
                progress("limits of the closed form")
                await in_daemon_thread(partial(found.limit, subject))
        finally:
            # Keys are in them.
            shutil.rmtree(plan.out / "recordings", ignore_errors=True)
    return found.result(), found.pictures


@dataclass
class _Audit:
    """Results so far.

    failed: by attack, the reason for its failure on the unprotected case; empty if it succeeded.
    """

    plan: AuditPlan
    progress: Progress
    image_attacks: list[ImageAttackResult] = field(default_factory=list)
    pictures: list[Pictures] = field(default_factory=list)
    baseline: list[ImageScore] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    observations: Observations = field(default_factory=Observations)
    closed_form: tuple[ClosedFormResult, ...] = ()
    closed_form_unusable: str = ""

    def limit(self, subject: AuditedRun) -> None:
        try:
            self.closed_form = closed_form_limits(subject)
        except ValueError as error:
            self.closed_form_unusable = str(error)

    def result(self) -> AuditResult:
        return AuditResult(
            seed=self.plan.budget.seed,
            full=self.plan.budget.full,
            image_attacks=tuple(self.image_attacks),
            baseline=image_metrics(self.baseline, self.baseline) if self.baseline else None,
            observations=tuple(self.observations.results),
            closed_form=self.closed_form,
            closed_form_unusable=self.closed_form_unusable,
            configured=self.plan.configured,
            unattackable=self.plan.unattackable,
        )

    def attack(
        self, arm: AuditArm, subject: AuditedRun, recordings: Path, parties: Sequence[str], views: Sequence[UpdateView]
    ) -> None:
        adversary = "+".join(parties)
        for attack in () if views else self.plan.attacks:
            # If these are the first, it cannot be validated.
            failed = self.failed.setdefault(
                attack.name, "on the unprotected case no round came so far that it could be tried"
            )
            reason = failed or "no round came so far that this adversary observed anything"
            self.image_attacks.append(_result(attack, arm, adversary, NOTHING_OBSERVED, 0, reason=reason))
            self.pictures.append(Pictures(true=[], reconstructed=[]))
        for (kind, clients), several in _by_kind(views).items():
            self.progress(f"{arm.name}: labels and single coordinates of {kind} ({clients})")
            place = arm.name, arm.about, adversary
            self.observations.add(subject, recordings, place, several[: self.plan.images])
            for attack in self.plan.attacks:
                # It was validated, and its target is missing.
                if attack.name in self.failed and not (attack.against(arm.experiment) and attack.suits(several[0])):
                    continue
                several_rounds = [pooled(subject, several)] if attack.pools else []
                for seen, chosen, reason in [
                    (kind, several, ""),
                    *((f"{kind}, {one.about}", one.views, one.reason) for one in several_rounds),
                ]:
                    self.progress(f"{arm.name}: {attack.name} on {seen} ({clients})")
                    row = _result(attack, arm, adversary, seen, clients)
                    self._try(attack, row, subject, chosen[: self.plan.images], reason)

    def _try(
        self, attack: Attack, row: ImageAttackResult, subject: AuditedRun, views: Sequence[UpdateView], reason: str
    ) -> None:
        """Attack these views, if the attack was validated; reason: why there are none."""
        failed = self.failed.get(attack.name, "")
        row, pictures, baseline = _attacked(attack, row, subject, [] if failed else views, self.plan)
        if attack.name not in self.failed:
            # The first views are single unprotected uploads.
            self.failed[attack.name] = failed = "" if row.metrics and row.metrics.succeeded else _failure(row)
        if failed or reason:
            row = msgspec.structs.replace(row, verdict=NOT_ATTACKED, reason=failed or reason)
        self.image_attacks.append(row)
        self.pictures.append(pictures)
        self.baseline = self.baseline or baseline


def _result(
    attack: Attack, arm: AuditArm, adversary: str, observation: str, clients: int, *, reason: str = ""
) -> ImageAttackResult:
    return ImageAttackResult(
        attack=attack.name,
        arm=arm.name,
        configuration=arm.about,
        adversary=adversary,
        observation=observation,
        honest_clients=clients,
        reason=reason,
    )


async def _recorded(audited: AuditPlan, arm: AuditArm) -> tuple[AuditedRun, Path]:
    experiment = msgspec.structs.replace(
        arm.experiment, federation=msgspec.structs.replace(arm.experiment.federation, seed=audited.budget.seed)
    )
    directory = audited.out / "runs" / arm.name
    directory.parent.mkdir(exist_ok=True)
    recordings = audited.out / "recordings" / arm.name
    wire = None
    if arm.subtracts:
        experiment = one_image_each(experiment, recordings / "images.npz", audited.budget.seed)
    elif (WIRE,) in audited.adversaries:
        recordings.mkdir(parents=True)
        wire = recordings / TAP
    plan: Plan = new_plan(
        experiment, directory, report=False, recordings=recordings, wire=wire, subtracts=arm.subtracts
    )
    await simulate(plan, lambda event: None)
    return AuditedRun.of(experiment, plan.split_seed), recordings


def _by_kind(views: Sequence[UpdateView]) -> dict[tuple[str, int], list[UpdateView]]:
    kinds: dict[tuple[str, int], list[UpdateView]] = defaultdict(list)
    for view in views:
        kinds[view.kind, len(view.clients)].append(view)
    return kinds


def _attacked(
    attack: Attack, row: ImageAttackResult, subject: AuditedRun, views: Sequence[UpdateView], plan: AuditPlan
) -> tuple[ImageAttackResult, Pictures, list[ImageScore]]:
    scores, baseline, reason, seconds = list[ImageScore](), list[ImageScore](), "", 0.0
    true, reconstructed = list[Pixels](), list[Pixels]()
    guess, sought = subject.baseline(), 1
    for view in views:
        images = [(client, subject.true_images(client, view.round)) for client in view.clients]
        truths = [(client, image) for client, several in images for image in subject.pixels(several)]
        sought = len(truths)
        given = subject.attack_input(view)
        began = time.perf_counter()
        try:
            found = attack.on(given, plan.budget)
        except ValueError as error:
            reason = str(error)
            found = torch.zeros(0)
        seconds += time.perf_counter() - began
        others = subject.candidates(view.round)
        guessed = score(truths[0][0], view.round, guess, nearest(guess, truths)[1], others)
        if not isinstance(found, torch.Tensor):
            decoys = subject.decoys(view.round)
            # In a tie it is none of the true ones.
            hit = found(torch.cat([decoys, *(several for _, several in images)])) >= len(decoys)
            scores.append(ImageScore(client=truths[0][0], round=view.round, psnr=None, ssim=None, re_identified=hit))
            baseline.append(guessed)
            continue
        for image in subject.pixels(found) if len(found) else []:
            client, true_image = nearest(image, truths)
            scores.append(score(client, view.round, image, true_image, others))
            baseline.append(guessed)
            true.append(true_image)
            reconstructed.append(image)
    metrics = image_metrics(scores, baseline, sought=sought) if scores else None
    row = msgspec.structs.replace(
        row,
        verdict=metrics.verdict if metrics else NOT_ATTACKED,
        reason=reason if metrics is None else "",
        seconds=seconds,
        metrics=metrics,
        scores=tuple(scores),
    )
    return row, Pictures(true=true, reconstructed=reconstructed), baseline


def _failure(row: ImageAttackResult) -> str:
    found = row.metrics
    if found is None:
        return f"on the unprotected case it cannot be used: {row.reason}"
    reached = f"{found.re_identification_rate:.0%} re-identified" if found.psnr is None else f"{found.psnr:.1f} dB"
    return f"on the unprotected case it fails, with {reached}"
