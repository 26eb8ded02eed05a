"""All vector files, and writing them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tacit.simulate.conformance.vectors import SCHEMA
from tests.vectors_corpus import (  # noqa: F401 - Their functions make files.
    adaptation,
    cryptography,
    group_keys,
    groups,
    inference,
    messages,
    primitives,
    protections,
    rosters,
)
from tests.vectors_corpus.schema import schema
from tests.vectors_corpus.script import SCRIPTS
from tests.vectors_corpus.transcripts import TRANSCRIPTS

CORPUS: Final = (*SCRIPTS, *TRANSCRIPTS)
"""The names of all files."""


def content(name: str) -> bytes:
    """The bytes of one vector file: a computation, a message or a step a line."""
    made = TRANSCRIPTS[name]() if name in TRANSCRIPTS else SCRIPTS[name]().file()
    fields = []
    for field, raw in msgspec.json.decode(msgspec.json.encode(made), type=dict[str, msgspec.Raw]).items():
        written = bytes(raw)
        if field in ("computations", "messages", "steps"):
            lines = msgspec.json.decode(raw, type=list[msgspec.Raw])
            written = b"[\n" + b",\n".join(bytes(line) for line in lines) + b"\n]"
        fields.append(msgspec.json.encode(field) + b":" + written)
    return b"{" + b",".join(fields) + b"}\n"


def schema_content() -> bytes:
    return msgspec.json.format(msgspec.json.encode(schema()), indent=0) + b"\n"


def write_corpus(directory: Path) -> None:
    """Write all files and the schema; vector files that the corpus does not have are removed."""
    for path in directory.glob("*.json"):
        if path.name not in CORPUS and path.name != SCHEMA:
            path.unlink()
    for name in CORPUS:
        (directory / name).write_bytes(content(name))
    (directory / SCHEMA).write_bytes(schema_content())
