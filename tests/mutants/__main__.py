"""python -m tests.mutants [MODULE...]: plant defects into these modules, or into all of which secrecy hangs on."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.mutants.campaign import Score, Verdict, candidates, run, sample, scores
from tests.mutants.selection import measure

SCOPE: Final = ("secagg", "protocol/sum", "protocol/group_key", "protocol/session")
"""Folders whose modules are judged."""


def modules(since: str | None) -> list[str]:
    """All modules of the scope, or those of them that changed since a revision."""
    listed = ["git", "ls-files"] if since is None else ["git", "diff", "--name-only", "--diff-filter=d", since]
    files = subprocess.run([*listed, "--", *SCOPE], capture_output=True, text=True, check=True).stdout.split()
    return [
        f"tacit.{Path(file).with_suffix('').as_posix().replace('/', '.')}"
        for file in files
        if file.endswith(".py") and not file.endswith("__init__.py")
    ]


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[MODULE]...", help="Default: all.")] = None,
    since: Annotated[str | None, typer.Option(help="Only modules that changed since this revision.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Plant not more than so many, chosen by the seed.")] = 1000,
    seed: int = 0,
    workers: Annotated[int, typer.Option(min=1, help="Runs of tests at the same time.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result.")] = None,
) -> None:
    """Plant defects one at a time, run the tests of their lines, and list those that no test notices."""
    console = Console()
    chosen = names or modules(since)
    everything = list(candidates(chosen))
    if not everything:
        console.print("nothing changed in which a defect could be planted")
        return
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        task = progress.add_task("run the tests once", total=None)
        selection = measure(Path(folder), sorted({name.rpartition(".")[0] for name in chosen}))
        found = sample(everything, most, seed)
        progress.update(task, description=f"{len(found)} of {len(everything)} defects", total=len(found))

        def tell(verdict: Verdict) -> None:
            progress.advance(task)
            if not verdict.noticed:
                progress.print(f"survives {verdict.candidate}; {verdict.tests} tests")

        verdicts = run(found, selection, workers=workers, tell=tell)
    show(console, verdicts)
    if json_file is not None:
        json_file.write_text(json.dumps(figures(verdicts, possible=len(everything), seed=seed), indent=1), "utf-8")


def show(console: Console, verdicts: list[Verdict]) -> None:
    """The scores by module."""
    table = Table("module", "noticed", "planted", "share", "95 %")
    for name, score in {**scores(verdicts), "all": total(verdicts)}.items():
        low, high = score.interval
        table.add_row(name, f"{score.noticed}", f"{score.planted}", f"{score.share:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)


def total(verdicts: list[Verdict]) -> Score:
    """Of all of them."""
    return Score(sum(verdict.noticed for verdict in verdicts), len(verdicts))


def figures(verdicts: list[Verdict], *, possible: int, seed: int) -> dict[str, object]:
    """The same for a program."""
    return {
        "possible": possible,
        "seed": seed,
        "scores": {
            name: {"noticed": score.noticed, "planted": score.planted, "interval": score.interval}
            for name, score in {**scores(verdicts), "all": total(verdicts)}.items()
        },
        "survivors": [str(verdict.candidate) for verdict in verdicts if not verdict.noticed],
    }


if __name__ == "__main__":
    typer.run(main)
