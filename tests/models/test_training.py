import warnings

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score
from torch import nn
from torch.nn.functional import cross_entropy

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import load
from tacit.models.interruption import Interrupted
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.models.partition import divide
from tacit.models.training import Evaluation, LocalStatistics, evaluate, gradient, pass_bytes, seeded, train

CPU = torch.device("cpu")
EPSILON = 2.0**-24  # unit roundoff of float32

Images = tuple[torch.Tensor, torch.Tensor]


def images(count: int) -> Images:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def test_gradient_agrees_with_double_precision(small_model: nn.Module) -> None:
    x, y = images(10)
    flat, statistics = gradient(small_model, x, y, batch_size=4, device=CPU)
    layout = Layout.of(small_model)
    loss_sum = cross_entropy(small_model(x), y, reduction="sum").item()

    small_model.double()
    cross_entropy(small_model(x.double()), y).backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in small_model.named_parameters()}
    expected = np.concatenate([gradients[entry.name].numpy().ravel() for entry in layout.entries])  # type: ignore[union-attr]
    # Forward and backward pass form a chain of some 20 sums of at most 50 terms: below 1000 roundings.
    assert flat.dtype == np.float32
    assert np.linalg.norm(flat - expected) < 1000 * EPSILON * np.linalg.norm(expected)
    assert statistics.samples == 10
    assert statistics.loss_sum == pytest.approx(loss_sum, rel=1000 * EPSILON)


def test_gradient_does_not_depend_on_the_batch_size(small_model: nn.Module) -> None:
    x, y = images(10)
    whole, _ = gradient(small_model, x, y, batch_size=100, device=CPU)
    single, _ = gradient(small_model, x, y, batch_size=1, device=CPU)
    assert np.linalg.norm(whole - single) < 1000 * EPSILON * np.linalg.norm(whole)


def test_the_gradient_is_of_what_is_trained() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[3].weight.requires_grad_(False)
    flat, _ = gradient(model, *images(4), batch_size=4, device=CPU)
    parts = Layout.summed(model, buffers="fixed").split(flat)
    assert list(parts) == ["1.weight", "1.bias", "2.weight", "2.bias", "3.bias"]
    assert all(part.any() for part in parts.values())


def test_gradient_leaves_the_model_as_it_was(small_model: nn.Module) -> None:
    layout = Layout.of(small_model)
    before = layout.flatten(small_model)
    first, _ = gradient(small_model, *images(4), batch_size=2, device=CPU)
    second, _ = gradient(small_model, *images(4), batch_size=2, device=CPU)
    assert layout.flatten(small_model).tobytes() == before.tobytes()
    assert first.tobytes() == second.tobytes()


def test_one_step_of_sgd_follows_the_gradient(small_model: nn.Module) -> None:
    x, y = images(1)
    layout = Layout.of(small_model)
    before = layout.flatten(small_model)
    step, _ = gradient(small_model, x, y, batch_size=1, device=CPU)
    configuration = TrainingConfiguration(epochs=1, optimizer="sgd", learning_rate=0.5, weight_decay=0.25)
    train(small_model, x, y, configuration, seed=0, device=CPU)
    expected = before - np.float32(0.5) * (step + np.float32(0.25) * before)
    # The same gradient, then at most four roundings of terms no larger than these.
    assert (np.abs(layout.flatten(small_model) - expected) <= 4 * EPSILON * (np.abs(before) + np.abs(step))).all()


def test_every_image_is_seen_once_in_an_epoch() -> None:
    seen: list[int] = []

    class Recorder(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.extend(inputs[:, 0, 0, 0].int().tolist())
            return super().forward(inputs.flatten(1)[:, :1])

    x = torch.arange(7.0).reshape(7, 1, 1, 1)
    y = torch.zeros(7, dtype=torch.int64)
    train(Recorder(1, 3), x, y, TrainingConfiguration(epochs=2, batch_size=3), seed=0, device=CPU)
    assert sorted(seen[:7]) == sorted(seen[7:]) == list(range(7))
    assert seen[:7] != seen[7:]


def test_training_depends_on_nothing_but_its_arguments(small_configuration: ModelConfiguration) -> None:
    def trained(seed: int) -> tuple[bytes, LocalStatistics]:
        model = nn.Sequential(nn.Dropout(0.2), build(small_configuration, classes=3, channels=1, seed=1))
        configuration = TrainingConfiguration(epochs=2, batch_size=3)
        statistics = train(model, *images(8), configuration, seed=seed, device=CPU)
        return Layout.of(model).flatten(model).tobytes(), statistics

    torch.manual_seed(5)
    first = trained(1)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    assert trained(1) == first
    assert trained(2)[0] != first[0]


def test_statistics_are_those_of_the_last_epoch(small_model: nn.Module) -> None:
    x, y = images(6)
    evaluation = evaluate(small_model, x, y, batch_size=6, device=CPU)
    one = TrainingConfiguration(epochs=1, batch_size=6)
    first = train(small_model, x, y, one, seed=0, device=CPU)
    # One batch holds everything and is measured before its step: the model as it came. Six sums in another order.
    assert first.samples == 6
    assert first.correct == round(evaluation.accuracy * 6)
    assert first.loss_sum == pytest.approx(evaluation.loss * 6, rel=1000 * EPSILON)
    evaluation = evaluate(small_model, x, y, batch_size=6, device=CPU)
    second = train(small_model, x, y, one, seed=0, device=CPU)
    assert second.loss_sum == pytest.approx(evaluation.loss * 6, rel=1000 * EPSILON)
    assert second.loss_sum < first.loss_sum


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_balanced_accuracy_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    """Of labels and what they are taken for, among five classes, of which some have no images."""
    labels, taken = torch.tensor(pairs).T
    confusion = torch.bincount(labels * 5 + taken, minlength=25).reshape(5, 5)
    judged = Evaluation(accuracy=0.0, loss=0.0, confusion=confusion)
    with warnings.catch_warnings():
        # It warns of classes that are taken for others and have no images.
        warnings.simplefilter("ignore", UserWarning)
        expected = balanced_accuracy_score(labels.numpy(), taken.numpy())
    # A mean of at most five quotients below 1, each rounded once, in whatever order.
    assert abs(judged.balanced_accuracy - expected) <= 10 * 2.0**-53


def test_evaluation_of_known_logits() -> None:
    class Fixed(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[0.0, 0.0, 10.0]]).repeat(len(inputs), 1)

    x = torch.zeros(5, 1, 8, 8)
    y = torch.tensor([2, 2, 2, 0, 1])
    evaluation = evaluate(Fixed(), x, y, batch_size=2, device=CPU)
    assert evaluation.accuracy == 3 / 5
    # log(2 + e^10) - 10 for label 2 and log(2 + e^10) for the others; some ten roundings.
    expected = np.log(2 + np.exp(10)) - 10 * 3 / 5
    assert evaluation.loss == pytest.approx(expected, rel=16 * EPSILON)


@pytest.mark.parametrize(("count", "labels"), [(0, 0), (2, 3)])
def test_images_and_labels_must_match(small_model: nn.Module, count: int, labels: int) -> None:
    x, y = torch.zeros(count, 1, 8, 8), torch.zeros(labels, dtype=torch.int64)
    message = f"{count} images and {labels} labels"
    with pytest.raises(ValueError, match=message):
        train(small_model, x, y, TrainingConfiguration(), seed=0, device=CPU)
    with pytest.raises(ValueError, match=message):
        gradient(small_model, x, y, batch_size=1, device=CPU)
    with pytest.raises(ValueError, match=message):
        evaluate(small_model, x, y, batch_size=1, device=CPU)


def test_a_last_batch_of_one_image_is_left_out_where_the_model_cannot_train_on_it() -> None:
    normal = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    for model, images_trained_on in ((normal, 4), (plain, 5)):
        found = train(model, *images(5), TrainingConfiguration(batch_size=4, epochs=1), seed=0, device=CPU)
        assert found.samples == images_trained_on
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        train(normal, *images(1), TrainingConfiguration(), seed=0, device=CPU)
    # Other errors stay what they are.
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        train(
            model,
            torch.zeros(1, 1, 4, 4),
            torch.zeros(1, dtype=torch.int64),
            TrainingConfiguration(),
            seed=0,
            device=CPU,
        )


def test_divergence_is_reported(small_model: nn.Module) -> None:
    x, y = images(4)
    configuration = TrainingConfiguration(optimizer="sgd", learning_rate=100.0, weight_decay=10.0, epochs=100)
    with pytest.raises(FloatingPointError, match="take a smaller learning_rate"):
        train(small_model, x, y, configuration, seed=0, device=CPU)


@pytest.mark.exhaustive
def test_the_defaults_learn_digits() -> None:
    # One client, one round. A guess scores 0.10, with a standard deviation of 0.016 on 360 images.
    configuration = ModelConfiguration()
    dataset = load(DataConfiguration(), image_size=configuration.image_size)
    model = build(configuration, classes=dataset.classes, channels=dataset.channels, seed=0)
    indices = divide(dataset.y_train.numpy(), DataConfiguration(), clients=2, seed=0)[0]
    train(model, dataset.x_train[indices], dataset.y_train[indices], TrainingConfiguration(), seed=0, device=CPU)
    assert evaluate(model, dataset.x_test, dataset.y_test, batch_size=360, device=CPU).accuracy > 0.3


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("batches", range(4))
def test_training_ends_before_the_batch_that_nobody_wants(small_model: nn.Module, algorithm: str, batches: int) -> None:
    told: list[tuple[int, int]] = []

    def proceed(done: int = 0, total: int = 0, /) -> None:
        told.append((done, total))
        if len(told) > batches:
            raise Interrupted

    configuration = TrainingConfiguration(epochs=2, batch_size=4)
    work = {
        "fedavg": lambda: train(small_model, *images(8), configuration, seed=0, device=CPU, proceed=proceed),
        "fedsgd": lambda: gradient(small_model, *images(8), batch_size=2, device=CPU, proceed=proceed),
    }
    with pytest.raises(Interrupted):
        work[algorithm]()
    images_done, total = {"fedavg": (4, 16), "fedsgd": (2, 8)}[algorithm]
    assert told == [(images_done * batch, total) for batch in range(batches + 1)]


def test_labels_beyond_the_outputs_are_named() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    x, y = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 5])
    with pytest.raises(ValueError, match="labels go up to 5, and the model has 2 outputs; number the classes from 0"):
        train(model, x, y, TrainingConfiguration(batch_size=2), seed=0, device=torch.device("cpu"))


def test_fedprox_holds_a_client_near_the_model_of_the_round() -> None:
    x, y = torch.randn(32, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 2
    moved = []
    for proximal in (0.0, 0.1, 100.0):
        with seeded(1):
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
        before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        configuration = TrainingConfiguration(optimizer="sgd", learning_rate=0.005, proximal=proximal, epochs=20)
        train(model, x, y, configuration, seed=0, device=torch.device("cpu"))
        moved.append((torch.nn.utils.parameters_to_vector(model.parameters()) - before).norm().item())
    assert moved[0] > moved[1] > 2 * moved[2] > 0


@pytest.mark.parametrize("augment", [("flip",), ("crop",), ("flip", "crop")])
def test_augmentation_draws_for_every_image_anew_from_the_seed(augment: tuple[str, ...]) -> None:
    seen: list[torch.Tensor] = []

    class Seeing(torch.nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images.clone())
            return super().forward(images.flatten(1))

    image = torch.arange(64.0).reshape(1, 8, 8) / 64
    x, y = image.repeat(40, 1, 1, 1), torch.zeros(40, dtype=torch.int64)
    configuration = msgspec.convert({"augment": augment, "batch_size": 40, "epochs": 2}, TrainingConfiguration)
    for _ in range(2):
        train(Seeing(64, 2), x, y, configuration, seed=5, device=torch.device("cpu"))
    first, second, again, _ = seen
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert first.shape == x.shape
    different = {tuple(each.flatten().tolist()) for each in first}
    assert len(different) == 2 if augment == ("flip",) else len(different) > 2
    assert torch.equal(x, image.repeat(40, 1, 1, 1))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bytes_of_a_pass(device: str) -> None:
    with torch.device(device):
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        # What the layers read is kept, and not their weights; GELU reads and writes most.
        assert pass_bytes(model, torch.zeros(2, 8)) == (4 * 2 * (8 + 16 + 16), 4 * 2 * (16 + 16))
        assert pass_bytes(model, torch.zeros(2, 9)) == (0, 0)
