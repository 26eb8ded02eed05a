"""Limits of the closed form on a configuration's model: the precision that the channel leaves, and the number of
images, local steps and clients in an update.

One factor changes at a time. No parties are needed: an unprotected upload equals the client's result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tacit.models.attacks.closed_form import image_of
from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Layout
from tacit.models.training import CPU, gradient, train
from tacit.secagg.packing import Packing, WeightForm
from tacit.simulate.audit.results import BATCH, CHANNEL, COHORT, STEPS, ClosedFormResult, ImageScore
from tacit.simulate.audit.scores import image_metrics, nearest, score
from tacit.simulate.audit.subjects import AuditedRun

VICTIMS: Final = 10
"""Attacked images in every setting, each among its own candidates."""
CHANNELS: Final = ((0.25, 24), (0.25, 20), (0.25, 16), (16.0, 20))
"""Clip and bits of a value."""
IMAGES: Final = (1, 2, 4, 8)
LOCAL_STEPS: Final = (1, 2, 5)
CLIENTS: Final = (1, 2, 5)

Values = npt.NDArray[np.floating[Any]]
"""An update as the server decodes it: [D]."""
Send = Callable[[torch.Tensor, torch.Tensor], Values]
"""Maps images [n, C, S, S] and labels [n]."""


def closed_form_limits(subject: AuditedRun) -> tuple[ClosedFormResult, ...]:
    """Attack clients in every setting. ValueError if the closed form cannot be used on the model."""
    client, guess = _Client(subject), subject.baseline()
    victims = []
    for number in range(VICTIMS):
        order = np.random.default_rng((subject.seed, number)).permutation(len(subject.data.y_train))
        x, y = subject.data.share(order[: max(IMAGES)])
        victims.append((x, y, subject.pixels(x), subject.candidates(number)))
    client.read(client.gradient, *(part[:1] for part in victims[0][:2]))
    found = []
    for factor, setting, count, send in client.settings():
        scores, baseline = list[ImageScore](), list[ImageScore]()
        for number, (x, y, pixels, others) in enumerate(victims):
            truths = [("", image) for image in pixels[:count]]
            try:
                (image,) = subject.pixels(client.read(send, x[:count], y[:count]))
            except (ValueError, FloatingPointError):
                image = guess  # The gradient has nothing left.
            for given, kept in ((image, scores), (guess, baseline)):
                kept.append(score("", number, given, nearest(given, truths)[1], others))
        metrics = image_metrics(scores, baseline, sought=count)
        found.append(ClosedFormResult(factor=factor, setting=setting, metrics=metrics))
    return tuple(found)


class _Client:
    def __init__(self, subject: AuditedRun) -> None:
        self._model = subject.first_model()
        self._layout = Layout.of(self._model)
        self._first = self._layout.flatten(self._model)
        self._rate = subject.experiment.training.learning_rate

    def settings(self) -> Iterator[tuple[str, str, int, Send]]:
        yield CHANNEL, "gradient, float32", 1, self.gradient
        for clip, bits in CHANNELS:
            yield CHANNEL, f"gradient, clip {clip:g}, {bits} bits", 1, partial(self._rounded, self.gradient, clip, bits)
        step, (clip, bits) = partial(self._steps, "sgd", 1), CHANNELS[0]
        yield CHANNEL, f"one step of SGD by {self._rate:g}, float32", 1, step
        sent = f"one step of SGD by {self._rate:g}, clip {clip:g}, {bits} bits"
        yield CHANNEL, sent, 1, partial(self._rounded, step, clip, bits)
        yield CHANNEL, f"one step of AdamW by {self._rate:g}, float32", 1, partial(self._steps, "adamw", 1)
        yield from ((BATCH, str(count), count, self.gradient) for count in IMAGES)
        yield from ((STEPS, str(count), 1, partial(self._steps, "sgd", count)) for count in LOCAL_STEPS)
        yield from ((COHORT, str(count), count, self._mean) for count in CLIENTS)

    def read(self, send: Send, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the image that the closed form reads, normalised. ValueError, FloatingPointError if it reads none."""
        parts = np.split(send(x, y), np.cumsum(self._layout.tensor_sizes)[:-1])
        self._layout.load_into(self._model, self._first)
        gradients = {
            entry.name: torch.from_numpy(part.reshape(entry.shape))
            for entry, part in zip(self._layout.entries, parts, strict=True)
        }
        return image_of(self._model, gradients).image

    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> Values:
        return gradient(self._model, x, y, batch_size=len(x), device=CPU)[0]

    def _mean(self, x: torch.Tensor, y: torch.Tensor) -> Values:
        mean: Values = np.mean([self.gradient(x[[one]], y[[one]]) for one in range(len(x))], axis=0)
        return mean

    def _steps(self, optimizer: Any, count: int, x: torch.Tensor, y: torch.Tensor) -> Values:
        # A server could subtract the decay of weights that it knows.
        training = TrainingConfiguration(
            optimizer=optimizer, epochs=count, batch_size=len(x), learning_rate=self._rate, weight_decay=0.0
        )
        self._layout.load_into(self._model, self._first)
        train(self._model, x, y, training, seed=0, device=CPU)
        return self._layout.flatten(self._model) - self._first

    def _rounded(self, send: Send, clip: float, bits: int, x: torch.Tensor, y: torch.Tensor) -> Values:
        return opened_alone(send(x, y), self._layout.tensor_sizes, clip=clip, bits=bits)


def opened_alone(values: Values, tensor_sizes: tuple[int, ...], *, clip: float, bits: int) -> Values:
    """Return the secure sum of one client's values, float [D]: clipped, and rounded to `bits` bits, float64."""
    packing = Packing(
        clients=1,
        clip=clip,
        value_bits=bits,
        max_weight=1,
        form=WeightForm.SCALAR,
        tensor_sizes=tensor_sizes,
        metrics=(),
    )
    words = packing.encode(values, 1, {}, np.random.default_rng(0)).words
    return packing.decode(words, contributors=1).values
