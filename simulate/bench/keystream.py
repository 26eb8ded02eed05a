"""How close the masks come to the cipher: time of masking over time of drawing as much raw keystream.

Both run over blocks of the same size on the same number of threads, in turn, and the ratio is that of the medians.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.ring import Ring

BLOCK_BYTES = 1 << 17


def keystream_ratio(ring: Ring, length: int, masks: int, *, repeats: int = 5) -> tuple[float, float]:
    """(ratio, milliseconds of masking) for a vector of `length` words under so many masks."""
    words = np.zeros(length, ring.word)
    drawn = [Mask(os.urandom(32), Usage.PAIRWISE_MASK, 1) for _ in range(masks)]
    masking, raw = [], []
    for _ in range(repeats):
        masking.append(_seconds(lambda: apply_masks(words, drawn, ring)))
        raw.append(_seconds(lambda: _draw(words.nbytes, masks)))
    return median(masking) / median(raw), median(masking) * 1e3


def _draw(length: int, streams: int) -> None:
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: _draw_span(length // threads, streams), range(threads)))


def _draw_span(length: int, streams: int) -> None:
    zeros, scratch = bytes(BLOCK_BYTES), bytearray(BLOCK_BYTES + 15)
    encryptors = [Cipher(AES256(os.urandom(32)), CTR(bytes(16))).encryptor() for _ in range(streams)]
    for low in range(0, length, BLOCK_BYTES):
        block = zeros[: min(BLOCK_BYTES, length - low)] if length - low < BLOCK_BYTES else zeros
        for encryptor in encryptors:
            encryptor.update_into(block, scratch)


def _seconds(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
