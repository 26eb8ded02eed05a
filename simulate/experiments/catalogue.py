"""Studies by the names of the command, and studies of files outside the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

from tacit.simulate.experiments import (
    aso_table1,
    fedrsm_table2,
    fine_tuning,
    foundation,
    sawada_fig5,
    sawada_fig6,
    tastan_reveal,
    tastan_tables,
)
from tacit.simulate.experiments.measures import StudyError
from tacit.simulate.experiments.study import Study

STUDIES: Final[dict[str, Study]] = {
    study.name: study
    for study in (
        aso_table1.STUDY,
        fedrsm_table2.STUDY,
        fine_tuning.STUDY,
        foundation.STUDY,
        sawada_fig5.STUDY,
        sawada_fig6.STUDY,
        tastan_tables.TABLE1,
        tastan_tables.TABLE2,
        tastan_tables.TABLE3,
        tastan_reveal.STUDY,
    )
}
_EXAMPLE: Final = "docs/experiments.md has an example"


def find_study(name: str) -> Study:
    """Return the study of this name, or the STUDY of a file whose name ends in .py. StudyError if there is none."""
    if name.endswith(".py"):
        return load(Path(name))
    if name not in STUDIES:
        names = ", ".join(STUDIES)
        raise StudyError(f"there is no experiment {name!r}; choose one of {names}, or name a file that ends in .py")
    return STUDIES[name]


def load(path: Path) -> Study:
    """Return the STUDY that a file defines. StudyError if there is none, or the file cannot be loaded."""
    if not path.is_file():
        raise StudyError(f"{path} is no file; name one that defines STUDY ({_EXAMPLE})")
    spec = importlib.util.spec_from_file_location("tacit_own_study", path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for their module there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise StudyError(f"{path}, line {error.lineno}: {error.msg}; correct it") from error
    except Exception as error:
        raise StudyError(f"{path}: {type(error).__name__}: {error}; correct the file") from error
    found = getattr(module, "STUDY", None)
    if not isinstance(found, Study):
        what = "defines no STUDY" if found is None else f"has a STUDY that is of the type {type(found).__name__}"
        raise StudyError(f"{path} {what}; assign a tacit.simulate.experiments.study.Study to it ({_EXAMPLE})")
    return found
