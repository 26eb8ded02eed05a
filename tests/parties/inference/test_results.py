"""What a data owner is told of logits: cut on shares, by at most one last bit; and what cannot be told is refused."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.model import Interface
from tacit.parties.inference.private_model import PrivateModel, public_of
from tacit.parties.inference.ranking import check, cut_bits, logits, reduced
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import InferencePolicy
from tacit.protocol.inference.schedule import RESULT_BITS, STREAM, Results, pass_rounds
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_memory import Pair
from tests.parties.inference.in_one_loop import MODEL_OWNER, house

LABEL = Results(labels=1, bits=0)


@given(
    values=st.lists(st.floats(-8.0, 8.0), min_size=1, max_size=9),
    bits=st.integers(1, 16),
    power=st.integers(24, 35),
    seed=st.integers(0, 1 << 30),
)
def test_told_logits_are_off_by_at_most_their_last_bit(values: list[float], bits: int, power: int, seed: int) -> None:
    results, scale = Results(labels=0, bits=bits), 2.0**power
    words = torch.tensor([round(value * scale) for value in values])
    mask = torch.randint(-(1 << 62), 1 << 62, words.shape, generator=torch.Generator().manual_seed(seed))
    pair = Pair()
    shares = words - mask, mask
    model_owners, told = pair.run(
        *(reduced(party, share, scale, results) for party, share in zip(pair.parties, shares, strict=True))
    )
    assert not model_owners.any()
    error = logits(told, results) - words.double() / scale
    assert (error.abs() <= 2.0**-bits).all()
    # Nothing of the model owner's share goes to the data owner but what is left of it: 4 bytes a logit.
    ((ours, theirs),) = pair.exchanges
    ((sent, width),) = ours.sent
    assert (width, theirs.sent) == (RESULT_BITS, ())
    left = STREAM - cut_bits(scale, results)
    assert (sent.abs() <= 1 << (left - 1)).all()
    assert left <= RESULT_BITS


@pytest.mark.parametrize(
    ("scale", "results", "reason"),
    [
        (2.0**19, Results(labels=0, bits=12), "cannot be cut to 12 fractional bits, of 32"),
        (2.0**51, Results(labels=0, bits=12), "cannot be cut to 12 fractional bits"),
        (2.0**24 + 1, Results(labels=0, bits=12), "cannot be cut to 12 fractional bits"),
        (2.0**24, Results(labels=3, bits=0), "the 3 best labels of 3 classes cannot be told"),
    ],
)
def test_what_cannot_be_told_is_refused(private: PrivateModel, scale: float, results: Results, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(scale, 3, results)
    head = msgspec.structs.replace(private.public.head, logits=scale)
    public = msgspec.structs.replace(private.public, head=head)
    terms = private.terms(most_images=1, most_batch=1)
    offered = msgspec.structs.replace(terms, results=results, arithmetic=msgspec.msgpack.encode(public))
    with pytest.raises(ValueError, match=reason):
        public_of(offered)


def test_labels_of_features_are_refused_by_both_owners(private: PrivateModel) -> None:
    """Without names of classes a data owner could not keep the answers that it has paid for."""
    channels = private.public.sizes.channels
    features = Interface(mean=(0.0,) * channels, std=(1.0,) * channels, white=255, classes=())
    public = msgspec.structs.replace(private.public, interface=features)
    with pytest.raises(ValueError, match="features instead of classes"):
        replace(private, public=public).terms(most_images=1, most_batch=1, results=LABEL)
    terms = private.terms(most_images=1, most_batch=1, results=LABEL)
    with pytest.raises(ValueError, match="features instead of classes"):
        public_of(msgspec.structs.replace(terms, arithmetic=msgspec.msgpack.encode(public)))


@pytest.mark.parametrize(("labels", "bits"), [(0, 0), (1, 1)])
def test_results_are_labels_or_logits(labels: int, bits: int) -> None:
    with pytest.raises(ValueError, match="the other is not"):
        Results(labels=labels, bits=bits)


@pytest.mark.asyncio
async def test_few_bits_are_told_and_refused_by_who_wants_more(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, results=Results(labels=0, bits=4))
        found = await home.asks("alice", one_block.images[:3], batch=3)
        with pytest.raises(InferenceError, match=r"it tells logits of 4 fractional bits; .* at least 5") as refused:
            await home.asks("bob", one_block.images[:3], policy=InferencePolicy(bits=5))
    assert (refused.value.code, refused.value.culprit) == (Code.POLICY, MODEL_OWNER)
    assert (found.logits * 16).frac().eq(0).all()
    with torch.no_grad():
        clear = one_block.friendly(one_block.images[:3])
    # Beside the cut, what the computation itself is off by.
    assert ((found.logits - clear).abs() < 2.0**-4 + 2.0**-6).all()


@pytest.mark.asyncio
async def test_labels_alone_are_told_at_the_cost_that_is_declared(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    results, images = Results(labels=2, bits=0), one_block.images[:5]
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, results=results)
        found = await home.asks("alice", images, batch=4, policy=InferencePolicy(labels=2))
        with pytest.raises(InferenceError, match=r"it tells labels alone; .* logits of at least 1") as refused:
            await home.asks("bob", images, policy=InferencePolicy(bits=1))
        with pytest.raises(InferenceError, match=r"it tells the best 2 labels alone; .* wants 3 or more"):
            await home.asks("carol", images, policy=InferencePolicy(labels=3))
    assert (refused.value.code, refused.value.culprit) == (Code.POLICY, MODEL_OWNER)
    assert found.logits.isnan().all()
    with torch.no_grad():
        clear = one_block.friendly(images)
    gaps = clear.sort(dim=1).values.diff(dim=1)
    assert gaps.min() > 2.0**-6  # More than logits are off by: an order that no error changes.
    assert found.labels.equal(clear.sort(dim=1, descending=True).indices[:, :2])
    for each in found.passes:
        declared = pass_rounds(private.public.sizes, each.images, results=results)
        assert [(cost.operation, cost.received, cost.sent) for cost in each.rounds] == list(declared)


@pytest.mark.asyncio
async def test_a_model_owner_does_not_begin_with_more_labels_than_its_model_has(
    private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        with pytest.raises(ValueError, match="the 3 best labels of 3 classes cannot be told"):
            await home.model_owner(private, results=Results(labels=3, bits=0))
