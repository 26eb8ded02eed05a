"""`tacit schema`: the JSON Schema of the results that commands write for programs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from tacit.cli.output import WRONG_INPUT, failure, say, screen
from tacit.parties.runs.results import Result, schema_of

_BENCH: Final = "tacit.simulate.bench.results"


@dataclass(frozen=True)
class OutputFile:
    """A file that commands write with --json or into their directory."""

    written_by: str
    module: str
    type_name: str

    @property
    def type(self) -> type[Result]:
        """Its type, which is imported when it is asked for."""
        found: type[Result] = getattr(import_module(self.module), self.type_name)
        return found


OUTPUTS: Final = {
    "summary": OutputFile("simulate, server; summary.json", "tacit.parties.runs.summary", "Summary"),
    "comparison": OutputFile("compare", "tacit.simulate.report.comparison", "Comparison"),
    "audit": OutputFile("audit", "tacit.simulate.audit.results", "AuditResult"),
    "study": OutputFile("experiment; table.json", "tacit.simulate.experiments.results", "StudyResult"),
    "distillation": OutputFile("distill; distillation.json", "tacit.parties.runs.distillation", "DistillationResult"),
    "inference": OutputFile("infer", "tacit.simulate.private_inference.results", "InferenceResult"),
    "adaptation": OutputFile("adapt; summary.json", "tacit.simulate.adaptation.results", "AdaptationSummary"),
    "prediction": OutputFile("predict", "tacit.simulate.private_inference.results", "PredictionResult"),
    "answers": OutputFile("data-owner", "tacit.parties.runs.answers", "Answers"),
    "learned": OutputFile("data-owner, where it learns", "tacit.parties.runs.adaptation", "LearnedAdapters"),
    "status": OutputFile("status", "tacit.parties.hosting.folder", "Status"),
    "preflight": OutputFile("preflight", "tacit.parties.hosting.preflight", "Readiness"),
    "roster": OutputFile("roster show", "tacit.cli.roster", "RosterDescription"),
    "data": OutputFile("data inspect", "tacit.cli.data", "DataDescription"),
    "bench-secagg": OutputFile("bench secagg", _BENCH, "SumBenchmarkResult"),
    "bench-network": OutputFile("bench network", _BENCH, "NetworkBenchmarkResult"),
    "bench-blocks": OutputFile("bench inference, of blocks", _BENCH, "BlockBenchmarkResult"),
    "bench-student": OutputFile("bench inference, of a student", _BENCH, "StudentBenchmarkResult"),
    "bench-adapt": OutputFile("bench adapt", _BENCH, "AdaptationBenchmarkResult"),
    "vectors": OutputFile("conformance vectors", "tacit.simulate.conformance.vectors", "VectorVerdicts"),
    "peer": OutputFile("conformance peer", "tacit.simulate.conformance.peer.script", "PeerVerdicts"),
}
"""By the name of the schema."""


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a result. KeyError if there is none of this name."""
    return schema_of(OUTPUTS[name].type)


def schema(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Without one, all names are listed.")] = None,
) -> None:
    """Print the JSON Schema of a file that other commands write for programs.

    Exit status: 0 done; 2 there is no such schema.
    """
    if name is None:
        width = max(map(len, OUTPUTS))
        for known, output in OUTPUTS.items():
            say(screen(), f"{known:<{width}}  {output.written_by}")
        return
    if name not in OUTPUTS:
        raise failure(f"schema {name}: there is none; choose one of {', '.join(OUTPUTS)}", WRONG_INPUT)
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema(name)), indent=2))
