"""Fig. 5 of Sawada et al. 2024: test accuracy by epoch, with pre-training (b) and without (c)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tacit.models.configuration import TrainingConfiguration
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.simulate.experiments import page, sawada
from tacit.simulate.experiments.criteria import EQUAL_OR_LOWER, MARGIN, compare, differences, verdict
from tacit.simulate.experiments.federations import TEST_ACCURACY, Arm, Federations
from tacit.simulate.experiments.results import StudyResult, StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Size, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ZEROS: Final = max(sawada.ZERO_PROBABILITIES)
UNPROTECTED: Final = "unprotected"
SCHEMES: Final[dict[str, Protection]] = (
    {UNPROTECTED: NoProtection()} | sawada.FIXED | sawada.BINARY | sawada.locked(MOST_ZEROS)
)
STARTS: Final = {"pretrained": "with pre-training", "scratch": "without pre-training"}
PUBLISHED: Final = {
    "pretrained": "a curve: like the unprotected one",
    "scratch": "a curve: like the unprotected one",
    "scratch-fixed-position": "a curve: far below the unprotected one",
}
ROUNDS: Final = 16


def arms(*, small: bool) -> tuple[Arm, ...]:
    training = TrainingConfiguration(epochs=4, batch_size=16, learning_rate=0.005)
    return tuple(
        Arm(
            name=f"{start}-{scheme}",
            experiment=sawada.small(protection=protection, training=training, rounds=ROUNDS)
            if small
            else sawada.full(protection=protection, pretrained=start == "pretrained"),
            pretrained=start == "pretrained",
            published={TEST_ACCURACY.name: _published(start, scheme)},
        )
        for start in STARTS
        for scheme, protection in SCHEMES.items()
    )


def _claims() -> Iterator[Claim]:
    """Return the three sentences of the paper about this figure, and the benefit of fresh weights over locked ones."""
    claim = "with pre-training every scheme ends as accurate as no protection"
    yield _against_unprotected(claim, [f"pretrained-{scheme}" for scheme in SCHEMES], "equal")
    unprotected = f"scratch-{UNPROTECTED}"
    fixed = [unprotected, *(f"scratch-{scheme}" for scheme in sawada.FIXED)]
    yield _against_unprotected("without pre-training fixed-position falls behind", fixed, "lower")
    binary = {scheme: f"scratch-{scheme}" for scheme in sawada.BINARY}
    yield Claim(
        rows=(unprotected, *binary.values()),
        judge=lambda rows: verdict(
            {scheme: differences(rows[name], rows[unprotected]) for scheme, name in binary.items()},
            claim=f"without pre-training binary weights fall behind by less than {100 * MARGIN:.0f} points",
            above=-MARGIN,
        ),
    )
    fresh, locked = (f"scratch-{kind}-{MOST_ZEROS}" for kind in ("binary-weights", "locked-binary-weights"))
    yield Claim(
        rows=(fresh, locked),
        judge=lambda rows: verdict(
            {f"R = {MOST_ZEROS}": differences(rows[fresh], rows[locked])},
            claim="without pre-training fresh binary weights are more accurate than locked ones",
            above=0.0,
        ),
    )


def draw(result: StudyResult) -> Figure:
    """Plot two panels, as in the figure."""
    panels = {
        title: [row for row in result.finished if row.name.startswith(f"{start}-")] for start, title in STARTS.items()
    }
    labels = {row.name: row.name.partition("-")[2] for row in result.finished}
    return page.curves(panels, labels=labels)


def _published(start: str, scheme: str) -> str:
    if scheme.startswith("locked"):
        return "not in the figure"
    return PUBLISHED.get(f"{start}-{scheme}", "a curve: the baseline" if scheme == "unprotected" else PUBLISHED[start])


def _against_unprotected(claim: str, names: Sequence[str], wanted: str) -> Claim:
    """Return the claim that all other arms compare so with the unprotected one among them."""
    (baseline,) = (name for name in names if name.endswith(f"-{UNPROTECTED}"))

    def judge(rows: Mapping[str, StudyRow]) -> Verdict:
        apart = {name: differences(rows[name], rows[baseline]) for name in names if name != baseline}
        found = {name: compare(values) for name, values in apart.items()}
        undecided = "undecided" in found.values()
        refuted = bool(set(found.values()) - {wanted, "undecided"})
        means = {name: 100 * statistics.mean(values) for name, values in apart.items()}
        return Verdict(
            claim=claim,
            criterion=EQUAL_OR_LOWER,
            reproduced=False if refuted else None if undecided else True,
            detail=", ".join(f"{name} {word} ({means[name]:+.1f} points)" for name, word in found.items()),
        )

    return Claim(rows=tuple(names), judge=judge)


STUDY: Final = Study(
    name="sawada-fig5",
    paper=sawada.PAPER,
    shows="Fig. 5 (b) and (c), test accuracy by epoch with and without pre-training",
    claim="with pre-training the proposed and the fixed-position method keep the accuracy of the unprotected baseline; "
    "without it the proposed method keeps it and the fixed-position method is far less accurate",
    settings=sawada.SETTINGS,
    silent=sawada.SILENT,
    full=Size(
        rows=arms(small=False),
        measure=Federations(classes=(10,)),
        differences=(sawada.LOCAL_EPOCH, sawada.SECURE_SUM, "locked binary weights are not in the paper's figure"),
    ),
    small=Size(
        rows=arms(small=True),
        measure=Federations(pretraining=TrainingConfiguration(epochs=20, batch_size=16, learning_rate=0.003)),
        differences=(
            *sawada.SMALL_DIFFERENCES,
            "pre-training: 20 epochs on one half of the training images, which has the same classes; the clients share "
            "the other half, also in the arms without pre-training",
            f"{ROUNDS} rounds of FedAvg with 4 epochs of AdamW each, learning rate 0.005: plain gradient steps do not "
            "train a vision transformer from random weights within minutes",
            sawada.SECURE_SUM,
            "locked binary weights are not in the paper's figure",
        ),
    ),
    claims=tuple(_claims()),
    draw=draw,
)
