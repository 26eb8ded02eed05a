"""Batches that the model owner chooses, out of all images that a data owner enrolled: one secret order over all.

A data owner that makes a batch of its own choosing knows which images the outputs are of that it is told, up to their
order. Here it gives all its images and labels at once, as shares; they are put into one secret order of the model
owner, and every batch is the next part of it. The labels that are opened with a batch still say how many of it are of a
class; and whoever enrols numbers of images in their place, which nobody can check, learns which images it has.

What that takes: of N images of P pixels in patches, P + 1 words of 8 bytes each for an image, four times at the data
owner while they are put into order (share, mask, result and what is sent), and once from then on; 5 N (P + 1) bytes are
sent by the data owner, and as many by the dealer. A request for material may not have more words than any other, which
is 43,676 images of 3 x 32 x 32 pixels, 891 of 3 x 224 x 224, and 303 of 3 x 384 x 384; more are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from tacit.parties.adaptation.shuffled import ShuffledRows, secret_order
from tacit.parties.adaptation.told_stages import Revealed
from tacit.parties.correlated.material import LARGEST_WORDS
from tacit.parties.inference.material import AnyBlockRequest, Shuffle
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import MODEL, FixedLinear, Party, Program
from tacit.parties.inference.stages import Carried, PassStage, Run
from tacit.protocol.inference.schedule import STREAM, Sizes


def most_enrolled(sizes: Sizes) -> int:
    """How many images can be put into one order: of each word two are drawn or sent."""
    return LARGEST_WORDS // (2 * _words(sizes))


def check_enrolled(sizes: Sizes, images: int) -> None:
    """ValueError for more images than can be put into one order, and for none."""
    most = most_enrolled(sizes)
    if not 1 <= images <= most:
        raise ValueError(
            f"{images} images cannot be enrolled together, 1 to {most} of this model's can: take fewer rounds or "
            'batches, or adaptation.selection = "data-owner"'
        )


@dataclass(frozen=True)
class EnrolmentStage:
    """All images that are enrolled, as `input_share` has them, and their labels, into a secret order; both owners may
    already have shares of them, from the order before."""

    public: PublicModel
    name: str = "enrolment"

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """As of ModelStage. ValueError for more images than fit."""
        check_enrolled(self.public.sizes, images)
        return (Shuffle(MODEL, (images, _words(self.public.sizes)), STREAM),)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """As of ModelStage; the model owner draws the order. ValueError as of `requests`."""
        (request,) = self.requests(images, {})
        assert isinstance(request, Shuffle)
        order = secret_order(images) if party.rank == MODEL else None
        shuffled = ShuffledRows(party, request.shape, STREAM, order)

        def run(carried: Carried) -> Program[Carried]:
            assert isinstance(carried, Revealed)
            rows = torch.cat([carried.share.flatten(1), carried.labels[:, None]], 1).to(party.device)
            rows = yield from shuffled.run(rows)
            return replace(carried, share=rows[:, :-1].reshape(carried.share.shape), labels=rows[:, -1])

        return run


@dataclass(frozen=True)
class Enrolling:
    """The first stage of the first pass of a session, before which everything is put into order; all of it is kept."""

    enrolment: EnrolmentStage
    images: int
    """Of all passes."""
    first: PassStage
    keep: Callable[[Revealed], Revealed]
    """Gets all, in the order of the model owner, and says what the first pass goes on with."""

    @property
    def name(self) -> str:
        return self.first.name

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """As of ModelStage."""
        return (*self.enrolment.requests(self.images, numbers), *self.first.requests(images, numbers))

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """As of ModelStage."""
        enrol = self.enrolment.prepared(party, self.images, layers)
        begin = self.first.prepared(party, images, layers)

        def run(carried: Carried) -> Program[Carried]:
            enrolled = yield from enrol(carried)
            assert isinstance(enrolled, Revealed)
            return (yield from begin(self.keep(enrolled)))

        return run


def enrolled_batches(carried: Revealed, batch: int) -> list[Revealed]:
    """What an owner begins the passes with that go through everything enrolled, in its order; the last may have fewer
    images than the others."""
    parts = zip(torch.split(carried.share, batch), torch.split(carried.labels, batch), strict=True)
    return [Revealed(share, labels=labels) for share, labels in parts]


def _words(sizes: Sizes) -> int:
    """Of an image: its patches, and its label."""
    return (sizes.tokens - 1) * sizes.pixels + 1
