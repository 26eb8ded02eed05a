"""`tacit schema`: what the files for programs hold, as JSON Schema of the types that their writers have."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from tacit.cli.output import WRONG_INPUT, failure, say, screen
from tacit.parties.runs.results import Result, schema_of

_RUNS: Final = "tacit.parties.runs.outputs"
_MORE: Final = "tacit.simulate.report.outputs"
_ADAPTATION: Final = "tacit.simulate.report.outputs"


@dataclass(frozen=True)
class OutputFile:
    """A file that commands write with --json or into their directory."""

    written_by: str
    module: str
    type_name: str

    @property
    def type(self) -> Any:
        """What it holds, beside `schema`. Imported when it is asked for."""
        return getattr(import_module(self.module), self.type_name)


OUTPUTS: Final = {
    "summary": OutputFile("simulate, server; summary.json", _RUNS, "Summary"),
    "comparison": OutputFile("compare", _MORE, "Comparison"),
    "audit": OutputFile("audit", "tacit.simulate.audit.figures", "AuditFigures"),
    "study": OutputFile("experiment, of federations; table.json", _MORE, "StudyTable"),
    "measurement": OutputFile("experiment, of the rest; table.json", _MORE, "MeasurementTable"),
    "distillation": OutputFile("distill; distillation.json", _MORE, "DistillationFigures"),
    "inference": OutputFile("infer", _MORE, "InferenceFigures"),
    "adaptation": OutputFile("adapt; summary.json", _ADAPTATION, "AdaptationFigures"),
    "prediction": OutputFile("predict", _MORE, "PredictionFigures"),
    "answers": OutputFile("data-owner", _RUNS, "AnswerFigures"),
    "learned": OutputFile("data-owner, where it learns", _RUNS, "LearnedFigures"),
    "status": OutputFile("status", "tacit.parties.hosting.folder", "Status"),
    "preflight": OutputFile("preflight", "tacit.parties.hosting.preflight", "Readiness"),
    "roster": OutputFile("roster show", "tacit.cli.roster", "RosterDescription"),
    "data": OutputFile("data inspect", "tacit.cli.data", "DataDescription"),
    "bench-secagg": OutputFile("bench secagg", _MORE, "SumBenchmarkFigures"),
    "bench-network": OutputFile("bench network", _MORE, "NetworkBenchmarkFigures"),
    "bench-blocks": OutputFile("bench inference, of blocks", _MORE, "BlockBenchmarkFigures"),
    "bench-student": OutputFile("bench inference, of a student", _MORE, "StudentBenchmarkFigures"),
    "bench-adapt": OutputFile("bench adapt", _ADAPTATION, "AdaptationBenchmarkFigures"),
    "vectors": OutputFile("conformance vectors", _MORE, "VectorVerdicts"),
    "peer": OutputFile("conformance peer", _MORE, "PeerVerdicts"),
}
"""By the name of the schema."""


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an output, with the field `schema` that its files begin with. KeyError if there is none."""
    import msgspec

    from tacit.parties.runs.directory import schema_name

    output = OUTPUTS[name]
    if issubclass(output.type, Result):
        return schema_of(output.type)
    found = msgspec.json.schema(output.type)
    whole = found["$defs"][output.type_name]
    whole["properties"] = {"schema": {"const": schema_name(name)}, **whole["properties"]}
    whole["required"] = ["schema", *whole["required"]]
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "$id": schema_name(name), **found}


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
