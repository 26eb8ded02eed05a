"""How FedCG trains (Wu et al. 2022): the networks of a client, and what the server makes of those of all clients.

A client first trains extractor and classifier on its images; the features are drawn to those that the received
generator makes of the same classes, the more the later the round (Eq. 3 and 4 there). Then discriminator and generator
play against each other for the features of the extractor, which stands still (Eq. 5 and 6). The server starts from the
mean of generators and classifiers and trains them until what they say of random classes is what those of the clients
say together (Eq. 7). Where the paper is silent, the settings are those of the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, kl_div, log_softmax, mse_loss, softmax
from torch.optim import Adam

from tacit.models.configuration import TrainingConfiguration
from tacit.models.device import seeded
from tacit.models.fedcg import NOISE, CoupledModel, Discriminator
from tacit.models.training import LocalStatistics, Proceed, shuffled, to_the_end, train

WARM_UP: Final = 50
"""Rounds after which features are drawn to those of the generator with (nearly) full weight."""
RATE: Final = 3e-4
"""Learning rate of generators and discriminators, and of everything that the server trains."""
BETAS: Final = (0.5, 0.999)
"""Of Adam, for generator and discriminator at the clients."""


def attraction(round: int) -> float:
    """gamma, the weight of the distance between features and generated ones: 0 in round 1, then up to 1."""
    progress = torch.tensor(min((round - 1) / WARM_UP, 1.0), dtype=torch.float64)
    return float(2 * torch.sigmoid(10 * progress) - 1)


def train_client(
    model: CoupledModel,
    discriminator: Discriminator,
    x: torch.Tensor,
    y: torch.Tensor,
    configuration: TrainingConfiguration,
    *,
    round: int,
    seed: int,
    device: torch.device,
    proceed: Proceed = to_the_end,
) -> LocalStatistics:
    """Train `model` and `discriminator` in place on x, float32 [N, C, S, S], and y, int64 [N].

    The configuration applies to extractor and classifier; generator and discriminator take its epochs and batches.
    Statistics, seed and errors are those of `train`.
    """
    gamma = attraction(round)
    model.to(device)
    discriminator.to(device)
    model.generator.eval()
    with model.observed() as seen:

        def distance(labels: torch.Tensor) -> torch.Tensor:
            # The noise comes from the generator that `train` has seeded.
            with torch.no_grad():
                generated = model.generator(_noise(labels), labels)
            return gamma * mse_loss(seen.pop(), generated)

        statistics = train(
            model.network, x, y, configuration, seed=seed, device=device, penalty=distance, proceed=proceed
        )
    _imitate(model, discriminator, x, y, configuration, seed=seed, device=device, proceed=proceed)
    return statistics


def distil(
    student: CoupledModel,
    teachers: Sequence[tuple[CoupledModel, float]],
    *,
    steps: int,
    batch_size: int,
    seed: int,
    device: torch.device,
) -> None:
    """Train generator and classifier of `student` in place until they say what all teachers say together.

    teachers: the models of the clients with their shares, which add up to one. Other parts of the student may hold
    anything afterwards.
    """
    models = [student, *(teacher for teacher, _ in teachers)]
    for model in models:
        model.to(device).eval()
    student.train_shared()
    optimizer = Adam(student.parameters(), lr=RATE)
    with seeded(seed, device):
        for _ in range(steps):
            labels = torch.randint(student.classes, (batch_size,), device=device)
            noise = _noise(labels)
            with torch.no_grad():
                logits = [share * teacher.classify(teacher.generator(noise, labels)) for teacher, share in teachers]
                target = softmax(torch.stack(logits).sum(dim=0), dim=1)
            said = log_softmax(student.classify(student.generator(noise, labels)), dim=1)
            _step(optimizer, kl_div(said, target, reduction="batchmean"))


def _imitate(
    model: CoupledModel,
    discriminator: Discriminator,
    x: torch.Tensor,
    y: torch.Tensor,
    configuration: TrainingConfiguration,
    *,
    seed: int,
    device: torch.device,
    proceed: Proceed,
) -> None:
    """Train generator and discriminator against each other for the features of the extractor."""
    model.network.eval()
    model.generator.train()
    discriminator.train()
    for_generator = Adam(model.generator.parameters(), lr=RATE, betas=BETAS)
    for_discriminator = Adam(discriminator.parameters(), lr=RATE, betas=BETAS)
    order = torch.Generator().manual_seed(seed)
    with seeded(seed, device):
        for _ in range(configuration.epochs):
            for inputs, labels in shuffled(x, y, configuration.batch_size, order, device):
                proceed()
                with torch.no_grad(), model.observed() as seen:
                    model(inputs)
                (features,) = seen
                generated = model.generator(_noise(labels), labels)
                truth = _against(discriminator(features, labels), 1.0)
                _step(for_discriminator, truth + _against(discriminator(generated.detach(), labels), 0.0))
                _step(for_generator, _against(discriminator(generated, labels), 1.0))


def _against(logits: torch.Tensor, said: float) -> torch.Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, said))


def _noise(labels: torch.Tensor) -> torch.Tensor:
    return torch.randn(len(labels), NOISE, device=labels.device)


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
