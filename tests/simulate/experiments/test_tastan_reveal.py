"""`tastan-reveal`: a miniature of it by real parties, copies from revealed outputs, and its claims."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tacit.models.adapters.configuration import ParallelConfiguration, Reveal
from tacit.models.adapters.federated import Order
from tacit.models.adapters.parallel import block_outputs
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert
from tacit.models.networks import build
from tacit.simulate.adaptation.clear import drawn_batches
from tacit.simulate.adaptation_audit.copies import centred
from tacit.simulate.experiments.adaptation_images import DataPart
from tacit.simulate.experiments.engine import prepare, run_study
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.results import Run, StudyRow
from tacit.simulate.experiments.tastan_reveal import STUDY, RevealedOutputs
from tacit.simulate.experiments.tastan_reveal_runs import copies, revealed_passes
from tacit.simulate.experiments.tastan_reveal_settings import (
    ACCURACY,
    AGREEMENT,
    CLEAR,
    COLUMNS,
    COPIED,
    ORDERED,
    ROWS,
    WITHOUT,
)
from tests.simulate.experiments.conftest import Nobody

assert STUDY.small is not None
SMALL = STUDY.small.measure
assert isinstance(SMALL, RevealedOutputs)
SIZES = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=4, heads=2)
pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def victim() -> FriendlyTransformer:
    """Its random weights are as large as trained ones: as they are drawn, blocks add next to nothing."""
    model = build(SIZES, classes=3, channels=1, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 10
    return convert(model, STOCK).eval()


@pytest.fixture(scope="module")
def outputs(victim: FriendlyTransformer) -> torch.Tensor:
    return centred(block_outputs(victim, IMAGES))


def batches(count: int) -> list[Order]:
    generator = np.random.default_rng(3)
    return [generator.permutation(24)[:8] for _ in range(count)]


def test_what_is_told_are_rows_in_orders_of_their_own(outputs: torch.Tensor) -> None:
    chosen = batches(3)
    found = revealed_passes(outputs, chosen, "all", seed=1)
    for batch, told in zip(chosen, found, strict=True):
        assert list(told) == [0, 1, 2, 3]
        orders = {tuple(each.images.tolist()) for each in told.values()}
        assert len(orders) == 4
        for block, each in told.items():
            assert sorted(each.images.tolist()) == sorted(batch.tolist())
            assert torch.equal(each.rows, outputs[block, each.images])


def test_of_neighbours_only_one_is_sampled(outputs: torch.Tensor) -> None:
    found = [tuple(told) for told in revealed_passes(outputs, batches(40), "sampled", seed=1)]
    assert set(found) == {(3,), (0, 3), (1, 3)}


def test_nothing_told_is_nothing_to_copy_from(outputs: torch.Tensor) -> None:
    assert revealed_passes(outputs, batches(2), "none", seed=1) == [{}, {}]


@pytest.mark.parametrize(("reveal", "blocks"), [("all", 3), ("sampled", 2)])
def test_copies_are_made_of_what_is_told(
    victim: FriendlyTransformer, outputs: torch.Tensor, reveal: Reveal, blocks: int
) -> None:
    """By matching alone: all four blocks, or with the last two as one."""
    found = copies(
        revealed_passes(outputs, batches(20), reveal, seed=1),
        victim,
        outputs,
        SIZES,
        epochs=150,
        learning_rate=1e-2,
        seed=1,
    )
    assert found.keys() == {quantity.name for quantity in COPIED}
    assert found["outputs revealed"] >= 20 * 8
    assert found["orders found"] > 90
    assert found["copies"] == blocks
    # A block that does nothing has the error 1.
    assert found["largest error"] < 1
    assert found["agreement"] > max(found["agreement without the blocks"], 0.6)


def test_one_block_alone_is_no_pair(victim, outputs: torch.Tensor) -> None:
    passes = [{3: told[3]} for told in revealed_passes(outputs, batches(2), "all", seed=1)]
    with pytest.raises(ValueError, match="outputs of one block alone"):
        copies(passes, victim, outputs, SIZES, epochs=1, learning_rate=1e-2, seed=1)


def test_batches_are_those_of_every_round() -> None:
    base = SMALL.experiment
    experiment = msgspec.structs.replace(base, adaptation=msgspec.structs.replace(base.adaptation, batches=2))
    found = drawn_batches(experiment, 40, seed=4, owner=1)
    assert len(found) == experiment.federation.rounds * experiment.adaptation.batches
    first = np.random.default_rng([4, 1, 1]).permutation(40)
    assert np.array_equal(found[0], first[:16])
    assert np.array_equal(found[1], first[16:32])


@pytest.mark.exhaustive
def test_a_miniature(tmp_path: Path) -> None:
    """One round by real parties, on generated images of four classes, so alike that none is out of range."""
    generator, arrays = np.random.default_rng(0), {}
    common = generator.integers(0, 200, (8, 8), np.uint8)
    for part, count in (("train", 64), ("test", 16)):
        labels = np.arange(count) % 4
        pixels = common + generator.integers(0, 20, (count, 8, 8), np.uint8)
        arrays |= {f"y_{part}": labels, f"x_{part}": pixels}
    np.savez(tmp_path / "four.npz", **arrays)
    base = SMALL.experiment
    experiment = msgspec.structs.replace(
        base,
        model=msgspec.structs.replace(SIZES, depth=3),
        federation=msgspec.structs.replace(base.federation, rounds=1),
        adapter=ParallelConfiguration(rank=2),
        adaptation=msgspec.structs.replace(
            base.adaptation, batch=4, batches=2, backbone_epochs=1, learning_rate=0.05, decay_rounds=()
        ),
    )
    measure = replace(SMALL, experiment=experiment, copy_epochs=2)
    study = replace(STUDY, small=replace(STUDY.small, measure=measure))
    request = Request(seeds=(3,), data=tmp_path / "four.npz", device="cpu", out=tmp_path / "out")
    work = prepare(study, request, small=True)
    assert work.measuring.experiment("all", seed=3).adaptation.known_classes == tuple(DataPart(half=0).of_classes(4))
    run_study(work, Nobody())
    clear, none, sampled, every = (row.runs[0].values for row in work.result(command="").rows)
    assert [found["batches refused"] for found in (clear, none, sampled, every)] == [None, 0, 0, 0]
    # With all outputs, and on shares, the rounds are those in the clear but for rounding: of 8 images one may flip.
    for found in (none, every):
        assert abs(found["balanced accuracy"] - clear["balanced accuracy"]) <= 0.125
    for found in (none, sampled, every):
        assert min(found[name] for name in ("sent by a data owner", "sent by the model owner", "online phase")) > 0
    # 2 batches of 4 images, of all blocks.
    assert none["outputs revealed"] is None
    assert (every["outputs revealed"], every["copies"]) == (24, 2)


def rows(accuracies: dict[str, float], agreement: float, *, seeds: int = 2) -> list[StudyRow]:
    copied = {AGREEMENT.name: agreement, ORDERED.name: 100.0, WITHOUT.name: 0.5}
    return [
        StudyRow.of(
            name,
            [
                Run(
                    seed=seed,
                    values=dict.fromkeys(quantity.name for quantity in COLUMNS)
                    | {ACCURACY.name: accuracies[name] + seed / 1000}
                    | ({} if name in (CLEAR, "none") else copied),
                    seconds=1.0,
                )
                for seed in range(seeds)
            ],
            {},
        )
        for name in ROWS
    ]


def test_claims_are_decided_by_their_bounds() -> None:
    good = dict.fromkeys(ROWS, 0.8)
    for found, reproduced in (
        (rows(good, 0.95), [True, True, True]),
        (rows(good | {"none": 0.7}, 0.85), [False, False, False]),
        (rows(good, 0.95, seeds=1), [None, True, True]),
        (rows(good, 0.95)[2:3], [True]),
    ):
        assert [verdict.reproduced for verdict in STUDY.judge(found)] == reproduced


def test_the_full_size_takes_files_of_cifar(tmp_path: Path) -> None:
    request = Request(seeds=(0,), data=None, device="cpu", out=tmp_path / "out")
    with pytest.raises(ValueError, match="needs --data"):
        prepare(STUDY, request, small=False)
