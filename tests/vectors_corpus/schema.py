"""The JSON schema of vector files, from the operations' own types."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from tacit.protocol.core.errors import Code
from tacit.simulate.conformance.notation import PATTERN, Octets
from tacit.simulate.conformance.operations import INVALID, parameters_of
from tacit.simulate.conformance.transcripts import PLAYED, TranscriptFile
from tacit.simulate.conformance.vectors import PROTOCOLS, Level

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema: of transcripts, and for every protocol its operations with their inputs, each expecting something or
    refused."""
    operations = {
        (protocol, name): operation for protocol, make in PROTOCOLS.items() for name, operation in make().items()
    }
    inputs = [parameters_of(operation) for operation in operations.values()]
    (transcript, *references), definitions = msgspec.json.schema_components(
        [TranscriptFile, *inputs], schema_hook=_octets
    )
    steps: dict[str, list[Any]] = {protocol: [] for protocol in PROTOCOLS}
    for (protocol, name), reference in zip(operations, references, strict=True):
        steps[protocol].append({"properties": {"do": {"const": name}, "with": reference}})
    step = {
        "type": "object",
        "required": ["do", "with"],
        "properties": {
            "do": {"type": "string"},
            "with": {"type": "object"},
            "expect": {},
            "refused": {"enum": [INVALID, *(code.name for code in Code)]},
        },
        "additionalProperties": False,
        "oneOf": [{"required": ["expect"]}, {"required": ["refused"]}],
    }
    of_operations = {
        "type": "object",
        "required": ["protocol", "level", "about", "operations"],
        "properties": {
            "protocol": {"enum": list(PROTOCOLS)},
            "level": {"enum": list(get_args(Level))},
            "about": {"type": "string"},
            "operations": {"type": "array", "minItems": 1, "items": step},
        },
        "additionalProperties": False,
        "oneOf": [
            {"properties": {"protocol": {"const": protocol}, "operations": {"items": {"oneOf": possible}}}}
            for protocol, possible in steps.items()
        ],
    }
    return {
        "$schema": DIALECT,
        "title": "Test vectors",
        "oneOf": [{**transcript, "properties": {"protocol": {"enum": list(PLAYED)}}}, of_operations],
        "$defs": definitions,
    }


def _octets(kind: type[Any]) -> dict[str, Any]:
    if kind is Octets:
        return {"type": "string", "pattern": PATTERN}
    raise NotImplementedError(kind)
