"""Plant defects, run the tests of their lines, and count who notices."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from scipy.stats import binomtest

from tests.mutants.operators import Defect, defects
from tests.mutants.selection import Selection, pytest_command

MOST_SECONDS: Final = 120.0
"""For the tests of one defect, as they took without it."""
PATIENCE: Final = 5.0
"""How many times as long they may take before the defect counts as noticed: something does not end."""


@dataclass(frozen=True)
class Candidate:
    """A defect of a module."""

    module: str
    file: str
    defect: Defect

    def __str__(self) -> str:
        return f"{self.module}:{self.defect.number} (line {self.defect.line}: {self.defect.description})"


@dataclass(frozen=True)
class Verdict:
    """What became of a defect. tests: how many functions were run; 0 where none runs the line."""

    candidate: Candidate
    noticed: bool
    tests: int


@dataclass(frozen=True)
class Score:
    """How many defects were noticed, of how many."""

    noticed: int
    planted: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.noticed / self.planted if self.planted else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        found = binomtest(self.noticed, self.planted).proportion_ci(method="wilson")
        return found.low, found.high


def candidates(modules: Iterable[str]) -> Iterator[Candidate]:
    """All defects of these modules. ModuleNotFoundError for one that is not installed."""
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{module} is not installed: run `make setup`")
        for defect in defects(Path(spec.origin).read_text("utf-8")):
            yield Candidate(module, spec.origin, defect)


def sample(found: list[Candidate], most: int, seed: int) -> list[Candidate]:
    """So many of them, chosen by the seed, in their order; all, if there are no more."""
    if len(found) <= most:
        return found
    return [found[place] for place in sorted(Random(seed).sample(range(len(found)), most))]


def judge(candidate: Candidate, selection: Selection) -> Verdict:
    """Whether a test of the line fails with the defect."""
    chosen = selection.of(candidate.file, candidate.defect.line, MOST_SECONDS)
    if not chosen:
        return Verdict(candidate, False, 0)
    planned = sum(selection.seconds.get(test, 0.0) for test in chosen)
    environment = os.environ | {"TACIT_DEFECT": f"{candidate.module}:{candidate.defect.number}"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *pytest_command(chosen)],
            env=environment,
            capture_output=True,
            timeout=30 + PATIENCE * planned,
        )
    except subprocess.TimeoutExpired:
        return Verdict(candidate, True, len(chosen))
    return Verdict(candidate, done.returncode != 0, len(chosen))


def run(
    found: list[Candidate], selection: Selection, *, workers: int, tell: Callable[[Verdict], None]
) -> list[Verdict]:
    """Judge all of them, so many at a time; tell: called after each."""
    verdicts = []
    with ThreadPoolExecutor(workers) as pool:
        for verdict in pool.map(lambda candidate: judge(candidate, selection), found):
            tell(verdict)
            verdicts.append(verdict)
    return verdicts


def scores(verdicts: Iterable[Verdict]) -> Mapping[str, Score]:
    """By module."""
    by_module: dict[str, list[bool]] = {}
    for verdict in verdicts:
        by_module.setdefault(verdict.candidate.module, []).append(verdict.noticed)
    return {module: Score(sum(noticed), len(noticed)) for module, noticed in sorted(by_module.items())}
