"""What FedCG trains in one step, against the formulas of Wu et al. 2022 written out."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softplus

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.fedcg import NOISE, RATE, CoupledModel, Discriminator, attraction, discriminator, distil, train_client
from tacit.models.layout import Layout
from tacit.models.networks import build

CPU = torch.device("cpu")
COUNT, SEED, STEP = 6, 9, 0.5
LENET = ModelConfiguration(name="lenet", image_size=16)

Gradients = list[torch.Tensor | None]


def model(seed: int = 0) -> CoupledModel:
    network = build(LENET, classes=3, channels=1, seed=seed)
    return CoupledModel(network, "conv3", shape=(1, 16, 16), classes=3, squash=False, seed=seed)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(COUNT, 1, 16, 16, generator=generator), torch.randint(3, (COUNT,), generator=generator)


def halves(network: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    features = torch.sigmoid(network.conv2(torch.sigmoid(network.conv1(x))))  # type: ignore[operator]
    return features, network.fc(torch.sigmoid(network.conv3(features)).flatten(1))  # type: ignore[operator]


def gradients(loss: torch.Tensor, module: nn.Module) -> Gradients:
    return [*torch.autograd.grad(loss, [*module.parameters()], allow_unused=True)]


def assert_first_step_of_adam(before: nn.Module, after: nn.Module, found: Gradients) -> None:
    """The first step of Adam is g / (|g| + 1e-8); where g is no more than rounding its sign means nothing."""
    compared = 0
    for old, new, gradient in zip(before.parameters(), after.parameters(), found, strict=True):
        if gradient is None:
            assert torch.equal(old, new)
            continue
        sure = gradient.abs() > 1e-6
        expected = old - RATE * gradient / (gradient.abs() + 1e-8)
        # A gradient of 1e-6 is uncertain by some 1e-8 in float32, which the quotient forgets.
        torch.testing.assert_close(new[sure], expected[sure], rtol=0, atol=RATE / 50)
        compared += int(sure.sum())
    assert compared > 100, "or nothing would be compared"


@pytest.mark.parametrize(
    ("round", "gamma"), [(1, 0.0), (26, 2 / (1 + math.exp(-5)) - 1), (51, 0.9999092), (300, 0.9999092)]
)
def test_attraction_grows_with_the_rounds(round: int, gamma: float) -> None:
    assert attraction(round) == pytest.approx(gamma, abs=1e-7)


@pytest.mark.parametrize("round", [1, 30])
def test_a_client_takes_the_steps_of_the_formulas(round: int) -> None:
    """One batch of plain gradient descent for extractor and classifier, then one of Adam for the other two."""
    (x, y), coupled = images(), model()
    judge = discriminator(coupled, 3)
    trained, trained_judge = deepcopy(coupled), deepcopy(judge)
    configuration = TrainingConfiguration(
        epochs=1, batch_size=COUNT, optimizer="sgd", learning_rate=STEP, weight_decay=0.0
    )
    state = torch.get_rng_state()
    statistics = train_client(trained, trained_judge, x, y, configuration, round=round, seed=SEED, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)

    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(SEED))
    x, y = x[order], y[order]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        noise = torch.randn(COUNT, NOISE)
    features, logits = halves(coupled.network, x)
    distance = (features - coupled.generator.eval()(noise, y)).square().mean()
    loss = cross_entropy(logits, y) + attraction(round) * distance
    for old, new, gradient in zip(
        coupled.network.parameters(), trained.network.parameters(), gradients(loss, coupled.network), strict=True
    ):
        assert gradient is not None
        # Sums of at most some hundred terms below 1 in float32.
        torch.testing.assert_close(new, old - STEP * gradient, rtol=0, atol=1e-5)
    assert statistics.samples == COUNT
    assert statistics.loss_sum == pytest.approx(cross_entropy(logits, y, reduction="sum").item(), rel=1e-5)

    with torch.no_grad():
        features, _ = halves(trained.network, x)
    generated = coupled.generator.train()(noise, y)
    truth = softplus(-judge(features, y)).mean() + softplus(judge(generated.detach(), y)).mean()
    assert_first_step_of_adam(judge, trained_judge, gradients(truth, judge))
    # In training mode batch normalisation looks at its batch alone, whatever it has gathered.
    deceived = softplus(-trained_judge(generated, y)).mean()
    assert_first_step_of_adam(coupled.generator, trained.generator, gradients(deceived, coupled.generator))


def test_an_epoch_goes_over_every_image_for_all_networks() -> None:
    """Two batches an epoch: batch normalisation counts them, and not where a network stands still."""
    x, y = images()
    network = build(ModelConfiguration(name="convnet", image_size=9), classes=3, channels=1, seed=0)
    coupled = CoupledModel(network, "conv1", shape=(1, 9, 9), classes=3, squash=True, seed=0)
    judge: Discriminator = discriminator(coupled, 3)
    configuration = TrainingConfiguration(epochs=2, batch_size=4)
    statistics = train_client(coupled, judge, x[:, :, :9, :9], y, configuration, round=2, seed=SEED, device=CPU)
    assert statistics.samples == COUNT
    # The generator makes features once for each batch; the discriminator sees the truth, and twice what was made.
    assert coupled.generator.norms[0].num_batches_tracked == 4
    assert judge.norms[0].num_batches_tracked == 12
    assert network.get_submodule("bn0").num_batches_tracked == network.get_submodule("bn8").num_batches_tracked == 4


def test_the_server_takes_the_step_of_the_formula() -> None:
    student, teachers = model(0), [(model(seed), share) for seed, share in ((1, 0.2), (2, 0.5), (3, 0.3))]
    before, kept = deepcopy(student), [Layout.of(teacher).flatten(teacher) for teacher, _ in teachers]
    state = torch.get_rng_state()
    distil(student, teachers, steps=1, batch_size=COUNT, seed=SEED, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    for (teacher, _), flat in zip(teachers, kept, strict=True):
        assert Layout.of(teacher).flatten(teacher).tobytes() == flat.tobytes()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        labels = torch.randint(3, (COUNT,))
        noise = torch.randn(COUNT, NOISE)

    def logits(coupled: CoupledModel) -> torch.Tensor:
        features = coupled.generator(noise, labels)
        network = coupled.network
        return network.fc(torch.sigmoid(network.conv3(features)).flatten(1))  # type: ignore[no-any-return, operator]

    with torch.no_grad():
        together = torch.stack([share * logits(teacher.eval()) for teacher, share in teachers]).sum(dim=0)
    wanted, said = together.softmax(dim=1), logits(before.train()).softmax(dim=1)
    loss = (wanted * (wanted / said).log()).sum() / COUNT
    assert_first_step_of_adam(before, student, gradients(loss, before))


def test_an_extractor_with_batch_normalisation_stands_still_while_the_server_trains() -> None:
    """One image takes part in the classifier, on which batch normalisation could not train."""

    def made(seed: int) -> CoupledModel:
        network = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 4), nn.BatchNorm1d(4))
        return CoupledModel(network, "3", shape=(1, 2, 2), classes=4, squash=True, seed=seed)

    student, before = made(0), made(0)
    before.load_state_dict(student.state_dict())
    distil(student, [(made(1), 1.0)], steps=1, batch_size=8, seed=SEED, device=CPU)
    moved = {
        name
        for name, tensor in student.network.state_dict().items()
        if not torch.equal(tensor, before.network.state_dict()[name])
    }
    assert moved >= {"3.weight", "4.weight", "4.bias", "4.running_mean"}
    assert not any(name.startswith(("1.", "2.")) for name in moved)


def test_the_student_comes_to_agree_with_its_teachers() -> None:
    student, teachers = model(0), [(model(1), 0.5), (model(2), 0.5)]
    labels, noise = torch.randint(3, (64,)), torch.randn(64, NOISE)

    @torch.no_grad()
    def disagreement() -> float:
        said = [
            coupled.eval().classify(coupled.generator(noise, labels))
            for coupled in (student, *(t for t, _ in teachers))
        ]
        together = (said[1] + said[2]) / 2
        return float((together.softmax(1) - said[0].softmax(1)).abs().sum(dim=1).mean())

    before = disagreement()
    distil(student, teachers, steps=30, batch_size=16, seed=SEED, device=CPU)
    assert disagreement() < 0.8 * before
