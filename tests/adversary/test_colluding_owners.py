"""All data owners but one collude in adaptation with `reveal = "none"`, and read features of images in the opened sums.

Owners learn a head on digits beside a ViT that knows others, each step on shares as in
tests/parties/adaptation/one_step.py, and both owners' words are added modulo 2^64, as the sums are. The adversary has
the common parameters of every round and what colluders brought, and no share of anybody else. A colluder that is silent
brings what is out of range, so that it adds the common parameters as they were. Beside each figure stand that of the
same attack on the gradients of the same rounds in the clear, as federated learning sends them, and that of a blind
attacker, who gives the mean feature.

`-s -m exhaustive` prints the tables of docs/adaptation.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import normalize

from tacit.models.adapters.configuration import LinearProbeConfiguration
from tacit.models.adapters.federated import Features
from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, each, initial
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import load
from tacit.models.networks import build
from tacit.models.training import CPU, train
from tacit.parties.adaptation.bounds import fitted_step
from tacit.parties.adaptation.rounds import mean_of
from tacit.parties.adaptation.step import StepSizes
from tests.adversary.colluders import (
    HeadGradient,
    feature_of_copies,
    features_of,
    gradient_between,
    imitated,
    labels_of,
    standardised,
)
from tests.cases import cases
from tests.parties.adaptation.clear import bounds, norms
from tests.parties.adaptation.one_step import STREAM, step

pytestmark = pytest.mark.threat("data-owner/reads-sums")

BATCH, CLASSES, WIDTH = 16, 5, 32
RATE = 0.1
SIZES = StepSizes(images=BATCH, tokens=17, width=WIDTH, classes=CLASSES, adapters=0, rank=0)
NORM = FinalNorm.plain(WIDTH, 1e-6)
CANDIDATES = 99
"""Other features that the true one is picked from."""

Plan = Callable[[int], Sequence[Features | None]]
"""By round, from 1: the batch of every owner that is not silent."""


@dataclass(frozen=True, eq=False)
class Digits:
    """Those that the model does not know, with what it makes of them."""

    images: torch.Tensor
    learned: Features
    tested_images: torch.Tensor
    tested: Features

    def features(self, of: Features) -> torch.Tensor:
        """What the head reads [n, D]."""
        return NORM.standardised(of.outputs[-1][:, 0])[0]


@cache
def digits() -> Digits:
    data = load(DataConfiguration(), image_size=8)
    model = ModelConfiguration(image_size=8, patch_size=2, width=WIDTH, depth=3, heads=4)
    backbone = build(model, classes=5, channels=1, seed=0)
    mine = data.y_train < 5
    training = TrainingConfiguration(epochs=6, batch_size=32, learning_rate=2e-3)
    train(backbone, data.x_train[mine], data.y_train[mine], training, seed=0, device=CPU)
    sides = []
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        outputs = block_outputs(backbone, x[y >= 5])[-1:].double()
        sides.append((x[y >= 5], Features(outputs=outputs, labels=y[y >= 5] - 5)))
    return Digits(*sides[0], *sides[1])


def copies(index: int, label: int | None = None) -> Features:
    """A batch that is one image, with its label or another one."""
    batch = digits().learned.part(np.full(BATCH, index))
    return batch if label is None else replace(batch, labels=torch.full((BATCH,), label))


@dataclass
class Played:
    owners: int
    plan: Plan
    common: list[AdapterParameters] = field(default_factory=list)
    """Before every round, and after the last."""

    def run(self, rounds: int) -> Played:
        first = initial(LinearProbeConfiguration(), blocks=3, tokens=17, width=WIDTH, classes=CLASSES, seed=0)
        self.common = [each(torch.Tensor.double, first)]
        scales = fitted_step(
            SIZES.adapter, SIZES.head, bounds(self._seen(rounds), stream=STREAM, epsilon=1e-6), adapters=0
        )
        for number in range(1, rounds + 1):
            total = torch.zeros(SIZES.parameters, dtype=torch.int64)
            for batch in self.plan(number):
                brought = batch or replace(copies(0), outputs=1e3 * copies(0).outputs)
                words, in_range = step(SIZES, scales, self.common[-1], brought, RATE)
                assert in_range is (batch is not None)
                total += words[0] + words[1]
            self.common.append(mean_of(total, self.owners, SIZES))
        return self

    def _learned(self, number: int) -> Features:
        """The images of all batches of a round that are in range."""
        batches = [batch for batch in self.plan(number) if batch is not None]
        return Features(
            outputs=torch.cat([batch.outputs for batch in batches], dim=1),
            labels=torch.cat([batch.labels for batch in batches]),
        )

    def _seen(self, rounds: int) -> list[dict[str, float]]:
        """Norms in the clear, of which the bounds are made; also of what the last round leaves, which a step checks."""
        common, seen = self.common[0], []
        for number in range(1, rounds + 2):
            there = self._learned(number)
            seen.append(norms(common, NORM, there.outputs, there.labels))
            common = stepped(common, descent(common, NORM, there.outputs, there.labels).gradient, RATE)
        return seen

    def sums(self, rounds: int) -> list[HeadGradient]:
        return [
            gradient_between(
                self.common[number - 1],
                self.common[number],
                rate=RATE,
                owners=self.owners,
                learned=sum(batch is not None for batch in self.plan(number)),
            )
            for number in range(1, rounds + 1)
        ]

    def clear(self, rounds: int) -> list[HeadGradient]:
        found = []
        for number in range(1, rounds + 1):
            there = self._learned(number)
            common = self.common[number - 1]
            gradient = descent(common, NORM, there.outputs, there.labels).gradient
            found.append(
                HeadGradient(
                    weight=common.head_weight,
                    bias=common.head_bias,
                    by_weight=gradient.head_weight,
                    by_bias=gradient.head_bias,
                )
            )
        return found


@dataclass(frozen=True)
class Score:
    cosine: float
    error: float
    """Relative, the mean over the images."""
    picked: float
    """Part of the images whose feature is the nearest of 100."""

    def __str__(self) -> str:
        return f"{self.cosine:.3f} | {self.error:.3f} | {self.picked:.0%}"


def scored(found: torch.Tensor, true: torch.Tensor, labels: torch.Tensor) -> Score:
    """Within a class the order is any: the best is taken, for the blind attacker too."""
    cosines = normalize(found, dim=1) @ normalize(true, dim=1).T
    same = labels[:, None] == labels
    _, order = linear_sum_assignment((cosines - 10.0 * ~same).T.numpy(), maximize=True)
    found = found[order]
    others = digits().features(digits().tested)[:CANDIDATES]
    near = torch.cdist(found, others).min(1).values
    error = (found - true).norm(dim=1)
    return Score(
        cosine=float((normalize(found, dim=1) * normalize(true, dim=1)).sum(1).mean()),
        error=float((error / true.norm(dim=1)).mean()),
        picked=float((error < near).double().mean()),
    )


def blind(true: torch.Tensor, labels: torch.Tensor) -> Score:
    mean = standardised(digits().features(digits().tested).mean(0, keepdim=True))
    return scored(mean.expand_as(true), true, labels)


VICTIM = np.sort(np.random.default_rng(7).permutation(300)[:BATCH])
"""The images of an owner who has as many as a batch."""


def sixteen() -> Features:
    batch = digits().learned.part(VICTIM)
    return batch.part(np.argsort(batch.labels.numpy(), kind="stable"))


def victim_of_copies(owners: int, rounds: int) -> Played:
    return Played(owners, lambda number: [copies(5), *[None] * (owners - 1)]).run(rounds)


def read_copies(played: Played, rounds: int) -> tuple[Score, Score, Score]:
    true, label = digits().features(copies(5).part(np.array([0]))), torch.zeros(1)
    found = [feature_of_copies(of(rounds))[None] for of in (played.sums, played.clear)]
    return scored(found[0], true, label), scored(found[1], true, label), blind(true, label)


def own(colluders: int) -> list[Features]:
    """What colluders who follow the protocol bring in every round."""
    return [copies(400 + number) for number in range(colluders)]


def victim_of_sixteen(owners: int, rounds: int, *, silent: bool) -> Played:
    others = [None] * (owners - 1) if silent else own(owners - 1)
    return Played(owners, lambda number: [sixteen(), *others]).run(rounds)


def read_sixteen(played: Played, rounds: int, *, silent: bool, steps: int) -> tuple[Score, Score, Score]:
    """The same; labels come from the first sum, less the colluders' own."""
    batch, colluders = sixteen(), [] if silent else own(played.owners - 1)
    true, known = digits().features(batch), torch.tensor([int(each.labels[0]) for each in colluders], dtype=torch.int64)
    found = []
    for gradients in (played.sums(rounds), played.clear(rounds)):
        counts = labels_of(gradients[0], images=BATCH * (1 + len(known))).bincount(minlength=CLASSES)
        labels = torch.repeat_interleave(torch.arange(CLASSES), counts - BATCH * known.bincount(minlength=CLASSES))
        assert labels.equal(batch.labels)
        each_has = torch.tensor([1] * BATCH + [BATCH] * len(known))
        found.append(features_of(gradients, torch.cat([labels, known]), each_has, steps=steps, seed=1)[:BATCH])
    return scored(found[0], true, batch.labels), scored(found[1], true, batch.labels), blind(true, batch.labels)


def readers(owners: int, *, alone: bool) -> Plan:
    """Each colluder brings copies of another image of its own in every round, with a class of its own for a label. The
    last owner draws from its images, and colluders listen in every second round; alone: it is silent, as if it
    colluded."""

    def plan(number: int) -> Sequence[Features | None]:
        reading = alone or number % 2
        mine = [copies(index, label) if reading else None for label, index in enumerate(asked(owners, number))]
        drawn = np.random.default_rng([3, number]).permutation(200)[:BATCH]
        return [*mine, None if alone else digits().learned.part(drawn)]

    return plan


def asked(owners: int, number: int) -> list[int]:
    return [300 + (owners - 1) * (number - 1) + place for place in range(owners - 1)]


def read_own(played: Played, rounds: int, *, alone: bool, clear: bool) -> tuple[torch.Tensor, list[int]]:
    """Features that colluders find of their own images, and which images these are."""
    gradients = played.clear(rounds) if clear else played.sums(rounds)
    colluders = played.owners - 1
    found, images = [], []
    for number in range(1, rounds + 1) if alone else range(1, rounds + 1, 2):
        one = gradients[number - 1]
        if not alone:
            heard = [gradients[near - 1] for near in (number - 1, number + 1) if 1 <= near <= rounds]

            def rest(name: str, one: HeadGradient = one, heard: list[HeadGradient] = heard) -> torch.Tensor:
                """Less what the last owner adds, as far as it adds the same in the rounds beside this one."""
                whole: torch.Tensor = played.owners * getattr(one, name)
                return (whole - sum(getattr(each, name) for each in heard) / max(len(heard), 1)) / colluders

            one = replace(one, by_weight=rest("by_weight"), by_bias=rest("by_bias"))
        labels = torch.arange(colluders)
        found.append(features_of([one], labels, torch.full((colluders,), BATCH), steps=300, seed=1))
        images += asked(played.owners, number)
    return torch.cat(found), images


def held_out(found: torch.Tensor, images: list[int]) -> float:
    """Error of an imitation on images that nobody has brought, relative to how features differ from their mean."""
    true = digits().features(digits().tested)
    imitation = imitated(digits().images[images], found, digits().tested_images)
    return float((imitation - true).norm() / (true - true.mean(0)).norm())


@pytest.mark.exhaustive
def test_a_batch_of_copies_is_read_as_from_an_update_in_the_clear() -> None:
    played = victim_of_copies(3, 1)
    on_shares, clear, floor = read_copies(played, 1)
    assert clear.cosine == pytest.approx(1, abs=1e-9)
    assert on_shares.error < 2.0**-8 < 0.5 < floor.error
    assert clear.error <= on_shares.error  # Rounding alone stands between them.


@pytest.mark.exhaustive
def test_sixteen_images_are_read_from_rounds_together_and_not_from_one() -> None:
    played = victim_of_sixteen(3, 5, silent=True)
    once, more = (read_sixteen(played, rounds, silent=True, steps=300) for rounds in (1, 5))
    for scores in (once, more):
        assert abs(scores[0].cosine - scores[1].cosine) < 0.1
    assert once[1].cosine < once[2].cosine + 0.1
    assert more[1].cosine > more[2].cosine + 0.1


def test_features_of_own_images_are_read_and_teach_a_model() -> None:
    played = Played(3, readers(3, alone=True)).run(2)
    found, images = read_own(played, 2, alone=True, clear=False)
    true = digits().features(digits().learned.part(np.array(images)))
    assert scored(found, true, torch.arange(len(images))).error < 2.0**-6
    assert held_out(found, images) == pytest.approx(held_out(true, images), abs=0.05)


@pytest.mark.exhaustive
@cases("owners", [3, 5])
def test_what_colluders_read_over_twenty_rounds(owners: int) -> None:
    began = time.perf_counter()
    print(f"\n{owners} owners\n| | rounds | on shares | in the clear | blind |")
    counts = (1, 5, 20)
    played = victim_of_copies(owners, 20)
    for rounds in counts:
        scores = read_copies(played, rounds)
        print("| copies, silent |", rounds, "|", " | ".join(map(str, scores)), flush=True)
        assert scores[0].error < 2.0**-6 < scores[2].error
    for silent in (True, False):
        played = victim_of_sixteen(owners, 20, silent=silent)
        for rounds in counts:
            scores = read_sixteen(played, rounds, silent=silent, steps=1000)
            print(
                "| sixteen,",
                "silent |" if silent else "copies |",
                rounds,
                "|",
                " | ".join(map(str, scores)),
                flush=True,
            )
    for alone in (True, False):
        played = Played(owners, readers(owners, alone=alone)).run(20)
        for rounds in counts:
            line = []
            for clear in (False, True):
                found, images = read_own(played, rounds, alone=alone, clear=clear)
                true = digits().features(digits().learned.part(np.array(images)))
                line.append(f"{scored(found, true, torch.arange(len(images)))} | {held_out(found, images):.3f}")
            line.append(str(blind(true, torch.arange(len(images)))))
            line.append(f"{held_out(true, images):.3f}")
            print(
                "| own,", "alone |" if alone else "one honest |", rounds, len(images), "|", " | ".join(line), flush=True
            )
    print(f"{time.perf_counter() - began:.0f} s")
