"""Bounds from digits that the model owner knows hold for batches of digits that it does not know."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.federated import Features, FullBatches, Reached, Schedule, federated, rehearsal
from tacit.models.adapters.parallel import FinalNorm, block_outputs, each, initial
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import load
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import STOCK, convert
from tacit.models.networks import build
from tacit.models.partition import dirichlet
from tacit.models.training import CPU, train
from tacit.parties.adaptation.bounds import StepBounds
from tacit.parties.adaptation.head import told_reach
from tacit.parties.adaptation.rehearsed import MARGIN, fitted_learning, rehearsed_bounds
from tacit.parties.adaptation.step import StepSizes
from tacit.parties.inference.model import PublicModel, fitted_model
from tacit.parties.inference.scales import checked_norm
from tacit.parties.inference.tables import BoundError

CONFIGURATION = ParallelConfiguration(rank=4)
SIZES = StepSizes(images=16, tokens=17, width=32, classes=5, adapters=3, rank=4)
RATE = 0.1
TRAINED = 6
"""Epochs of a backbone in measurements; elsewhere one of them is enough."""


@cache
def learner(seed: int, epochs: int) -> tuple[PublicModel, Features, Features]:
    """A model that was trained on the digits 0 to 4, what its blocks leave of these, and of the others."""
    data, model = (
        load(DataConfiguration(), image_size=8),
        ModelConfiguration(image_size=8, patch_size=2, width=32, depth=3, heads=4),
    )
    backbone, known = build(model, classes=5, channels=1, seed=seed), data.y_train < 5
    training = TrainingConfiguration(epochs=epochs, batch_size=32, learning_rate=2e-3)
    train(backbone, data.x_train[known], data.y_train[known], training, seed=seed, device=CPU)
    friendly = convert(backbone, STOCK)
    calibrate(friendly, data.x_train[known], margin=1.5)
    public = fitted_model(friendly.requires_grad_(False), data.x_train[known], margin=1.5).public
    outputs = block_outputs(friendly, data.x_train).double()
    outputs = outputs - outputs.mean(-1, keepdim=True)
    own, new = (
        Features(outputs=outputs[:, part], labels=data.y_train[part] % 5) for part in (known, data.y_train >= 5)
    )
    return public, own, new


@cache
def reached(seed: int, rounds: int = 25, rate: float = RATE, batches: int = 1, epochs: int = 1) -> Reached:
    public, own, _ = learner(seed, epochs)
    schedule = Schedule(rounds=rounds, learning_rate=rate, decay_rounds=())
    epsilon = public.head.norm.variance.inverse.offset
    work = FullBatches(SIZES.images, batches)
    return rehearsal(own, CONFIGURATION, schedule, work, classes=SIZES.classes, epsilon=epsilon, seed=seed)


class Batches:
    """A note of every batch of its own, with the parameters before its step and after it."""

    def __init__(self) -> None:
        self.each: list[Reached] = []
        self._parameters = 0

    def __call__(self, name: str, rows: torch.Tensor) -> None:
        if self._parameters == 2 * len(self.each):
            self.each.append(Reached())
        self.each[-1](name, rows)
        self._parameters += name == "head_bias"


def learnt(seed: int, owners: int, alpha: float, rounds: int = 25, batches: int = 1, epochs: int = 1) -> list[Reached]:
    """Every batch of rounds of owners who learn the other digits."""
    public, _, new = learner(seed, epochs)
    parts = [new.part(part) for part in dirichlet(new.labels.numpy(), clients=owners, alpha=alpha, seed=seed)]
    norm = FinalNorm.plain(SIZES.width, public.head.norm.variance.inverse.offset)
    first = initial(CONFIGURATION, blocks=3, tokens=17, width=32, classes=5, seed=seed)
    schedule, found = Schedule(rounds=rounds, learning_rate=RATE, decay_rounds=()), Batches()
    work = FullBatches(SIZES.images, batches)
    for _ in federated(each(torch.Tensor.double, first), norm, parts, schedule, work, seed=seed, note=found):
        pass
    assert len(found.each) == rounds * owners * batches
    return found.each


def outside(batch: Reached, bounds: StepBounds) -> set[str]:
    most = {
        name: getattr(bounds, name) for name in ("outputs", "inputs", "channels", "tokens", "derivatives", "logits")
    }
    most |= {f"head_{name}" if name in ("weight", "bias") else name: value for name, value in bounds.parameters.items()}
    least, largest = bounds.variances
    found = {name for name, value in most.items() if batch.largest(name) > value}
    in_range = least <= batch.least("deviations") ** 2 and batch.largest("deviations") ** 2 <= largest
    return found if in_range else found | {"variances"}


@pytest.mark.parametrize("alpha", [1.0, 0.01])
def test_batches_of_unknown_digits_are_in_range(alpha: float) -> None:
    fitted = fitted_learning(reached(0), learner(0, 1)[0], SIZES, rate=RATE)
    assert 1.5 <= fitted.margin <= MARGIN
    assert not [outside(batch, fitted.bounds) for batch in learnt(0, 3, alpha) if outside(batch, fitted.bounds)]
    narrow = replace(fitted.bounds, inputs=reached(0).largest("inputs") / 2)
    assert all(outside(batch, narrow) == {"inputs"} for batch in learnt(0, 3, alpha, rounds=2))


@pytest.mark.exhaustive
def test_how_many_batches_are_out_of_range_with_a_margin() -> None:
    """The backbones end elsewhere on other processors, so that a few batches of all are the rule, not none of some."""
    counts = dict.fromkeys((1.0, 1.5, MARGIN, 3.0), 0)
    total = 0
    for seed in (0, 1, 2):
        public, found = learner(seed, TRAINED)[0], reached(seed, epochs=TRAINED)
        for owners in (3, 5):
            for alpha in (1.0, 0.01):
                batches = learnt(seed, owners, alpha, epochs=TRAINED)
                total += len(batches)
                for margin in counts:
                    bounds = rehearsed_bounds(found, public, rate=RATE, classes=SIZES.classes, margin=margin)
                    refused = [names for batch in batches if (names := outside(batch, bounds))]
                    fits = fitted_learning(found, public, SIZES, rate=RATE, margin=margin).margin
                    print(
                        f"seed {seed}, {owners} owners, alpha {alpha}, margin {margin}: {len(refused)} of "
                        f"{len(batches)} out of range {sorted(set().union(*refused))}, {fits} fits"
                    )
                    assert min(margin, MARGIN) <= fits <= margin
                    counts[margin] += len(refused)
    assert sorted(counts.values(), reverse=True) == list(counts.values())
    assert counts[MARGIN] <= total / 100 < counts[1.0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_several_batches_a_round_are_in_range_where_the_margin_fits(seed: int) -> None:
    """Larger steps reach further, so that the rings may hold a smaller margin only, which is said."""
    found, public = reached(seed, batches=4, epochs=TRAINED), learner(seed, TRAINED)[0]
    fitted = fitted_learning(found, public, SIZES, rate=RATE)
    batches = learnt(seed, 3, 1.0, batches=4, epochs=TRAINED)
    bounds = rehearsed_bounds(found, public, rate=RATE, classes=SIZES.classes, margin=MARGIN)
    refused, with_room = (sum(bool(outside(batch, of)) for batch in batches) for of in (fitted.bounds, bounds))
    print(f"seed {seed}: {fitted.margin} fits, {refused} of {len(batches)} out of range, {with_room} with {MARGIN}")
    assert 1 <= fitted.margin <= MARGIN
    assert with_room <= refused
    assert with_room <= len(batches) / 50


def test_logits_have_no_more_room_than_a_softmax_is_told_of() -> None:
    """What is easiest to learn would reach logits that no table of sums holds; nothing else is narrower for it."""
    found = Reached()
    found("logits", torch.tensor([[40.0]]))
    bounds = rehearsed_bounds(found, learner(0, 1)[0], rate=RATE, classes=SIZES.classes)
    assert 9 < bounds.logits < 10
    assert told_reach(SIZES.classes, bounds.logits) == bounds.logits
    assert told_reach(SIZES.classes, 2.0) == 2


def test_a_margin_that_does_not_fit_shrinks() -> None:
    public = learner(0, 1)[0]
    fitted = fitted_learning(reached(0), public, SIZES, rate=RATE, margin=8.0)
    assert 1 <= fitted.margin < 8
    assert fitted.bounds == rehearsed_bounds(reached(0), public, rate=RATE, classes=SIZES.classes, margin=fitted.margin)
    # The largest that fits: a quarter more does not.
    more = fitted.margin + 0.25
    assert fitted_learning(reached(0), public, SIZES, rate=RATE, margin=more).margin == fitted.margin


def test_a_rehearsal_that_does_not_fit_at_all_is_refused_with_a_remedy() -> None:
    found = reached(0, rounds=6, rate=1.0)
    with pytest.raises(BoundError, match=r"with no margin at all: .*\. Take a smaller learning rate, fewer rounds"):
        fitted_learning(found, learner(0, 1)[0], SIZES, rate=1.0, margin=1.0)


@pytest.mark.parametrize("margin", [0.9, float("nan")])
def test_a_margin_below_one_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match=f"a margin of {margin} is below 1"):
        fitted_learning(reached(0), learner(0, 1)[0], SIZES, rate=RATE, margin=margin)


def test_what_blocks_leave_in_range_is_within_the_bound() -> None:
    """Of all blocks but the last the next norm checks it; the scale of the stream has room for what the last leaves."""
    public = learner(0, 1)[0]
    bounds = rehearsed_bounds(reached(0), public, rate=RATE, classes=SIZES.classes)
    width = public.sizes.width
    assert bounds.outputs >= max(
        checked_norm(scales.first_norm, width, public.stream) / min(scales.first_norm.lift)
        for scales in public.blocks[1:]
    )
    assert reached(0).largest("outputs") < bounds.outputs
    assert bounds.epsilon == 1e-6
