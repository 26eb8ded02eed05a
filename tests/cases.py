"""Table-driven tests: one collected test runs every row of a table.

Collecting a row as a test of its own takes longer than most rows take to run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., None]
LONGEST = 60


def cases(names: str | Sequence[str], table: Iterable[Any] | Callable[[], Iterable[Any]]) -> Callable[[Test], Test]:
    """Call the test once for every row of the table, and report all rows that fail together.

    names: a parameter, to which each row is passed; or several, over which each row is spread. table: the rows, or a
    function that makes them when the test runs. Stacked tables make all combinations. Rows share the fixtures: a test
    whose rows need a fresh one makes it itself.
    """
    make = table if inspect.isfunction(table) else list(table).copy  # type: ignore[arg-type]

    def decorate(test: Test) -> Test:
        assert not inspect.iscoroutinefunction(test)

        @wraps(test)
        def run(**fixtures: Any) -> None:
            rows, failures = list(make()), []
            assert rows, "a table without rows tests nothing"
            for row in rows:
                given = {names: row} if isinstance(names, str) else dict(zip(names, row, strict=True))
                try:
                    test(**fixtures, **given)
                except (Exception, BaseExceptionGroup, pytest.fail.Exception) as failure:
                    failure.add_note("row: " + ", ".join(f"{name}={_short(value)}" for name, value in given.items()))
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} rows fail", failures)

        signature = inspect.signature(test)
        own = [names] if isinstance(names, str) else names
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in own]
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return decorate


def _short(value: object) -> str:
    text = str(getattr(value, "__name__", "") or repr(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
