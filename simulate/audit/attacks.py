"""The attacks of an audit on observed updates, and the disclosures of an observation beside images.

Attacks are functions of tacit.models.attacks; this module decides when they apply, and with which budget. An attack
that cannot be used raises ValueError with the reason. At a coordinate to which one honest client contributed alone, a
sum is that client's value; the audit takes their number from the clients' true contributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

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
from tacit.models.model_encryption import ModelKey
from tacit.parties.runs.experiment import Experiment
from tacit.secagg.packing import WeightForm
from tacit.simulate.audit.results import (
    NOT_ATTACKED,
    NOT_RECONSTRUCTED,
    RECONSTRUCTED,
    LabelMetrics,
    ObservationResult,
)
from tacit.simulate.audit.scores import mean_interval
from tacit.simulate.audit.subjects import AttackInput, AuditedRun
from tacit.simulate.audit.subtraction import SUBTRACTION
from tacit.simulate.audit.views import DIFFERENCE, MASKED, ON_THE_WIRE, WITH_KEYS, UpdateView, contributors

CLOSED_FORM: Final = "closed-form"
_EMBEDDINGS: Final = (POSITIONS, PROJECTION)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Effort of attacks that search; full: that of the papers, else enough for an unprotected small model."""

    full: bool
    seed: int


Pick = Callable[[torch.Tensor], int]
"""The choice among candidates [n, C, S, S], normalised."""


class Need(NamedTuple):
    """A setting that an attack needs: whether an experiment has it, the reason if not, and the key that gives it."""

    met: Callable[[Experiment], bool]
    reason: str
    remedy: str


@dataclass(frozen=True)
class Attack:
    """One attack.

    source: its origin. run: returns images [n, C, S, S], normalised; an attack that only re-identifies images returns
    the choice; raises as `on`. against: whether it attacks the protections of an
    experiment, and target the key that gives it one. needs: further required settings. of_embeddings: whether it reads
    the gradients of patch and position embedding. with_keys: whether it needs a member's key of the model.
    of_differences: whether it attacks the difference of two sums, which no other does. pools: whether it also attacks
    several rounds on the same images as one.
    """

    name: str
    about: str
    source: str
    run: Callable[[AttackInput, Budget], torch.Tensor | Pick]
    against: Callable[[Experiment], bool] = lambda experiment: True
    target: str = ""
    needs: tuple[Need, ...] = ()
    of_embeddings: bool = True
    with_keys: bool = False
    of_differences: bool = False
    pools: bool = False

    def on(self, given: AttackInput, budget: Budget) -> torch.Tensor | Pick:
        """Run it. ValueError, with the reason, if it cannot be used."""
        if given.shape[0] != 1:
            raise ValueError(f"it is for one image, and the gradient is of {given.shape[0]}")
        return self.run(given, budget)

    def suits(self, view: UpdateView) -> bool:
        """Whether it uses all of the view: an attack on the server's view alone is not repeated with a member."""
        if self.of_differences or view.kind == DIFFERENCE:
            return self.of_differences and view.kind == DIFFERENCE
        return view.key is not None if self.with_keys else view.kind != WITH_KEYS


def _closed_form(given: AttackInput, budget: Budget) -> torch.Tensor:
    return closed_form.image_of(given.model, given.gradients).image


def _alternating(given: AttackInput, budget: Budget) -> torch.Tensor:
    embedding = PatchEmbedding.of(given.model)
    rounds = [
        binary.MaskedGradients(
            kernel=taken(one.gradients, PROJECTION).flatten(1),
            positions=taken(one.gradients, POSITIONS)[0, embedding.others :],
        )
        for one in (given, *given.others)
    ]
    return embedding.image(binary.alternating([binary.pooled(rounds)]))


def _known_plaintext(given: AttackInput, budget: Budget) -> torch.Tensor:
    if given.plain is None:
        raise ValueError("the server knows no model in the clear that this key encrypts")
    return KnownPlaintext.of(given.plain, given.first).image(_of_embeddings(given), given.shape[-1])


def _gram(given: AttackInput, budget: Budget) -> Pick:
    products, (height, width) = gram(_of_embeddings(given), given.shape[-1]), given.gradients[PROJECTION].shape[-2:]

    def pick(candidates: torch.Tensor) -> int:
        tiles = unfold(candidates.double(), (height, width), stride=(height, width))
        return most_like(products, tiles.transpose(1, 2))

    return pick


def _insider(given: AttackInput, budget: Budget) -> torch.Tensor:
    return _decrypted(given, given.key, budget)


def _former_key(given: AttackInput, budget: Budget) -> torch.Tensor:
    return _decrypted(given, None if given.former is None else given.former.key, budget)


def _decrypted(given: AttackInput, key: ModelKey | None, budget: Budget) -> torch.Tensor:
    if key is not None:
        return with_key(key, _of_embeddings(given), given.shape[-1])
    if given.encrypted:
        raise ValueError("none of these parties has such a key in this round")
    return _closed_form(given, budget)


def _removed_member(given: AttackInput, budget: Budget) -> torch.Tensor:
    if given.former is None:
        return _decrypted(given, None, budget)
    layout = given.former.key.layout
    plain, after = layout.split(given.former.key.decrypt(given.former.before)), layout.split(given.former.after)
    known = KnownPlaintext.of(*({name: torch.from_numpy(of[name]) for name in _EMBEDDINGS} for of in (plain, after)))
    return known.image(_of_embeddings(given), given.shape[-1])


def _of_embeddings(given: AttackInput) -> Mapping[str, torch.Tensor]:
    """Return the gradients if those of both embeddings are there; else ValueError."""
    for name in _EMBEDDINGS:
        taken(given.gradients, name)
    return given.gradients


def _april(given: AttackInput, budget: Budget) -> torch.Tensor:
    return april.image_of(given.model, given.gradients).image


def _april_search(given: AttackInput, budget: Budget) -> torch.Tensor:
    label = torch.tensor([label_of(given.model, given.gradients)])
    return april.matched_images(
        given.model.double(),
        given.gradients,
        label,
        alpha=10.0,
        iterations=2000 if budget.full else 400,
        seed=budget.seed,
    )


def _deep_leakage(given: AttackInput, budget: Budget) -> torch.Tensor:
    iterations, generator = 300 if budget.full else 60, torch.Generator().manual_seed(budget.seed)
    return inversion.deep_leakage(
        _rounds(given), given.shape, iterations=iterations, generator=generator, labels=_labels(given)
    ).images


def _inverting_gradients(given: AttackInput, budget: Budget) -> torch.Tensor:
    return inversion.inverting_gradients(
        _rounds(given),
        given.shape,
        mean=given.mean,
        std=given.std,
        iterations=24_000 if budget.full else 1000,
        restarts=3 if budget.full else 1,
        labels=_labels(given),
        generator=torch.Generator().manual_seed(budget.seed),
    ).images


def _rounds(given: AttackInput) -> list[inversion.RoundGradients]:
    return [inversion.RoundGradients(model=one.model, gradients=one.gradients) for one in (given, *given.others)]


def _encrypted(experiment: Experiment) -> bool:
    return experiment.encryption is not None


_ENCRYPTION: Final = "[encryption]"
_FIRST_MODEL: Final = Need(
    lambda experiment: experiment.encryption is not None and experiment.encryption.initial_model == "server",
    "the clients make the first model, and no server knows it in the clear",
    'encryption.initial_model = "server"',
)
_RENEWAL: Final = Need(
    lambda experiment: experiment.encryption is not None and experiment.encryption.rekey_every > 0,
    "keys are never renewed, so that no former one differs",
    "encryption.rekey_every = 1",
)

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
            "solves the same equations and for masked entries, in turns",
            "alternating least squares, against binary weights",
            _alternating,
            lambda experiment: experiment.protection.facts().form is WeightForm.COORDINATE,
            'protection.scheme = "binary-weights"',
            pools=True,
        ),
        Attack(
            "known-plaintext",
            "finds the key of model encryption by the first model, then solves the same equations",
            "the server knows the model that it made, and its ciphertext",
            _known_plaintext,
            _encrypted,
            _ENCRYPTION,
            (_FIRST_MODEL,),
        ),
        Attack(
            "gram",
            "re-identifies images by inner products of their patches, which an orthogonal key keeps; has no image",
            "ciphertexts of model encryption alone",
            _gram,
            _encrypted,
            _ENCRYPTION,
        ),
        Attack(
            "insider",
            "decrypts with the key of a member, then solves the same equations",
            "every holder of the key of model encryption can decrypt",
            _insider,
            _encrypted,
            _ENCRYPTION,
            with_keys=True,
        ),
        Attack(
            "former-key",
            "the same with the key before the last renewal",
            "the state of a removed member",
            _former_key,
            _encrypted,
            _ENCRYPTION,
            (_RENEWAL,),
            with_keys=True,
        ),
        Attack(
            "removed-member",
            "decrypts the model before a renewal, and finds the new key by the same model under it",
            "known plaintext, which a removed member has for the server",
            _removed_member,
            _encrypted,
            _ENCRYPTION,
            (_RENEWAL,),
            with_keys=True,
        ),
        Attack(
            SUBTRACTION,
            "solves the same equations for the difference of two opened sums",
            "a server that repeats a round without a client, from a model next to the first",
            _closed_form,
            target='aggregation.mode = "active"',
            of_differences=True,
        ),
        Attack("april", "solves the equations of the first attention", "Lu et al. 2022, section 3.1", _april),
        Attack(
            "april-search",
            "seeks an image with these gradients",
            "Lu et al. 2022, section 3.2",
            _april_search,
            of_embeddings=False,
        ),
        Attack(
            "dlg",
            "seeks an image with these gradients by L-BFGS",
            "Zhu et al. 2019, Zhao et al. 2020",
            _deep_leakage,
            of_embeddings=False,
            pools=True,
        ),
        Attack(
            "inverting-gradients",
            "seeks an image whose gradients have the same direction",
            "Geiping et al. 2020",
            _inverting_gradients,
            of_embeddings=False,
            pools=True,
        ),
    )
}


def usual(model: str) -> tuple[str, ...]:
    """Return the default attacks for a model of this name."""
    if model == "lenet":
        return ("dlg",)
    if model in ("convnet", "resnet18"):
        return ("inverting-gradients",)
    keys = "known-plaintext", "gram", "insider", "former-key", "removed-member"
    return CLOSED_FORM, "masked-closed-form", *keys, SUBTRACTION, "april"


def _labels(given: AttackInput) -> torch.Tensor:
    """Return the label in a round in which the gradient of the classifier was sent."""
    head, _ = classifier(given.model)
    there = [one for one in (given, *given.others) if f"{head}.weight" in one.gradients]
    labelled = there[0] if there else given
    return torch.tensor([label_of(labelled.model, labelled.gradients)])


class Observations:
    """Disclosures of kinds of observations; the first must be of single unprotected uploads."""

    def __init__(self) -> None:
        self.results: list[ObservationResult] = []
        self._failed: str | None = None
        """Reason why labels were not found there; empty if they were."""

    def add(
        self, subject: AuditedRun, recordings: Path, place: tuple[str, str, str], views: Sequence[UpdateView]
    ) -> None:
        arm, configuration, adversary = place
        labels, reason = None, self._failed or ""
        if not reason:
            try:
                labels = _label_metrics(subject, views)
            except ValueError as error:
                reason = str(error)
        if self._failed is None:
            failing = labels is not None and not labels.reconstructed
            self._failed = "on the unprotected case it fails" if failing else reason
            reason = self._failed
        verdict = NOT_RECONSTRUCTED
        if reason or labels is None:
            verdict = NOT_ATTACKED
        elif labels.reconstructed:
            verdict = RECONSTRUCTED
        self.results.append(
            ObservationResult(
                arm=arm,
                configuration=configuration,
                adversary=adversary,
                observation=views[0].kind,
                honest_clients=len(views[0].clients),
                single_client_share=float(np.mean([_single_client_share(subject, recordings, view) for view in views])),
                labels=labels,
                verdict=verdict,
                reason=reason,
            )
        )


def _label_metrics(subject: AuditedRun, views: Sequence[UpdateView]) -> LabelMetrics:
    """Raises ValueError, with the reason, without the gradient of the classifier."""
    right, baseline = list[float](), list[float]()
    for view in views:
        given = subject.attack_input(view)
        _, head = classifier(given.model)
        true = torch.cat([subject.true_labels(client, view.round) for client in view.clients])
        counts = torch.bincount(true, minlength=head.out_features)
        found = label_counts(given.model, given.gradients, images=len(true))
        guessed = whole(torch.bincount(subject.data.y_test, minlength=head.out_features).double(), len(true))
        right.append(int(torch.minimum(found, counts).sum()) / len(true))
        baseline.append(int(torch.minimum(guessed, counts).sum()) / len(true))
    low, high = mean_interval(np.subtract(right, baseline))
    return LabelMetrics(
        observations=len(views),
        accuracy=float(np.mean(right)),
        baseline_accuracy=float(np.mean(baseline)),
        advantage_interval=(low, high),
        reconstructed=low is not None and low > 0,
    )


def _single_client_share(subject: AuditedRun, recordings: Path, view: UpdateView) -> float:
    if view.kind == MASKED or view.kind.startswith(ON_THE_WIRE):
        return 0.0
    counts = contributors(recordings, view, subject.terms)
    return float(((counts == 1) & view.known).mean())
