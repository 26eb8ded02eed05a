"""The data owner of private inference on its own host: it requests inference on its images until all have results.

Results are persisted, so that no pass is paid for twice, whichever party crashes: JSON lines, appended and synchronised
one by one, in a file named after the images. All results in a file come from one model; another one is refused. A crash
costs the pass in progress; the remaining images are sent in another session, with fresh randomness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import structs

from tacit.models.configuration import ImagesConfiguration
from tacit.models.data import normalise, read
from tacit.models.datasets.image_files import Skipped, readable_files
from tacit.models.datasets.samples import SQUASHED, FileImages, Samples, Scaling, Source
from tacit.models.file_system import FILES
from tacit.parties.hosting.folder import AnswersError, OpenedParty, PartyFolder, at_work
from tacit.parties.hosting.learner import Learned, LearnerHooks, learn, owner_settings, read_learned
from tacit.parties.hosting.party_file import DataOwnerFile
from tacit.parties.hosting.protocols import PROTOCOLS
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.inference.conversation import RECONNECT_SECONDS, InferenceError
from tacit.parties.inference.data_owner import (
    Answer,
    DataOwnerSession,
    SessionKind,
    open_session,
)
from tacit.parties.inference.events import ImagesAnswered, ImagesRead, InferenceSessionEnded, ModelAgreed
from tacit.parties.inference.model import Interface
from tacit.parties.inference.private_model import AskedModel
from tacit.parties.runs.answers import AnsweredImage, Answers
from tacit.parties.session.event_log import EventFile, EventLog, Tell, remove_incomplete_line
from tacit.parties.session.events import InputNoted
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest


@dataclass(frozen=True, eq=False)
class OwnImages:
    names: tuple[str, ...]
    labels: tuple[str, ...] | None
    digest: str
    """32 hexadecimal digits, over all images in order."""
    _files: tuple[Path, ...] = field(repr=False)
    _samples: Samples | None = field(repr=False)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    unreadable: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Names of skipped images, each with the reason."""

    def samples(self, *, white: int = 255, scaling: Scaling = SQUASHED) -> Samples:
        """All of them, not decoded yet; white: the number of a white pixel, to which images in files are scaled."""
        if self._samples is not None:
            return self._samples
        return Samples(FileImages(self._files, white=white, scaling=scaling), np.zeros(len(self._files), np.int64))

    def prepared(self, interface: Interface, *, side: int, first: int) -> torch.Tensor:
        """Images from the first on, preprocessed for this interface: float32 [n, C, side, side]. ValueError for one
        that cannot be decoded, or has other channels."""
        samples = self.samples(white=interface.white, scaling=interface.scaling)
        source = Source(train=samples, test=samples, class_names=())
        data = normalise(source, image_size=side, mean=interface.mean, std=interface.std)
        return data.normalised(samples.images, np.arange(first, len(self.names)))


def own_images(wanted: str) -> OwnImages:
    """Load the images that a party file names. ValueError or OSError if they are missing or none are found."""
    if wanted == "digits" or wanted.endswith(".npz"):
        source = read(ImagesConfiguration(source=wanted))
        test, names = source.test, source.class_names
        if not len(test.images):
            raise ValueError(f"images = {wanted!r}: there are no test images in it (x_test and y_test)")
        count = len(test.images)
        everything = test.images.pixels(np.arange(count), size=1)
        return OwnImages(
            tuple(f"test {index}" for index in range(count)),
            tuple(names[label] for label in test.labels),
            _digest([str(everything.shape).encode(), everything.tobytes()]),
            (),
            test,
            notes=source.notes,
        )
    skipped, root = Skipped(), Path(wanted)
    try:
        files = readable_files(root, skipped)
    except ValueError as error:
        raise ValueError(f"images = {wanted!r}: {error}") from None

    def name(file: Path) -> str:
        return file.name if file == root else file.relative_to(root).as_posix()

    contents = [part for file in files for part in (name(file).encode(), sha256(file.read_bytes()).digest())]
    return OwnImages(
        tuple(map(name, files)),
        None,
        _digest(contents),
        files,
        None,
        notes=(*skipped.notes, *skipped.unreadable.values()),
        unreadable={name(file): reason for file, reason in skipped.unreadable.items()},
    )


def _digest(parts: Sequence[bytes]) -> str:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()[:32]


class AnsweredBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="model"):
    weights: str
    """Commitment to the model, in hexadecimal digits."""
    classes: tuple[str, ...]
    features: int = 0
    """Features per image, for a model without classes."""


class AnsweredPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pass"):
    logits: tuple[tuple[float, ...] | None, ...]
    """A row for each image, a number for each class or feature; None for an image of a refused pass, or with labels
    only."""
    labels: tuple[tuple[int, ...] | None, ...] = ()
    """Instead of logits, a row for each image with the numbers of the best classes; None for a refused image."""
    online_seconds: float
    offline_seconds: float
    """Seconds of waiting for correlated randomness, before the pass."""
    sent: int
    """Bytes of shares sent by this owner."""
    received: int
    """Bytes of shares sent by the model owner."""


class AnsweredRow(NamedTuple):
    """Result for an image: logits or labels, or neither if it was refused."""

    logits: Sequence[float] | None
    labels: Sequence[int] | None


_DECODER: Final = msgspec.json.Decoder(AnsweredBy | AnsweredPass)


class AnswersFile:
    """Persisted results for this number of images. AnswersError for an invalid file, or one for other images."""

    def __init__(self, path: Path, *, images: int) -> None:
        self.by: AnsweredBy | None = None
        """None before the first session."""
        self.passes: list[AnsweredPass] = []
        self.path = path
        self._images = images
        try:
            for line in remove_incomplete_line(path).splitlines():
                self._take(_DECODER.decode(line))
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise AnswersError(f"{path} cannot be read ({error}): remove it to ask about all images again") from None

    @property
    def count(self) -> int:
        """Number of images with a result or a refusal; they are the first ones."""
        return sum(len(each.logits) for each in self.passes)

    @property
    def rows(self) -> list[AnsweredRow]:
        return [
            AnsweredRow(*row)
            for each in self.passes
            for row in zip(each.logits, each.labels or (None,) * len(each.logits), strict=True)
        ]

    def write(self, entry: AnsweredBy | AnsweredPass) -> None:
        try:
            FILES.append(self.path, msgspec.json.encode(entry) + b"\n")
            FILES.synchronise(self.path)
            if not self.passes:
                FILES.synchronise(self.path.parent)
        except OSError as error:
            raise AnswersError(
                f"{self.path} cannot be written ({error.strerror}): make room, then start again"
            ) from error
        self._take(entry)

    def _take(self, entry: Any) -> None:
        if isinstance(entry, AnsweredBy):
            if self.by is not None:
                raise ValueError("it is of two models")
            self.by = entry
            return
        self.passes.append(entry)
        classes = 0 if self.by is None else len(self.by.classes)
        outputs = 0 if self.by is None else classes or self.by.features
        misfit = (
            any(row is not None and len(row) != outputs for row in entry.logits)
            or len(entry.labels) not in (0, len(entry.logits))
            or any(row is not None and not _labels(row, classes) for row in entry.labels)
        )
        if self.count > self._images or misfit:
            raise ValueError("it does not fit the images")


def _labels(row: Sequence[int], classes: int) -> bool:
    return len(row) > 0 and min(row) >= 0 and max(row) < classes


_PASSING: Final = frozenset({Code.LEFT, Code.TIMEOUT, Code.LOCAL, Code.SESSION})


class DataOwnerHooks(LearnerHooks):
    """Points at which a simulation changes a data owner that requests inference, beside those of one that trains."""

    def images(self, file: DataOwnerFile) -> OwnImages:
        return own_images(file.images)

    def session(self, usual: SessionKind) -> SessionKind:
        """Return the kind of sessions; usual: that of hosts."""
        return usual

    def answered(self, answer: Answer, session: DataOwnerSession) -> None:
        """Called when a pass is over and its results are persisted."""


async def run_data_owner(
    party: OpenedParty[DataOwnerFile], *, show: Tell, hooks: DataOwnerHooks | None = None
) -> PartyOutcome:
    """Request inference until all images have results, or train until the rounds are over.

    ValueError or OSError for unusable images, a roster without a dealer, and terms that differ from the party's file;
    EndpointError for an unreachable party, AnswersError, EventLogError, JournalError."""
    hooks = hooks or DataOwnerHooks()
    file, learns = party.file, party.file.learns
    rounds = 0 if learns is None else learns.rounds
    with at_work(party, show, address=file.model_owner, rounds=rounds, learning=learns is not None) as tell:
        try:
            if learns is not None:
                return await learn(party, learns, tell, hooks)
            images = hooks.images(file)
            learned = None if file.adaptation is None else read_learned(party.folder)
            answers = own_answers(party.folder, images, learned)
            with EventFile(party.folder.events(party.name), party.name) as log:
                await _InferenceRun(party, images, learned, answers, EventLog(log, tell), hooks).finish()
        except InferenceError as error:
            return PartyOutcome(Ended(error.code or Code.LOCAL, str(error)))
        return PartyOutcome(Ended(None, "all images are answered"), answers_of(images, answers))


class _InferenceRun:
    def __init__(
        self,
        party: OpenedParty[DataOwnerFile],
        images: OwnImages,
        learned: Learned | None,
        answers: AnswersFile,
        event_log: EventLog,
        hooks: DataOwnerHooks,
    ) -> None:
        self._hooks = hooks
        self._file = party.file
        self._images = images
        self._learned = learned
        self._answers = answers
        self._event_log = event_log
        self._settings = owner_settings(party, InferencePolicy(), event_log, hooks)

    async def finish(self) -> None:
        answers, total, learned = self._answers, len(self._images.names), self._learned
        usual = PROTOCOLS[self._file.protocol].session() if learned is None else learned.session()
        kind = self._hooks.session(usual)
        self._event_log.write(ImagesRead(images=total, answered=answers.count, learned=learned.round if learned else 0))
        for note in self._images.notes:
            self._event_log.write(InputNoted(detail=note))
        since = time.monotonic()
        while (before := answers.count) < total:
            known = answers.by is not None
            request, policy = wanted(self._file, self._images, answers, learned)
            try:
                await self._session(request, policy, kind)
            except InferenceError as error:
                code = None if error.code is None else error.code.name
                self._event_log.write(InferenceSessionEnded(code=code, detail=str(error)))
                if answers.count > before:
                    since = time.monotonic()
                if answers.count == total:
                    return
                if error.code is Code.MODEL and learned is not None:
                    raise ValueError(f"{error}; {learned.misfit}") from None
                if error.code is Code.MODEL and known:
                    remedy = remove(answers)
                    raise AnswersError(f"{error}; {before} images are answered by the former: {remedy}") from None
                if error.code not in _PASSING or time.monotonic() - since > self._file.patience:
                    raise
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _session(self, request: InferenceRequest, policy: InferencePolicy, kind: SessionKind) -> None:
        async with open_session(replace(self._settings, policy=policy), request, kind) as session:
            images = await self._prepared(session)
            async for answer in session.answers(images):
                self._keep(answer)
                self._hooks.answered(answer, session)

    async def _prepared(self, session: DataOwnerSession) -> torch.Tensor:
        """Check the session's model, and preprocess the remaining images to its input."""
        terms = session.terms
        if self._learned is not None:
            self._learned.check(terms)
        interface = interface_of(session.public, self._answers, self._learned)
        if self._answers.by is None:
            features = 0 if interface.classes else terms.sizes.classes
            by = AnsweredBy(weights=terms.weights.hex(), classes=interface.classes, features=features)
            self._answers.write(by)
        self._event_log.write(ModelAgreed(weights=terms.weights.hex()))
        prepared = partial(self._images.prepared, interface, side=terms.sizes.side, first=self._answers.count)
        return await session.worker(prepared)

    def _keep(self, answer: Answer) -> None:
        costs = answer.costs
        self._answers.write(
            AnsweredPass(
                logits=(None,) * costs.images if answer.logits is None else tuple(map(tuple, answer.logits.tolist())),
                labels=() if answer.labels is None else tuple(map(tuple, answer.labels.tolist())),
                online_seconds=costs.online_seconds,
                offline_seconds=costs.offline_seconds,
                sent=sum(cost.sent for cost in costs.rounds),
                received=sum(cost.received for cost in costs.rounds),
            )
        )
        refused = costs.images if costs.refused else 0
        self._event_log.write(ImagesAnswered(images=self._answers.count, of=len(self._images.names), refused=refused))


def own_answers(folder: PartyFolder, images: OwnImages, learned: Learned | None) -> AnswersFile:
    """Read the known results for these images. AnswersError."""
    name = images.digest if learned is None else learned.named(images.digest)
    return AnswersFile(folder.answers(name), images=len(images.names))


def wanted(
    file: DataOwnerFile, images: OwnImages, answers: AnswersFile, learned: Learned | None = None
) -> tuple[InferenceRequest, InferencePolicy]:
    """Return the request and policy for the remaining images. ValueError if the file wants another model for them."""
    known = "" if answers.by is None else answers.by.weights
    if learned is not None:
        known = learned.weights
        if file.policy.weights not in ("", known):
            raise ValueError(f"policy.weights: what was learned here is beside the model {known}; name that, or none")
    if known and file.policy.weights not in ("", known):
        raise ValueError(f"policy.weights: {answers.count} images are answered by another model; {remove(answers)}")
    weights = bytes.fromhex(known or file.policy.weights) or None
    request = InferenceRequest(images=len(images.names) - answers.count, batch=file.batch)
    return request, file.policy.accepts(weights)


def interface_of(public: AskedModel, answers: AnswersFile, learned: Learned | None = None) -> Interface:
    """Return the model's input and output, of trained adapters if any. ValueError if unknown, or changed."""
    if public.interface is None:
        raise ValueError("the model owner does not say what its model takes: ask it to use `tacit model-owner`")
    interface = public.interface if learned is None else structs.replace(public.interface, classes=learned.classes)
    if answers.by is not None and answers.by.classes != interface.classes:
        raise ValueError(f"the model owner has given the classes other names; {remove(answers)}")
    return interface


def remove(answers: AnswersFile) -> str:
    return f"remove {answers.path} to ask about all of them again"


def answers_of(images: OwnImages, answers: AnswersFile) -> Answers:
    by, passes = answers.by, answers.passes
    assert by is not None
    rows = zip(images.names, answers.rows, strict=True)
    answered = [AnsweredImage.of(name, by.classes, row.logits, row.labels) for name, row in rows]
    labels = images.labels or [None] * len(answered)
    right = [one.label == label for one, label in zip(answered, labels, strict=True) if not one.refused]
    return Answers(
        images=[*answered, *(AnsweredImage.not_read(*each) for each in images.unreadable.items())],
        accuracy=None if images.labels is None or not right else sum(right) / len(right),
        classes=list(by.classes),
        weights=by.weights,
        passes=len(passes),
        online_seconds=sum(each.online_seconds for each in passes),
        preprocessing_wait_seconds=sum(each.offline_seconds for each in passes),
        data_owner_bytes=sum(each.sent for each in passes),
        model_owner_bytes=sum(each.received for each in passes),
    )
