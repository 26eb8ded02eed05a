"""A plugin of pytest: one module has a defect in this run, and how long every test takes is written down.

TACIT_DEFECT is MODULE:NUMBER (operators.py); TACIT_SECONDS names a file for the seconds by node id, as JSON.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from tests.mutants.operators import planted


class DefectiveLoader(importlib.machinery.SourceFileLoader):
    """Loads a module with the defect of this number."""

    def __init__(self, fullname: str, path: str, number: int) -> None:
        super().__init__(fullname, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(planted(Path(self.path).read_text("utf-8"), self._number), self.path, "exec")
        return code


class DefectFinder(importlib.abc.MetaPathFinder):
    """Finds the module that has a defect before anything else does."""

    def __init__(self, module: str, number: int) -> None:
        self._module = module
        self._number = number

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None:
            raise ImportError(f"{fullname} has no source that a defect could be planted in")
        found.loader = DefectiveLoader(fullname, found.origin, self._number)
        return found


_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long it took."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    """Write down how long the tests took."""
    if path := os.environ.get("TACIT_SECONDS"):
        Path(path).write_text(json.dumps(_seconds), "utf-8")


if defect := os.environ.get("TACIT_DEFECT"):
    module, _, number = defect.rpartition(":")
    if module in sys.modules:
        raise RuntimeError(f"{module} was imported before its defect could be planted")
    sys.meta_path.insert(0, DefectFinder(module, int(number)))
