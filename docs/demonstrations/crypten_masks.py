"""An image read from CrypTen's own masks, and nothing from ours.

CrypTen's third party seeds a Mersenne Twister (MT19937) of torch for each party, and opens weight - b and input - a for
every product. The model owner knows both shares of its weight and its own part of the opening, hence the other party's
share of b: 64 bits of output in a row for each element. 312 of them are the whole state, from which follow the masks of
the next input. Our keystreams (AES-256-CTR) have no state that follows from what they gave.

    python docs/demonstrations/crypten_masks.py [PICTURE.png]

It computes two products with CrypTen's third party, in three processes, and with our dealer's correlated randomness,
and attacks both by what the model owner has seen. It draws the image, and what was read of it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import masked_party
import matplotlib.pyplot as plt
import numpy as np
import torch

from tacit.models.configuration import DataConfiguration
from tacit.models.data import load
from tacit.simulate.federation.processes import Exit, Processes

WORDS_OF_STATE = 312
SCALE = 1 << 16
"""Of CrypTen's fixed-point numbers."""
WEIGHT = torch.arange(64 * 8.0).reshape(64, 8).sin()
FIRST = torch.arange(64.0).reshape(1, 64).cos()
"""Input of the first product, from which the owner learns the state."""


class Twister:
    """MT19937 (Matsumoto and Nishimura 1998), from outputs instead of a seed."""

    def __init__(self, words: np.ndarray) -> None:
        """`words`: 312 outputs in a row of torch.randint over 64 bits, as it gives them."""
        halves = (words.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63))[:WORDS_OF_STATE]
        state = np.empty(2 * WORDS_OF_STATE, np.uint32)
        state[0::2], state[1::2] = halves >> np.uint64(32), halves & np.uint64(0xFFFFFFFF)
        key = np.array([untempered(int(output)) for output in state], np.uint32)
        self._generator = np.random.MT19937()
        self._generator.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}

    def next(self, count: int) -> np.ndarray:
        """The next outputs."""
        raw = self._generator.random_raw(2 * count).astype(np.uint64)
        return ((raw[0::2] << np.uint64(32) | raw[1::2]) ^ np.uint64(1 << 63)).view(np.int64)


def untempered(output: int) -> int:
    """The word of the state that the generator turned into this output."""
    output ^= output >> 18
    output ^= output << 15 & 0xEFC60000
    word = output
    for _ in range(4):
        word = output ^ (word << 7 & 0x9D2C5680)
    first = word ^ word >> 11
    return word ^ first >> 11


@dataclass(frozen=True)
class Reading:
    """What the model owner made of what it saw."""

    predicted: float
    """The part that it predicted of further masks, which it knows."""
    image: torch.Tensor
    """Its reading of the second input [1, 64]."""


def attacked(seen: dict[str, Any]) -> Reading:
    """From what the model owner saw, as masked_party.py saved it."""
    (own_first, first), (own_second, second) = seen["openings"]
    weight = (WEIGHT * SCALE).long()
    masks = ((weight - seen["weight"]) - (first[1] - own_first[1])).flatten().numpy()
    twister = Twister(masks)
    further = masks[WORDS_OF_STATE:]
    predicted = float(np.mean(twister.next(further.size) == further))
    twister.next(FIRST.shape[0] * WEIGHT.shape[1])  # The share of the product of the masks.
    mask = torch.from_numpy(twister.next(FIRST.numel())).reshape(FIRST.shape)
    other_share = second[0] - own_second[0] + mask
    return Reading(predicted, (seen["inputs"][1] + other_share).double() / SCALE)


def digit() -> torch.Tensor:
    """The second input: a test image of 8 x 8 pixels from 0 to 1, float32 [1, 64]."""
    image = load(DataConfiguration(), image_size=8).x_test[0]
    return ((image - image.min()) / (image.max() - image.min())).reshape(1, 64)


def computed(image: torch.Tensor, directory: Path) -> dict[str, Reading]:
    """What the model owner reads of an image [1, 64] under "stock" and under "ours"; files go into the directory."""

    async def run() -> None:
        async with asyncio.timeout(120), Processes(directory / "logs") as processes:
            for name in masked_party.PARTIES:
                given = {"own": name, "directory": directory, "weight": WEIGHT, "inputs": [FIRST, image]}
                await processes.start(name, masked_party.compute, **given)
            async for _, message in processes.messages():
                if not isinstance(message, Exit) and set(message) != {"finished"}:
                    raise RuntimeError(f"a party failed: {message}")

    asyncio.run(run())
    stock = torch.load(directory / "stock.pt", weights_only=True)
    return {"stock": attacked(stock), "ours": attacked(masked_party.ours(WEIGHT, [FIRST, image]))}


def draw(image: torch.Tensor, found: dict[str, Reading], path: Path) -> None:
    """The image, and both readings; what is beyond 0 ... 1 is black or white."""
    shown = {"the data owner's image": image, "read under CrypTen's masks": found["stock"].image}
    shown["read under ours"] = found["ours"].image
    _, places = plt.subplots(1, 3, figsize=(7.5, 2.8), layout="constrained")
    for axes, (title, values) in zip(places, shown.items(), strict=True):
        axes.imshow(values.reshape(8, 8), cmap="gray", vmin=0, vmax=1)
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    plt.savefig(path, dpi=110)


def main(*arguments: str) -> None:
    image = digit()
    with tempfile.TemporaryDirectory() as directory:
        found = computed(image, Path(directory))
    for name, reading in found.items():
        error = (reading.image - image).abs()
        print(
            f"{name}: {reading.predicted:.0%} of further masks predicted; a pixel is off by {error.max():.3g} at most"
        )
    draw(image, found, Path(arguments[0] if arguments else "crypten-masks.png"))


if __name__ == "__main__":
    main(*sys.argv[1:])
