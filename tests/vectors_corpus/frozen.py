"""What the vectors of a protocol compute, in digests: those that are frozen, and those that there are."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Final

FROZEN: Final[dict[str, str]] = json.loads(Path(__file__).with_name("frozen.json").read_text(encoding="utf-8"))
"""Digests of the frozen files, by their names."""
VECTORS: Final = Path(__file__).parents[1] / "vectors"


def protocol_of(name: str) -> str:
    protocol: str = json.loads((VECTORS / name).read_bytes())["protocol"]
    return protocol


def digest_of(name: str) -> str:
    """SHA-256 of what is computed in a file, and not of the words about it, in hexadecimal."""
    file = json.loads((VECTORS / name).read_bytes())
    computed = file.get("computations") or [file["common"], file["messages"], file["steps"]]
    return sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()
