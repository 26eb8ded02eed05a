"""Fig. 5 of Sawada et al. 2024: test accuracy by epoch, with pre-training (b) and without (c)."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tacit.models.configuration import TrainingConfiguration
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.simulate.experiments import page, sawada
from tacit.simulate.experiments.study import (
    EQUAL_OR_LOWER,
    MARGIN,
    Arm,
    ArmResult,
    ClaimVerdict,
    Size,
    Study,
    compare,
    differences,
    verdict,
)

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
    """Every scheme with both starts."""
    training = TrainingConfiguration(epochs=4, batch_size=16, learning_rate=0.005)
    return tuple(
        Arm(
            name=f"{start}-{scheme}",
            experiment=sawada.small(protection=protection, training=training, rounds=ROUNDS)
            if small
            else sawada.full(protection=protection, pretrained=start == "pretrained"),
            pretrained=start == "pretrained",
            published=_published(start, scheme),
        )
        for start in STARTS
        for scheme, protection in SCHEMES.items()
    )


def judge(results: Sequence[ArmResult]) -> list[ClaimVerdict]:
    """The three sentences of the paper about this figure, and what fresh weights are worth beside locked ones."""
    by_name = {result.arm.name: result for result in results}
    verdicts = []
    if by_name.keys() >= {f"pretrained-{scheme}" for scheme in SCHEMES}:
        claim = "with pre-training every scheme ends as accurate as no protection"
        verdicts.append(_verdict(claim, by_name, "pretrained", "equal", schemes=SCHEMES))
    if unprotected := by_name.get(f"scratch-{UNPROTECTED}"):
        if by_name.keys() >= {f"scratch-{scheme}" for scheme in sawada.FIXED}:
            claim = "without pre-training fixed-position falls behind"
            verdicts.append(_verdict(claim, by_name, "scratch", "lower", schemes=sawada.FIXED))
        binary = {name: by_name[f"scratch-{name}"] for name in sawada.BINARY if f"scratch-{name}" in by_name}
        if len(binary) == len(sawada.BINARY):
            verdicts.append(
                verdict(
                    {name: differences(result, unprotected) for name, result in binary.items()},
                    claim=f"without pre-training binary weights fall behind by less than {100 * MARGIN:.0f} points",
                    above=-MARGIN,
                )
            )
    fresh, locked = (
        by_name.get(f"scratch-{kind}-{MOST_ZEROS}") for kind in ("binary-weights", "locked-binary-weights")
    )
    if fresh and locked:
        verdicts.append(
            verdict(
                {f"R = {MOST_ZEROS}": differences(fresh, locked)},
                claim="without pre-training fresh binary weights are more accurate than locked ones",
                above=0.0,
            )
        )
    return verdicts


def draw(results: Sequence[ArmResult]) -> Figure:
    """Two panels, as the figure has them."""
    panels = {
        title: [result for result in results if result.arm.name.startswith(f"{start}-")]
        for start, title in STARTS.items()
    }
    labels = {result.arm.name: result.arm.name.partition("-")[2] for result in results}
    return page.curves(panels, labels=labels)


def _published(start: str, scheme: str) -> str:
    if scheme.startswith("locked"):
        return "not in the figure"
    return PUBLISHED.get(f"{start}-{scheme}", "a curve: the baseline" if scheme == "unprotected" else PUBLISHED[start])


def _verdict(
    claim: str, by_name: Mapping[str, ArmResult], start: str, wanted: str, *, schemes: Collection[str]
) -> ClaimVerdict:
    baseline = by_name[f"{start}-{UNPROTECTED}"]
    apart = {
        name: differences(by_name[name], baseline)
        for name in (f"{start}-{scheme}" for scheme in schemes if scheme != UNPROTECTED)
    }
    found = {name: compare(values) for name, values in apart.items()}
    undecided = "undecided" in found.values()
    refuted = bool(set(found.values()) - {wanted, "undecided"})
    means = {name: 100 * statistics.mean(values) for name, values in apart.items()}
    return ClaimVerdict(
        claim=claim,
        criterion=EQUAL_OR_LOWER,
        holds=False if refuted else None if undecided else True,
        detail=", ".join(f"{name} {word} ({means[name]:+.1f} points)" for name, word in found.items()),
    )


STUDY: Final = Study(
    name="sawada-fig5",
    paper=sawada.PAPER,
    shows="Fig. 5 (b) and (c), test accuracy by epoch with and without pre-training",
    claim="with pre-training the proposed and the fixed-position method keep the accuracy of the unprotected baseline; "
    "without it the proposed method keeps it and the fixed-position method is far less accurate",
    settings=sawada.SETTINGS,
    silent=sawada.SILENT,
    full=Size(
        arms=arms(small=False),
        differences=(sawada.LOCAL_EPOCH, sawada.SECURE_SUM, "locked binary weights are not in the paper's figure"),
    ),
    small=Size(
        arms=arms(small=True),
        pretraining=TrainingConfiguration(epochs=20, batch_size=16, learning_rate=0.003),
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
    judge=judge,
    draw=draw,
)
