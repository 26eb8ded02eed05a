"""Whether a file for programs is what its schema says: no key too many, none missing, all of their types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tacit.cli.schema import OUTPUTS
from tacit.parties.runs.directory import schema_name
from tacit.parties.runs.results import Result


def check_output(path: Path, name: str) -> dict[str, Any]:
    """The content of the file without the name of its schema, which it begins with."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    kind = OUTPUTS[name].type
    if issubclass(kind, Result):
        # What the type does not know is lost on the way, and what it wants is missed.
        assert json.loads(msgspec.json.encode(msgspec.json.decode(path.read_bytes(), type=kind))) == content
        assert content.pop("schema").startswith(f"tacit.{name}.")
        return content
    assert next(iter(content)) == "schema"
    assert content.pop("schema") == schema_name(name)
    # What the type does not know is lost on the way, and what it wants is missed.
    assert json.loads(msgspec.json.encode(msgspec.convert(content, OUTPUTS[name].type))) == content
    return content
