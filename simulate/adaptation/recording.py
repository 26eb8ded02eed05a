"""What one owner of an adaptation received, drew and was told, kept as it happened, for an audit.

The recording is that of federations (federation/recording.py). Two things are not kept, because they are hundreds of
megabytes that no attack reads: corrections of the dealer, which are random words, and what owners open of a pass behind
its first step, in which a data owner tells its images. Nothing outside of an audit makes one of these.
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
"""The step of a pass in which a data owner tells its images, under a mask."""


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
        self.keep_told(ToldOutputs(rows, revealed.labels.numpy(), batch.share.numpy()))
