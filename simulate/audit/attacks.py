"""The attacks of an audit on observed updates: each one object, with its purpose and its needs; and label observations.

Attacks are functions of tacit.models.attacks, which have the mathematics; here is which images they may be asked for,
and with what budget. One that cannot be used says why in a ValueError.

Beside images, an observation discloses labels, and coordinates of one client alone. Labels are counted by the gradient
of the classifier (models/attacks/closed_form.py); the baseline gives the shares that labels have among other images. At
a coordinate to which one honest client contributed alone, a sum is that client's value: whoever opens it, or receives
the model made of it, has it. Their number follows from what the clients really contributed, which the audit looks up as
it does the true images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn.functional import unfold

from tacit.models.attacks import april, binary, closed_form, inversion
from tacit.models.attacks.closed_form import (
    POSITIONS,
    PROJECTION,
    PatchEmbedding,
    classifier,
    label_counts,
    label_of,
    taken,
    whole,
)
from tacit.models.attacks.model_key import KnownPlaintext, gram, most_like, with_key
from tacit.parties.runs.experiment import Experiment
from tacit.secagg.packing import WeightForm
from tacit.simulate.audit.figures import NOT_ATTACKED, NOT_RECOVERED, RECOVERED, LabelFigures, ObservationRow
from tacit.simulate.audit.scores import mean_interval
from tacit.simulate.audit.subjects import AuditedRun, Sight
from tacit.simulate.audit.subtraction import SUBTRACTION
from tacit.simulate.audit.views import DIFFERENCE, MASKED, ON_THE_WIRE, WITH_KEYS, UpdateView, contributors

CLOSED_FORM: Final = "closed-form"
_EMBEDDINGS: Final = (POSITIONS, PROJECTION)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long attacks that search may search."""

    full: bool
    """The papers' settings; else what works on an unprotected small model."""
    seed: int


Pick = Callable[[torch.Tensor], int]
"""Of candidates [n, C, S, S], normalised, which is the image."""


@dataclass(frozen=True)
class Attack:
    """One attack."""

    name: str
    about: str
    source: str
    """Where it is from."""
    recover: Callable[[Sight, Budget], torch.Tensor | Pick]
    """The images [n, C, S, S], normalised; of an attack that tells images apart and has none, what picks them.
    ValueError, with the reason, where it cannot be used."""
    against: Callable[[Experiment], bool] = lambda experiment: True
    """Whether it is against what protects this experiment."""
    with_keys: bool = False
    """Whether it needs what a member has of the key of the model."""
    of_differences: bool = False
    """Whether it is on the difference of two sums, and nothing else is."""
    pools: bool = False
    """Whether it reads several rounds on the same images as one."""

    def suits(self, view: UpdateView) -> bool:
        """Whether it makes use of all that is there: what a server has alone is not tried again with a member."""
        if self.of_differences or view.what == DIFFERENCE:
            return self.of_differences and view.what == DIFFERENCE
        return view.key is not None if self.with_keys else view.what != WITH_KEYS


def _closed_form(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    return closed_form.image_of(sight.model, sight.gradients).image


def _alternating(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    embedding = PatchEmbedding.of(sight.model)
    rounds = [
        binary.MaskedGradients(
            kernel=taken(one.gradients, PROJECTION).flatten(1),
            positions=taken(one.gradients, POSITIONS)[0, embedding.others :],
        )
        for one in (sight, *sight.others)
    ]
    return embedding.image(binary.alternating([binary.pooled(rounds)]))


def _known_plaintext(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    if sight.plain is None:
        raise ValueError("the server knows no model in the clear that this key encrypts")
    return KnownPlaintext.of(sight.plain, sight.first).image(_of_embeddings(sight), sight.shape[-1])


def _gram(sight: Sight, budget: Budget) -> Pick:
    _one(sight)
    products, (height, width) = gram(_of_embeddings(sight), sight.shape[-1]), sight.gradients[PROJECTION].shape[-2:]

    def pick(candidates: torch.Tensor) -> int:
        tiles = unfold(candidates.double(), (height, width), stride=(height, width))
        return most_like(products, tiles.transpose(1, 2))

    return pick


def _insider(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    if sight.key is None:
        return _without_key(sight)
    return with_key(sight.key, _of_embeddings(sight), sight.shape[-1])


def _former_key(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    if sight.former is None:
        return _without_key(sight)
    return with_key(sight.former.key, _of_embeddings(sight), sight.shape[-1])


def _removed_member(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    if sight.former is None:
        return _without_key(sight)
    layout = sight.former.key.layout
    plain, after = layout.split(sight.former.key.decrypt(sight.former.before)), layout.split(sight.former.after)
    known = KnownPlaintext.of(*({name: torch.from_numpy(of[name]) for name in _EMBEDDINGS} for of in (plain, after)))
    return known.image(_of_embeddings(sight), sight.shape[-1])


def _without_key(sight: Sight) -> torch.Tensor:
    """What is not encrypted needs no key."""
    if sight.encrypted:
        raise ValueError("none of these parties has such a key in this round")
    return closed_form.image_of(sight.model, sight.gradients).image


def _of_embeddings(sight: Sight) -> Mapping[str, torch.Tensor]:
    """The gradients, if those of both embeddings are there; else ValueError."""
    for name in _EMBEDDINGS:
        taken(sight.gradients, name)
    return sight.gradients


def _april(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    return april.image_of(sight.model, sight.gradients).image


def _april_search(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    label = torch.tensor([label_of(sight.model, sight.gradients)])
    return april.matched_images(
        sight.model.double(),
        sight.gradients,
        label,
        alpha=10.0,
        iterations=2000 if budget.full else 400,
        seed=budget.seed,
    )


def _deep_leakage(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    settings = inversion.DeepLeakageSettings(iterations=300 if budget.full else 60)
    generator = torch.Generator().manual_seed(budget.seed)
    return inversion.deep_leakage(
        _rounds(sight), sight.shape, settings, generator=generator, labels=_labels(sight)
    ).images


def _inverting_gradients(sight: Sight, budget: Budget) -> torch.Tensor:
    _one(sight)
    settings = inversion.InvertingGradientsSettings(
        mean=sight.mean,
        std=sight.std,
        iterations=24_000 if budget.full else 1000,
        restarts=3 if budget.full else 1,
    )
    generator = torch.Generator().manual_seed(budget.seed)
    return inversion.inverting_gradients(
        _rounds(sight), sight.shape, settings, labels=_labels(sight), generator=generator
    ).images


def _rounds(sight: Sight) -> list[inversion.RoundGradients]:
    return [inversion.RoundGradients(model=one.model, gradients=one.gradients) for one in (sight, *sight.others)]


ATTACKS: Final[Mapping[str, Attack]] = {
    attack.name: attack
    for attack in (
        Attack(
            CLOSED_FORM,
            "solves linear equations of the gradients of patch and position embedding",
            "follows from the chain rule; stronger than APRIL",
            _closed_form,
        ),
        Attack(
            "masked-closed-form",
            "solves the same equations and for what was masked, in turns",
            "alternating least squares, against binary weights",
            _alternating,
            lambda experiment: experiment.protection.facts().form is WeightForm.COORDINATE,
            pools=True,
        ),
        Attack(
            "known-plaintext",
            "finds the key of model encryption by the first model, then solves the same equations",
            "the server knows the model that it made, and its ciphertext",
            _known_plaintext,
            lambda experiment: experiment.encryption is not None,
        ),
        Attack(
            "gram",
            "tells images apart by inner products of their patches, which an orthogonal key keeps; has no image",
            "ciphertexts of model encryption alone",
            _gram,
            lambda experiment: experiment.encryption is not None,
        ),
        Attack(
            "insider",
            "decrypts with the key of a member, then solves the same equations",
            "whoever has the key of model encryption can decrypt",
            _insider,
            lambda experiment: experiment.encryption is not None,
            with_keys=True,
        ),
        Attack(
            "former-key",
            "the same with the key before the last renewal",
            "what a member has that was removed",
            _former_key,
            lambda experiment: experiment.encryption is not None,
            with_keys=True,
        ),
        Attack(
            "removed-member",
            "decrypts the model before a renewal, and finds the new key by the same model under it",
            "known plaintext, which a removed member has for the server",
            _removed_member,
            lambda experiment: experiment.encryption is not None,
            with_keys=True,
        ),
        Attack(
            SUBTRACTION,
            "solves the same equations for what one opened sum has more than another",
            "a server that repeats a round without a client, from a model next to the first",
            _closed_form,
            of_differences=True,
        ),
        Attack("april", "solves the equations of the first attention", "Lu et al. 2022, section 3.1", _april),
        Attack("april-search", "seeks an image with these gradients", "Lu et al. 2022, section 3.2", _april_search),
        Attack(
            "dlg",
            "seeks an image with these gradients by L-BFGS",
            "Zhu et al. 2019, Zhao et al. 2020",
            _deep_leakage,
            pools=True,
        ),
        Attack(
            "inverting-gradients",
            "seeks an image whose gradients have the same direction",
            "Geiping et al. 2020",
            _inverting_gradients,
            pools=True,
        ),
    )
}


def usual(model: str) -> tuple[str, ...]:
    """The attacks for a model of this name where nobody says which."""
    if model == "lenet":
        return ("dlg",)
    if model in ("convnet", "resnet18"):
        return ("inverting-gradients",)
    keys = "known-plaintext", "gram", "insider", "former-key", "removed-member"
    return CLOSED_FORM, "masked-closed-form", *keys, SUBTRACTION, "april"


def _one(sight: Sight) -> None:
    if sight.shape[0] != 1:
        raise ValueError(f"it is for one image, and the gradient is of {sight.shape[0]}")


def _labels(sight: Sight) -> torch.Tensor:
    """Of a round in which the gradient of the classifier was sent."""
    head, _ = classifier(sight.model)
    there = [one for one in (sight, *sight.others) if f"{head}.weight" in one.gradients]
    told = there[0] if there else sight
    return torch.tensor([label_of(told.model, told.gradients)])


class Observations:
    """Judges kinds of observations, of which the first is of single uploads that nothing protects."""

    def __init__(self) -> None:
        self.rows: list[ObservationRow] = []
        self._failed: str | None = None
        """Why labels were not told there; empty if they were."""

    def add(
        self, subject: AuditedRun, recordings: Path, place: tuple[str, str, str], views: Sequence[UpdateView]
    ) -> None:
        """The next kind; place: name of the arm, what it is, and the adversary."""
        arm, about, adversary = place
        labels, why = None, self._failed or ""
        if not why:
            try:
                labels = _label_figures(subject, views)
            except ValueError as error:
                why = str(error)
        if self._failed is None:
            failing = labels is not None and not labels.recovered
            self._failed = "on the unprotected case it fails" if failing else why
            why = self._failed
        verdict = NOT_ATTACKED if why or labels is None else RECOVERED if labels.recovered else NOT_RECOVERED
        self.rows.append(
            ObservationRow(
                arm=arm,
                about=about,
                adversary=adversary,
                what=views[0].what,
                cohort=len(views[0].clients),
                alone=float(np.mean([_alone(subject, recordings, view) for view in views])),
                labels=labels,
                verdict=verdict,
                why=why,
            )
        )


def _label_figures(subject: AuditedRun, views: Sequence[UpdateView]) -> LabelFigures:
    """ValueError, with the reason, where the gradient of the classifier is not there."""
    right, blind = list[float](), list[float]()
    for view in views:
        sight = subject.sight(view)
        _, head = classifier(sight.model)
        true = torch.cat([subject.true_labels(client, view.round) for client in view.clients])
        counts = torch.bincount(true, minlength=head.out_features)
        found = label_counts(sight.model, sight.gradients, images=len(true))
        guessed = whole(torch.bincount(subject.data.y_test, minlength=head.out_features).double(), len(true))
        right.append(int(torch.minimum(found, counts).sum()) / len(true))
        blind.append(int(torch.minimum(guessed, counts).sum()) / len(true))
    gains = np.subtract(right, blind)
    low, high = mean_interval(gains)
    return LabelFigures(
        observations=len(views),
        right=float(np.mean(right)),
        blind=float(np.mean(blind)),
        better_by_interval=(low, high),
        recovered=low is not None and low > 0,
    )


def _alone(subject: AuditedRun, recordings: Path, view: UpdateView) -> float:
    if view.what == MASKED or view.what.startswith(ON_THE_WIRE):
        return 0.0
    counts = contributors(recordings, view, subject.terms)
    return float(((counts == 1) & view.known).mean())
