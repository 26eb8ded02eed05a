"""An audit of an adaptation: run it with real processes for every way of revealing outputs, and evaluate attacks on it.

A data owner's attacks are validated on all outputs in the order of its images, and the model owner's on pixels without
masks. An attack that fails there counts as not attacking anything. Recordings are removed after the attacks on their
arm, and when the audit is interrupted. Errors list the accepted values.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import torch

from tacit.models.adapters.configuration import Reveal
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import claim
from tacit.parties.runs.experiment import load_as
from tacit.simulate.adaptation.plan import Folder, Recorded, owner_names
from tacit.simulate.adaptation.run import adapt, make_folder
from tacit.simulate.adaptation.setting import BACKBONE
from tacit.simulate.adaptation_audit.copies import AuditedAdaptation
from tacit.simulate.adaptation_audit.extraction import COPIED_BLOCKS, IMITATION, ModelAttack
from tacit.simulate.adaptation_audit.openings import (
    FITTED_WORDS,
    READ_WORDS,
    READERS,
    OpenedWords,
    clear_words,
    received_words,
)
from tacit.simulate.audit.adversaries import AdversaryError, images_of
from tacit.simulate.audit.arms import AuditArm
from tacit.simulate.audit.page import Pictures
from tacit.simulate.audit.results import (
    NOT_ATTACKED,
    RECONSTRUCTED,
    AuditResult,
    ImageAttackResult,
    ImageScore,
    ModelAttackResult,
)
from tacit.simulate.audit.run import Progress
from tacit.simulate.audit.scores import Pixels, image_metrics, score
from tacit.simulate.federation.party_files import MODEL_OWNER
from tacit.simulate.federation.processes import ProcessError, in_daemon_thread

DATA_OWNER: Final = "data-owner"
_TASTAN: Final = "this project, on Tastan and Nandakumar 2025"
MODEL_ATTACKS: Final = {
    COPIED_BLOCKS: ("a data owner matches outputs of blocks, and copies blocks from pairs of them", _TASTAN),
    IMITATION: ("a data owner trains a model on its images with all that it received", _TASTAN),
}
IMAGE_ATTACKS: Final = {
    READ_WORDS: ("the model owner takes the words of masked pixels for pixels", "this project"),
    FITTED_WORDS: (
        "the model owner learns from the other data owners' words and images to read those of one",
        "this project",
    ),
}
"""Keyed by name: the action of an attack, and its source."""


@dataclass(frozen=True, kw_only=True)
class AdaptationAuditPlan:
    experiment: AdaptationExperiment
    data_owners: tuple[str, ...]
    model_owner: bool
    attacks: tuple[str, ...]
    images: int
    seed: int
    backbone: Path | None
    out: Path

    @property
    def recorded(self) -> tuple[str, ...]:
        return (*self.data_owners, *((MODEL_OWNER,) if self.model_owner else ()))


def adaptation_audit_plan(
    path: Path,
    run: Path | None,
    *,
    adversaries: Sequence[str],
    attacks: Sequence[str],
    images: int,
    data: Path | None,
    full: bool,
    seed: int | None,
    out: Path,
) -> AdaptationAuditPlan:
    """Return the plan; without adversaries, of the first data owner and the model owner.

    path: the file of the experiment; run: the folder of its run, whose model is attacked if it was trained there and
    data names no other images. AdversaryError, ExperimentError, OSError.
    """
    experiment = load_as(AdaptationExperiment, path)
    if full:
        raise AdversaryError("--full is of audits of federations: an adaptation has no attack that takes it")
    if experiment.adaptation.selection == "enrolment":
        raise AdversaryError(
            'an audit cannot read runs with adaptation.selection = "enrolment" yet: leave it out of what is audited'
        )
    if data is not None:
        section = images_of(experiment.data, data)
        experiment = msgspec.structs.replace(experiment, data=section)
    try:
        experiment.check_place()
    except ValueError as error:
        raise AdversaryError(str(error)) from None
    if seed is None:
        seed = secrets.randbits(31) if experiment.federation.seed is None else experiment.federation.seed
    federation = msgspec.structs.replace(experiment.federation, seed=seed)
    names = owner_names(experiment.clients)
    parties = [_party(given, names) for given in dict.fromkeys(adversaries or (DATA_OWNER, MODEL_OWNER))]
    data_owners = tuple(dict.fromkeys(name for name in parties if name != MODEL_OWNER))
    own = {**(MODEL_ATTACKS if data_owners else {}), **(IMAGE_ATTACKS if MODEL_OWNER in parties else {})}
    for name in attacks:
        if name not in own:
            raise AdversaryError(f"there is no attack {name!r} of {' or '.join(parties)}: expected {', '.join(own)}")
    return AdaptationAuditPlan(
        experiment=msgspec.structs.replace(experiment, federation=federation),
        data_owners=data_owners,
        model_owner=MODEL_OWNER in parties,
        attacks=tuple(dict.fromkeys(attacks or own)),
        images=images,
        seed=seed,
        backbone=run / BACKBONE if data is None and run is not None and (run / BACKBONE).is_dir() else None,
        out=out,
    )


def _party(given: str, names: Sequence[str]) -> str:
    """Return the party of that name. "data-owner" is the first one. AdversaryError for others."""
    name = names[0] if given == DATA_OWNER else given
    if name not in (*names, MODEL_OWNER):
        raise AdversaryError(
            f"--as {given}: there is no party {given!r} that an audit of an adaptation plays; expected {DATA_OWNER}, "
            f"{', '.join(names)}, {MODEL_OWNER}, one at a time"
        )
    return name


Row = TypeVar("Row", ModelAttackResult, ImageAttackResult)

NO_PROTECTION: Final = ("unprotected", "nothing is protected")
"""Name of the unprotected case, and the case in words."""
_OBSERVATIONS: Final[dict[Reveal, str]] = {
    "all": "outputs in secret orders",
    "sampled": "sampled outputs in secret orders",
    "none": "adapters and head",
}
"""In running order: the first is also attacked without protection."""
IN_ORDER: Final = "outputs in the order of images"
MASKED: Final = "masked pixels"
CLEAR: Final = "pixels without masks"


def arms_of(experiment: AdaptationExperiment) -> tuple[AuditArm, ...]:
    """Configurations for every way of revealing outputs, after the unprotected case, which has no run of its own."""
    replace, arms = msgspec.structs.replace, []
    for reveal in _OBSERVATIONS:
        # Noise is allowed only if no outputs are revealed.
        changes: dict[str, Any] = {} if reveal == "none" else {"noise": 0.0, "largest_epsilon": 0.0}
        own = replace(experiment.adaptation, reveal=reveal, **changes)
        changed = replace(experiment, adaptation=own)
        arms.append(AuditArm(name=f"reveal-{reveal}", about=f'reveal = "{reveal}"', experiment=changed))
    name, about = NO_PROTECTION
    first = AuditArm(name=name, about=about, experiment=arms[0].experiment)
    return (first, *arms)


@dataclass
class _Audit:
    """Results so far.

    failed: by attack, the reason for its failure on the unprotected case; empty if it succeeded.
    """

    plan: AdaptationAuditPlan
    progress: Progress
    model_attacks: list[ModelAttackResult] = field(default_factory=list)
    image_attacks: list[ImageAttackResult] = field(default_factory=list)
    pictures: list[Pictures] = field(default_factory=list)
    baseline: list[ImageScore] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def attack(self, arm: AuditArm, subject: AuditedAdaptation, recordings: Path, reveal: Reveal) -> None:
        for owner in self.plan.data_owners:
            self._models(arm, subject, recordings, owner, reveal)
        if self.plan.model_owner:
            self._images(arm, subject, recordings, reveal)

    def _models(self, arm: AuditArm, subject: AuditedAdaptation, recordings: Path, owner: str, reveal: Reveal) -> None:
        attacked = ModelAttack(subject, owner)
        passes = list(subject.received(recordings, owner)) if reveal != "none" else []
        for name in (each for each in self.plan.attacks if each in MODEL_ATTACKS):
            if name not in self.failed:
                self.progress(f"nothing is protected: {name} of {owner}")
                row = attacked.run(name, NO_PROTECTION, IN_ORDER, passes, in_order=True)
                self.model_attacks.append(self._validated(row))
            if self.failed[name]:
                row = ModelAttackResult(
                    attack=name,
                    arm=arm.name,
                    configuration=arm.about,
                    adversary=owner,
                    observation=_OBSERVATIONS[reveal],
                    received_outputs=0,
                    reason=self.failed[name],
                )
            else:
                self.progress(f"{arm.about}: {name} of {owner}")
                row = attacked.run(name, (arm.name, arm.about), _OBSERVATIONS[reveal], passes, in_order=False)
            self.model_attacks.append(row)

    def _images(self, arm: AuditArm, subject: AuditedAdaptation, recordings: Path, reveal: Reveal) -> None:
        public = subject.learning.public
        images = {
            owner: [subject.images_of(owner).images[torch.from_numpy(some)] for some in subject.brought(owner, reveal)]
            for owner in owner_names(subject.experiment.clients)
        }
        try:
            masked = received_words(recordings, images, public)
        except ValueError as error:
            raise ProcessError(f"{arm.name}: {error}") from None
        for name in (each for each in self.plan.attacks if each in READERS):
            if name not in self.failed:
                row = self._read(name, NO_PROTECTION, CLEAR, subject, clear_words(masked, public))
                self.image_attacks.append(self._validated(row))
            row = self._read(name, (arm.name, arm.about), MASKED, subject, masked)
            self.image_attacks.append(_failing(row, self.failed[name]) if self.failed[name] else row)

    def _validated(self, row: Row) -> Row:
        """Take a result on the unprotected case; return it, without a verdict if the attack fails there."""
        self.failed[row.attack] = failed = "" if row.verdict == RECONSTRUCTED else _no_proof(row)
        return _failing(row, failed) if failed else row

    def _read(
        self,
        attack: str,
        place: tuple[str, str],
        observation: str,
        subject: AuditedAdaptation,
        words: Sequence[OpenedWords],
    ) -> ImageAttackResult:
        """Attack the first images of the first data owner, one after the other."""
        began, reason, public = time.perf_counter(), "", subject.learning.public
        victim, guess = words[0].owner, subject.baseline()
        others = [each for each in words if each.owner != victim]
        scores, baseline = list[ImageScore](), list[ImageScore]()
        true, reconstructed = list[Pixels](), list[Pixels]()
        for number, batch in enumerate((each for each in words if each.owner == victim), 1):
            try:
                found = subject.pixels(READERS[attack](batch, others, public))
            except ValueError as error:
                reason = str(error)
                break
            for image, truth in zip(found, subject.pixels(batch.images), strict=True):
                if len(scores) < self.plan.images:
                    # Drawn again for each: the residue of a mask is nearest to the same few images.
                    candidates = subject.candidates(victim, len(scores))
                    scores.append(score(victim, number, image, truth, candidates))
                    baseline.append(score(victim, number, guess, truth, candidates))
                    true.append(truth)
                    reconstructed.append(image)
            if len(scores) == self.plan.images:
                break
        self.pictures.append(Pictures(true=true, reconstructed=reconstructed))
        self.baseline = self.baseline or baseline
        metrics = image_metrics(scores, baseline) if scores else None
        return ImageAttackResult(
            attack=attack,
            arm=place[0],
            configuration=place[1],
            adversary=MODEL_OWNER,
            observation=observation,
            honest_clients=1,
            verdict=metrics.verdict if metrics else NOT_ATTACKED,
            reason=reason,
            seconds=time.perf_counter() - began,
            metrics=metrics,
            scores=tuple(scores),
        )

    def result(self) -> AuditResult:
        return AuditResult(
            seed=self.plan.seed,
            full=False,
            image_attacks=tuple(self.image_attacks),
            baseline=image_metrics(self.baseline, self.baseline) if self.baseline else None,
            model_attacks=tuple(self.model_attacks),
            configured=f"reveal-{self.plan.experiment.adaptation.reveal}",
        )


async def audit_adaptation(plan: AdaptationAuditPlan, progress: Progress) -> tuple[AuditResult, list[Pictures]]:
    """Run and attack everything. RunDirectoryError for a directory in use; AdversaryError for an unsupported run;
    ProcessError for a party that fails, a training that diverges, or a lost round; OSError."""
    claim(plan.out)
    found, recordings, runs = _Audit(plan, progress), plan.out / "recordings", plan.out / "runs"
    runs.mkdir()
    backbone = plan.backbone
    for reveal, arm in zip(_OBSERVATIONS, arms_of(plan.experiment)[1:], strict=True):
        experiment = arm.experiment
        assert isinstance(experiment, AdaptationExperiment)
        folder = Folder(runs / arm.name)
        try:
            progress(f"{arm.about}: running it")
            make_folder(experiment, folder)
            if backbone is not None:
                shutil.copytree(backbone, folder.path / BACKBONE)
            await _run(experiment, folder, Recorded(recordings, plan.recorded))
            if (folder.path / BACKBONE).exists():
                backbone = folder.path / BACKBONE
            subject = AuditedAdaptation.of(experiment, folder, plan.seed)
            # A long training must not delay Ctrl-C.
            await in_daemon_thread(partial(found.attack, arm, subject, recordings, reveal))
        finally:
            # They hold the parties' random draws.
            shutil.rmtree(recordings, ignore_errors=True)
    return found.result(), found.pictures


async def _run(experiment: AdaptationExperiment, folder: Folder, recorded: Recorded) -> None:
    try:
        summary = await adapt(experiment, folder, device="cpu", show=lambda event: None, recorded=recorded)
    except ValueError as error:
        raise AdversaryError(str(error)) from error
    except FloatingPointError as error:
        raise ProcessError(str(error)) from error
    if summary.failed or not summary.completed:
        raise ProcessError(f"{folder.path}: a round was lost ({summary.ended}): there is no whole run to attack")


def _no_proof(row: ModelAttackResult | ImageAttackResult) -> str:
    if row.metrics is None:
        return f"on the unprotected case it cannot be used: {row.reason}"
    if isinstance(row, ModelAttackResult):
        return f"on the unprotected case it fails, with an agreement of {row.metrics.agreement:.0%}"
    return f"on the unprotected case it fails, with {row.metrics.psnr:.1f} dB"


def _failing(row: Row, reason: str) -> Row:
    return msgspec.structs.replace(row, verdict=NOT_ATTACKED, reason=reason)
