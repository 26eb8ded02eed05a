"""Whether a party can do its part of private inference: the model, the images, and what one owner offers the other.

What goes into a session is known when both owners have agreed. A data owner is told the model owner's terms beforehand,
and tries with them what it will do on the day: its policy, its images as the model takes them, and room for both.
"""

from __future__ import annotations

import math
from typing import Final

from tacit.models.data import statistics
from tacit.models.device import resolve_device
from tacit.parties.hosting.answers import AnswersError
from tacit.parties.hosting.data_owner_host import interface_of, wanted
from tacit.parties.hosting.learner_host import own_source
from tacit.parties.hosting.preflight import reach
from tacit.parties.hosting.preflight.checks import Check, NotFit, Untested
from tacit.parties.hosting.preflight.subjects import DataOwnerSubject, ModelOwnerSubject
from tacit.parties.hosting.preflight.work import SIZE, fits
from tacit.parties.inference.private_model import public_of
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.results import Agreed, InferenceEnded
from tacit.protocol.inference.schedule import Sizes, pass_rounds, weight_bytes

_FLOAT: Final = 4
_WHAT: Final = "weights, images, and the longest round of a pass"


def model(subject: ModelOwnerSubject) -> str:
    """The model can be read, and offered."""
    file, own = subject.file, subject.model
    device = resolve_device(file.device)
    most = {"most_images": file.most_images, "most_batch": file.most_batch}
    sizes = own.terms(input=file.input, results=file.results, **most).sizes
    kept = subject.folder.salt.exists()
    which = own.commitment.hex() if kept else "without a commitment before its first start"
    if (learning := file.adaptation) is not None:
        which = f"{which}; {len(learning.classes)} classes are learned beside it"
    return f"{which}: {_takes(sizes)}, {sizes.blocks} blocks, {sizes.classes} classes, on {device.type}"


def model_owner_memory(subject: ModelOwnerSubject) -> str:
    """There is memory for the weights, and a pass of as many images as are offered."""
    file = subject.file
    return fits(_least(subject.model.public.sizes, file.most_batch, known=file.input == "known"), _WHAT)


def images(subject: DataOwnerSubject) -> str:
    """The images that will be asked about can be decoded."""
    found = subject.images
    # Decodes as many as stand for all.
    statistics(found.samples().images, image_size=SIZE)
    labels = "" if found.labels is None else f", of {len(set(found.labels))} classes"
    return f"{len(found.names):,} in {subject.file.images}{labels}"


def learning_images(subject: DataOwnerSubject) -> str:
    """The images that will be learned from can be decoded, and are those of a batch at least."""
    found = own_source(subject.file)
    # Decodes as many as stand for all.
    statistics(found.train.images, image_size=SIZE)
    return f"{len(found.train.images):,} training images of {len(found.class_names)} classes"


def learned(subject: DataOwnerSubject) -> str:
    """What was learned can be read."""
    found = subject.learned
    assert found is not None
    return f"{len(found.classes)} classes, after round {found.round}, beside the model {found.weights}"


def answers(subject: DataOwnerSubject) -> str:
    """What was answered before can be read."""
    if subject.running:
        raise Untested("a process of this party writes them now")
    try:
        known = subject.answers
    except AnswersError as error:
        raise NotFit(str(error)) from None
    if known.by is None:
        return "none yet"
    return f"{known.count} of {len(subject.images.names)} images are answered, by the model {known.by.weights}"


def terms(subject: DataOwnerSubject) -> str:
    """What the model owner offers goes with the policy here, and with what was answered before."""
    total = len(subject.images.names)
    if subject.answers.count == total:
        raise Untested(f"all {total} images are answered: nobody will be asked")
    wish, policy = wanted(subject.file, subject.images, subject.answers)
    owner = InferenceDataOwner(subject.keys.name, subject.roster, wish=wish, policy=policy, patience=math.inf)
    owner.start(0.0)
    for output in owner.feed(reach.MODEL_OWNER.attempt(subject).frames, 0.0):
        if isinstance(output, InferenceEnded):
            raise NotFit(f"{output.culprit}: {output.detail}")
        if isinstance(output, Agreed):
            subject.offered = output
    offered = _offered(subject)
    interface_of(public_of(offered.terms), subject.answers)
    own = offered.terms
    return f"model {own.weights.hex()}, {own.input} input, {own.sizes.classes} classes; {_takes(own.sizes)}"


def data_owner_memory(subject: DataOwnerSubject) -> str:
    """There is memory for the masked weights, the images, and a pass."""
    offered = _offered(subject)
    sizes, known = offered.terms.sizes, offered.terms.input == "known"
    pixels = _FLOAT * offered.images * sizes.channels * sizes.side**2
    return fits(_least(sizes, offered.batch, known=known) + pixels, _WHAT)


def pixels(subject: DataOwnerSubject) -> str:
    """All images are brought to what the model takes."""
    offered, known = _offered(subject), subject.answers
    sizes, device = offered.terms.sizes, resolve_device(subject.file.device)
    told = interface_of(public_of(offered.terms), known)
    prepared = subject.images.prepared(told, side=sizes.side, first=known.count)
    return f"{len(prepared):,} images fit the model, {offered.batch} at a time, on {device.type}"


def _offered(subject: DataOwnerSubject) -> Agreed:
    assert subject.offered is not None
    return subject.offered


def _takes(sizes: Sizes) -> str:
    return f"it takes images of {sizes.channels} x {sizes.side} x {sizes.side}"


def _least(sizes: Sizes, batch: int, *, known: bool) -> int:
    """Bytes that either owner needs at least: the weights, as numbers, and what both open in a round."""
    longest = max(each.model_owner_bytes + each.data_owner_bytes for each in pass_rounds(sizes, batch, known=known))
    return sum(weight_bytes(sizes)) + longest


MODEL: Final = Check("model", model)
MODEL_OWNER_MEMORY: Final = Check("memory", model_owner_memory, needs=("model",))
IMAGES: Final = Check("images", images)
LEARNING_IMAGES: Final = Check("images", learning_images)
LEARNED: Final = Check("learned", learned, needs=("folder",))
ANSWERS: Final = Check("answers", answers, needs=("folder", "images"))
ANSWERS_BY_LEARNED: Final = Check("answers", answers, needs=("images", "learned"))
TERMS: Final = Check("terms", terms, needs=("answers", "owner-version"))
DATA_OWNER_MEMORY: Final = Check("memory", data_owner_memory, needs=("terms",))
PIXELS: Final = Check("pixels", pixels, needs=("terms", "memory"))
