"""Parties that adapt a model over real links: what they learn is what is learned in the clear, and whoever vanishes, is
late or says something else costs what is said of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tacit.models.adapters.federated import Features, FullBatches, Schedule, federated
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm
from tacit.parties.adaptation import ways
from tacit.parties.adaptation.noise import NoisePolicy
from tacit.parties.adaptation.openings import Openings
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rounds import RoundsTask, SharesSum
from tacit.parties.adaptation.told_stages import ToldBatch
from tacit.parties.adaptation.ways import StepsInTheClear, StepsOnShares
from tacit.parties.inference.conversation import Conversation, Courier, InferenceError, ended
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.stages import material_bytes
from tacit.parties.links import endpoint
from tacit.protocol.adaptation.told import Reveal

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    patch.syspath_prepend(Path(__file__).parent.parent / "inference")
    from adapting_house import DEALER, MODEL_OWNER, OWNERS, POLICY, ROSTER, SUMS, AdaptingHouse, Owned, adapting
    from conftest import MARGIN, Transformer, one_block, private  # noqa: F401
    from test_public import PARALLEL, PROBE, made
    from whole import block_outputs

pytestmark = pytest.mark.asyncio
STEP_ERROR = 2.0**-7
"""Of a step, relative to how far all parameters move (test_stages.py)."""
BLOCK_ERROR = 1e-3
"""Of what a block leaves, relative to it, and so of derivatives, which are products of two such values."""


@pytest.fixture(autouse=True)
def _no_long_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is meant for a party that is gone is given up sooner than in earnest."""
    monkeypatch.setattr(endpoint, "_LINGER_MS", 300)


def short(learning: PublicLearning) -> PublicLearning:
    """Two rounds of two batches."""
    return msgspec.structs.replace(learning, schedule=Schedule(rounds=2, learning_rate=0.05, decay_rounds=()))


@pytest.fixture(scope="module")
def learning(one_block: Transformer) -> PublicLearning:
    return short(made(one_block, PARALLEL))


@pytest.fixture(scope="module")
def owned(one_block: Transformer) -> dict[str, Owned]:
    """Images that the bounds of the model are for, a few each."""
    images = one_block.images
    parts = {name: images[6 * place : 6 * place + 6] for place, name in enumerate(OWNERS)}
    return {name: Owned(part, torch.arange(len(part)) % 3) for name, part in parts.items()}


def in_the_clear(
    model: Transformer,
    learning: PublicLearning,
    owned: Sequence[Owned],
    weights: Sequence[int] = (),
) -> list[AdapterParameters]:
    """The common parameters after every round."""
    ones = torch.ones(learning.public.sizes.width, dtype=torch.float64)
    norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=learning.epsilon)
    clients = [Features(outputs=block_outputs(model, own.images), labels=own.labels) for own in owned]
    work = FullBatches(learning.batch, learning.batches)
    return list(federated(learning.initial(), norm, clients, learning.schedule, work, seed=1, weights=weights))


def distance(one: AdapterParameters, other: AdapterParameters) -> float:
    parts = zip(one.tensors.values(), other.tensors.values(), strict=True)
    return sum((left - right).square().sum().item() for left, right in parts) ** 0.5


async def begun(
    found: AdaptingHouse, owned: dict[str, Owned], reveal: Reveal = "none", mode: str = "active", **changed: Any
) -> None:
    """Everybody at work."""
    await found.dealer(mode=mode)
    await found.model_owner(reveal=reveal, **changed)
    for name, own in owned.items():
        found.learns(name, own, reveal=reveal)


async def check_material(found: AdaptingHouse, learning: PublicLearning, name: str, reveal: Reveal) -> None:
    """Both owners and the dealer say of every batch, and of the session, what its requests come to."""
    # Of one block, so that in every pass the same is told.
    way = StepsOnShares(learning) if reveal == "none" else StepsInTheClear(learning, DATA, lambda number: (True,))
    batches = learning.schedule.rounds * learning.batches
    sizes = dict(zip((MODEL_OWNER, name), material_bytes(way.course(1), 4, learning.public.sizes), strict=True))
    assert min(sizes.values()) > 0
    for _ in range(batches):
        await found.house.waits(name, "batch", material=sizes[name])
        await found.house.waits(MODEL_OWNER, "batch", peer=name, material=sizes[MODEL_OWNER])
    dealt = {owner: batches * size for owner, size in sizes.items()}
    await found.house.waits(DEALER, "session-over", owners=[MODEL_OWNER, name], material=dealt)


@pytest.mark.parametrize("reveal", ["none", pytest.param("sampled", marks=pytest.mark.end_to_end), "all"])
async def test_what_is_learned_is_what_is_learned_in_the_clear(
    tmp_path: Path,
    reveal: Reveal,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await begun(found, owned, reveal)
        await found.over(*OWNERS, DEALER)
        assert [told.round for told in found.told["alice"]] == [1, 2]
        clear = in_the_clear(one_block, learning, list(owned.values()))
        for told, expected in zip(found.told["alice"], clear, strict=True):
            assert told.owners == 3
            assert told.counted.images == 3 * learning.batch * learning.batches
            moved = distance(expected, learning.initial())
            # Every step is off by its own error, and by what follows from where it begins, which is no more.
            bound = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * moved
            assert distance(told.parameters, expected) <= bound
        for name in OWNERS:
            assert distance(found.common(name), found.common("alice")) == 0
            assert found.learners[name].based == 2
            await check_material(found, learning, name, reveal)


async def test_what_is_enrolled_is_learned_in_the_order_of_the_model_owner(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[ToldBatch] = []
    step = ways.told_step

    def noting(parameters: AdapterParameters, norm: FinalNorm, batch: ToldBatch, *, rate: float) -> Any:
        seen.append(batch)
        return step(parameters, norm, batch, rate=rate)

    monkeypatch.setattr(ways, "told_step", noting)
    # Of different labels for each data owner, so that it shows whose batches these are.
    own = {name: Owned(each.images, torch.full((6,), place)) for place, (name, each) in enumerate(owned.items())}
    rows = learning.schedule.rounds * learning.batches * learning.batch
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner(reveal="all", selection="enrolment", most_images=rows)
        for name, each in own.items():
            found.learns(name, each, reveal="all", selection="enrolment")
        await found.over(*OWNERS, DEALER)
        assert [told.counted.images for told in found.told["alice"]] == [3 * learning.batch * learning.batches] * 2
    for place, each in enumerate(own.values()):
        told = torch.cat([batch.outputs[0] for batch in seen if batch.labels[0] == place])
        assert all(bool((batch.labels == batch.labels[0]).all()) for batch in seen)
        (expected,) = block_outputs(one_block, each.images)
        distances = torch.cdist(told.flatten(1), expected.flatten(1))
        nearest, image = distances.min(1)
        assert bool((nearest <= 2 * BLOCK_ERROR * expected.flatten(1).norm(dim=1)[image]).all())
        # Two rounds of batches go through all images as often as they would in the order of the data owner.
        works = [FullBatches(learning.batch, learning.batches)] * learning.schedule.rounds
        drawn = [work.batches(6, np.random.default_rng([1, number + 1, place])) for number, work in enumerate(works)]
        chosen = np.concatenate([order for orders in drawn for order in orders])
        assert sorted(image.tolist()) == sorted(chosen.tolist())
        assert len(chosen) == rows


async def test_data_owners_count_by_their_images_where_both_policies_say_so(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    many = one_block.images.repeat(2, 1, 1, 1)
    counted = {
        name: Owned(many[6 * place : 6 * place + count], torch.arange(count) % 3)
        for place, (name, count) in enumerate(zip(OWNERS, (6, 8, 13), strict=True))
    }
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner(least_count=6)
        for name, own in counted.items():
            found.learns(name, own, weights="counts")
        await found.over(*OWNERS, DEALER)
        weights = [16, 21, 32]
        clear = in_the_clear(one_block, learning, list(counted.values()), weights)
        alike = in_the_clear(one_block, learning, list(counted.values()))
        for told, expected, equal in zip(found.told["alice"], clear, alike, strict=True):
            assert told.counted.weight == sum(weights)
            assert told.counted.images == 3 * learning.batch * learning.batches
            bound = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * distance(expected, learning.initial())
            assert distance(told.parameters, expected) <= bound < distance(expected, equal)
        for name in OWNERS:
            assert distance(found.common(name), found.common("alice")) == 0


async def test_sums_whose_weights_do_not_fit_are_refused_by_name(
    tmp_path: Path, private: PrivateModel, learning: PublicLearning, owned: dict[str, Owned]
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        party = await found.model_owner()
        opened = party._openings.opened
        # As a model owner that adds up other shares than those of the survivors would tell it.
        party._openings.opened = lambda number: bytes(len(opened(number)))  # type: ignore[method-assign]
        for name, own in owned.items():
            found.learns(name, own)
        told = await found.house.waits("alice", "cannot-train")
        assert told["detail"].startswith("the sums of round 1 do not fit each other: a weight of ")
        for name in OWNERS:
            await found.house.tasks.pop(name)


@pytest.mark.end_to_end
async def test_noise_of_the_model_owner_is_the_same_for_all(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await begun(found, owned, noise=NoisePolicy(deviation=0.02))
        await found.over(*OWNERS, DEALER)
        clear, told = in_the_clear(one_block, learning, list(owned.values()))[0], found.told["alice"][0]
        exact = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * distance(clear, learning.initial())
        expected = 0.02 * learning.sizes.parameters**0.5
        # The norm of n normal numbers is off by more than 4 deviations, each the root of 1 / 2, once in 10^4 times.
        assert abs(distance(told.parameters, clear) - expected) <= exact + 4 * 0.02 * 0.5**0.5
        for name in OWNERS:
            assert distance(found.told[name][0].parameters, told.parameters) == 0
            assert distance(found.common(name), found.common("alice")) == 0


@pytest.mark.end_to_end
async def test_the_head_alone_is_learned(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    owned: dict[str, Owned],
) -> None:
    probing = short(made(one_block, PROBE))
    async with adapting(tmp_path, private, probing) as found:
        await begun(found, owned)
        await found.over(*OWNERS, DEALER)
        assert distance(found.common("alice"), probing.initial()) > 0
        assert found.common("alice").channel_down.numel() == 0


async def test_a_session_that_is_lost_in_a_round_goes_on_behind_its_last_batch(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner()
        links = await found.house.over_cables()
        for name, own in owned.items():
            found.learns(name, own, links=links if name == "bob" else None)
        await found.house.waits("bob", "batch", round=2, number=1)
        # The address is served again at once.
        model_owner, dealer = found.house.cables
        for cable in (model_owner, dealer):
            cable.abort()
        await found.house.waits("bob", "session-lost")
        await found.over(*OWNERS, DEALER)
        assert [told.owners for told in found.told["alice"]] == [3, 3]
        seen = [fields for name, event, fields in found.house.told if (name, event) == ("bob", "batch")]
        assert [(fields["round"], fields["number"]) for fields in seen].count((2, 1)) == 0
        clear = in_the_clear(one_block, learning, list(owned.values()))[-1]
        bound = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * distance(clear, learning.initial())
        assert distance(found.common("bob"), clear) <= bound


async def test_who_is_lost_in_a_batch_costs_the_others_nothing(
    tmp_path: Path,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        # Of three, where two are enough to open a sum.
        await begun(found, owned, mode="semi-honest")
        await found.house.waits("carol", "batch", round=2, number=1)
        await found.house.stop("carol")
        await found.over("alice", "bob", DEALER)
        assert [(told.round, told.owners) for told in found.told["alice"]] == [(1, 3), (2, 2)]
        assert distance(found.common("alice"), found.common("bob")) == 0


@pytest.mark.end_to_end
async def test_a_survivor_that_never_says_who_survived_costs_the_round_and_no_more(
    tmp_path: Path,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer(mode="semi-honest")
        await found.model_owner(patience=10.0)
        for name, own in owned.items():
            found.learns(name, own)
        carol = found.learners["carol"]

        async def silent(session: object, last: SharesSum | None, survivors: tuple[str, ...]) -> None:
            if last is not None:
                await asyncio.Event().wait()

        carol._take_up = silent  # type: ignore[method-assign]
        lost = await found.house.waits("alice", "round-lost")
        assert lost["round"] == 1
        assert "no word on who survived from carol" in lost["detail"]
        await found.house.stop("carol")
        await found.over("alice", "bob", DEALER)
        assert [(told.round, told.owners) for told in found.told["alice"]] == [(2, 2)]


async def test_who_waits_for_a_verdict_waits_no_longer_than_its_session(
    tmp_path: Path, private: PrivateModel, learning: PublicLearning
) -> None:
    """It would keep what was prepared for the session, and its patience would go on."""
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        party = await found.model_owner()

        async def send(frames: object) -> None:
            """To a link."""

        courier = Courier(send, lambda detail: None)
        conversation = Conversation(
            party._machine("carol"), ROSTER, dealer=DEALER, to_peer=courier, to_dealer=courier,
            patience=60.0, entropy=os.urandom,
        )  # fmt: skip
        waiting = asyncio.ensure_future(party._verdict(conversation, 1))
        await asyncio.sleep(0)
        conversation.peer_lost("it has said hello again")
        done, _ = await asyncio.wait([waiting], timeout=10.0)
        await ended(waiting)
        await courier.close()
        assert [type(each.exception()) for each in done] == [InferenceError]
        assert party._openings.sums.verdict(1) is None


@pytest.mark.end_to_end
async def test_a_model_owner_that_starts_again_tells_no_more_sums_than_its_policy_has(
    tmp_path: Path,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    openings = tmp_path / "openings"
    async with adapting(tmp_path, private, learning) as found:
        policy = replace(POLICY, rounds=2)
        await begun(found, owned, opening=policy, openings=openings)
        await found.house.waits("bob", "batch", round=1)
        assert "bob" in Openings(policy, openings).sums.owners
        await found.house.waits("alice", "learned", round=1)
        address = found.house.addresses[MODEL_OWNER]
        await found.house.stop(MODEL_OWNER)
        await found.model_owner(address=address, opening=policy, openings=openings)
        await found.over(*OWNERS, DEALER)
        assert found.told["alice"][0].round == 1
        assert found.told["alice"][-1].round == 2
    sums = Openings(policy, openings).sums
    assert (sums.current, sums.owners) == (2, set(OWNERS))
    assert sums.opened == len(found.told["alice"]) <= 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"batches": 3}, "2 rounds of 2 batches; here there are 2 of 3"),
        ({"rounds": 5}, "2 rounds of 2 batches; here there are 5 of 2"),
        ({"batch": 3}, "it learns by batches of 4 images; here they have 3"),
        ({"smallest_cohort": 3}, "it opens sums of 2 data owners; the policy here wants 3"),
        ({"weights": "counts"}, "data owners count alike with it; the policy here is that they count by their images"),
        ({"selection": "enrolment"}, "its batches are by data-owner; here they are by enrolment"),
        ({"reveal": "all"}, "it reveals none of the outputs of blocks; here all is expected"),
    ],
)
async def test_terms_that_are_not_those_of_the_experiment_are_refused_by_name(
    tmp_path: Path,
    changed: dict[str, Any],
    reason: str,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner()
        for name, own in owned.items():
            found.learns(name, own, **(changed if name == "alice" else {}))
        told = await found.house.waits("alice", "cannot-train")
        assert reason in told["detail"]
        ended = await found.house.tasks.pop("alice")
        assert reason in ended.detail


async def test_labels_that_the_head_does_not_know_are_refused_by_their_own_owner(
    tmp_path: Path,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner()
        strange = {**owned, "alice": replace(owned["alice"], labels=owned["alice"].labels + 1)}
        for name, own in strange.items():
            found.learns(name, own)
        told = await found.house.waits("alice", "cannot-train")
        assert "a head of 3 classes, and the labels here reach from 1 to 3" in told["detail"]
        await found.house.tasks.pop("alice")


async def test_fewer_images_than_a_batch_are_refused_before_anything_is_said(
    tmp_path: Path,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner()
        few = Owned(owned["alice"].images[:3], owned["alice"].labels[:3])
        with pytest.raises(ValueError, match="alice has 3 images, and a batch takes 4"):
            found.learns("alice", few)


@pytest.mark.end_to_end
async def test_a_model_that_is_replaced_in_the_middle_ends_every_session(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    other = prepared_model(one_block.friendly, one_block.images, margin=MARGIN)
    assert other.commitment != private.commitment
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        party = await found.model_owner()
        for name, own in owned.items():
            found.learns(name, own)
        await found.house.waits("alice", "batch", round=1, number=1)
        party.model = other
        told = await found.house.waits("alice", "cannot-train")
        assert "the model has been replaced since it was agreed on" in told["detail"]
        for name in OWNERS:
            await found.house.tasks.pop(name)


async def test_a_dealer_that_sums_other_words_is_refused(
    tmp_path: Path,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer(task=RoundsTask(words=7, rounds=2))
        await found.model_owner()
        for name, own in owned.items():
            found.learns(name, own)
        told = await found.house.waits("alice", "cannot-train")
        assert "words, where the dealer sums 7" in told["detail"]
        for name in OWNERS:
            await found.house.tasks.pop(name)
        await found.house.waits(SUMS, "ended")


async def test_a_file_that_does_not_say_what_was_told_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "openings"
    path.write_bytes(msgspec.msgpack.encode({"opened": -1}))
    with pytest.raises(ValueError, match="does not say which sums were told"):
        Openings(POLICY, path)
