"""FedCG: a classifier cut in two, with a generator that imitates its first half, and the training of all of them.

Wu et al. 2022, "FedCG: Leverage Conditional GAN for Protecting Privacy and Maintaining Competitive Performance in
Federated Learning". As in the authors' code the features pass a sigmoid, classes are one-hot vectors, and maps grow
(shrink) by transposed (plain) convolutions with kernels of 2, batch normalisation and (leaky) ReLUs, from (to) 512
channels. Their code fits features of 5 x 5; here every layer doubles the map, so that a few layers reach any size. The
tokens of a transformer are a map of one column. Where the paper is silent, settings are the authors' code's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, kl_div, log_softmax, mse_loss, one_hot, pad, softmax
from torch.optim import Adam

from tacit.models.configuration import TrainingConfiguration
from tacit.models.interruption import Proceed, to_the_end
from tacit.models.training import LocalStatistics, seeded, shuffled, train

NOISE: Final = 100
"""Dimension of the generator's noise, per image."""
WIDEST: Final = 512
"""Channels of the smallest map."""
START: Final = 0.02
"""Standard deviation of the random initial weights."""


class Generator(nn.Module):
    """Map noise, float32 [B, NOISE], and classes, int64 [B], to features [B, *shape] between 0 and 1.

    shape: of one image's features: [C, H, W], [tokens, width] or [width].
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self._shape, self._classes = shape, classes
        self._channels, *size = _as_map(shape)
        self._sizes = _sizes(*size)
        widths = [NOISE + classes, *(WIDEST >> layer for layer in range(len(self._sizes) - 1)), self._channels]
        self.maps = nn.ModuleList(
            nn.ConvTranspose2d(before, after, kernel, stride=kernel)
            for (before, after), kernel in zip(pairwise(widths), _kernels(self._sizes), strict=True)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:-1])
        _start(self)

    def forward(self, noise: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = torch.cat([noise, one_hot(labels, self._classes).to(noise.dtype)], dim=1)[:, :, None, None]
        for layer, (convolution, (height, width)) in enumerate(zip(self.maps, self._sizes, strict=True)):
            x = convolution(x)[:, :, :height, :width]
            x = self.norms[layer](x).relu() if layer < len(self.norms) else x.sigmoid()
        # [B, C, H, W], [B, C, tokens, 1] or [B, C, 1, 1]
        return x.flatten(2).transpose(1, 2) if len(self._shape) == 2 else x.reshape(-1, *self._shape)


class Discriminator(nn.Module):
    """Map features [B, *shape] and classes, int64 [B], to logits [B]: their likeness to an extractor's features."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self._classes = classes
        self._map = _as_map(shape)
        sizes = _sizes(*self._map[1:])
        self._sizes, self._kernels = [(1, 1), *sizes[:-1]][::-1], _kernels(sizes)[::-1]
        widths = [self._map[0] + classes, *(WIDEST >> layer for layer in reversed(range(len(sizes) - 1))), 1]
        self.maps = nn.ModuleList(
            nn.Conv2d(before, after, kernel, stride=kernel)
            for (before, after), kernel in zip(pairwise(widths), self._kernels, strict=True)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:-1])
        _start(self)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = (features.transpose(1, 2) if features.dim() == 3 else features).reshape(-1, *self._map)
        classes = one_hot(labels, self._classes).to(x.dtype)[:, :, None, None]
        x = torch.cat([x, classes.expand(-1, -1, *self._map[1:])], dim=1)
        steps = zip(self.maps, self._kernels, self._sizes, strict=True)
        for layer, (convolution, (rows, columns), (height, width)) in enumerate(steps):
            x = convolution(pad(x, (0, width * columns - x.shape[3], 0, height * rows - x.shape[2])))
            if layer < len(self.norms):
                x = nn.functional.leaky_relu(self.norms[layer](x))
        return x.flatten()


class CoupledModel(nn.Module):
    """A network, cut at the input of the module `cut`, with a generator of the features there.

    Maps images, float32 [B, C, S, S], to logits [B, classes], as the network does. shape: C, S, S; squash: whether the
    features still need scaling to 0 ... 1; seed: of the generator. Raises ValueError if logits need other features too.
    """

    def __init__(
        self, network: nn.Module, cut: str, *, shape: tuple[int, int, int], classes: int, squash: bool, seed: int
    ) -> None:
        super().__init__()
        self.network = network
        self.classes = classes
        self._cut, self._blank = cut, torch.zeros(1, *shape)
        self.shape = self._probe()
        """Shape of one image's features."""
        if squash:
            network.get_submodule(cut).register_forward_pre_hook(lambda module, given: (given[0].sigmoid(),))
        with seeded(seed):
            self.generator = Generator(self.shape, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(x)
        return logits

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes] of features [B, *shape]. Nothing of an auxiliary image passes the cut."""
        with self._at_cut(lambda module, given: (features,)):
            logits: torch.Tensor = self.network(self._blank.to(features.device))
        return logits

    def train_shared(self) -> None:
        """Set training mode except in the extractor: its batch normalisation cannot train on `classify`'s image."""
        self.train()
        for name, module in self.network.named_modules():
            if name == self._cut:
                break
            if not any(module.children()):
                module.eval()

    @contextmanager
    def observed(self) -> Iterator[list[torch.Tensor]]:
        """Collect the features [B, *shape] of every run of the network within the block, in order."""
        seen: list[torch.Tensor] = []
        with self._at_cut(lambda module, given: seen.append(given[0])):
            yield seen

    @contextmanager
    def _at_cut(self, hook: Any) -> Iterator[None]:
        handle = self.network.get_submodule(self._cut).register_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    def _probe(self) -> tuple[int, ...]:
        """Return the shape of the features, after checking that the logits depend on them alone."""
        training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                runs: list[tuple[Any, ...]] = []
                with self._at_cut(lambda module, given: runs.append(given)):
                    self.network(self._blank)
                match runs:
                    case [(torch.Tensor() as given,)] if given.dim() in (2, 3, 4):
                        shape = given.shape[1:]
                    case _:
                        raise ValueError(
                            f'protection.split: "{self._cut}" is used {len(runs)} times for an image, or not with one '
                            "map, sequence or vector of features; name a module that every image passes once"
                        )
                features = torch.linspace(0, 1, shape.numel()).reshape(1, *shape)
                with self._at_cut(lambda module, given: (features,)):
                    same = torch.equal(self.network(self._blank), self.network(self._blank + 1))
        finally:
            self.network.train(training)
        if not same:
            raise ValueError(
                f'protection.split: what comes behind the input of "{self._cut}" reads something before it as well, as '
                "inside of a residual block, so that no generator can stand for the extractor; cut between blocks"
            )
        return tuple(shape)


def discriminator(model: CoupledModel, seed: int) -> Discriminator:
    """Build a discriminator of this model's features, with random weights from the seed."""
    with seeded(seed):
        return Discriminator(model.shape, model.classes)


def _as_map(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    return (shape[1], shape[0], 1) if len(shape) == 2 else (shape[0], 1, 1)


def _sizes(height: int, width: int) -> list[tuple[int, int]]:
    """Return heights and widths of the maps after every layer: each is double the previous one, or one less."""
    layers = max(1, (max(height, width) - 1).bit_length())
    return [(-(-height // 2**layer), -(-width // 2**layer)) for layer in reversed(range(layers))]


def _kernels(sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return every layer's enlargement of the map in both directions: 1 or 2."""
    return [(1 + (after[0] > before[0]), 1 + (after[1] > before[1])) for before, after in pairwise([(1, 1), *sizes])]


def _start(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(part.weight, 0.0, START)
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.weight, 1.0, START)


WARM_UP: Final = 50
"""Rounds until the attraction to generated features has (nearly) full weight."""
RATE: Final = 3e-4
"""Learning rate of generators and discriminators, and of everything that the server trains."""
BETAS: Final = (0.5, 0.999)
"""Adam's betas, for generator and discriminator at the clients."""


def attraction(round: int) -> float:
    """Return gamma, the weight of the distance between features and generated ones: 0 in round 1, then up to 1."""
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
    """Train generator and classifier of `student` in place until they match the teachers' combined predictions.

    teachers: the clients' models with their weights, which sum to 1. Other parts of the student may change arbitrarily.
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
