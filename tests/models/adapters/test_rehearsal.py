"""What is noted of a step, and that a rehearsal goes through single classes, all, and what is learned by heart."""

import math

import numpy as np
import pytest
import torch

from tacit.models.adapters.configuration import LinearProbeConfiguration, ParallelConfiguration
from tacit.models.adapters.federated import Features, FullBatches, Reached, Schedule, rehearsal
from tacit.models.adapters.gradients import descent
from tacit.models.adapters.parallel import QUADRATIC_GELU, AdapterParameters, FinalNorm, logits, mix

SCHEDULE = Schedule(rounds=6, learning_rate=0.1, decay_rounds=())


def features(images: int = 24, classes: int = 3, seed: int = 0) -> Features:
    """Outputs of two blocks, 5 tokens of 8 values, that tell classes apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % classes
    means = torch.randn(2, classes, 5, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, images, 5, 8, generator=generator, dtype=torch.float64)
    return Features(outputs=means[:, labels] + noise / 4, labels=labels)


def rehearsed(own: Features, classes: int = 3, seed: int = 0, batches: int = 1) -> Reached:
    return rehearsal(
        own, ParallelConfiguration(rank=2), SCHEDULE, FullBatches(8, batches), classes=classes, epsilon=1e-6, seed=seed
    )


def test_what_is_noted_of_a_step_is_what_it_computes(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> None:
    reached = Reached()
    assert descent(parameters, norm, outputs, labels, note=reached) == descent(parameters, norm, outputs, labels)
    leaf, by_hidden = outputs[-1].clone().requires_grad_(), []
    hidden, expected = leaf, {"inputs": 0.0, "channels": 0.0, "tokens": 0.0}
    for block, scale in enumerate(parameters.scale):
        z = outputs[block] + hidden
        with torch.no_grad():
            mixed = mix(parameters, block, z, QUADRATIC_GELU)
        for name, rows in (("inputs", z), ("channels", mixed.channels), ("tokens", mixed.tokens)):
            expected[name] = max(expected[name], rows.norm(dim=-1).max().item())
        hidden = hidden + scale * mix(parameters, block, z, QUADRATIC_GELU).added
        hidden.retain_grad()
        by_hidden.append(hidden)
    told = norm(hidden[:, 0]) @ parameters.head_weight.T + parameters.head_bias
    torch.nn.functional.cross_entropy(told, labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    gradients = [part.grad for part in by_hidden if part.grad is not None]
    expected["derivatives"] = max(gradient.flatten(1).norm(dim=-1).max().item() for gradient in gradients)
    expected["outputs"] = outputs.norm(dim=-1).max().item()
    plain = logits(parameters, norm, outputs)
    expected["logits"] = (plain - plain.mean(-1, keepdim=True)).abs().max().item()
    expected["channel_up"] = max(part.norm().item() for part in parameters.channel_up)
    expected["scale"] = parameters.scale.abs().max().item()
    expected["head_weight"] = parameters.head_weight.norm().item()
    variances = hidden[:, 0].var(-1, unbiased=False)
    expected["deviations"] = math.sqrt(variances.max().item())
    # Sums of some hundred products in another order.
    assert {name: reached.largest(name) for name in expected} == pytest.approx(expected, rel=1e-10)
    assert reached.least("deviations") == pytest.approx(math.sqrt(variances.min().item()), rel=1e-10)
    assert reached.least("nothing") == reached.largest("nothing") == 0


def test_a_rehearsal_follows_from_its_arguments() -> None:
    own, names = features(), ("inputs", "derivatives", "logits", "token_up", "head_weight")
    one, again, other = (rehearsed(own, seed=seed) for seed in (0, 0, 1))
    assert all(one.largest(name) == again.largest(name) for name in names)
    assert all(one.largest(name) != other.largest(name) for name in names)


def test_the_parameters_after_the_last_step_are_noted() -> None:
    """Of an owner alone: a mean over owners, with which no step begins, is smaller."""
    own, one = features(), Schedule(rounds=1, learning_rate=0.1, decay_rounds=())
    reached = rehearsal(own, LinearProbeConfiguration(), one, FullBatches(8, 1), classes=3, epsilon=1e-6, seed=0)
    # Of one class: two thirds of each token push its row up, a third each of the other rows down.
    tokens = own.outputs[-1, own.labels == 0, 0]
    tokens = tokens - tokens.mean(-1, keepdim=True)
    mean = (tokens / (tokens.square().mean(-1, keepdim=True) + 1e-6).sqrt()).mean(0).norm().item()
    assert reached.largest("head_weight") >= 0.1 * math.sqrt(2 / 3) * mean


def test_more_steps_reach_further() -> None:
    few, many = rehearsed(features()), rehearsed(features(), batches=4)
    assert all(many.largest(name) > few.largest(name) for name in ("logits", "channel_up", "token_up", "head_weight"))


def test_a_short_rehearsal_counts_images_that_it_did_not_draw() -> None:
    own = features(images=400)
    own.outputs[:, 99::100] *= 10
    short, epsilon = Schedule(rounds=1, learning_rate=1e-6, decay_rounds=()), 1e-6
    found = rehearsal(own, ParallelConfiguration(rank=2), short, FullBatches(2, 1), classes=3, epsilon=epsilon, seed=0)
    # Adapters add nothing yet: what passes is the last block's outputs, and twice the largest of both at most.
    centred = own.outputs - own.outputs.mean(-1, keepdim=True)
    assert found.largest("inputs") == pytest.approx((centred + centred[-1]).norm(dim=-1).max().item(), rel=1e-3)
    assert found.largest("deviations") == pytest.approx(centred[-1, :, 0].norm(dim=-1).max().item() / 8**0.5, rel=1e-3)


def test_the_mean_of_a_token_does_not_count() -> None:
    own = features()
    shifted = Features(outputs=own.outputs + 5, labels=own.labels)
    # 16 digits, of values around 5.
    assert rehearsed(shifted).largest("inputs") == pytest.approx(rehearsed(own).largest("inputs"), rel=1e-10)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_there_may_be_fewer_or_more_classes_than_labels(classes: int) -> None:
    assert rehearsed(features(), classes=classes).largest("logits") > 0


def test_what_is_learned_by_heart_moves_adapters_whose_labels_say_nothing() -> None:
    """With one label of its own there is nothing to learn but by heart, and the head alone cannot."""
    own = features(classes=1)
    assert rehearsed(own).largest("token_up") > 0.01


def test_of_linear_probing_nothing_passes_an_adapter() -> None:
    found = rehearsal(
        features(), LinearProbeConfiguration(), SCHEDULE, FullBatches(8, 1), classes=3, epsilon=1e-6, seed=0
    )
    assert found.largest("inputs") == found.largest("channel_down") == found.largest("derivatives") == 0
    assert min(found.largest(name) for name in ("logits", "head_weight", "deviations")) > 0


def test_full_batches_are_full_and_come_again_where_images_are_few() -> None:
    batches = list(FullBatches(4, 3).batches(5, np.random.default_rng(0)))
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert sorted(np.concatenate(batches)[:5].tolist()) == sorted(np.concatenate(batches)[5:10].tolist()) == [*range(5)]


@pytest.mark.parametrize(("images", "classes"), [(0, 3), (4, 1)])
def test_nothing_to_rehearse_is_refused(images: int, classes: int) -> None:
    with pytest.raises(ValueError, match=f"a rehearsal on {images} images for {classes} classes"):
        rehearsed(features(images), classes=classes)
