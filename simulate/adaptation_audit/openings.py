"""Images of a data owner, attacked by the model owner with the masked pixels that it received.

In the first step of a pass a data owner sends all pixels of its batch minus a mask modulo 2^STREAM. `read-words` takes
these words for pixels. `fitted-words` learns a linear map from words to pixels on all batches of all other data owners,
and applies it to the words of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn.functional import fold

from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.ring import signed, unpacked
from tacit.parties.inference.stages import input_share
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.codec import decode
from tacit.protocol.inference.messages import Opening
from tacit.protocol.inference.schedule import STREAM, byte_width
from tacit.simulate.adaptation.recording import IMAGES_STEP
from tacit.simulate.federation.party_files import MODEL_OWNER
from tacit.simulate.federation.recording import HeardMessage, read

READ_WORDS: Final = "read-words"
FITTED_WORDS: Final = "fitted-words"
_RIDGE: Final = 1e-6
"""Relative to the mean square of the words."""


@dataclass(frozen=True)
class OpenedWords:
    owner: str
    words: torch.Tensor = field(repr=False)
    """int64 [B, N, P], signed."""
    images: torch.Tensor = field(repr=False)
    """The true images, float32 [B, C, S, S]."""


def received_words(
    recordings: Path, images: Mapping[str, Sequence[torch.Tensor]], public: PublicModel
) -> list[OpenedWords]:
    """Read the words that the model owner received. images: those of every pass of every data owner that brings images,
    which are its first ones. ValueError for a lost session, since the next one numbers its passes from 1."""
    parts: defaultdict[tuple[str, bytes], defaultdict[int, bytearray]] = defaultdict(lambda: defaultdict(bytearray))
    for record in read(recordings, MODEL_OWNER):
        if isinstance(record, HeardMessage) and record.sender in images:
            packet = decode([memoryview(frame) for frame in record.frames], ADAPTATION_MESSAGES)
            message = packet.parse()
            if isinstance(message, Opening) and message.step == IMAGES_STEP and packet.payload is not None:
                parts[record.sender, packet.envelope.session][packet.envelope.round] += packet.payload
    if len(parts) != len({owner for owner, _ in parts}):
        raise ValueError("a data owner has lost its session, and began another: audit a run without that")
    found = []
    for (owner, _), passes in sorted(parts.items()):
        for own, (_, octets) in zip(images[owner], sorted(passes.items()), strict=False):
            words = unpacked(
                np.frombuffer(octets, np.uint8).reshape(-1, byte_width(STREAM)),
                STREAM,
                (len(own), public.sizes.patches, public.sizes.pixels),
            )
            found.append(OpenedWords(owner, signed(words, STREAM), own))
    return found


def clear_words(masked: Sequence[OpenedWords], public: PublicModel) -> list[OpenedWords]:
    return [
        OpenedWords(each.owner, signed(input_share(public, len(each.images), each.images), STREAM), each.images)
        for each in masked
    ]


def read_words(victim: OpenedWords, others: Sequence[OpenedWords], public: PublicModel) -> torch.Tensor:
    """Return images float64 [B, C, S, S], with the words as pixels."""
    return _images(victim.words.double() / public.embedding.pixel, public)


def fitted_words(victim: OpenedWords, others: Sequence[OpenedWords], public: PublicModel) -> torch.Tensor:
    """Return images float64 [B, C, S, S] by the best linear map of the others' words to their pixels. ValueError for no
    others."""
    if not others:
        raise ValueError("there is no other data owner to learn from")
    known = [input_share(public, len(each.images), each.images).flatten(0, 1) for each in others]
    pixels = torch.cat(known).double() / public.embedding.pixel
    given = torch.cat([each.words.flatten(0, 1) for each in others]).double()
    centre, unit, mean = given.mean(0), given.std().clamp_min(1e-12), pixels.mean(0)
    features = (given - centre) / unit
    square = features.T @ features + _RIDGE * len(features) * torch.eye(features.shape[1], dtype=torch.float64)
    fitted = torch.linalg.solve(square, features.T @ (pixels - mean))
    return _images((victim.words.double() - centre) / unit @ fitted + mean, public)


READERS: Final[dict[str, Callable[[OpenedWords, Sequence[OpenedWords], PublicModel], torch.Tensor]]] = {
    READ_WORDS: read_words,
    FITTED_WORDS: fitted_words,
}


def _images(patches: torch.Tensor, public: PublicModel) -> torch.Tensor:
    """Assemble images from rows of patches [B, N, C P P], in the order in which they are shared."""
    side, patch = public.sizes.side, public.sizes.patch
    return fold(patches.transpose(1, 2), (side, side), patch, stride=patch)
