"""Vector files, and checking this installation against them.

A file has either computations, each with its result or the code of its refusal, or the transcript of a run
(transcripts.py). If a file cannot be replayed to its end, the verdict names the reason and the number of the
computation or step.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tacit.parties.runs.results import Column, Result, Table, prose, thousands
from tacit.simulate.conformance.computations import COMPUTATIONS, Computations, Refusal, perform
from tacit.simulate.conformance.transcripts import TranscriptFile, replay

SCHEMA: Final = "schema.json"
"""The one file among the vectors that is not a vector."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"inputs": "with"}):
    """One computation: its result, or the code of its refusal."""

    do: str
    inputs: dict[str, Any]
    expect: Any = UNSET
    refused: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.expect is UNSET) == (self.refused is UNSET):
            raise ValueError("a computation is expected either to return something or to be refused")


class VectorFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    protocol: str
    about: str
    """Purpose of the file, in a sentence."""
    computations: Annotated[tuple[Step, ...], Meta(min_length=1)]


class _Head(msgspec.Struct):
    steps: msgspec.Raw | UnsetType = UNSET


class VectorVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on one file of test vectors."""

    file: str
    steps: int
    """Computations, or steps of a transcript."""
    fault: str
    """First step with an unexpected outcome, or the reason why the file cannot be replayed; empty if it passed."""


class VectorVerdicts(Result, frozen=True, kw_only=True, tag="tacit.vectors.1"):
    """Verdicts on files of test vectors."""

    files: list[VectorVerdict]

    @property
    def failed(self) -> list[VectorVerdict]:
        return [verdict for verdict in self.files if verdict.fault]

    def view(self) -> Iterator[Table | str]:
        failed = self.failed
        if failed:
            yield Table(
                columns=(Column("file"), Column("steps", thousands), Column("fault", prose)),
                rows=[(verdict.file, verdict.steps, verdict.fault) for verdict in failed],
                flagged=range(len(failed)),
            )
        steps = sum(verdict.steps for verdict in self.files)
        yield f"{len(self.files)} files, {steps:,} steps: {f'{len(failed)} failed' if failed else 'all passed'}"


def installed() -> Traversable:
    return files("tacit.vectors")


def vector_files(folder: Traversable) -> list[Traversable]:
    found = [path for path in folder.iterdir() if path.name.endswith(".json") and path.name != SCHEMA]
    return sorted(found, key=lambda path: path.name)


def check(name: str, content: bytes) -> VectorVerdict:
    steps, fault = _replayed(content)
    return VectorVerdict(file=name, steps=steps, fault=fault)


def _replayed(content: bytes) -> tuple[int, str]:
    try:
        if msgspec.json.decode(content, type=_Head).steps is not UNSET:
            transcript = msgspec.json.decode(content, type=TranscriptFile)
            return len(transcript.steps), replay(transcript)
        vector = msgspec.json.decode(content, type=VectorFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return 0, f"not a vector file: {error}"
    computations = COMPUTATIONS.get(vector.protocol)
    if computations is None:
        return 0, f"unknown protocol {vector.protocol!r}; known are {', '.join(COMPUTATIONS)}"
    for number, step in enumerate(vector.computations):
        if fault := _fault(computations, step):
            return len(vector.computations), f"computation {number}, {step.do}: {fault}"
    return len(vector.computations), ""


def _fault(computations: Computations, step: Step) -> str:
    """Return why the step fails; empty if it succeeds."""
    try:
        result = perform(computations, step.do, step.inputs)
    except Refusal as refused:
        if step.refused is UNSET:
            return f"refused with {refused}"
        return "" if refused.code == step.refused else f"expected a refusal with {step.refused}, got {refused}"
    except Exception as error:  # A planted error may break anything: it is reported by its name, and the file fails.
        return f"{type(error).__name__}: {error}"
    if step.refused is not UNSET:
        return f"expected a refusal with {step.refused}, got {_shown(result)}"
    return _difference(step.expect, result, "result")


def _difference(expected: Any, seen: Any, place: str) -> str:
    """Describe the first difference; empty if both are equal."""
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
