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
import pytest
import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation.events import (
    AdaptersUpdated,
    BatchEnded,
    ImagesKept,
    LearningRoundLost,
    LearningSessionLost,
    LearningSessionOpened,
)
from tacit.parties.adaptation.model_owner import Openings
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rounds import RoundsTask, SharesSum
from tacit.parties.inference.conversation import Conversation, Courier, InferenceError, ended
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.session.events import SessionEnded, TrainingFailed
from tests.parties.adaptation import adapting_house as _house
from tests.parties.adaptation.adapting_house import (
    BLOCK_ERROR,
    DEALER,
    MODEL_OWNER,
    OWNERS,
    POLICY,
    ROSTER,
    STEP_ERROR,
    SUMS,
    AdaptingHouse,
    Owned,
    adapting,
    begun,
    check_learned,
    distance,
    in_the_clear,
    short,
)
from tests.parties.adaptation.test_public import PROBE, made
from tests.parties.inference import conftest as _inference
from tests.parties.inference.conftest import Transformer

one_block, private = _inference.one_block, _inference.private
learning, owned, _no_long_farewells = _house.learning, _house.owned, _house._no_long_farewells

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def probing(one_block: Transformer) -> PublicLearning:
    """Of the head alone, which takes half as many rounds of messages."""
    return short(made(one_block, PROBE))


def passed(found: AdaptingHouse, name: str) -> list[int]:
    """How many images a data owner had kept, after every pass of images."""
    return [event.images for who, event in found.house.told if who == name and isinstance(event, ImagesKept)]


@pytest.mark.end_to_end
async def test_kept_shares_outlive_both_owners_and_images_pass_once(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    """Model owner and a data owner start again between two rounds; no weight is masked anew for it, and what is learned
    is what is learned in the clear."""
    folders = {name: tmp_path / "kept" / name for name in (MODEL_OWNER, *OWNERS)}
    async with adapting(tmp_path, private, probing) as found:
        await found.dealer()
        party = await found.model_owner(kept=folders[MODEL_OWNER], openings=tmp_path / "openings")
        for name, own in owned.items():
            found.learns(name, own, kept=folders[name])
        await found.house.waits("alice", BatchEnded, round=2, number=1)
        assert party._kept["bob"].record.last == found.learners["bob"]._kept.record.last
        address = found.house.addresses[MODEL_OWNER]
        await found.house.stop(MODEL_OWNER)
        await found.model_owner(address=address, kept=folders[MODEL_OWNER], openings=tmp_path / "openings")
        await found.over(*OWNERS, DEALER)
        for name in OWNERS:
            assert passed(found, name) == [4, 6]
            opened = [each for who, each in found.house.told if who == name and isinstance(each, LearningSessionOpened)]
            assert [each.weights_bytes > 0 for each in opened] == [True] + [False] * (len(opened) - 1)
            assert len(opened) > 1
        # A round that was under way is lost with the model owner's shares; the others are those in the clear.
        assert found.told["alice"][0].round == 1
        clear = in_the_clear(one_block, probing, list(owned.values()))[0]
        bound = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * distance(clear, probing.initial())
        assert distance(found.told["alice"][0].parameters, clear) <= bound


async def test_refused_batches_contribute_nothing_and_are_told_once_in_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_block: Transformer,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    """One owner's images were all out of range, as far as its shares say: nobody is told whose, and when."""
    learning = short(probing, rounds=2, batches=1)
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner()
        for name, own in owned.items():
            found.learns(name, own)
        kept = found.learners["bob"]._kept
        batch = kept.batch

        def flagged(images: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
            outputs, outside = batch(images)
            return outputs, outside + 1

        monkeypatch.setattr(kept, "batch", flagged)
        await found.over(*OWNERS, DEALER)
        assert [told.refused_batches for told in found.told["carol"]] == [None, 2]
        told = found.told["alice"][0]
        assert told.counted == found.told["bob"][0].counted
        others = in_the_clear(one_block, learning, list(owned.values()), weights=(1, 0, 1))[0]
        # The mean over three owners, one of whom stays where it was.
        still = learning.initial().tensors
        expected = AdapterParameters(
            **{name: still[name] + (tensor - still[name]) * 2 / 3 for name, tensor in others.tensors.items()}
        )
        bound = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * distance(expected, learning.initial())
        assert distance(told.parameters, expected) <= bound < distance(told.parameters, others)


async def test_what_is_learned_beside_an_audited_dealer_is_the_same(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    """Rounds begin and end between passes, whose randomness is audited when they are asked for."""
    learning, audited = short(probing, batches=1), 1 << 14
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        await found.model_owner(audited=audited)
        for name, own in owned.items():
            found.learns(name, own, audited=audited)
        await found.over(*OWNERS, DEALER)
        check_learned(found, one_block, learning, owned)


async def test_data_owners_count_by_their_images_where_both_policies_say_so(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    learning = short(probing, rounds=1, batches=1)
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
    tmp_path: Path, private: PrivateModel, probing: PublicLearning, owned: dict[str, Owned]
) -> None:
    learning = short(probing, rounds=1, batches=1)
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer()
        party = await found.model_owner()
        opened = party._openings.opened
        # As a model owner that adds up other shares than those of the survivors would tell it.
        party._openings.opened = lambda number: bytes(len(opened(number)))  # type: ignore[method-assign]
        for name, own in owned.items():
            found.learns(name, own)
        told = await found.house.waits("alice", TrainingFailed)
        assert told.detail.startswith("the sums of round 1 do not fit each other: a weight of ")
        for name in OWNERS:
            await found.house.tasks.pop(name)


@pytest.mark.end_to_end
async def test_a_session_that_is_lost_in_a_round_goes_on_behind_its_last_batch(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, probing) as found:
        await found.dealer()
        await found.model_owner()
        links = await found.house.over_cables()
        for name, own in owned.items():
            found.learns(name, own, links=links if name == "bob" else None)
        await found.house.waits("bob", BatchEnded, round=2, number=1)
        # The address is served again at once.
        model_owner, dealer = found.house.cables
        for cable in (model_owner, dealer):
            cable.abort()
        await found.house.waits("bob", LearningSessionLost)
        await found.over(*OWNERS, DEALER)
        assert [told.owners for told in found.told["alice"]] == [3, 3]
        seen = [event for name, event in found.house.told if name == "bob" and isinstance(event, BatchEnded)]
        assert (2, 1) not in [(batch.round, batch.number) for batch in seen]
        clear = in_the_clear(one_block, probing, list(owned.values()))[-1]
        bound = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * distance(clear, probing.initial())
        assert distance(found.common("bob"), clear) <= bound


@pytest.mark.end_to_end
async def test_a_survivor_that_never_says_who_survived_costs_the_round_and_no_more(
    tmp_path: Path,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    async with adapting(tmp_path, private, probing) as found:
        await found.dealer(mode="semi-honest")
        await found.model_owner(patience=10.0)
        for name, own in owned.items():
            found.learns(name, own)
        carol = found.learners["carol"]

        async def silent(session: object, last: SharesSum | None, survivors: tuple[str, ...]) -> None:
            if last is not None:
                await asyncio.Event().wait()

        carol._take_up = silent  # type: ignore[method-assign]
        lost = await found.house.waits("alice", LearningRoundLost)
        assert lost.round == 1
        assert "no word on who survived from carol" in lost.detail
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
            patience=60.0, entropy=os.urandom, charge=lambda spent: None,
        )  # fmt: skip
        waiting = asyncio.ensure_future(party._verdict(conversation, 1))
        await asyncio.sleep(0)
        conversation.with_peer.drop("it has said hello again")
        done, _ = await asyncio.wait([waiting], timeout=10.0)
        await ended(waiting)
        await courier.close()
        assert [type(each.exception()) for each in done] == [InferenceError]
        assert party._openings.sums.verdict(1) is None


@pytest.mark.end_to_end
async def test_a_model_owner_that_starts_again_tells_no_more_sums_than_its_policy_has(
    tmp_path: Path,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    openings = tmp_path / "openings"
    async with adapting(tmp_path, private, probing) as found:
        policy = replace(POLICY, rounds=2)
        await begun(found, owned, opening=policy, openings=openings)
        await found.house.waits("bob", BatchEnded, round=1)
        assert "bob" in Openings(policy, openings).sums.owners
        await found.house.waits("alice", AdaptersUpdated, round=1)
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
        ({"batch": 3}, "it learns by batches of 4 images; here they have 3"),
        ({"smallest_cohort": 3}, "it opens sums of 2 data owners; the policy here wants 3"),
        ({"weights": "counts"}, "data owners count alike with it; the policy here is that they count by their images"),
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
        told = await found.house.waits("alice", TrainingFailed)
        assert reason in told.detail
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
        told = await found.house.waits("alice", TrainingFailed)
        assert "a head of 3 classes, and the labels here reach from 1 to 3" in told.detail
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


async def test_a_dealer_that_sums_other_words_is_refused(
    tmp_path: Path,
    private: PrivateModel,
    probing: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    learning = short(probing, rounds=1, batches=1)
    async with adapting(tmp_path, private, learning) as found:
        await found.dealer(task=RoundsTask(words=7, rounds=1))
        await found.model_owner()
        for name, own in owned.items():
            found.learns(name, own)
        told = await found.house.waits("alice", TrainingFailed)
        assert "words, where the dealer sums 7" in told.detail
        for name in OWNERS:
            await found.house.tasks.pop(name)
        await found.house.waits(SUMS, SessionEnded)


async def test_a_file_that_does_not_say_what_was_told_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "openings"
    path.write_bytes(msgspec.msgpack.encode({"opened": -1}))
    with pytest.raises(ValueError, match="does not say which sums were told"):
        Openings(POLICY, path)
