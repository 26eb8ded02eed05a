"""Which tests run a line, how long they take, and in which order they are tried.

All tests are run once under coverage. Only what a test does within its own process is seen, so that defects are judged
by tests of machines and arithmetic, not by whole runs of processes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

from tests.mutants.forked import Job, Limit, run

JUDGES: Final = {
    "tacit.secagg": ("tests/secagg",),
    "tacit.protocol": (
        "tests/protocol",
        "tests/adversary",
        "tests/parties/learning/test_budget.py",
        "tests/simulate/conformance/test_vectors.py",
    ),
    "tacit.parties.inference": ("tests/parties/inference", "tests/parties/correlated"),
    "tacit.parties.correlated": ("tests/parties/inference", "tests/parties/correlated"),
}
"""Whose tests judge the modules of a package."""
NOT_ASKED: Final = (
    "protocol/inference",
    "adversary/test_client_floods.py",
    "adversary/test_crypten_masks.py",
    "adversary/test_impostors.py",
    "adversary/test_private_inference.py",
    "adversary/test_server_over_sockets.py",
    "adversary/test_strangers.py",
)
"""What is about other code, or waits for sockets: a busy machine could seem to notice something."""
OPTIONS: Final = (
    *("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-m", "not exhaustive and not end_to_end and not real", "--hypothesis-profile", "mutants"),
    *(f"--ignore=tests/{name}" for name in NOT_ASKED),
)
MOST_SECONDS: Final = 6.0
"""For the tests of one defect, as they took under coverage without it."""
MOST_OF_ONE: Final = 32
"""How many parameters of one test function are kept for a line."""
CLOSE_BY: Final = 3
"""Lines."""
LONGEST_RUN: Final = 1800.0
"""Seconds for the run of all tests."""


@dataclass
class Selection:
    """tests: node ids by file and line; seconds: of processor time, by node id; early: lines that collecting ran."""

    tests: Mapping[tuple[str, int], frozenset[str]]
    seconds: Mapping[str, float]
    early: frozenset[tuple[str, int]] = frozenset()
    _of_file: dict[str, frozenset[str]] = field(default_factory=dict)
    _tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    _noticed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def of(self, file: str, lines: Sequence[int]) -> list[str]:
        """The tests of the first of these lines that any test runs, as many as take not more than MOST_SECONDS.

        By turns those who cost least for a defect that is noticed, as far as `learn` was told, each of another function
        before a second of the same; and those who run lines close by that few others run, for they are about the place.
        lines: 0 is all of the file.
        """
        found = next((tests for line in lines if (tests := self._run_by(file, line))), frozenset[str]())
        return self._ordered(file, lines[0], found)

    def of_folder(self, folder: str) -> list[str]:
        return self._ordered("", 0, [test for test in self.seconds if test.startswith(folder)])

    def _ordered(self, file: str, line: int, found: Collection[str]) -> list[str]:
        by_function = defaultdict[str, list[tuple[float, str]]](list)
        for test in found:
            by_function[test.partition("[")[0]].append((self._cost(file, test), test))
        cheap = sorted(
            (place.bit_length(), cost, test)
            for same in by_function.values()
            for place, (cost, test) in enumerate(sorted(same))
        )
        rare = sorted((self._company(file, line, test), self._cost(file, test), test) for test in found)
        chosen, spent = list[str](), 0.0
        for test in dict.fromkeys(test for both in zip(cheap, rare, strict=True) for *_, test in both):
            if not chosen or spent + self.seconds[test] <= MOST_SECONDS:
                spent += self.seconds[test]
                chosen.append(test)
        return chosen

    def learn(self, file: str, chosen: Sequence[str], noticed: str) -> None:
        """Of these tests, tried in this order, one noticed a defect in the file; empty: none did."""
        tried = chosen[: chosen.index(noticed) + 1] if noticed in chosen else chosen
        self._tried.update((file, test.partition("[")[0]) for test in tried)
        if noticed:
            self._noticed[file, noticed.partition("[")[0]] += 1

    def _run_by(self, file: str, line: int) -> frozenset[str]:
        if line:
            return self.tests.get((file, line), frozenset())
        if file not in self._of_file:
            found = (tests for (where, _), tests in self.tests.items() if where == file)
            self._of_file[file] = frozenset[str]().union(*found)
        return self._of_file[file]

    def _company(self, file: str, line: int, test: str) -> int:
        """How many tests there are of the line close by that the fewest run, this among them."""
        near = (self.tests.get((file, other), ()) for other in range(line - CLOSE_BY, line + CLOSE_BY + 1))
        return min((len(tests) for tests in near if test in tests), default=0)

    def _cost(self, file: str, test: str) -> float:
        key = file, test.partition("[")[0]
        return (self.seconds[test] + 0.002) * (self._tried[key] + 2) / (self._noticed[key] + 1)


def run_tests(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, bool]]:
    """Run tests one after the other; each with whether it passed."""
    reports: list[pytest.TestReport] = []

    class Listener:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report)

    if items:
        items[0].config.pluginmanager.register(Listener())
    for item, following in pairwise([*items, None]):
        assert item is not None
        reports.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item, not any(report.failed for report in reports)


def measure(items: Sequence[pytest.Item], files: Collection[str], early: Any, workers: int) -> Iterator[Selection]:
    """Run all tests once under coverage of these files, in children; early: what collecting ran. The last is whole.

    RuntimeError if a test fails.
    """
    by_module = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        by_module[item.nodeid.partition("::")[0]].append(item)
    tests, seconds = defaultdict[tuple[str, int], list[str]](list), dict[str, float]()
    ran_early = frozenset((file, line) for file in files for line in early.lines(file) or ())
    jobs = (Job(name, _Measured(group, files), LONGEST_RUN, LONGEST_RUN) for name, group in by_module.items())
    for name, result in run(jobs, workers):
        if isinstance(result, Limit):
            raise RuntimeError(f"{name} {result.value}, without any defect")
        found = json.loads(result)
        if found["failed"]:
            raise RuntimeError(f"fails without any defect: {found['failed']}")
        names = [item.nodeid for item in by_module[name]]
        seconds.update(zip(names, found["seconds"], strict=True))
        for file, line, places in found["lines"]:
            tests[file, line] += [names[place] for place in places]
        yield Selection({}, dict(seconds))
    yield Selection({place: frozenset(found) for place, found in tests.items()}, seconds, ran_early)


@dataclass(frozen=True)
class _Measured:
    items: Sequence[pytest.Item]
    files: Iterable[str]

    def __call__(self) -> str:
        seconds, failed = list[float](), list[str]()
        data = Path(tempfile.gettempdir()) / "coverage"
        tracer = coverage.Coverage(data_file=str(data), include=list(self.files), messages=False)
        tracer.start()
        tracer.switch_context("0")
        begun = time.process_time()
        for place, (item, passed) in enumerate(run_tests(self.items)):
            if not passed:
                failed.append(item.nodeid)
            ended = time.process_time()
            seconds.append(ended - begun)
            begun = ended
            tracer.switch_context(str(place + 1))
        tracer.stop()
        found = tracer.get_data()
        lines = [
            (file, line, self._cheapest({int(context) for context in contexts if context}, seconds))
            for file in found.measured_files()
            for line, contexts in found.contexts_by_lineno(file).items()
        ]
        return json.dumps({"seconds": seconds, "failed": failed, "lines": lines})

    def _cheapest(self, places: Collection[int], seconds: Sequence[float]) -> list[int]:
        """Of each function's parameters the cheapest; place: in items."""
        kept, counts = list[int](), Counter[str]()
        for place in sorted((place for place in places if place < len(seconds)), key=lambda place: seconds[place]):
            name = self.items[place].nodeid.partition("[")[0]
            counts[name] += 1
            if counts[name] <= MOST_OF_ONE:
                kept.append(place)
        return kept
