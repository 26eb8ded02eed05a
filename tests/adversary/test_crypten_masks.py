"""The owner of a model knows the masks of its own weights. With CrypTen's trusted third party it computes from them the
state of the data owner's generator, predicts the masks of the next input, and reads it; with our keystreams it cannot.

CrypTen's third party seeds a Mersenne Twister (MT19937) of torch for each party, and opens weight - b and input - a for
every product. The model owner knows both shares of its weight and its own part of the opening, hence the other party's
share of b: 64 bits of output in a row for each element. 312 of them are the whole state.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tacit.parties.correlated.material import AnyRequest
from tacit.parties.crypten.key_agreement import LinkContribution
from tacit.parties.crypten.supply import Announcement, Join
from tacit.parties.links.keys import PartyKeys, generate
from tacit.protocol.core.roster import Roster
from tacit.simulate.federation.processes import Exit, Processes

WORDS_OF_STATE = 312
SCALE = 1 << 16
WEIGHT = torch.arange(400.0).reshape(20, 20).sin()
INPUTS = [torch.arange(20.0).reshape(1, 20) / 8, torch.arange(20.0).reshape(1, 20).cos() * 3]
"""Of the first product, from which the owner learns the state, and of the second, which it reads."""


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


def attacked(seen: dict[str, Any]) -> tuple[float, torch.Tensor]:
    """From what the model owner sees: the part of further known masks that it predicts, and its reading of the second
    input."""
    (own_first, first), (own_second, second) = seen["openings"]
    weight = (WEIGHT * SCALE).long()
    masks = ((weight - seen["weight"]) - (first[1] - own_first[1])).flatten().numpy()
    twister = Twister(masks)
    further = masks[WORDS_OF_STATE:]
    predicted = float(np.mean(twister.next(further.size) == further))
    twister.next(INPUTS[0].shape[0] * WEIGHT.shape[1])  # The share of the product of the masks.
    mask = torch.from_numpy(twister.next(INPUTS[1].numel())).reshape(INPUTS[1].shape)
    other_share = second[0] - own_second[0] + mask
    return predicted, (seen["inputs"][1] + other_share).double() / SCALE


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """What the model owner sees: of "stock" or of "ours"."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import masked_party

    keys: dict[str, PartyKeys] = {name: generate(name) for name in masked_party.PARTIES}
    roster = Roster(tuple(keys[name].member("server" if name == "dealer" else "client") for name in keys))

    async def run() -> None:
        async with asyncio.timeout(120), Processes(tmp_path / "logs") as processes:
            for name in masked_party.PARTIES:
                own = {"own": name, "keys": keys[name], "roster": roster, "directory": tmp_path}
                await processes.start(name, masked_party.compute, **own, weight=WEIGHT, inputs=INPUTS)
            async for _, message in processes.messages():
                assert isinstance(message, Exit) or set(message) == {"finished"}, message

    asyncio.run(run())
    return lambda name: torch.load(tmp_path / f"{name}.pt", weights_only=True)


@pytest.mark.threat("computing-party/predicts-masks")
def test_the_model_owner_reads_an_input_under_stock_crypten_and_not_under_ours(
    seen: Callable[[str], dict[str, Any]],
) -> None:
    predicted, reading = attacked(seen("stock"))
    assert predicted == 1
    assert (reading - INPUTS[1]).abs().max() <= 1 / SCALE

    predicted, reading = attacked(seen("ours"))
    assert predicted == 0
    assert (reading - INPUTS[1]).abs().min() > 1e6


@pytest.mark.threat("dealer/reads-requests")
def test_the_dealer_is_told_shapes_and_counts_alone() -> None:
    """All structures that a party sends to it, field by field."""
    fields = {kind: set(kind.__struct_fields__) for kind in (Join, LinkContribution, Announcement)}
    assert fields == {
        Join: {"rank", "parties", "computation"},
        LinkContribution: {"pair", "common"},
        Announcement: {"first", "requests", "previous", "following"},
    }
    for kind in get_args(AnyRequest):
        assert set(kind.__struct_fields__) <= {
            "shape", "left", "right", "operation", "arguments", "divisor", "owner", "rows", "weight", "weight_shape",
        }  # fmt: skip
