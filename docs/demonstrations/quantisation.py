"""Measure the cost of clipping and rounding: the default federation on digits, with a secure sum and with float32.

Both trainings begin with the same model and draw the same batches. All clients train in this process, one after the
other; masks, which cancel, are left out.

    python docs/demonstrations/quantisation.py [SEEDS] [ROUNDS]
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from msgspec import structs
from one_process import FinishedRound, rounds

from tacit.models.layout import Layout
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection

PROTECTIONS: tuple[Protection, ...] = (NoProtection(), BinaryWeights())


def _experiment(protection: Protection, mode: str, count: int) -> Experiment:
    return Experiment(
        federation=FederationSection(rounds=count),
        protection=protection,
        aggregation=Aggregation(mode=mode),  # type: ignore[arg-type]
        policy=structs.replace(ClientPolicy(), modes=(mode,), uncoordinated_weights=True),
    )


def _seen(finished: FinishedRound) -> tuple[np.ndarray, float, int]:
    """The model, its accuracy in percent, and how many coordinates were clipped."""
    return Layout.of(finished.model).flatten(finished.model), finished.accuracy(), finished.clipped


def main(seeds: int, count: int) -> None:
    torch.set_num_threads(1)
    for protection in PROTECTIONS:
        for seed in range(1, seeds + 1):
            modes = [rounds(_experiment(protection, mode, count), seed) for mode in ("active", "none")]
            clipped = 0
            for secure, plain in zip(*modes, strict=True):
                (one, accuracy, cut), (other, exact, _) = _seen(secure), _seen(plain)
                clipped += cut
                apart, size = np.abs(one - other), np.sqrt(np.mean(np.square(other)))
                distance = f"{apart.max():.2g} at most, {np.sqrt(np.mean(apart**2)):.2g} RMS"
                print(
                    f"{protection.scheme}, seed {seed}, round {secure.number}: accuracy {accuracy:.1f} % secure, "
                    f"{exact:.1f} % float32; models apart by {distance}, of weights of {size:.2g} RMS; "
                    f"{clipped} coordinates clipped",
                    flush=True,
                )


if __name__ == "__main__":
    main(*map(int, [*sys.argv[1:], *("3", "5")[len(sys.argv) - 1 :]]))
