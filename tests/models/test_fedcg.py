"""A network cut in two with a generator of its features, against the network alone and the published sizes."""

import re

import pytest
import torch

from tacit.models import split
from tacit.models.configuration import ModelConfiguration
from tacit.models.fedcg import NOISE, CoupledModel, Discriminator, Generator, discriminator
from tacit.models.layout import Layout
from tacit.models.networks import build

SHAPES = [(12, 4, 4), (16, 5, 5), (3, 1, 1), (2, 6, 1), (2, 3, 7), (4, 32, 32), (17, 8), (1, 8), (9,)]


def coupled(name: str, *, cut: str = "", size: int = 32, classes: int = 10, squash: bool = True) -> CoupledModel:
    sizes = {"width": 16, "heads": 2, "depth": 3} if name == "vit" else {}
    configuration = ModelConfiguration(name=name, image_size=size, **sizes)
    network = build(configuration, classes=classes, channels=3, seed=0)
    first = cut or split.first_shared(configuration, "")
    return CoupledModel(network, first, shape=(3, size, size), classes=classes, squash=squash, seed=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_features_of_every_shape_are_made_and_told_apart(shape: tuple[int, ...]) -> None:
    generator, judge = Generator(shape, 4), Discriminator(shape, 4)
    labels = torch.tensor([0, 3, 3])
    noise = torch.randn(3, NOISE, generator=torch.Generator().manual_seed(0))
    made = generator(noise, labels)
    assert made.shape == (3, *shape)
    assert ((made > 0) & (made < 1)).all()
    said = judge(made, labels)
    assert said.shape == (3,)
    # Every coordinate counts for both, and so do class and noise.
    generator.eval()
    judge.eval()
    features = generator(noise, labels).detach().requires_grad_()
    torch.autograd.backward(judge(features, labels).sum())
    assert features.grad is not None
    assert features.grad.any(dim=0).all()
    with torch.no_grad():
        assert (generator(noise, (labels + 1) % 4) != features).any()
        assert (generator(-noise, labels) != features).any()
        assert (judge(features, (labels + 1) % 4) != judge(features, labels)).all()


def test_tokens_are_a_map_of_one_column() -> None:
    """The same weights on the width as channels and the tokens as height."""
    labels = torch.tensor([0, 3])
    noise = torch.randn(2, NOISE, generator=torch.Generator().manual_seed(0))
    of_map, of_tokens = Generator((8, 17, 1), 4).eval(), Generator((17, 8), 4).eval()
    of_tokens.load_state_dict(of_map.state_dict())
    judge_of_map, judge_of_tokens = Discriminator((8, 17, 1), 4).eval(), Discriminator((17, 8), 4).eval()
    judge_of_tokens.load_state_dict(judge_of_map.state_dict())
    with torch.no_grad():
        tokens = of_tokens(noise, labels)
        as_map = tokens.transpose(1, 2)[..., None]
        assert torch.equal(of_map(noise, labels), as_map)
        assert torch.equal(judge_of_tokens(tokens, labels), judge_of_map(as_map, labels))


def test_places_of_a_map_do_not_look_alike() -> None:
    """The feature of every place has weights of its own on the way from the noise."""
    with torch.no_grad():
        made = Generator((1, 5, 5), 2).eval()(torch.ones(1, NOISE), torch.zeros(1, dtype=torch.int64))
    assert len(set(made.flatten().tolist())) == 25


@pytest.mark.parametrize(("name", "squash"), [("lenet", False), ("convnet", True), ("resnet18", True), ("vit", True)])
def test_the_classifier_goes_on_where_the_extractor_ends(name: str, squash: bool) -> None:
    model = coupled(name, size=18 if name != "vit" else 16, squash=squash).eval()
    images = torch.randn(3, 3, *model._blank.shape[2:], generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        with model.observed() as seen:
            logits = model(images)
        (features,) = seen
        assert features.shape[1:] == model.shape
        assert ((features >= 0) & (features <= 1)).all()
        # Convolutions may choose another order of summation for another number of images.
        torch.testing.assert_close(model.classify(features), logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(images), logits)
        single = torch.cat([model.classify(one[None]) for one in features])
        torch.testing.assert_close(single, logits, rtol=1e-4, atol=1e-5)


def test_a_network_with_sigmoids_of_its_own_stays_as_it_is() -> None:
    network = build(ModelConfiguration(name="lenet", image_size=16), classes=10, channels=3, seed=0).eval()
    model = coupled("lenet", size=16, squash=False).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(model(images), network(images))
        assert not torch.equal(coupled("lenet", size=16).eval()(images), network(images))


def test_random_weights_follow_from_the_seed_alone() -> None:
    layout, state = Layout.of(coupled("lenet", size=16)), torch.get_rng_state()
    flats = [layout.flatten(coupled("lenet", size=16)).tobytes() for _ in range(2)]
    assert flats[0] == flats[1]
    weights = [next(discriminator(coupled("lenet", size=16), seed).parameters()) for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert torch.equal(torch.get_rng_state(), state), "and the global generator is left as it was"


@pytest.mark.parametrize(("name", "gigabytes"), [("lenet", 9.25), ("convnet", 20.57), ("resnet18", 126.23)])
def test_what_is_shared_has_about_the_published_size(name: str, gigabytes: float) -> None:
    """Chen et al. 2023, Table II: 300 rounds of ten clients. Their generators are not described."""
    configuration = ModelConfiguration(name=name)
    model = coupled(name, classes=43)
    kept = split.extractor(Layout.of(model.network), configuration, "")
    shared = sum(entry.size for entry in Layout.of(model).entries if entry.name.removeprefix("network.") not in kept)
    assert 4 * shared * 3000 / 2**30 == pytest.approx(gigabytes, rel=0.08)


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("vit", "blocks.1.attn"),
        ("vit", "blocks.1.mlp.fc2"),
        ("resnet18", "layer3.0.conv2"),
        ("resnet18", "layer2.0.bn1"),
    ],
)
def test_a_cut_inside_of_a_residual_block_is_refused(name: str, cut: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f'behind the input of "{cut}" reads something before it as well')):
        coupled(name, cut=cut)
