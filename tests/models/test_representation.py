"""Representational similarity, against the formulas of the paper written out with NumPy and scipy."""

import re
from itertools import combinations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import pdist
from torch import nn

from tacit.models.configuration import ModelConfiguration
from tacit.models.networks import build
from tacit.models.representation import PAIRS, Representation, consistency, pairs
from tacit.models.stimuli import FEWEST_STIMULI, MOST_STIMULUS_BYTES, Stimuli, stimulus_indices

CPU = torch.device("cpu")
SHAPE = (1, 16, 16)
IMAGES = torch.randn(12, *SHAPE, generator=torch.Generator().manual_seed(3))
LENET = ModelConfiguration(name="lenet", image_size=16)


def lenet(seed: int) -> nn.Module:
    return build(LENET, classes=4, channels=1, seed=seed)


def representation(stimuli: Stimuli) -> Representation:
    return Representation(lenet(0), stimuli, granularity="layer", shape=SHAPE, device=CPU)


def test_distances_are_euclidean_between_the_outputs_of_every_layer() -> None:
    stimuli = Stimuli.of(IMAGES)
    model = lenet(1).eval()
    chosen = pairs(len(IMAGES))
    every = list(combinations(range(len(IMAGES)), 2))
    picked = [every.index((int(i), int(j))) for i, j in chosen]
    x, expected = stimuli.tensor(), []
    with torch.no_grad():
        for name in ("conv1", "conv2", "conv3"):
            x = torch.sigmoid(model.get_submodule(name)(x))
            expected.append(pdist(x.flatten(1).double().numpy())[picked])
        expected.append(pdist(model.get_submodule("fc")(x.flatten(1)).double().numpy())[picked])
    found = representation(stimuli).distances(model)
    assert found.shape == (4, PAIRS)
    # Differences of float32 outputs, of which the largest is below 32: 2^-24 of it in each of at most 768 dimensions.
    assert np.abs(found - np.array(expected)).max() < 32 * 2.0**-24 * np.sqrt(768)


def test_pairs_are_different_images_drawn_once_and_for_all() -> None:
    chosen = pairs(20)
    assert chosen.shape == (PAIRS, 2)
    assert (chosen[:, 0] < chosen[:, 1]).all()
    assert len({tuple(pair) for pair in chosen.tolist()}) == PAIRS
    assert np.array_equal(chosen, pairs(20))
    # Not just the first ones: all images take part.
    assert set(chosen.reshape(-1).tolist()) == set(range(20))
    assert sorted(map(tuple, pairs(4).tolist())) == list(combinations(range(4), 2)), "fewer than E: all"
    assert np.array_equal(pairs(20, 7), chosen[:7])


def test_fewer_pairs_are_compared_on_the_images_in_them_alone() -> None:
    stimuli, model = Stimuli.of(IMAGES), lenet(1)
    few = Representation(lenet(0), stimuli, granularity="layer", shape=SHAPE, device=CPU, count=4)
    shown: list[int] = []
    handle = model.register_forward_pre_hook(lambda module, given: shown.append(len(given[0])))
    found = few.distances(model)
    handle.remove()
    assert shown == [len({*pairs(len(IMAGES), 4).reshape(-1).tolist()})]
    assert shown[0] < len(IMAGES)
    # Of outputs of one model for the same images, in batches of another size.
    assert found == pytest.approx(representation(stimuli).distances(model)[:, :4], rel=1e-5)


vectors = st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5)


@given(vectors, vectors)
def test_consistency_is_the_squared_pearson_correlation(a: list[float], b: list[float]) -> None:
    if np.std(a) < 1e-3 or np.std(b) < 1e-3:
        return
    found = consistency(np.array([a]), np.array([b]))[0]
    assert found == pytest.approx(stats.pearsonr(a, b).statistic ** 2, abs=1e-6)
    assert -1e-12 <= found <= 1 + 1e-12


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([2, 2, 2], [5, 5, 5], 1.0),
        ([0, 0, 0], [0, 0, 0], 1.0),
        ([2, 2, 2], [1, 2, 3], 0.0),
        ([1, 2, 3], [0, 0, 0], 0.0),
    ],
)
def test_representations_without_variance(a: list[float], b: list[float], expected: float) -> None:
    assert consistency(np.array([a], np.float64), np.array([b], np.float64)).tolist() == [expected]


def test_permuted_and_rotated_features_are_the_same_representation() -> None:
    """Distances do not see how the features of a layer are named: conv1's channels may change places."""
    own = representation(Stimuli.of(IMAGES))
    model, permuted = lenet(1), lenet(1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name in ("conv1.weight", "conv1.bias"):
            permuted.get_parameter(name).copy_(model.get_parameter(name)[order])
        permuted.get_parameter("conv2.weight").copy_(model.get_parameter("conv2.weight")[:, order])
    assert own.distances(permuted) == pytest.approx(own.distances(model), rel=1e-5)


def test_stimuli_travel_as_bytes() -> None:
    stimuli = Stimuli.of(IMAGES)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(stimuli), type=Stimuli)
    assert again == stimuli
    # Half a step of 255, and the rounding of float32.
    bound = (stimuli.high - stimuli.low) / 510 + 1e-6
    assert (stimuli.tensor() - IMAGES).abs().max() <= bound
    assert stimuli.tensor().dtype == torch.float32


def test_two_of_every_class_serve_as_stimuli() -> None:
    labels = np.arange(100) % 7
    chosen = stimulus_indices(labels, 7)
    assert np.bincount(labels[chosen]).tolist() == [2] * 7
    assert np.array_equal(chosen, stimulus_indices(labels, 7))
    assert np.bincount(labels[stimulus_indices(np.array([0, 0, 0, 1]), 2)][:0]).sum() == 0
    assert len(stimulus_indices(np.array([0, 0, 0, 1]), 2)) == 3, "a class with one image gives that one"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"shape": (12, 1, 16, 15)}, "stimuli of 3072 bytes are not images of shape [12, 1, 16, 15]"),
        ({"shape": (12, 256)}, "not images of shape [12, 256]"),
        ({"low": 2.0, "high": 1.0}, "are not images of shape"),
        ({"shape": (65536,) * 4, "pixels": b""}, "stimuli of 0 bytes are not images of shape"),  # 2^64 values
        (
            {"shape": (2, 1, 16, 16), "pixels": bytes(512)},
            f"2 stimuli are too few to compare; at least {FEWEST_STIMULI}",
        ),
    ],
)
def test_other_stimuli_are_refused(change: dict[str, object], complaint: str) -> None:
    fields = msgspec.structs.asdict(Stimuli.of(IMAGES)) | change
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Stimuli(**fields)
    with pytest.raises(msgspec.ValidationError, match=re.escape(complaint)):
        msgspec.convert(fields, Stimuli)


def test_more_than_fit_a_message_are_refused() -> None:
    with pytest.raises(ValueError, match=r"5 stimuli of 1 x 1024 x 1024 values are more than 4 MiB.*image_size"):
        Stimuli.of(torch.empty(1, 1, 1, 1).expand(5, 1, 1024, 1024))
    assert MOST_STIMULUS_BYTES < 5 * 1024 * 1024


def test_stimuli_of_another_shape_than_the_models_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("the stimuli have shape [1, 16, 16], and the images of this model")):
        Representation(lenet(0), Stimuli.of(IMAGES), granularity="layer", shape=(3, 16, 16), device=CPU)
