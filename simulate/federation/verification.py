"""What --verify checks when a run is over: that every secure sum is the sum.

The clients' quantised vectors must add up in the ring, exactly, to the words that the server unmasked; and the float
sum of their weighted updates must lie within the bound that stochastic rounding allows (Packing.error_bound). A client
records its words, and the weighted values that they stand for; the server the sum of the words, the values decoded from
it, their error bound, and the names of the survivors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tacit.parties.runs.directory import RunDirectory
from tacit.secagg.ring import Ring


class VerificationError(Exception):
    """A sum is not the sum; the message names the round and the figures."""


def verify(run: RunDirectory, ring_bits: int) -> list[dict[str, Any]]:
    """Check every recorded round; returns round, clients, largest float error and its bound."""
    return [_verify_round(path, Ring(ring_bits)) for path in run.verified_rounds() if (path / "sum.npz").exists()]


def _verify_round(path: Path, ring: Ring) -> dict[str, Any]:
    with np.load(path / "sum.npz", allow_pickle=False) as recorded:
        words, values, bound = recorded["words"], recorded["values"], float(recorded["bound"])
        names = [str(name) for name in recorded["names"]]
    expected_words, expected_values = np.zeros_like(words), np.zeros_like(values)
    for name in names:
        with np.load(path / f"{name}.npz", allow_pickle=False) as update:
            ring.add_into(expected_words, update["words"])
            expected_values += update["values"]
    if different := int(np.count_nonzero(expected_words != words)):
        raise VerificationError(f"round {path.name}: {different} of {words.size} words of the secure sum are wrong")
    error = float(np.abs(expected_values - values).max())
    if error > bound:
        raise VerificationError(f"round {path.name}: the sum is off by {error:g}; quantisation allows {bound:g}")
    return {"round": int(path.name), "clients": len(names), "largest_error": error, "bound": bound}
