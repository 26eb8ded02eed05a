"""Whether a file for programs is what its schema says: no key too many, none missing, all of their types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tacit.cli.commands.schema import result_files


def check_output(path: Path, name: str) -> dict[str, Any]:
    """The content of the file without the name of its schema, which it begins with."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    assert next(iter(content)) == "schema"
    # What the type does not know is lost on the way, and what it wants is missed.
    found = msgspec.json.decode(path.read_bytes(), type=result_files()[name].type)
    assert json.loads(msgspec.json.encode(found)) == content
    del content["schema"]
    return content
