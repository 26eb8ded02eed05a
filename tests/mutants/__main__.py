"""python -m tests.mutants [MODULE[:NUMBER]...]: plant defects into these, or into all of which secrecy hangs on."""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.campaign import Campaign, Candidate, Judgement, Score, Verdict, candidates, sample, scores
from tests.mutants.excused import reason

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


def chosen(names: Iterable[str]) -> list[Candidate]:
    """The defects of these modules, or of MODULE:NUMBER that one."""
    numbers = defaultdict[str, set[str]](set)
    for module, _, number in (name.partition(":") for name in names):
        numbers[module].add(number)
    return [found for found in candidates(numbers) if {"", str(found.defect.number)} & numbers[found.module]]


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE[:NUMBER]]...", help="Modules, or single defects. Default: all."),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only modules that changed since this revision.")] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Plant not more than so many, chosen by the seed.")] = None,
    seed: int = 0,
    tests: Annotated[list[str] | None, typer.Option(help="Files or folders of tests that judge.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs of tests at the same time.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result.")] = None,
    log: Annotated[Path | None, typer.Option(help="Append every judgement; skip the defects that are in it.")] = None,
) -> None:
    """Plant defects one at a time, run the tests of their lines, and list those that no test notices.

    The exit status is 0 if all are noticed or excused (`excused.toml`), and 1 if one survives.
    """
    console = Console()
    everything = chosen(names or modules(since))
    if not everything:
        console.print("nothing changed in which a defect could be planted")
        return
    chosen_defects = sample(everything, most, seed)
    judged = judged_before(log, chosen_defects) if log is not None else []
    done = {str(judgement.candidate) for judgement in judged}
    found = [candidate for candidate in chosen_defects if str(candidate) not in done]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("the tests are collected and run once", total=len(found))
        campaign = Campaign(found, workers, tests or ())
        try:
            for judgement in campaign.run(lambda text: progress.update(task, description=text)):
                judged.append(judgement)
                if log is not None:
                    append(log, judgement)
                progress.advance(task)
                if not console.is_terminal and len(judged) % 100 == 0:
                    progress.print(f"{len(judged)} of {len(found)}")
                if survives(judgement):
                    progress.print(
                        f"{judgement.verdict}: {judgement.candidate}; {judgement.tests} tests", soft_wrap=True
                    )
        except KeyboardInterrupt:
            progress.print(f"stopped after {len(judged)} of {len(chosen_defects)}")
    show(console, judged)
    if json_file is not None:
        json_file.write_text(json.dumps(figures(judged, possible=len(everything), seed=seed), indent=1), "utf-8")
    raise typer.Exit(len(judged) < len(chosen_defects) or any(map(survives, judged)))


def judged_before(log: Path, found: Iterable[Candidate]) -> list[Judgement]:
    """Return the judgements of these defects that a log of an interrupted campaign holds."""
    by_name = {str(candidate): candidate for candidate in found}
    entries = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    return [
        Judgement(by_name[entry["defect"]], Verdict(entry["verdict"]), entry["by"], entry["tests"])
        for entry in entries
        if entry["defect"] in by_name
    ]


def append(log: Path, judgement: Judgement) -> None:
    entry = {
        "defect": str(judgement.candidate),
        "verdict": judgement.verdict,
        "by": judgement.by,
        "tests": judgement.tests,
    }
    with log.open("a", encoding="utf-8") as lines:
        print(json.dumps(entry), file=lines)


def survives(judgement: Judgement) -> bool:
    return not judgement.verdict.noticed and not excuse(judgement)


def excuse(judgement: Judgement) -> str:
    candidate = judgement.candidate
    return reason(candidate.module, candidate.file, candidate.defect)


def show(console: Console, judged: list[Judgement]) -> None:
    table = Table("module", "noticed", "planted", "share", "95 %")
    for name, score in {**scores(judged), "all": total(judged)}.items():
        low, high = score.interval
        table.add_row(name, f"{score.noticed}", f"{score.planted}", f"{score.share:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)
    counts = Counter(judgement.verdict for judgement in judged)
    kinds = [f"{counts[verdict]} {verdict}" for verdict in Verdict]
    missed = [judgement for judgement in judged if not judgement.verdict.noticed]
    console.print(", ".join([*kinds, f"{sum(map(bool, map(excuse, missed)))} of them excused"]))


def total(judged: list[Judgement]) -> Score:
    return Score(sum(judgement.verdict.noticed for judgement in judged), len(judged))


def figures(judged: list[Judgement], *, possible: int, seed: int) -> dict[str, object]:
    return {
        "possible": possible,
        "seed": seed,
        "verdicts": Counter(judgement.verdict for judgement in judged),
        "scores": {
            name: {"noticed": score.noticed, "planted": score.planted, "interval": score.interval}
            for name, score in {**scores(judged), "all": total(judged)}.items()
        },
        "defects": {
            str(judgement.candidate): {"verdict": judgement.verdict, "by": judgement.by, "excuse": excuse(judgement)}
            for judgement in judged
        },
    }


if __name__ == "__main__":
    typer.run(main)
