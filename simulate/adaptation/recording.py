"""One owner's view of an adaptation, for an audit: messages, randomness and outputs as it received them.

The recording is that of federations (federation/recording.py). It omits two kinds of data, hundreds of megabytes that
no attack reads: the dealer's corrections, which are random words, and the owners' openings of a pass after its first
step, in which a data owner sends its images. Only audits make recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tacit.parties.adaptation.learning_passes import Batch
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.inference.messages import Opening
from tacit.simulate.federation.recording import Recording, ToldOutputs
from tacit.simulate.insecure.revealed_outputs import RevealedBatch

IMAGES_STEP: Final = 0
"""Step of a pass in which a data owner sends its images, under a mask."""


class OwnerRecording(Recording):
    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        try:
            message = decode(frames, ADAPTATION_MESSAGES).parse()
        except RemoteProtocolError:
            # With the dealer they speak private inference.
            return
        if not isinstance(message, Opening) or message.step == IMAGES_STEP:
            super().heard(sender, frames)

    def keep_revealed(self, batch: Batch, revealed: RevealedBatch) -> None:
        outputs = revealed.outputs.to(torch.float32).numpy()
        rows = {block: rows for block, rows in enumerate(outputs) if revealed.blocks[block]}
        self.keep(ToldOutputs(rows, revealed.labels.numpy(), batch.share.numpy()))
