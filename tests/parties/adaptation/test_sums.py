"""Two sums over the same survivors, of real machines: of the data owners' shares by the secure sum, as raw ring words,
and of the model owner's own; together they are the sum of the survivors' parameters, and either alone is noise."""

import numpy as np
import pytest
import torch

from tacit.parties.adaptation.fixed_point import KEPT
from tacit.parties.adaptation.rounds import mean_of, refreshed
from tacit.parties.adaptation.step import StepSizes
from tacit.parties.correlated.material import Keystream
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.stages import encoded
from tacit.protocol.sum.exchange import Summed
from tests.parties.inference.in_memory import shares
from tests.world.exchange import Delivery
from tests.world.sums import memory_sum

OWNERS = 5
SIZES = StepSizes(images=1, tokens=5, width=8, classes=3, adapters=2, rank=2)
PHASES = ("advertise-keys", "share-keys", "masked-input", "confirm-survivors", "unmask-shares")


def learnt() -> torch.Tensor:
    """The parameters of every owner, float64 [OWNERS, n]."""
    return torch.randn(OWNERS, SIZES.parameters, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def flattened(words: torch.Tensor, owners: int) -> torch.Tensor:
    found = mean_of(words, owners, SIZES)
    adapters = [
        getattr(found, name)[index].reshape(-1)
        for index in range(SIZES.adapters)
        for name in ("channel_down", "channel_up", "token_down", "token_up", "scale")
    ]
    return torch.cat([*adapters, found.head_weight.reshape(-1), found.head_bias])


def summed(words: torch.Tensor, lost_before: str | None, seed: bytes) -> Summed:
    """The secure sum of the data owners' words [OWNERS, n], of whom c0 is gone before a message of his."""
    run = memory_sum(OWNERS, active=True, seed=seed, length=SIZES.parameters, ring_bits=64)
    run.vectors = {name: words[number].numpy().astype("<u8") for number, name in enumerate(run.clients)}

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.kind) != ("c0", lost_before):
            return [delivery]
        run.kill("c0")
        return []

    run.hook = hook
    (found,) = run.run().outcome(Summed)
    return found


@pytest.mark.parametrize("lost_before", [None, *PHASES])
def test_the_mean_is_that_of_the_survivors(lost_before: str | None) -> None:
    values = learnt()
    model, data = shares(encoded(values, 2.0**KEPT))
    found = summed(data, lost_before, b"survivors")
    survivors = [int(name.removeprefix("c")) for name in found.survivors]
    assert len(survivors) == (OWNERS if lost_before in (None, *PHASES[3:]) else OWNERS - 1)
    total = torch.from_numpy(found.total.astype(np.uint64).view(np.int64)) + model[survivors].sum(0)
    mean = flattened(total, len(survivors))
    # Half of a last bit of each, in the mean, and the rounding of a float64.
    assert (mean - values[survivors].mean(0)).abs().max() <= 2.0 ** -(KEPT + 1) + 2.0**-50


def test_a_refreshed_attempt_tells_nothing_of_what_one_owner_adds() -> None:
    """Without fresh zeros the difference of two attempts is the share of the owner who was lost in between."""
    model, data = shares(encoded(learnt(), 2.0**KEPT))
    attempts = []
    for number, lost_before in enumerate((None, "masked-input")):
        zeros = torch.stack(
            [Keystream(bytes([OWNERS * number + owner]) * 32).draw(data.shape[1:]) for owner in range(OWNERS)]
        )
        refreshed_data, refreshed_model = refreshed(data, zeros, DATA), refreshed(model, zeros, MODEL)
        assert (refreshed_data + refreshed_model).equal(data + model)
        attempts.append(summed(refreshed_data, lost_before, b"attempt %d" % number))
    assert attempts[1].survivors == ("c1", "c2", "c3", "c4")
    totals = [torch.from_numpy(attempt.total.astype(np.uint64).view(np.int64)) for attempt in attempts]
    plain = [summed(data, lost, b"plain").total.astype(np.uint64).view(np.int64) for lost in (None, "masked-input")]
    assert torch.from_numpy(plain[0] - plain[1]).equal(data[0])
    assert not bool(((totals[0] - totals[1]) == data[0]).any())


def test_either_sum_alone_is_noise() -> None:
    """Of the same parameters, twice: the sums of data owners' shares have no word in common."""
    words = encoded(learnt(), 2.0**KEPT)
    totals = [summed(shares(words)[1], None, b"noise").total for _ in range(2)]
    assert not (totals[0] == totals[1]).any()
