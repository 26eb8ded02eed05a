"""A transformer that knows the digits 0 to 4 is adapted to 5 to 9 by five clients: by `-rP` it
shows what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from tacit.models.adapters.configuration import AdapterConfiguration, LinearProbeConfiguration, ParallelConfiguration
from tacit.models.adapters.federated import Features, FullBatches, Schedule, balanced_accuracy, federated
from tacit.models.adapters.parallel import (
    GELU,
    QUADRATIC_GELU,
    Activation,
    AllBlocks,
    BlockSampling,
    StochasticBlocks,
    block_outputs,
    final_norm,
    initial,
)
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import load
from tacit.models.networks import build
from tacit.models.partition import dirichlet
from tacit.models.training import CPU, train

TEST_IMAGES = 180
SCHEDULE = Schedule(rounds=120, learning_rate=0.1, decay_rounds=(100,))


@dataclass(frozen=True, kw_only=True)
class Arm:
    configuration: AdapterConfiguration = field(default_factory=ParallelConfiguration)
    activation: Activation = QUADRATIC_GELU
    sampling: BlockSampling = field(default_factory=AllBlocks)
    centralised: bool = False


ARMS = {
    "linear probing": Arm(configuration=LinearProbeConfiguration()),
    "adapters, quadratic GELU": Arm(),
    "adapters, GELU": Arm(activation=GELU),
    "adapters, quadratic GELU, blocks sampled": Arm(sampling=StochasticBlocks()),
    "linear probing, in one place": Arm(configuration=LinearProbeConfiguration(), centralised=True),
    "adapters, quadratic GELU, in one place": Arm(centralised=True),
}


@pytest.fixture(scope="module")
def one_thread_for_all() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def measured(one_thread_for_all: None) -> dict[str, list[float]]:
    """Balanced accuracy on the test images of every arm, for every seed."""
    found: dict[str, list[float]] = {name: [] for name in ARMS}
    data = load(DataConfiguration(), image_size=8)
    known = data.y_train < 5
    model = ModelConfiguration(image_size=8, patch_size=2, width=32, depth=3, heads=4)
    training = TrainingConfiguration(epochs=12, batch_size=32, learning_rate=2e-3)
    for seed in (0, 1, 2):
        backbone = build(model, classes=5, channels=1, seed=seed)
        train(backbone, data.x_train[known], data.y_train[known], training, seed=seed, device=CPU)
        norm = final_norm(backbone)
        train_images, test_images = (
            Features(outputs=block_outputs(backbone, x[y >= 5]), labels=y[y >= 5] - 5)
            for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
        )
        assert len(test_images.labels) == TEST_IMAGES
        shares = dirichlet(train_images.labels.numpy(), clients=5, alpha=1.0, seed=seed)
        clients = [train_images.part(share) for share in shares]
        for name, arm in ARMS.items():
            parameters = initial(arm.configuration, blocks=3, tokens=17, width=32, classes=5, seed=seed)
            # In one place a step sees as many images as in all clients together.
            given, size = ([train_images], 80) if arm.centralised else (clients, 16)
            *_, last = federated(
                parameters,
                norm,
                given,
                SCHEDULE,
                FullBatches(size, 1),
                seed=seed,
                sampling=arm.sampling,
                activation=arm.activation,
            )
            found[name].append(balanced_accuracy(last, norm, test_images, activation=arm.activation))
    for name, values in found.items():
        print(f"{name:42s}", *(f"{value:.3f}" for value in values), f"mean {sum(values) / len(values):.3f}")
    return found


@pytest.mark.exhaustive
def test_adapters_beat_linear_probing_and_the_square_costs_little(measured: dict[str, list[float]]) -> None:
    # Three standard errors of the difference of two shares of 180 images, which are largest at 1/2.
    margin = 3 * (2 * 0.25 / TEST_IMAGES) ** 0.5
    for name in (name for name in measured if name.startswith("adapters")):
        probed = measured["linear probing" + ", in one place" * ARMS[name].centralised]
        assert all(first > second + margin for first, second in zip(measured[name], probed, strict=True)), name
    square, gelu = (torch.tensor(measured[name]).mean() for name in ("adapters, quadratic GELU", "adapters, GELU"))
    # Three standard errors of a difference of shares of 0.9, each of 180 images for each seed.
    images = TEST_IMAGES * len(measured["adapters, GELU"])
    assert abs(square - gelu) < 3 * (2 * 0.9 * 0.1 / images) ** 0.5
