"""The JSON schema of vector files, from the types of the computations."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tacit.protocol.core.errors import Code
from tacit.simulate.conformance.computations import COMPUTATIONS, INVALID, parameters_of
from tacit.simulate.conformance.notation import PATTERN, Octets
from tacit.simulate.conformance.transcripts import PLAYED, TranscriptFile

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema of transcripts, and for every protocol that of its computations with their inputs."""
    computations = {
        (protocol, name): computation for protocol, named in COMPUTATIONS.items() for name, computation in named.items()
    }
    inputs = [parameters_of(computation) for computation in computations.values()]
    (transcript, *references), definitions = msgspec.json.schema_components(
        [TranscriptFile, *inputs], schema_hook=_octets
    )
    steps: dict[str, list[Any]] = {protocol: [] for protocol in COMPUTATIONS}
    for (protocol, name), reference in zip(computations, references, strict=True):
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
    of_computations = {
        "type": "object",
        "required": ["protocol", "about", "computations"],
        "properties": {
            "protocol": {"enum": list(COMPUTATIONS)},
            "about": {"type": "string"},
            "computations": {"type": "array", "minItems": 1, "items": step},
        },
        "additionalProperties": False,
        "oneOf": [
            {"properties": {"protocol": {"const": protocol}, "computations": {"items": {"oneOf": possible}}}}
            for protocol, possible in steps.items()
        ],
    }
    return {
        "$schema": DIALECT,
        "title": "Test vectors",
        "oneOf": [{**transcript, "properties": {"protocol": {"enum": list(PLAYED)}}}, of_computations],
        "$defs": definitions,
    }


def _octets(kind: type[Any]) -> dict[str, Any]:
    if kind is Octets:
        return {"type": "string", "pattern": PATTERN}
    raise NotImplementedError(kind)
