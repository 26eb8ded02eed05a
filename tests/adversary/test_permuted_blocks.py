"""A data owner that is told outputs of blocks under permutations, or of sampled blocks only, and copies the blocks.

The victim is a ViT of four blocks that knows the digits. Secret orders are used to judge what was found, never to find
it. `-rP` shows what was measured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import Block
from torch import nn
from torch.nn.functional import unfold

from tacit.models.adapters.parallel import StochasticBlocks, block_outputs
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import load
from tacit.models.extraction import CopiedBlock, copied_block, matched_images, matched_outputs, relative_error
from tacit.models.networks import build
from tacit.models.training import CPU, seeded, train
from tests.cases import cases

pytestmark = pytest.mark.threat("data-owner/permuted-blocks")

SIZES = ModelConfiguration(image_size=8, patch_size=2, width=32, depth=4, heads=4)
BATCHES = 20
IMAGES = cases("images", [8, 16, 32])
CLASSES = cases("one_class", [False, True])


@dataclass(frozen=True)
class Victim:
    """A trained model, and what its owner computes of images that it was not trained on, and of a data owner's."""

    model: Any
    images: torch.Tensor
    labels: torch.Tensor
    outputs: torch.Tensor
    """Of all blocks [L, N, T, D], for the test images."""
    owned: torch.Tensor
    """Outputs of all blocks for the images of the data owner, which are those of training."""

    def agreement(self, blocks: dict[int, nn.Module]) -> float:
        """Share of the test images with the victim's label by a model in which some blocks are others."""
        stitched = copy.deepcopy(self.model)
        for place, block in blocks.items():
            stitched.blocks[place] = block
        with torch.no_grad():
            ours, theirs = (model(self.images).argmax(dim=1) for model in (stitched, self.model))
        return (ours == theirs).double().mean().item()


@dataclass(frozen=True)
class Told:
    rows: torch.Tensor
    secret: torch.Tensor
    """What stands in every row, by its number."""


Pairing = Callable[[Told, Told], torch.Tensor]
"""Gives the order of the first that fits the second."""


@pytest.fixture(scope="module", params=[pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (0, 1, 2)])
def victim(request: pytest.FixtureRequest) -> Iterator[Victim]:
    """One for each seed; the figures of the decision record are those of all three."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    data = load(DataConfiguration(), image_size=8)
    model = build(SIZES, classes=10, channels=1, seed=request.param)
    training = TrainingConfiguration(epochs=12, batch_size=32, learning_rate=2e-3)
    train(model, data.x_train, data.y_train, training, seed=request.param, device=CPU)
    model.eval()
    owned, outputs = (block_outputs(model, images) for images in (data.x_train, data.x_test))
    yield Victim(model, data.x_test, data.y_test, outputs, owned)
    torch.set_num_threads(before)


def new_generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def permuted(rows: torch.Tensor, generator: torch.Generator) -> Told:
    secret = torch.randperm(len(rows), generator=generator)
    return Told(rows[secret], secret)


def batches(victim: Victim, images: int, one_class: bool, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Indices of test images, twenty times; those of one class take the classes in turn."""
    for number in range(BATCHES):
        pool = torch.nonzero(victim.labels == number % 10).flatten() if one_class else torch.arange(len(victim.labels))
        yield pool[torch.randperm(len(pool), generator=generator)[:images]]


def share(found: list[torch.Tensor]) -> float:
    return torch.cat(found).double().mean().item()


def matches(one: Told, other: Told) -> torch.Tensor:
    """Bool [n], whether what is matched belongs together."""
    return one.secret[matched_outputs(one.rows, other.rows)] == other.secret


@cases("apart", [1, 2, 3])
@CLASSES
@IMAGES
def test_outputs_of_blocks_are_matched(victim: Victim, images: int, one_class: bool, apart: int) -> None:
    """Neighbours, as permutations leave them, and blocks two and three apart, as block sampling does."""
    generator = new_generator()
    found = []
    for chosen in batches(victim, images, one_class, generator):
        told = [permuted(outputs[chosen], generator) for outputs in victim.outputs]
        found += [matches(one, other) for one, other in zip(told, told[apart:], strict=False)]
    print(f"{images} images, one class: {one_class}, blocks {apart} apart: {share(found):.4f} of {len(found)} batches")
    assert share(found) > 0.9


def test_the_largest_batch_hides_no_more(victim: Victim) -> None:
    """All test images in one, for which there are more than 10^700 orders."""
    generator = new_generator()
    told = [permuted(outputs, generator) for outputs in victim.outputs]
    found = [matches(told[0], other) for other in told[1:]]
    print(f"{len(found[0])} images, first block to the others:", *(f"{share([each]):.4f}" for each in found))
    assert share(found) > 0.9


@CLASSES
@IMAGES
def test_own_images_are_matched_to_the_first_block(victim: Victim, images: int, one_class: bool) -> None:
    generator = new_generator()
    patches, found = unfold(victim.images, kernel_size=2, stride=2).transpose(1, 2), []
    for chosen in batches(victim, images, one_class, generator):
        told = permuted(victim.outputs[0, chosen], generator)
        found.append(matched_images(patches[chosen], told.rows) == told.secret)
    print(f"{images} images, one class: {one_class}, own images to the first block: {share(found):.4f}")
    assert share(found) > 0.9


@IMAGES
def test_other_images_are_matched_by_chance(victim: Victim, images: int) -> None:
    """What is matched above are the images: with other ones in the second batch the share is that of a guess."""
    generator = new_generator()
    found = []
    for chosen in batches(victim, 2 * images, False, generator):
        told = [permuted(victim.outputs[block, half], generator) for block, half in enumerate(chosen.split(images)[:2])]
        found.append(matches(*told))
    print(f"{images} images, other ones in the second batch: {share(found):.4f}")
    # A random permutation has one fixed point on average, with the variance 1.
    assert share(found) < (1 + 4 / BATCHES**0.5) / images


def test_sampled_blocks_come_together_over_passes(victim: Victim) -> None:
    """No batch has outputs of neighbours. But all have those of the last block, which are the same for an image in
    every pass over the images, whatever batch it is in: by them the first and the second block's come together."""
    generator = new_generator()
    blocks, count = len(victim.outputs), victim.outputs.shape[1]
    masks, last = np.random.default_rng(1), victim.outputs[-1].flatten(1)
    found = torch.full((blocks, count), -1)
    for _ in range(20):
        for chosen in torch.randperm(count, generator=generator).split(32):
            mask = StochasticBlocks().draw(blocks, masks)
            assert not (mask[1:] & mask[:-1]).any()
            told = [permuted(victim.outputs[block, chosen], generator) for block in np.flatnonzero(mask)]
            end = told.pop()
            # An image goes by its output of the last block; the number of that stands for it here.
            name = torch.cdist(end.rows.flatten(1), last).argmin(dim=1)
            for block, given in zip(np.flatnonzero(mask), told, strict=False):
                found[block, name] = chosen[given.secret[matched_outputs(given.rows, end.rows)]]
    paired = (found[:2] >= 0).all(0)
    right = (found[0] == found[1])[paired]
    print(
        f"first and second block: {share([paired]):.4f} of the images paired, {share([right]):.4f} of the pairs right"
    )
    assert share([paired]) > 0.9
    assert share([right]) > 0.9


def copied(inputs: torch.Tensor, outputs: torch.Tensor, blocks: int = 1) -> CopiedBlock:
    """Trained from random weights, by somebody who knows the sizes of the model."""
    with seeded(2):
        like = nn.Sequential(*(Block(SIZES.width, SIZES.heads, qkv_bias=True) for _ in range(blocks)))
    return copied_block(inputs, outputs, like, epochs=40, learning_rate=1e-2, seed=3)


def by_cosine(one: Told, other: Told) -> torch.Tensor:
    return matched_outputs(one.rows, other.rows)


def by_the_secret(one: Told, other: Told) -> torch.Tensor:
    return one.secret.argsort()[other.secret]


def as_they_come(one: Told, _other: Told) -> torch.Tensor:
    return torch.arange(len(one.rows))


def told_pairs(victim: Victim, one: int, other: int, pairing: Pairing = by_cosine) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of two blocks for the data owner's images, in the same permuted batches of 32 however they are paired."""
    generator = torch.Generator().manual_seed(4)
    inputs, outputs = [], []
    for chosen in torch.randperm(victim.owned.shape[1], generator=generator).split(32):
        before, after = (permuted(victim.owned[block, chosen], generator) for block in (one, other))
        inputs.append(before.rows[pairing(before, after)])
        outputs.append(after.rows)
    return torch.cat(inputs), torch.cat(outputs)


def test_a_block_is_copied_from_permuted_batches_as_from_true_pairs(victim: Victim) -> None:
    errors = {}
    for pairing in (by_the_secret, by_cosine, as_they_come):
        found = copied(*told_pairs(victim, 0, 1, pairing))
        errors[pairing] = relative_error(found.block, victim.outputs[0], victim.outputs[1])
        print(f"paired {pairing.__name__}: {found.error:.4f} held out, {errors[pairing]:.4f} on test images")
    # Where all images are matched, the same copy; a few wrong pairs may cost a little.
    assert errors[by_cosine] < 1.5 * errors[by_the_secret]
    assert errors[by_cosine] < 0.2
    assert errors[as_they_come] > 0.5


@cases("sampled", [False, True])
def test_a_model_of_copied_blocks_agrees_with_the_victim(victim: Victim, sampled: bool) -> None:
    if sampled:
        both = copied(*told_pairs(victim, 1, 3), blocks=2)
        errors, stitched = [both.error], {2: both.block, 3: nn.Identity()}
    else:
        each = [copied(*told_pairs(victim, block - 1, block)) for block in (2, 3)]
        errors, stitched = [found.error for found in each], {2: each[0].block, 3: each[1].block}
    agreement, without = victim.agreement(stitched), victim.agreement({2: nn.Identity(), 3: nn.Identity()})
    print(
        f"agreement {agreement:.4f}, without both blocks {without:.4f}; errors held out", *(f"{e:.4f}" for e in errors)
    )
    assert agreement > 0.9 > without
