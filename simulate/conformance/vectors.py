"""Vector files, and checking this installation against them.

A file is a list of operations with the outcome that each must have: a result, or the code of its refusal. The file
names its protocol; PROTOCOLS has the operations of each. Whatever keeps a file from being replayed to its end is a
verdict against it, with the number of the operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tacit.simulate.conformance.adaptation_stage import ADAPTATION_OPERATIONS, AdaptationStage
from tacit.simulate.conformance.exchange_operations import GROUP_KEY_OPERATIONS, GroupKeyStage, SumStage
from tacit.simulate.conformance.inference_operations import INFERENCE_OPERATIONS
from tacit.simulate.conformance.inference_stage import InferenceStage
from tacit.simulate.conformance.message_operations import MESSAGE_OPERATIONS
from tacit.simulate.conformance.operations import Operations, Protocol, RefusedOperation, perform
from tacit.simulate.conformance.primitive_operations import PRIMITIVES
from tacit.simulate.conformance.protection_operations import PROTECTIONS
from tacit.simulate.conformance.session_operations import SessionStage
from tacit.simulate.conformance.transcripts import TranscriptFile, replay

SCHEMA: Final = "schema.json"
"""The one file among the vectors that is none."""
Level = Literal["primitive", "message", "round", "session"]


PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "secure sum": lambda: {**PRIMITIVES, **MESSAGE_OPERATIONS, **SumStage().operations()},
    "group key": lambda: {**GROUP_KEY_OPERATIONS, **GroupKeyStage().operations()},
    "protection": lambda: PROTECTIONS,
    "federation": lambda: SessionStage().operations(),
    "private inference": lambda: {**INFERENCE_OPERATIONS, **InferenceStage().operations()},
    "double-blind adaptation": lambda: {**ADAPTATION_OPERATIONS, **AdaptationStage().operations()},
}
"""That vectors may speak of, each with its operations."""


class VectorStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"inputs": "with"}):
    """One operation: either what it returns, or the code with which it refuses."""

    do: str
    inputs: dict[str, Any]
    expect: Any = UNSET
    refused: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.expect is UNSET) == (self.refused is UNSET):
            raise ValueError("an operation is expected either to return something or to be refused")


class VectorFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of vectors."""

    protocol: str
    level: Level
    about: str
    """What it shows, in a sentence."""
    operations: Annotated[tuple[VectorStep, ...], Meta(min_length=1)]


class _Head(msgspec.Struct):
    """What tells a transcript from other vectors."""

    steps: msgspec.Raw | UnsetType = UNSET


@dataclass(frozen=True)
class VectorVerdict:
    """What came of one file: `fault` is empty if everything is as it says."""

    file: str
    operations: int
    """Or steps, of a transcript."""
    fault: str


def installed() -> Traversable:
    """The folder of the installed vectors."""
    return files("tacit.vectors")


def vector_files(folder: Traversable) -> list[Traversable]:
    """The vector files of a folder, by name."""
    found = [path for path in folder.iterdir() if path.name.endswith(".json") and path.name != SCHEMA]
    return sorted(found, key=lambda path: path.name)


def check(name: str, content: bytes) -> VectorVerdict:
    """Replay one file."""
    try:
        if msgspec.json.decode(content, type=_Head).steps is not UNSET:
            transcript = msgspec.json.decode(content, type=TranscriptFile)
            return VectorVerdict(name, len(transcript.steps), replay(transcript))
        vector = msgspec.json.decode(content, type=VectorFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return VectorVerdict(name, 0, f"not a vector file: {error}")
    protocol = PROTOCOLS.get(vector.protocol)
    if protocol is None:
        return VectorVerdict(name, 0, f"unknown protocol {vector.protocol!r}; known are {', '.join(PROTOCOLS)}")
    operations = protocol()
    for number, step in enumerate(vector.operations):
        if fault := _fault(operations, step):
            return VectorVerdict(name, len(vector.operations), f"operation {number}, {step.do}: {fault}")
    return VectorVerdict(name, len(vector.operations), "")


def _fault(operations: Operations, step: VectorStep) -> str:
    """Why the step does not hold; empty if it does."""
    try:
        result = perform(operations, step.do, step.inputs)
    except RefusedOperation as refused:
        if step.refused is UNSET:
            return f"refused with {refused}"
        return "" if refused.code == step.refused else f"expected a refusal with {step.refused}, got {refused}"
    except Exception as error:  # A planted error may break anything: it is reported by its name, and the file fails.
        return f"{type(error).__name__}: {error}"
    if step.refused is not UNSET:
        return f"expected a refusal with {step.refused}, got {_shown(result)}"
    return _difference(step.expect, result, "result")


def _difference(expected: Any, seen: Any, place: str) -> str:
    """The first place where the two differ, and how; empty if they are the same."""
    if type(expected) is not type(seen):
        return f"{place}: expected {_shown(expected)}, got {_shown(seen)}"
    if isinstance(expected, dict) and expected.keys() == seen.keys():
        parts = [(expected[key], seen[key], f"{place}.{key}") for key in expected]
    elif isinstance(expected, list) and len(expected) == len(seen):
        parts = [(expected[index], seen[index], f"{place}[{index}]") for index in range(len(expected))]
    else:
        return "" if expected == seen else f"{place}: expected {_shown(expected)}, got {_shown(seen)}"
    return next((fault for part in parts if (fault := _difference(*part))), "")


def _shown(value: Any, longest: int = 100) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= longest else f"{text[:longest]}..."
