"""Fig. 6 of Sawada et al. 2024: number of updates of a coordinate of the model in m = 10 rounds by n = 5 clients.

Computed by Eq. 13 with the exponent n(m - f), and counted in runs of the real parties: the server records the
coordinates that the sum of every round moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.models.binary_weights import update_distribution
from tacit.models.configuration import TrainingConfiguration
from tacit.parties.protections.binary_weights import BinaryWeights, LockedBinaryWeights
from tacit.parties.runs.results import Column, Table, plain
from tacit.simulate.experiments import sawada
from tacit.simulate.experiments.federations import Arm, Federations
from tacit.simulate.experiments.measures import Values
from tacit.simulate.experiments.page import distributions
from tacit.simulate.experiments.results import FederatedRun, Quantity, StudyResult, StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Size, Study

DISTANCE: Final = Quantity(name="distance of counted and computed", unit="%")
LOCKED: Final = {name: scheme for zero in sawada.ZERO_PROBABILITIES for name, scheme in sawada.locked(zero).items()}
SCHEMES: Final = sawada.FIXED | sawada.BINARY | LOCKED
ERROR: Final = 1e-6
"""Probability of rejecting a run that follows the computed distribution."""
VIT_SMALL: Final = (14 * 14 + 1) * 384
"""Coordinates of the position embedding of vit_small_patch16_224."""
TWIN: Final = (4 * 4 + 1) * 32
LARGEST_TWIN: Final = 10**6
"""Exceeds the number of coordinates of the twin."""


def arms(*, small: bool) -> tuple[Arm, ...]:
    training = TrainingConfiguration(algorithm="fedsgd", learning_rate=0.01, batch_size=256)
    return tuple(
        Arm(
            name=name,
            experiment=sawada.small(protection=scheme, training=training, rounds=sawada.ROUNDS)
            if small
            else sawada.full(protection=scheme, pretrained=False),
            published={DISTANCE.name: "a bar chart of the same distribution"},
        )
        for name, scheme in SCHEMES.items()
    )


def computed(name: str, run: FederatedRun) -> npt.NDArray[np.float64]:
    """Return P(f), f = 0..m [m + 1], for a run of the row of this name."""
    protection, moves = SCHEMES[name], _moves(run)
    rounds, coordinates = len(moves) - 1, sum(moves)
    if isinstance(protection, BinaryWeights | LockedBinaryWeights):
        locked = isinstance(protection, LockedBinaryWeights)
        return update_distribution(rounds, sawada.CLIENTS, protection.zero_probability, locked=locked)
    fixed = TWIN if coordinates < LARGEST_TWIN else VIT_SMALL
    chances = np.zeros(rounds + 1)
    chances[[0, -1]] = np.array([fixed, coordinates - fixed]) / coordinates
    return chances


def measured(run: FederatedRun) -> npt.NDArray[np.float64]:
    """Return the fraction of the coordinates that moved f times."""
    moves = np.array(_moves(run), dtype=np.float64)
    shares: npt.NDArray[np.float64] = moves / moves.sum()
    return shares


def distance(run: FederatedRun, expected: npt.NDArray[np.float64]) -> float:
    """Return the total variation distance of the counted and the computed distribution, 0 to 1."""
    return float(np.abs(measured(run) - expected).sum() / 2)


def bound(expected: npt.NDArray[np.float64], coordinates: int) -> float:
    """Return the distance that so many independent coordinates exceed with probability at most ERROR.

    Its mean is at most half the sum of the standard deviations of the shares, and one coordinate changes it by at most
    1/coordinates, which gives the rest (McDiarmid's inequality).
    """
    mean = np.sqrt(expected * (1 - expected) / coordinates).sum() / 2
    return float(mean + math.sqrt(math.log(1 / ERROR) / (2 * coordinates)))


def values(arm: Arm, run: FederatedRun) -> Values:
    """Return the distance of a run from the computed distribution, in percent."""
    return {DISTANCE.name: 100 * distance(run, computed(arm.name, run))}


def _claims() -> Iterator[Claim]:
    """Return the claims that the formula holds for each kind of weights, and the paper's conclusion."""
    yield _follows("with a fixed position embedding all but that is updated in every round", tuple(sawada.FIXED))
    yield _follows("with fresh weights update counts follow Eq. 13 with the exponent n(m - f)", tuple(sawada.BINARY))
    yield _follows("with locked weights update counts have the two values of Eq. 13", tuple(LOCKED))
    pairs = [(f"binary-weights-{zero}", f"locked-binary-weights-{zero}") for zero in sawada.ZERO_PROBABILITIES]

    def judge(rows: Mapping[str, StudyRow]) -> Verdict:
        never = {name: max(float(measured(run)[0]) for run in row.federated) for name, row in rows.items()}
        return Verdict(
            claim="with fresh weights fewer parameters are never updated than with locked ones",
            criterion="for every R, the largest share of never updated coordinates over the seeds",
            reproduced=all(never[fresh] < never[locked] for fresh, locked in pairs),
            detail=", ".join(f"{fresh} {never[fresh]:.2%}, locked {never[locked]:.2%}" for fresh, locked in pairs),
        )

    yield Claim(rows=tuple(name for pair in pairs for name in pair), judge=judge)


def _follows(claim: str, names: tuple[str, ...]) -> Claim:
    def judge(rows: Mapping[str, StudyRow]) -> Verdict:
        worst, where = max(
            (distance(run, computed(name, run)) / bound(computed(name, run), sum(_moves(run))), name)
            for name, row in rows.items()
            for run in row.federated
        )
        return Verdict(
            claim=claim,
            criterion="the total variation distance of every run is below what that of independent coordinates "
            f"exceeds with probability {ERROR:g}",
            reproduced=worst <= 1,
            detail=f"at most {worst:.0%} of that, in {where}",
        )

    return Claim(rows=names, judge=judge)


def details(result: StudyResult) -> list[Table | str]:
    rows = result.finished
    counted = [100 * np.mean([measured(run) for run in row.federated], axis=0) for row in rows]
    expected = [100 * computed(row.name, row.federated[0]) for row in rows]
    cells = [
        [count, *(f"{c[count]:.3f} / {e[count]:.3f}" for c, e in zip(counted, expected, strict=True))]
        for count in range(len(expected[0]))
    ]
    columns = [Column("f", plain), *(Column(row.name, plain) for row in rows)]
    return [
        "Share of the coordinates (%) that were updated f times, counted (mean over the seeds) and computed:",
        Table(columns=columns, rows=cells),
    ]


def _moves(run: FederatedRun) -> list[int]:
    if run.moves is None:
        raise ValueError(f"{run.directory}: the run did not record which coordinates moved")
    return run.moves


STUDY: Final = Study(
    name="sawada-fig6",
    paper=sawada.PAPER,
    shows="Fig. 6, distribution of update counts for m = 10 and n = 5",
    claim="with fresh random binary weights the counts of updates follow Eq. 13, so that far fewer parameters are "
    "never updated than with locked ones; fixed-position updates all but the position embedding in every round",
    settings=(*sawada.SETTINGS, ("m and n", "10 epochs, 5 clients")),
    silent=sawada.SILENT,
    columns=(DISTANCE,),
    full=Size(
        rows=arms(small=False),
        measure=Federations(values=values, classes=(10,), record_moves=True),
        differences=(sawada.LOCAL_EPOCH, sawada.SECURE_SUM, "random initial weights, which do not change the counts"),
    ),
    small=Size(
        rows=arms(small=True),
        measure=Federations(values=values, record_moves=True),
        differences=(
            *sawada.SMALL_DIFFERENCES,
            "a round is one FedSGD step over all images of a client: counts depend on R, m and n alone",
            sawada.SECURE_SUM,
        ),
    ),
    claims=tuple(_claims()),
    draw=lambda result: distributions(result.finished, lambda row: computed(row.name, row.federated[0])),
    details=details,
)
