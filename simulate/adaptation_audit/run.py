"""An audit of an adaptation: run it by real processes for every way of revealing outputs, attack it, judge the attacks.

Attacks of a data owner prove themselves on all outputs in the order of its images, and those of the model owner on
pixels without masks. Where one fails there, its rows read that nothing was attacked. Recordings are removed when their
arm has been attacked, and when the audit is interrupted. A refused request says what would be accepted.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from tacit.models.adapters.configuration import Reveal
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import claim
from tacit.parties.runs.experiment import load_as
from tacit.simulate.adaptation.plan import MODEL_OWNER, Folder, Recorded, owner_names
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
    heard_words,
)
from tacit.simulate.audit.adversaries import AdversaryError, images_of
from tacit.simulate.audit.arms import AuditArm
from tacit.simulate.audit.figures import NOT_ATTACKED, RECOVERED, AttackRow, AuditFigures, ModelRow, Score
from tacit.simulate.audit.run import Pictures, Tell
from tacit.simulate.audit.scores import Pixels, judge, score
from tacit.simulate.federation.processes import ProcessError, in_daemon_thread

DATA_OWNER: Final = "data-owner"
MODEL_ATTACKS: Final = {
    COPIED_BLOCKS: "a data owner matches outputs of blocks, and copies blocks from pairs of them",
    IMITATION: "a data owner teaches a model on its images with all that it was told",
}
IMAGE_ATTACKS: Final = {
    READ_WORDS: "the model owner takes the words of masked pixels for pixels",
    FITTED_WORDS: "the model owner learns from the other data owners' words and images to read those of one",
}
SOURCES: Final = {
    COPIED_BLOCKS: "this project, on Tastan and Nandakumar 2025",
    IMITATION: "this project, on Tastan and Nandakumar 2025",
    READ_WORDS: "this project",
    FITTED_WORDS: "this project",
}


@dataclass(frozen=True, kw_only=True)
class AdaptationOrder:
    """What an audit of an adaptation is to do."""

    experiment: AdaptationExperiment
    data_owners: tuple[str, ...]
    """Who attack the model."""
    model_owner: bool
    """Whether it attacks images."""
    attacks: tuple[str, ...]
    images: int
    """So many of each row of the model owner are attacked, at most."""
    seed: int
    backbone: Path | None
    """The folder of a model that was trained for a run before."""
    out: Path

    @property
    def recorded(self) -> tuple[str, ...]:
        """Who is recorded: whoever attacks."""
        return (*self.data_owners, *((MODEL_OWNER,) if self.model_owner else ()))


def adaptation_order(
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
) -> AdaptationOrder:
    """What to do; without adversaries, by the first data owner and the model owner.

    path: the file of the experiment; run: the folder of the run that it is of, whose model is attacked then, if it was
    trained for it and data names no other images. AdversaryError, ExperimentError, OSError.
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
    return AdaptationOrder(
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
    """The party of that name. "data-owner" is the first one. AdversaryError for others."""
    name = names[0] if given == DATA_OWNER else given
    if name not in (*names, MODEL_OWNER):
        raise AdversaryError(
            f"--as {given}: there is no party {given!r} that an audit of an adaptation plays; expected {DATA_OWNER}, "
            f"{', '.join(names)}, {MODEL_OWNER}, one at a time"
        )
    return name


UNPROTECTED: Final = "unprotected"
_TOLD: Final[dict[Reveal, str]] = {
    "all": "outputs in secret orders",
    "sampled": "sampled outputs in secret orders",
    "none": "adapters and head",
}
"""In the order in which arms are run: the first is also attacked without protection."""
IN_ORDER: Final = "outputs in the order of images"
MASKED: Final = "pixels under masks"
CLEAR: Final = "pixels without masks"


def arms_of(experiment: AdaptationExperiment) -> tuple[AuditArm, ...]:
    """For every way of telling outputs, and before them the case in which nothing is protected, which has no run of its
    own."""
    replace, arms = msgspec.structs.replace, []
    for reveal in _TOLD:
        # Noise is of sums beside which nothing is told.
        changes: dict[str, Any] = {} if reveal == "none" else {"noise": 0.0, "largest_epsilon": 0.0}
        own = replace(experiment.adaptation, reveal=reveal, **changes)
        changed = replace(experiment, adaptation=own)
        arms.append(AuditArm(name=f"reveal-{reveal}", about=f'reveal = "{reveal}"', experiment=changed))
    first = AuditArm(name=UNPROTECTED, about="nothing is protected", experiment=arms[0].experiment)
    return (first, *arms)


@dataclass
class _FoundOwners:
    """What there is so far."""

    order: AdaptationOrder
    tell: Tell
    models: list[ModelRow] = field(default_factory=list)
    rows: list[AttackRow] = field(default_factory=list)
    pictures: list[Pictures] = field(default_factory=list)
    blind: list[Score] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """By attack, why it did not work where nothing is protected; empty if it did."""

    def attack(self, arm: AuditArm, subject: AuditedAdaptation, recordings: Path, reveal: Reveal) -> None:
        """Everything that was asked for, in one run; in the first of them also without protection."""
        for owner in self.order.data_owners:
            self._models(arm, subject, recordings, owner, reveal)
        if self.order.model_owner:
            self._images(arm, subject, recordings)

    def _models(self, arm: AuditArm, subject: AuditedAdaptation, recordings: Path, owner: str, reveal: Reveal) -> None:
        attacked = ModelAttack(subject, owner)
        passes = list(subject.told(recordings, owner)) if reveal != "none" else []
        for name in (each for each in self.order.attacks if each in MODEL_ATTACKS):
            if name not in self.failed:
                self.tell(f"nothing is protected: {name} of {owner}")
                place = UNPROTECTED, "nothing is protected"
                row = attacked.row(name, place, IN_ORDER, passes, in_order=True)
                self.failed[name] = failed = "" if row.verdict == RECOVERED else _no_proof(row)
                self.models.append(msgspec.structs.replace(row, verdict=NOT_ATTACKED, why=failed) if failed else row)
            if self.failed[name]:
                row = _not_attacked(name, arm, owner, _TOLD[reveal], self.failed[name])
            else:
                self.tell(f"{arm.about}: {name} of {owner}")
                row = attacked.row(name, (arm.name, arm.about), _TOLD[reveal], passes, in_order=False)
            self.models.append(row)

    def _images(self, arm: AuditArm, subject: AuditedAdaptation, recordings: Path) -> None:
        public = subject.learning.public
        images = {
            owner: [subject.images_of(owner).images[torch.from_numpy(batch)] for batch in subject.batches(owner)]
            for owner in owner_names(subject.experiment.clients)
        }
        try:
            heard = heard_words(recordings, images, public)
        except ValueError as error:
            raise ProcessError(f"{arm.name}: {error}") from None
        for name in (each for each in self.order.attacks if each in READERS):
            if name not in self.failed:
                place = UNPROTECTED, "nothing is protected"
                row = self._read(name, place, CLEAR, subject, clear_words(heard, public))
                self.failed[name] = "" if row.verdict == RECOVERED else _no_proof(row)
                self._replace_last(self.failed[name])
            self._read(name, (arm.name, arm.about), MASKED, subject, heard)
            self._replace_last(self.failed[name])

    def _replace_last(self, why: str) -> None:
        if why:
            self.rows[-1] = msgspec.structs.replace(self.rows[-1], verdict=NOT_ATTACKED, why=why)

    def _read(
        self, attack: str, place: tuple[str, str], what: str, subject: AuditedAdaptation, heard: Sequence[OpenedWords]
    ) -> AttackRow:
        """The first images of the first data owner, one after the other."""
        began, why, public = time.perf_counter(), "", subject.learning.public
        victim, blind = heard[0].owner, subject.blind()
        others = [each for each in heard if each.owner != victim]
        scores, floor, true, recovered = list[Score](), list[Score](), list[Pixels](), list[Pixels]()
        for number, batch in enumerate((each for each in heard if each.owner == victim), 1):
            try:
                found = subject.pixels(READERS[attack](batch, others, public))
            except ValueError as error:
                why = str(error)
                break
            for image, truth in zip(found, subject.pixels(batch.images), strict=True):
                if len(scores) < self.order.images:
                    # Anew for each: what a mask leaves is nearest to the same few images.
                    candidates = subject.candidates(victim, len(scores))
                    scores.append(score(victim, number, image, truth, candidates))
                    floor.append(score(victim, number, blind, truth, candidates))
                    true.append(truth)
                    recovered.append(image)
            if len(scores) == self.order.images:
                break
        figures = judge(scores, floor) if scores else None
        row = AttackRow(
            attack=attack,
            arm=place[0],
            about=place[1],
            adversary=MODEL_OWNER,
            what=what,
            cohort=1,
            verdict=figures.verdict if figures else NOT_ATTACKED,
            why=why,
            seconds=time.perf_counter() - began,
            figures=figures,
            scores=tuple(scores),
        )
        self.rows.append(row)
        self.pictures.append(Pictures(true=true, recovered=recovered))
        self.blind = self.blind or floor
        return row

    def audit(self) -> AuditFigures:
        return AuditFigures(
            seed=self.order.seed,
            full=False,
            rows=tuple(self.rows),
            blind=judge(self.blind, self.blind) if self.blind else None,
            observations=(),
            limits=(),
            no_limits="",
            attempts=(),
            no_attempts="",
            models=self.models,
        )


async def audit_adaptation(order: AdaptationOrder, tell: Tell) -> tuple[AuditFigures, list[Pictures]]:
    """Run and attack everything. RunDirectoryError for a directory in use; AdversaryError for what cannot be run;
    ProcessError for a party that fails, a training that diverges, or a round that was lost; OSError."""
    claim(order.out)
    found, recordings, runs = _FoundOwners(order, tell), order.out / "recordings", order.out / "runs"
    runs.mkdir()
    backbone = order.backbone
    for reveal, arm in zip(_TOLD, arms_of(order.experiment)[1:], strict=True):
        experiment = arm.experiment
        assert isinstance(experiment, AdaptationExperiment)
        folder = Folder(runs / arm.name)
        try:
            tell(f"{arm.about}: running it")
            make_folder(experiment, folder)
            if backbone is not None:
                shutil.copytree(backbone, folder.path / BACKBONE)
            await _run(experiment, folder, Recorded(recordings, order.recorded))
            if (folder.path / BACKBONE).exists():
                backbone = folder.path / BACKBONE
            subject = AuditedAdaptation.of(experiment, folder, order.seed)
            # Training of hours holds up nobody who interrupts it.
            await in_daemon_thread(partial(found.attack, arm, subject, recordings, reveal))
        finally:
            # What parties drew is in them.
            shutil.rmtree(recordings, ignore_errors=True)
    return found.audit(), found.pictures


async def _run(experiment: AdaptationExperiment, folder: Folder, recorded: Recorded) -> None:
    try:
        summary = await adapt(experiment, folder, device="cpu", show=lambda event: None, recorded=recorded)
    except ValueError as error:
        raise AdversaryError(str(error)) from error
    except FloatingPointError as error:
        raise ProcessError(str(error)) from error
    if any(row["status"] != "completed" for row in summary["rounds"]) or not summary["rounds"]:
        raise ProcessError(f"{folder.path}: a round was lost ({summary['ended']}): there is no whole run to attack")


def _no_proof(row: ModelRow | AttackRow) -> str:
    if row.figures is None:
        return f"on the unprotected case it cannot be used: {row.why}"
    if isinstance(row, ModelRow):
        return f"on the unprotected case it fails, with an agreement of {row.figures.agreement:.0%}"
    return f"on the unprotected case it fails, with {row.figures.psnr:.1f} dB"


def _not_attacked(attack: str, arm: AuditArm, owner: str, what: str, why: str) -> ModelRow:
    return ModelRow(
        attack=attack,
        arm=arm.name,
        about=arm.about,
        adversary=owner,
        what=what,
        told=0,
        verdict=NOT_ATTACKED,
        why=why,
        seconds=0.0,
        figures=None,
    )
