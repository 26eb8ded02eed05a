"""The tripwire names what is crafted in the known ways, is silent on honest models, and is passed by who knows it."""

import math
from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import Dataset, load
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.models.training import gradient, train
from tacit.models.tripwire import SuspiciousTensor, suspicious
from tests.adversary.crafted import Imprinted, fishing, imprint, read_imprint

BINS, VICTIMS, SHAPE = 128, 16, (1, 16, 16)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(DataConfiguration(), image_size=16)


def honest(name: str) -> nn.Module:
    sizes = {"patch_size": 4, "width": 32, "depth": 2, "heads": 4} if name == "vit" else {}
    return build(ModelConfiguration(name=name, image_size=16, **sizes), classes=10, channels=1, seed=1)


@pytest.mark.parametrize("name", ["vit", "lenet", "convnet", "resnet18"])
@pytest.mark.parametrize("steps", [0, 2])
def test_honest_models_raise_no_alarm(data: Dataset, name: str, steps: int) -> None:
    model = honest(name)
    if steps:
        rate = TrainingConfiguration(optimizer="adamw", learning_rate=1e-3, epochs=1, batch_size=16)
        x, y = data.x_train[: 16 * steps], data.y_train[: 16 * steps]
        train(model, x, y, rate, seed=1, device=torch.device("cpu"))
    assert suspicious(model) == []


FRESH = (
    "vit_tiny_patch16_224",
    "vit_small_patch16_224",
    "deit3_small_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mixer_s32_224",
    "convnext_tiny",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "resnet50",
)


@pytest.mark.parametrize("name", [FRESH[0], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in FRESH[1:])])
def test_timms_own_initial_weights_raise_no_alarm(name: str) -> None:
    assert suspicious(timm.create_model(name, num_classes=10)) == []


Living = tuple[torch.Tensor, torch.Tensor]
"""What the server remembers: indices of the rows that are bins, darkest first, and by what each was multiplied."""
ALL: Living = (torch.arange(BINS), torch.ones(BINS))


def unchanged(crafted: Imprinted, data: Dataset) -> Living:
    return ALL


def rescaled(crafted: Imprinted, data: Dataset) -> Living:
    factors = torch.rand(BINS, generator=torch.Generator().manual_seed(1)) + 0.5
    crafted.bins.weight *= factors.unsqueeze(1)
    crafted.bins.bias *= factors
    crafted.back.weight /= factors
    return ALL[0], factors


def rotated(crafted: Imprinted, data: Dataset) -> Living:
    """What is measured is turned by an orthogonal matrix, the same for all rows."""
    matrix = torch.randn(math.prod(SHAPE), math.prod(SHAPE), generator=torch.Generator().manual_seed(1))
    crafted.bins.weight.copy_(crafted.bins.weight @ torch.linalg.qr(matrix)[0])
    return ALL


def permuted(crafted: Imprinted, data: Dataset) -> Living:
    order = torch.randperm(BINS, generator=torch.Generator().manual_seed(1))
    crafted.bins.weight.copy_(crafted.bins.weight[order])
    crafted.bins.bias.copy_(crafted.bins.bias[order])
    return order.argsort(), ALL[1]


def turned_aside(crafted: Imprinted, data: Dataset) -> Living:
    """Every row is turned by 45 degrees towards a direction of its own, in which no image has anything."""
    pixels = data.x_train.flatten(1).double()
    _, values, directions = torch.linalg.svd(pixels, full_matrices=True)
    unused = directions[int((values > 1e-6 * values[0]).sum()) :]
    rows = torch.randn(BINS, len(unused), generator=torch.Generator().manual_seed(1)).double() @ unused
    crafted.bins.weight += (rows / rows.norm(dim=1, keepdim=True) * crafted.bins.weight[0].norm()).float()
    return ALL


def among_others(crafted: Imprinted, data: Dataset) -> Living:
    """The same, and rows among them that never let anything pass, so that their columns behind may be anything."""
    turned_aside(crafted, data)
    generator = torch.Generator().manual_seed(2)
    bins, back = crafted.bins, crafted.back
    crafted.bins, crafted.back = (
        nn.Linear(bins.in_features, 2 * BINS),
        nn.Linear(2 * BINS, bins.in_features, bias=False),
    )
    order = torch.randperm(2 * BINS, generator=generator)
    dead = torch.randn(BINS, bins.in_features, generator=generator) * bins.weight.std()
    columns = torch.randn(bins.in_features, BINS, generator=generator) * back.weight[0, 0]
    crafted.bins.weight.copy_(torch.cat([bins.weight, dead])[order])
    crafted.bins.bias.copy_(torch.cat([bins.bias, torch.full((BINS,), -100.0)])[order])
    crafted.back.weight.copy_(torch.cat([back.weight, columns], dim=1)[:, order])
    return order.argsort()[:BINS], ALL[1]


COPIES, BACK, STEPS = ("bins.weight", "scaled copies"), ("back.weight", "scaled copies"), ("bins.bias", "bins")


@pytest.mark.parametrize(
    ("change", "noticed", "read"),
    [
        (unchanged, {COPIES, STEPS, BACK}, 14),
        (rescaled, {COPIES, STEPS, BACK}, 14),
        (rotated, {COPIES, STEPS, BACK}, 13),
        (permuted, {COPIES, BACK}, 14),
        (turned_aside, {BACK}, 14),
        (among_others, set(), 14),
    ],
)
def test_an_imprint_is_noticed_until_the_server_knows_better(
    data: Dataset, change: Callable[[Imprinted, Dataset], Living], noticed: set[tuple[str, str]], read: int
) -> None:
    """What is noticed, and of 16 images of a sum how many are read at 30 dB and more, which it does not change."""
    crafted = imprint(honest("vit"), data.x_train[VICTIMS:], bins=BINS)
    with torch.no_grad():
        living, factors = change(crafted, data)
    assert {(one.name, one.pattern) for one in suspicious(crafted)} == noticed
    x, y = data.x_train[:VICTIMS], data.y_train[:VICTIMS]
    flat, _ = gradient(crafted, x, y, batch_size=VICTIMS, device=torch.device("cpu"))
    parts = {name: torch.from_numpy(part) for name, part in Layout.of(crafted).split(flat).items()}
    weight, bias = (parts[name][living] for name in ("bins.weight", "bins.bias"))
    bins = {"bins.weight": weight * factors.unsqueeze(1), "bins.bias": bias * factors}
    found = read_imprint(bins, SHAPE, least=1e-3)
    errors = torch.cdist(x.flatten(1).double(), found.flatten(1)).amin(dim=1).square() / math.prod(SHAPE)
    spans = (x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1)).double()
    assert abs(int((errors < 1e-3 * spans.square()).sum()) - read) <= 1


def test_a_model_that_fishes_for_a_class_is_noticed() -> None:
    (found,) = suspicious(fishing(honest("vit"), 3))
    assert found == SuspiciousTensor(name="head.weight", pattern="silent rows", figure=pytest.approx(0.9))


@pytest.mark.parametrize("kind", ["permuted", "rescaled", "rotated", "noise"])
def test_fishing_is_noticed_until_rows_are_not_zero(kind: str) -> None:
    crafted = fishing(honest("vit"), 3)
    head, generator = crafted.get_submodule("head"), torch.Generator().manual_seed(1)
    with torch.no_grad():
        if kind == "rescaled":
            head.weight *= 0.5 + torch.rand(10, 1, generator=generator)
        elif kind == "rotated":
            head.weight.copy_(head.weight @ torch.linalg.qr(torch.randn(32, 32, generator=generator))[0])
        elif kind == "permuted":
            order = torch.randperm(10, generator=generator)
            head.weight.copy_(head.weight[order])
            head.bias.copy_(head.bias[order])
        else:
            head.weight += 1e-6 * torch.randn(10, 32, generator=generator)
    assert [one.pattern for one in suspicious(crafted)] == ([] if kind == "noise" else ["silent rows"])


def test_noise_silences_the_classes_that_are_not_fished_for(data: Dataset) -> None:
    """What two images give is what the one of the class gives, divided by two."""
    crafted = fishing(honest("vit"), 3)
    head = crafted.get_submodule("head")
    with torch.no_grad():
        head.weight += 1e-6 * torch.randn(10, 32, generator=torch.Generator().manual_seed(1))
    fished, other = (int((data.y_train == label).nonzero()[0]) for label in (3, 5))
    both, alone = (
        gradient(crafted, data.x_train[pick], data.y_train[pick], batch_size=2, device=torch.device("cpu"))[0]
        for pick in ([fished, other], [fished])
    )
    embedding = Layout.of(crafted).split
    found, wanted = (embedding(flat)["patch_embed.proj.weight"] for flat in (both * 2, alone))
    assert abs(found - wanted).max() < 1e-3 * abs(wanted).max()


def test_a_block_that_changes_nothing_is_noticed_and_one_that_turns_or_permutes_is_not() -> None:
    model = honest("vit")
    attention = model.get_submodule("blocks.0.attn")
    generator = torch.Generator().manual_seed(1)
    turn, order = torch.linalg.qr(torch.randn(32, 32, generator=generator))[0], torch.randperm(32, generator=generator)
    with torch.no_grad():
        attention.proj.weight.zero_()
        attention.qkv.weight[64:] = 3 * torch.eye(32)
    names = {one.name for one in suspicious(model) if one.pattern == "identity"}
    assert names == {"blocks.0.attn.proj.weight", "blocks.0.attn.qkv.weight"}
    for hidden in (turn, torch.eye(32)[order]):
        with torch.no_grad():
            attention.qkv.weight[64:] = hidden
            attention.proj.weight.copy_(hidden.T)
        assert suspicious(model) == []


def learned(model: nn.Module, data: Dataset, classes: int) -> None:
    some = data.y_train < classes
    rate = TrainingConfiguration(optimizer="adamw", learning_rate=1e-3, epochs=1, batch_size=32)
    train(model, data.x_train[some], data.y_train[some], rate, seed=1, device=torch.device("cpu"))


@pytest.mark.parametrize(("zero", "classes", "alarms"), [(True, 10, []), (False, 3, []), (True, 3, ["scaled copies"])])
def test_a_head_that_began_with_zeros_needs_all_classes(
    data: Dataset, zero: bool, classes: int, alarms: list[str]
) -> None:
    model = honest("vit")
    if zero:
        with torch.no_grad():
            model.get_submodule("head").weight.zero_()
    assert suspicious(model) == []
    learned(model, data, classes)
    assert [one.pattern for one in suspicious(model)] == alarms


@pytest.mark.parametrize(("dead", "alarms"), [(15, []), (16, ["silent rows"])])
def test_dead_rows_are_no_pattern_until_they_are_half_of_all(dead: int, alarms: list[str]) -> None:
    model = nn.Linear(32, 32)
    with torch.no_grad():
        model.weight[:dead] = 0
    assert [one.pattern for one in suspicious(model)] == alarms


@pytest.mark.parametrize(("groups", "alarms"), [(8, []), (1, ["scaled copies"])])
def test_filters_of_single_channels_may_be_alike(groups: int, alarms: list[str]) -> None:
    model = nn.Conv2d(8, 8, 5, groups=groups, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.rand(8, 1, 1, 1) * torch.ones(model.weight.shape))
    assert [one.pattern for one in suspicious(model)] == alarms
