"""Plant defects, run the tests of their lines, and count who notices.

This process imports nothing of what is judged, only what all tests need from elsewhere. A child collects the tests and
runs them once under coverage; from then on each defect takes a fork of it, in which the functions have the defect. What
stands in no function, and what survives there but ran already while tests were collected, is judged again in forks of
this process, which import everything with the defect.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import signal
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import coverage
import hypothesis
import pytest
from scipy.stats import binomtest

from tests.mutants import planted
from tests.mutants.forked import Job, Limit, run
from tests.mutants.operators import Defect, defects
from tests.mutants.selection import JUDGES, OPTIONS, Selection, measure, run_tests

ELSEWHERE: Final = ("torch", "timm", "zmq", "cryptography", "msgspec", "msgpack", "pytest_asyncio")
"""What takes long to import and is not judged."""
PATIENCE: Final = 4.0
"""How many times as long as under coverage without a defect tests may take."""
STARTING: Final = 15.0
"""Seconds more, for what happens around the tests."""
MORE_PATIENCE: Final = 4.0
"""How many times as long they may take by the clock when they did not end."""
BUSY: Final = 6.0
"""How many times as long as the processor may be busy something may take by the clock, where others use it too."""


class Verdict(StrEnum):
    NOTICED = "noticed"
    PROCESSOR = "used up its processor time"
    HANGS = "hung twice"
    SURVIVES = "survives"
    NOT_RUN = "no test runs it"

    @property
    def noticed(self) -> bool:
        return self not in (Verdict.SURVIVES, Verdict.NOT_RUN)


@dataclass(frozen=True)
class Candidate:
    module: str
    file: str
    defect: Defect

    def __str__(self) -> str:
        return f"{self.module}:{self.defect.number} (line {self.defect.line}: {self.defect.description})"


@dataclass(frozen=True)
class Judgement:
    """What became of a defect. by: the test that noticed; tests: how many were chosen."""

    candidate: Candidate
    verdict: Verdict
    by: str
    tests: int


@dataclass(frozen=True)
class Score:
    noticed: int
    planted: int

    @property
    def share(self) -> float:
        return self.noticed / self.planted if self.planted else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        if not self.planted:
            return 0.0, 1.0
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


def sample(found: list[Candidate], most: int | None, seed: int) -> list[Candidate]:
    """So many of them, or all, in an order that follows from the seed: whatever was judged so far is a sample too."""
    order = list(found)
    Random(seed).shuffle(order)
    return order[:most]


@dataclass(frozen=True)
class _Trial:
    """A defect that is to be judged. patient: it did not end, and is given another chance."""

    number: int
    candidate: Candidate
    tests: Sequence[str]
    seconds: float
    patient: bool = False

    def job(self, function: Callable[[], str]) -> Job[_Trial]:
        seconds = STARTING + PATIENCE * self.seconds
        return Job(self, function, seconds, BUSY * seconds * (MORE_PATIENCE if self.patient else 1.0))


class Campaign:
    """Judges defects, and tells of each as soon as it is judged."""

    def __init__(self, found: Sequence[Candidate], workers: int, folders: Sequence[str] = ()) -> None:
        self._found = found
        self._workers = workers
        judges = {
            folder
            for one in found
            for package, own in JUDGES.items()
            if one.module.startswith(package)
            for folder in own
        }
        self._folders = folders or sorted(judges)

    def run(self, tell: Callable[[str], None]) -> Iterator[Judgement]:
        """All judgements, in any order; tell: what it is busy with. RuntimeError if tests fail without a defect."""
        hypothesis.settings.register_profile(
            "mutants", database=None, deadline=None, derandomize=True, phases=("explicit", "generate")
        )
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        for name in ELSEWHERE:
            importlib.import_module(name)
        left = list[_Trial]()
        for line in self._child():
            said = json.loads(line)
            match said:
                case {"ran": count}:
                    tell(f"{count} tests have run without a defect")
                case {"again": number, "tests": tests, "seconds": seconds}:
                    left.append(_Trial(number, self._found[number], tests, seconds))
                case {"number": number, "verdict": verdict, "by": by, "tests": tests}:
                    yield Judgement(self._found[number], Verdict(verdict), by, tests)
        tell(f"{len(left)} of them imported anew")
        for _, judgement in self._judge(left, _imported):
            yield judgement

    def _child(self) -> Iterator[str]:
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as said:
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    os.dup2(said.fileno(), 1)
                    os.dup2(said.fileno(), 2)
                    with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as out:
                        code = self._collected(lambda **said: print(json.dumps(said), file=out))
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            os.close(writing)
            try:
                with os.fdopen(reading, encoding="utf-8") as lines:
                    yield from lines
            except BaseException:
                os.kill(pid, signal.SIGINT)
                raise
            finally:
                _, status = os.waitpid(pid, 0)
            if status:
                said.seek(0)
                raise RuntimeError(f"no run of tests without a defect: {said.read().decode()[-3000:]}")

    def _collected(self, say: Callable[..., None]) -> int:
        files = {candidate.file for candidate in self._found}
        tracer = coverage.Coverage(data_file=None, include=list(files), messages=False)
        tracer.start()

        class Loop:
            @staticmethod
            def pytest_runtestloop(session: pytest.Session) -> bool:
                tracer.stop()
                self._judge_collected(session.items, files, tracer.get_data(), say)
                return True

        return int(pytest.main([*OPTIONS, *self._folders], plugins=[Loop()]))

    def _judge_collected(
        self, items: Sequence[pytest.Item], files: Iterable[str], early: Any, say: Callable[..., None]
    ) -> None:
        selection = Selection({}, {})
        for selection in measure(items, set(files), early, self._workers):
            say(ran=len(selection.seconds))
        functions = planted.loaded(set(files))
        by_id = {item.nodeid: item for item in items}

        def again(trial: _Trial) -> None:
            say(again=trial.number, tests=trial.tests, seconds=trial.seconds)

        def ran_early(candidate: Candidate) -> bool:
            places = {(candidate.file, line) for line in (candidate.defect.line, candidate.defect.statement)}
            return not candidate.defect.statement or not places.isdisjoint(selection.early)

        def trials(in_functions: bool) -> Iterator[_Trial]:
            for number, candidate in enumerate(self._found):
                defect = candidate.defect
                chosen = selection.of(candidate.file, [defect.line, defect.statement]) if defect.statement else []
                at_import = not chosen and ran_early(candidate)
                if at_import is in_functions:
                    continue
                if at_import:
                    # A module that runs when it is imported only, such as one of tables, has the tests of its folder.
                    folder = "/".join(["tests", *candidate.module.split(".")[1:-1], ""])
                    chosen = selection.of(candidate.file, [0]) or selection.of_folder(folder)
                if chosen:
                    yield _Trial(number, candidate, chosen, sum(selection.seconds[test] for test in chosen))
                else:
                    say(number=number, verdict=Verdict.NOT_RUN, by="", tests=0)

        def loaded(trial: _Trial) -> str:
            try:
                planted.plant(functions, trial.candidate.file, trial.candidate.defect.number)
            except planted.NotPlantable:
                return "?"
            chosen = run_tests([by_id[test] for test in trial.tests])
            return next((item.nodeid for item, passed in chosen if not passed), "")

        for trial, judgement in self._judge(trials(True), loaded):
            if judgement.by == "?" or (not judgement.verdict.noticed and ran_early(trial.candidate)):
                again(trial)
                continue
            selection.learn(trial.candidate.file, trial.tests, judgement.by)
            say(number=trial.number, verdict=judgement.verdict, by=judgement.by, tests=judgement.tests)
        for trial in trials(False):
            again(trial)

    def _judge(self, trials: Iterable[_Trial], function: Callable[[_Trial], str]) -> Iterator[tuple[_Trial, Judgement]]:
        """function: plants, and returns the test that noticed, or nothing."""
        patient = list[_Trial]()
        for patience in (False, True):
            jobs = (trial.job(partial(function, trial)) for trial in (patient if patience else trials))
            for trial, result in run(jobs, self._workers):
                if result is Limit.CLOCK and not patience:
                    patient.append(replace(trial, patient=True))
                    continue
                match result:
                    case Limit.PROCESSOR:
                        verdict = Verdict.PROCESSOR
                    case Limit.CLOCK:
                        verdict = Verdict.HANGS
                    case "":
                        verdict = Verdict.SURVIVES
                    case _:
                        verdict = Verdict.NOTICED
                by = result if isinstance(result, str) else ""
                yield trial, Judgement(trial.candidate, verdict, by, len(trial.tests))


def _imported(trial: _Trial) -> str:
    """Import everything with the defect, first the tests of the files that begin with the likeliest."""
    sys.meta_path.insert(0, planted.DefectFinder(trial.candidate.module, trial.candidate.defect.number))
    by_file = defaultdict[str, list[str]](list)
    for test in trial.tests:
        by_file[test.partition("::")[0]].append(test)
    files = list(by_file)
    for some in (files[:2], files[2:]):
        if some and (noticed := _collect_and_run(some, [test for file in some for test in by_file[file]])):
            return noticed
    return ""


def _collect_and_run(files: Sequence[str], tests: Sequence[str]) -> str:
    """The test that notices; a file, if it cannot be imported."""
    noticed = list[str]()
    wanted = {test: place for place, test in enumerate(tests)}
    names = {test.partition("[")[0] for test in tests}

    class Loop:
        @staticmethod
        def pytest_runtestloop(session: pytest.Session) -> bool:
            if session.testsfailed:
                noticed.append("collection")
                return True
            # With the defect a test may have other parameters.
            known = [item for item in session.items if item.nodeid in wanted]
            found = known or [item for item in session.items if item.nodeid.partition("[")[0] in names]
            found.sort(key=lambda item: wanted.get(item.nodeid, 0))
            noticed.extend(next(([item.nodeid] for item, passed in run_tests(found) if not passed), []))
            return True

    code = pytest.main([*OPTIONS, *files], plugins=[Loop()])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        noticed.append("collection")
    return noticed[0] if noticed else ""


def scores(judgements: Iterable[Judgement]) -> Mapping[str, Score]:
    by_module: dict[str, list[bool]] = {}
    for judgement in judgements:
        by_module.setdefault(judgement.candidate.module, []).append(judgement.verdict.noticed)
    return {module: Score(sum(noticed), len(noticed)) for module, noticed in sorted(by_module.items())}
