"""What one owner of an adaptation received, drew and was told, kept as it happened, for an audit.

The recording is that of federations (federation/recording.py). Two things are not kept, because they are hundreds of
megabytes that no attack reads: corrections of the dealer, which are random words, and what owners open of a pass behind
its first step, in which a data owner tells its images. Nothing outside of an audit makes one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tacit.parties.adaptation.data_owner import PrivateLearner
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.standing import Learnt
from tacit.parties.adaptation.told_stages import Revealed, told_batch
from tacit.parties.adaptation.ways import Batch, LearningWay
from tacit.parties.inference.passes import Course
from tacit.parties.inference.stages import Carried
from tacit.protocol.adaptation.data_owner import adaptation_terms
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.adaptation.told import told_blocks
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.inference.messages import Opening
from tacit.protocol.inference.results import Agreed
from tacit.simulate.federation.recording import Recording, ToldOutputs

IMAGES_STEP: Final = 0
"""The step of a pass in which a data owner tells its images, under a mask."""


class OwnerRecording(Recording):
    """Of a data owner or of the model owner."""

    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        try:
            message = decode(frames, ADAPTATION_MESSAGES).parse()
        except RemoteProtocolError:
            # With the dealer they speak private inference.
            return
        if not isinstance(message, Opening) or message.step == IMAGES_STEP:
            super().heard(sender, frames)


@dataclass(frozen=True)
class RecordedWay:
    """As the way that it stands around; what a pass told is kept before the data owner learns from it."""

    way: LearningWay
    learning: PublicLearning
    agreed: Agreed
    recording: OwnerRecording

    @property
    def course(self) -> Course:
        """See LearningWay."""
        return self.way.course

    def brought(self, number: int, images: int) -> int:
        """See LearningWay."""
        return self.way.brought(number, images)

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """See LearningWay."""
        return self.way.begun(batch, learnt)

    def ended(self, batch: Batch, learnt: Learnt, found: Carried) -> Learnt:
        """See LearningWay."""
        if isinstance(found, Revealed):
            terms, public = adaptation_terms(self.agreed.terms), self.learning.public
            told = told_blocks(terms.reveal, terms.sizes.blocks, session=self.agreed.session, number=batch.number)
            batch_told = told_batch(found, public, told)
            outputs = batch_told.outputs.to(torch.float32).numpy()
            rows = {block: outputs[block] for block, tells in enumerate(told) if tells}
            self.recording.keep_told(ToldOutputs(rows, batch_told.labels.numpy(), batch.share.numpy()))
        return self.way.ended(batch, learnt, found)


class RecordedLearner(PrivateLearner):
    """A data owner whose recording, which its settings have, keeps the outputs of blocks that it is told."""

    def _way(self, agreed: Agreed, learning: PublicLearning) -> LearningWay:
        way, recording = super()._way(agreed, learning), self._settings.owner.surroundings
        assert isinstance(recording, OwnerRecording)
        return RecordedWay(way, learning, agreed, recording)
