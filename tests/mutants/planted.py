"""A defect in the memory of this process: in the functions of a module that is loaded, or anywhere in one that is not.

The first is for what stands in a function. Its code is exchanged in place, so that whoever imported it by name has the
defect too; what was computed with it while tests were collected is computed. The second is for everything.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.mutants.operators import planted


@dataclass(frozen=True)
class Loaded:
    """functions: by file of their source; caches: of functions anywhere, which may know what was before."""

    functions: Mapping[str, Sequence[FunctionType]]
    caches: Sequence[_lru_cache_wrapper[Any]]


class NotPlantable(Exception):
    """The defect does not fit into a loaded module."""


def loaded(files: Collection[str]) -> Loaded:
    found = defaultdict[str, list[FunctionType]](list)
    caches: list[_lru_cache_wrapper[Any]] = []
    for candidate in gc.get_objects():
        # What stands for another object may do anything when it is asked for its class.
        kind = type(candidate)
        if kind is FunctionType and candidate.__code__.co_filename in files:
            found[candidate.__code__.co_filename].append(candidate)
        elif kind is _lru_cache_wrapper:
            caches.append(candidate)
    return Loaded(found, caches)


def plant(into: Loaded, file: str, number: int) -> None:
    """Give the functions of a file its defect of this number. NotPlantable if that does not change one of them."""
    codes = defaultdict[tuple[str, int], list[CodeType]](list)
    for code in _nested(_compiled(file, number)):
        codes[code.co_qualname, code.co_firstlineno].append(code)
    changed = False
    for function in into.functions.get(file, ()):
        found = codes[function.__code__.co_qualname, function.__code__.co_firstlineno]
        if len(found) != 1:
            raise NotPlantable(f"{len(found)} functions are {function.__qualname__}")
        if found[0] != function.__code__:
            try:
                function.__code__ = found[0]
            except ValueError as error:
                raise NotPlantable(str(error)) from error
            changed = True
    if not changed:
        raise NotPlantable("no function is changed")
    for cache in into.caches:
        cache.cache_clear()


def _compiled(file: str, number: int) -> CodeType:
    code: CodeType = compile(planted(Path(file).read_text("utf-8"), number), file, "exec", dont_inherit=True)
    return code


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


class DefectiveLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, number: int) -> None:
        super().__init__(fullname, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        return _compiled(self.path, self._number)


class DefectFinder(importlib.abc.MetaPathFinder):
    """Finds the module that has a defect before anything else does; put first into `sys.meta_path`."""

    def __init__(self, module: str, number: int) -> None:
        if module in sys.modules:
            raise RuntimeError(f"{module} was imported before its defect could be planted")
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
