"""The studies by the names that the command takes."""

from __future__ import annotations

from typing import Final

from tacit.simulate.experiments import aso_table1, fedrsm_table2, sawada_fig5, sawada_fig6
from tacit.simulate.experiments.study import Study

STUDIES: Final[dict[str, Study]] = {
    study.name: study for study in (aso_table1.STUDY, fedrsm_table2.STUDY, sawada_fig5.STUDY, sawada_fig6.STUDY)
}
