"""`tastan-reveal`: a miniature of it by real parties, what is made of told outputs, and what is said of figures."""

from collections.abc import Iterator
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
from tacit.simulate.adaptation_audit.copies import centred
from tacit.simulate.experiments.adaptation_parts import DataPart
from tacit.simulate.experiments.tastan_reveal import CLEAR, REVEAL, ROWS, CopyFigures, RevealFigures, judge, of
from tacit.simulate.experiments.tastan_reveal_page import RevealFindings, RevealMeasurement
from tacit.simulate.experiments.tastan_reveal_runs import batches_of, copies, told_passes

SIZES = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=4, heads=2)
IMAGES = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
    found = told_passes(outputs, chosen, "all", seed=1)
    for batch, told in zip(chosen, found, strict=True):
        assert list(told) == [0, 1, 2, 3]
        orders = {tuple(each.images.tolist()) for each in told.values()}
        assert len(orders) == 4
        for block, each in told.items():
            assert sorted(each.images.tolist()) == sorted(batch.tolist())
            assert torch.equal(each.rows, outputs[block, each.images])


def test_of_neighbours_only_one_is_sampled(outputs: torch.Tensor) -> None:
    found = [tuple(told) for told in told_passes(outputs, batches(40), "sampled", seed=1)]
    assert set(found) == {(3,), (0, 3), (1, 3)}


def test_nothing_told_is_nothing_to_copy_from(outputs: torch.Tensor) -> None:
    assert told_passes(outputs, batches(2), "none", seed=1) == [{}, {}]


@pytest.mark.parametrize(("reveal", "blocks"), [("all", 3), ("sampled", 2)])
def test_copies_are_made_of_what_is_told(
    victim: FriendlyTransformer, outputs: torch.Tensor, reveal: Reveal, blocks: int
) -> None:
    """By matching alone: all four blocks, or with the last two as one."""
    found = copies(
        told_passes(outputs, batches(20), reveal, seed=1),
        victim,
        outputs,
        SIZES,
        epochs=150,
        learning_rate=1e-2,
        seed=1,
    )
    assert found.told >= 20 * 8
    assert found.ordered > 0.9
    assert len(found.errors) == blocks
    # A block that does nothing has the error 1.
    assert max(found.errors) < 1
    assert found.agreement > max(found.without, 0.6)


def test_one_block_alone_is_no_pair(victim, outputs: torch.Tensor) -> None:
    passes = [{3: told[3]} for told in told_passes(outputs, batches(2), "all", seed=1)]
    with pytest.raises(ValueError, match="outputs of one block alone were told"):
        copies(passes, victim, outputs, SIZES, epochs=1, learning_rate=1e-2, seed=1)


def test_batches_are_those_of_every_round() -> None:
    base = REVEAL.small.experiment
    experiment = msgspec.structs.replace(base, adaptation=msgspec.structs.replace(base.adaptation, batches=2))
    found = batches_of(experiment, 40, seed=4, owner=1)
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
    base = REVEAL.small.experiment
    experiment = msgspec.structs.replace(
        base,
        model=msgspec.structs.replace(SIZES, depth=3),
        federation=msgspec.structs.replace(base.federation, rounds=1),
        adapter=ParallelConfiguration(rank=2),
        adaptation=msgspec.structs.replace(
            base.adaptation, batch=4, batches=2, backbone_epochs=1, learning_rate=0.05, decay_rounds=()
        ),
    )
    table = replace(REVEAL, small=replace(REVEAL.small, experiment=experiment, copy_epochs=2))
    prepared = RevealMeasurement(claim=table).prepare(small=True, data=tmp_path / "four.npz")
    assert prepared.work.experiment("all", seed=3).adaptation.known_classes == tuple(DataPart(half=0).of_classes(4))
    lines: list[str] = []
    found = prepared.measure(seeds=(3,), device="cpu", progress=lines.append)
    assert [(entry.row, entry.seed, entry.refused) for entry in found.figures] == [
        (row, 3, None if row == CLEAR else 0) for row in ROWS
    ]
    clear, none, sampled, every = found.figures
    # With all outputs, and on shares, the rounds are those in the clear but for rounding: of 8 images one may flip.
    assert abs(none.accuracy - clear.accuracy) <= 0.125
    assert abs(every.accuracy - clear.accuracy) <= 0.125
    for entry in (none, sampled, every):
        assert entry.data_owner_bytes > 0
        assert entry.model_owner_bytes > 0
        assert entry.seconds > 0
    # 2 batches of 4 images, of all blocks.
    assert none.copied is None
    assert every.copied.told == 24
    assert len(every.copied.errors) == 2
    assert "| none | none |  | nothing to copy from |  |  |  |" in found.lines()
    assert len(lines) == 3 + 4


def figures(accuracies: dict[str, float], agreement: float) -> list[RevealFigures]:
    """Two seeds alike but for a thousandth."""
    copied = CopyFigures(told=10, ordered=1.0, errors=[0.1], agreement=agreement, without=0.5)
    return [
        RevealFigures(
            row=row,
            seed=seed,
            accuracy=accuracies[row] + seed / 1000,
            copied=None if row in (CLEAR, "none") else copied,
        )
        for seed in (0, 1)
        for row in ROWS
    ]


def test_claims_are_decided_by_their_bounds() -> None:
    good = figures(dict.fromkeys(ROWS, 0.8), 0.95)
    assert [verdict.holds for verdict in judge(good)] == [True, True, True]
    bad = figures(dict.fromkeys(ROWS, 0.8) | {"none": 0.7}, 0.85)
    assert [verdict.holds for verdict in judge(bad)] == [False, False, False]
    one = [entry for entry in good if entry.seed == 0]
    assert [verdict.holds for verdict in judge(one)] == [None, True, True]


def test_the_page_has_every_row() -> None:
    found = RevealFindings(images="digits", figures=tuple(figures(dict.fromkeys(ROWS, 0.8), 0.95)))
    lines = found.lines()
    for row in ROWS:
        assert any(line.startswith(f"| {row} | 0.800 (0.800, 0.801) ± 0.001 |") for line in lines)
    assert "| all | 10 | 100.0 | 1 | 0.100 | 0.950 | 0.500 |" in lines
    assert [row["agreement"] for row in found.rows()] == [None, None, 0.95, 0.95]
    assert len(of(found.runs(), "all")) == 2


def test_the_full_size_takes_files_of_cifar(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs --data"):
        RevealMeasurement(claim=REVEAL).prepare(small=False, data=None)
    assert REVEAL.full.experiment.federation.clients == 5
    assert REVEAL.full.experiment.model.name == "vit_base_patch16_384"
