"""All vector files, and writing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tacit.simulate.conformance.vectors import SCHEMA
from tests.vectors_corpus import (
    adaptation,
    adaptation_sessions,
    cryptography,
    disputes,
    group_keys,
    groups,
    inference,
    inference_faults,
    inference_sessions,
    lying_clients,
    lying_server,
    messages,
    primitives,
    protected_sessions,
    protections,
    rosters,
    rounds,
    session_faults,
    sessions,
    spoilt,
)
from tests.vectors_corpus.schema import schema
from tests.vectors_corpus.script import Script

PARTS: Final = (
    primitives, cryptography, messages, rounds, disputes, lying_clients, lying_server, spoilt, group_keys, protections,
    sessions, session_faults, protected_sessions, groups, rosters, inference, inference_sessions, inference_faults,
    adaptation, adaptation_sessions,
)  # fmt: skip
CORPUS: Final[dict[str, Callable[[], Script]]] = {
    f"{name}.json": make for part in PARTS for name, make in part.FILES.items()
}
"""What makes each file."""


def content(name: str) -> bytes:
    """The bytes of one vector file: an operation a line."""
    head, operations = msgspec.json.encode(CORPUS[name]().file()).split(b'"operations":[', 1)
    steps = msgspec.json.decode(b"[" + operations.removesuffix(b"}"), type=list[msgspec.Raw])
    return head + b'"operations":[\n' + b",\n".join(bytes(step) for step in steps) + b"\n]}\n"


def schema_content() -> bytes:
    """The bytes of the schema."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=0) + b"\n"


def write_corpus(directory: Path) -> None:
    """Write all files and the schema; vector files that the corpus does not have are removed."""
    for path in directory.glob("*.json"):
        if path.name not in CORPUS and path.name != SCHEMA:
            path.unlink()
    for name in CORPUS:
        (directory / name).write_bytes(content(name))
    (directory / SCHEMA).write_bytes(schema_content())
