"""The defects that nothing can or need notice: `excused.toml` has them by source line, each with its reason."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.mutants.operators import Defect

FILE: Final = Path(__file__).with_suffix(".toml")


@cache
def excused() -> Mapping[tuple[str, str, str], str]:
    return {
        (module, line, description): entry["reason"]
        for entry in tomllib.loads(FILE.read_text("utf-8"))["excused"]
        for module, lines in entry["modules"].items()
        for line, descriptions in lines.items()
        for description in descriptions
    }


def reason(module: str, file: str, defect: Defect) -> str:
    """Why a defect of this module is excused; nothing if it is not."""
    line = Path(file).read_text("utf-8").splitlines()[defect.line - 1].strip()
    return excused().get((module, line, defect.description), "")
