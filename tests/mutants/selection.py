"""Which tests run a line, and how long they take: from one run of all tests under coverage.

Only what a test does within its own process is seen, so that defects are judged by tests of machines and arithmetic,
not by whole runs of processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coverage import CoverageData

FOLDERS: Final = ("tests/secagg", "tests/protocol", "tests/adversary", "tests/fuzz", "tests/exploration")
"""Whose tests judge."""
NOT_SELECTED: Final = "not exhaustive and not end_to_end"


@dataclass(frozen=True)
class Selection:
    """tests: by file and line, node ids of functions without their parameters; seconds: by the same ids."""

    tests: Mapping[tuple[str, int], frozenset[str]]
    seconds: Mapping[str, float]

    def of(self, file: str, line: int, most_seconds: float) -> list[str]:
        """The tests of a line, the fastest first, as many as take no longer together."""
        chosen: list[str] = []
        spent = 0.0
        for test in sorted(self.tests.get((file, line), ()), key=lambda test: self.seconds.get(test, 0.0)):
            spent += self.seconds.get(test, 0.0)
            if chosen and spent > most_seconds:
                break
            chosen.append(test)
        return chosen


def measure(folder: Path, packages: Iterable[str]) -> Selection:
    """Run all tests once under coverage of these packages; folder: for its data. RuntimeError if a test fails."""
    data, seconds, settings = folder / "coverage", folder / "seconds.json", folder / "coveragerc"
    names = "\n    ".join(packages)
    settings.write_text(
        f"[run]\ndata_file = {data}\ndynamic_context = test_function\nsource_pkgs =\n    {names}\n", "utf-8"
    )
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", *pytest_command(FOLDERS)]
    done = subprocess.run(command, env=os.environ | {"TACIT_SECONDS": str(seconds)}, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"the tests fail without any defect:\n{done.stdout[-3000:]}")
    return read(data, json.loads(seconds.read_text("utf-8")))


def pytest_command(tests: Sequence[str]) -> list[str]:
    """Arguments after `python -m`: run these tests up to the first that fails."""
    options = ["-q", "-x", "-p", "tests.mutants.planted", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return ["pytest", *options, "-m", NOT_SELECTED, *tests]


def read(data: Path, durations: Mapping[str, float]) -> Selection:
    """What a run under coverage has written. durations: seconds by node id."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for node, duration in durations.items():
        seconds[node.partition("[")[0]] += duration
    # A context is a dotted path of module and function; node ids have the path of the file.
    contexts = {node.replace(".py::", ".").replace("::", ".").replace("/", "."): node for node in seconds}
    coverage = CoverageData(str(data))
    coverage.read()
    tests = {
        (file, line): frozenset(contexts[context] for context in found if context in contexts)
        for file in coverage.measured_files()
        for line, found in coverage.contexts_by_lineno(file).items()
    }
    return Selection(tests, seconds)
