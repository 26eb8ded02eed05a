"""The images behind the updates of a run, and the terms of its parties: reconstructed from its seed.

Only the audit itself uses the true images, to score. Rounds in which the same clients trained on the same images may be
pooled; an adversary has to guess which these are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import nn

from tacit.models.data import Dataset, load, read
from tacit.models.layout import Flat, Layout
from tacit.models.model_encryption import ModelKey
from tacit.models.training import drawn
from tacit.parties.hosting.server import ServerImages, task_of
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import divided
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.encryption import GroupModel
from tacit.parties.protections.sides import integer, round_seeds
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.audit.scores import CANDIDATES, Pixels
from tacit.simulate.audit.views import FormerKey, RunTerms, UpdateView
from tacit.simulate.federation.hosted_parties import client_seed
from tacit.simulate.federation.hosting import shares, weighed
from tacit.simulate.federation.run import party_names


@dataclass(frozen=True, kw_only=True)
class AttackInput:
    """An observation, prepared for an attack.

    model: the clients' initial model of the round, in evaluation mode. gradients: those of the mean loss, by the names
    of the parameters; parameters that nobody contributed to are missing. plain: the first model in the clear, by the
    names of its tensors, if the server made it. first: the same as the run began with it, encrypted if it is. key: the
    round's, if a member is among the adversary's parties. shape: that of the images, [n, C, S, S]. mean, std: the
    normalisation of pixels from 0 to 1. others: other rounds on the same images.
    """

    model: nn.Module
    gradients: Mapping[str, torch.Tensor] = field(repr=False)
    plain: Mapping[str, torch.Tensor] | None = field(repr=False)
    first: Mapping[str, torch.Tensor] = field(repr=False)
    encrypted: bool
    key: ModelKey | None = field(repr=False)
    former: FormerKey | None = field(repr=False)
    shape: tuple[int, int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    others: tuple[AttackInput, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    experiment: Experiment
    seed: int
    data: Dataset = field(repr=False)
    task: Task
    terms: RunTerms

    @classmethod
    def of(cls, experiment: Experiment, seed: int) -> AuditedRun:
        """Reconstruct a run of this experiment. ValueError as the server's start."""
        source = read(experiment.data)
        experiment = weighed(experiment, shares(experiment, source, seed))
        data = load(experiment.data, image_size=experiment.model.image_size, source=source)
        known = ServerImages(data.source.class_names, *data.normalisation, test=data)
        task = task_of(experiment, known, seed)
        build = partial(task.build, seed, start=experiment.model)
        configuration = configure(experiment.terms(), task, build(), ring_bits=experiment.ring_bits)
        terms = RunTerms(
            configuration=configuration,
            training=experiment.training,
            clients=party_names(experiment.clients)[1:],
            keeper=lambda: Keeper(configuration, build(), seed=seed),
            group_model=_group_model(task),
        )
        return cls(experiment=experiment, seed=seed, data=data, task=task, terms=terms)

    def first_model(self) -> nn.Module:
        return self.task.build(self.seed, start=self.experiment.model)

    def true_images(self, client: str, round: int) -> torch.Tensor:
        """Return the client's images of that round: float32 [n, C, S, S], normalised."""
        return self._trained_on(client, round)[0]

    def true_labels(self, client: str, round: int) -> torch.Tensor:
        """Return the labels of the same images: int64 [n]."""
        return self._trained_on(client, round)[1]

    def _trained_on(self, client: str, round: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = self.terms.clients.index(client)
        x, y = self.data.share(shares(self.experiment, self.data.source, self.seed)[index])
        x, labels, _ = divided(x, y, self.task)
        assert labels is not None
        if not self.task.training.sends_gradients:
            return torch.as_tensor(x), labels
        seeds = round_seeds(client_seed(self.seed, index), round)
        return drawn(x, labels, self.task.training.fedsgd_images, integer(seeds[0]))

    def attack_input(self, observation: UpdateView) -> AttackInput:
        model = self.task.build(self.seed)
        layout = self.task.layout(model)
        layout.load_into(model, observation.model)
        values = observation.mean
        if not self.task.training.sends_gradients:
            values = -values / self.experiment.training.learning_rate
        parameters = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        gradients, offset = dict[str, torch.Tensor](), 0
        for entry in layout.entries:
            span = slice(offset, offset := offset + entry.size)
            if entry.name in parameters and observation.known[span].any():
                gradients[entry.name] = torch.from_numpy(values[span].reshape(entry.shape))
        true = self.true_images(observation.clients[0], observation.round)
        made = self.task.encryption is None or self.task.encryption.initial_model == "server"
        first = observation.first
        plain = _tensors(layout, layout.flatten(self.first_model())) if made and first is not None else None
        count, channels, height, width = true.shape
        mean, std = self._normalisation
        return AttackInput(
            model=model.eval(),
            gradients=gradients,
            plain=plain,
            first={} if first is None else _tensors(layout, first),
            encrypted=self.task.encryption is not None,
            key=observation.key,
            former=observation.former,
            shape=(count, channels, height, width),
            mean=mean,
            std=std,
            others=tuple(map(self.attack_input, observation.others)),
        )

    def pixels(self, images: torch.Tensor) -> list[Pixels]:
        """Return normalised images with pixels from 0 to 1."""
        offset, factor = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in self._normalisation)
        return list((images.double().cpu() * factor + offset).clamp(0, 1).numpy())

    @cached_property
    def _normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of the channels, where 1 is the brightest pixel of the kind of images: for digits,
        16 of 255."""
        offset, factor = (torch.tensor(values)[:, None, None] for values in (self.task.mean, self.task.std))
        brightest = float((self.data.x_test * factor + offset).max())
        scaled = [tuple(one / brightest for one in values) for values in (self.task.mean, self.task.std)]
        return scaled[0], scaled[1]

    def candidates(self, round: int) -> list[Pixels]:
        """Return the candidates beside a client's own image: 99 of the test images, drawn by the seed."""
        return self.pixels(self.decoys(round))

    def decoys(self, round: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed((self.seed * 1000 + round) % 2**63)
        chosen = torch.randperm(len(self.data.y_test), generator=generator)[: CANDIDATES - 1]
        return self.data.x_test[chosen]

    def baseline(self) -> Pixels:
        """Return the image of the baseline: the mean of the test images, which are not trained on."""
        image: Pixels = self.pixels(self.data.x_test.mean(0, keepdim=True))[0]
        return image


@dataclass(frozen=True, kw_only=True)
class PooledRounds:
    """Rounds on the same images, pooled in one view with `others`.

    about: the number of rounds, in words. reason: why there are none; else empty.
    """

    about: str
    views: list[UpdateView] = field(repr=False)
    reason: str


def pooled(subject: AuditedRun, views: Sequence[UpdateView]) -> PooledRounds:
    """Pool views by their clients and the images of these, in the order of the last rounds."""
    alike: dict[tuple[tuple[str, bytes], ...], list[UpdateView]] = defaultdict(list)
    for view in views:
        batches = tuple((client, _batch(subject, client, view.round)) for client in view.clients)
        alike[batches].append(view)
    several = [same for same in alike.values() if len(same) > 1]
    if not several:
        rounds = len({view.round for view in views})
        reason = f"in {rounds} rounds no client trained on the same images again"
        return PooledRounds(about="rounds pooled", views=[], reason=reason)
    least, most = min(map(len, several)), max(map(len, several))
    return PooledRounds(
        about=f"{most} rounds pooled" if least == most else f"{least} to {most} rounds pooled",
        views=[replace(same[-1], others=tuple(same[:-1])) for same in several],
        reason="",
    )


def _batch(subject: AuditedRun, client: str, round: int) -> bytes:
    return b"".join(sorted(image.numpy().tobytes() for image in subject.true_images(client, round)))


def _group_model(task: Task) -> GroupModel | None:
    if task.encryption is None:
        return None
    layout = task.layout(task.build())
    return GroupModel(layout, task.encryption, lambda first: layout.flatten(task.build(first)))


def _tensors(layout: Layout, flat: Flat) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values.copy()) for name, values in layout.split(flat).items()}
