"""Owners of a simulation that reveals outputs of blocks, over real links: what they learn is what is learned in the
clear, by batches of the data owner's choosing or of the model owner's; and no party of hosts takes part in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.models.adapters.configuration import Reveal
from tacit.models.adapters.federated import FullBatches
from tacit.parties.adaptation.learning_passes import Batch
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.session.events import TrainingFailed
from tacit.simulate.insecure.revealed_outputs import RevealedBatch, RevealedPasses
from tacit.simulate.insecure.revealing_parties import Revealing, learner, teacher

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[2] / "parties" / "inference")
    patch.syspath_prepend(Path(__file__).parents[2] / "parties" / "adaptation")
    from adapting_house import (  # noqa: F401
        BLOCK_ERROR,
        DEALER,
        OWNERS,
        AdaptingHouse,
        Owned,
        _no_long_farewells,
        adapting,
        begun,
        check_learned,
        check_material,
        distance,
        learning,
        owned,
    )
    from conftest import Transformer, one_block, private  # noqa: F401
    from whole import block_outputs

pytestmark = pytest.mark.asyncio


def reveal(found: AdaptingHouse, revealing: Revealing, seen: list[RevealedBatch]) -> None:
    """Have all owners reveal; seen: gets what data owners receive."""

    def keep(batch: Batch, revealed: RevealedBatch) -> None:
        seen.append(revealed)

    found.teacher, found.learner = partial(teacher, revealing), partial(learner, revealing, keep=keep)


@pytest.mark.end_to_end
@pytest.mark.parametrize("outputs", ["sampled", "all"])
async def test_what_is_learned_of_revealed_outputs_is_what_is_learned_in_the_clear(
    tmp_path: Path,
    outputs: Reveal,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    seen: list[RevealedBatch] = []
    async with adapting(tmp_path, private, learning) as found:
        reveal(found, Revealing(outputs), seen)
        await begun(found, owned)
        await found.over(*OWNERS, DEALER)
        check_learned(found, one_block, learning, owned)
        # Of one block, so that every pass reveals the same.
        passes = RevealedPasses(learning, 0, DATA, lambda number: (True,))
        for name in OWNERS:
            assert distance(found.common(name), found.common("alice")) == 0
            await check_material(found, learning, name, passes)
    assert len(seen) == len(OWNERS) * learning.schedule.rounds * learning.batches


@pytest.mark.end_to_end
async def test_what_is_enrolled_is_learned_in_the_order_of_the_model_owner(
    tmp_path: Path,
    one_block: Transformer,
    private: PrivateModel,
    learning: PublicLearning,
    owned: dict[str, Owned],
) -> None:
    seen: list[RevealedBatch] = []
    # Of different labels for each data owner, so that it shows whose batches these are.
    own = {name: Owned(each.images, torch.full((6,), place)) for place, (name, each) in enumerate(owned.items())}
    async with adapting(tmp_path, private, learning) as found:
        reveal(found, Revealing("all", "enrolment"), seen)
        await begun(found, own)
        await found.over(*OWNERS, DEALER)
        assert [told.counted.images for told in found.told["alice"]] == [3 * learning.batch * learning.batches] * 2
    for place, each in enumerate(own.values()):
        revealed = torch.cat([batch.outputs[0] for batch in seen if batch.labels[0] == place])
        assert all(bool((batch.labels == batch.labels[0]).all()) for batch in seen)
        (expected,) = block_outputs(one_block, each.images)
        distances = torch.cdist(revealed.flatten(1), expected.flatten(1))
        nearest, image = distances.min(1)
        assert bool((nearest <= 2 * BLOCK_ERROR * expected.flatten(1).norm(dim=1)[image]).all())
        # Two rounds of batches go through all images as often as they would in the order of the data owner.
        works = [FullBatches(learning.batch, learning.batches)] * learning.schedule.rounds
        drawn = [work.batches(6, np.random.default_rng([1, number + 1, place])) for number, work in enumerate(works)]
        chosen = np.concatenate([order for orders in drawn for order in orders])
        assert sorted(image.tolist()) == sorted(chosen.tolist())
        assert (chosen[: learning.batch].tolist() != image[: learning.batch].tolist()) or len(set(chosen)) == 1


async def test_a_data_owner_of_hosts_takes_no_part_in_it(
    tmp_path: Path, private: PrivateModel, learning: PublicLearning, owned: dict[str, Owned]
) -> None:
    async with adapting(tmp_path, private, learning) as found:
        found.teacher = partial(teacher, Revealing("all"))
        await begun(found, owned)
        told = await found.house.waits("alice", TrainingFailed)
        assert "compare-kept is not expected" in told.detail
