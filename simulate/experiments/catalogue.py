"""The studies and the measurements by the names that the command takes."""

from __future__ import annotations

from typing import Final

from tacit.simulate.experiments import aso_table1, fedrsm_table2, sawada_fig5, sawada_fig6
from tacit.simulate.experiments.adaptation_page import AdaptationMeasurement
from tacit.simulate.experiments.measurement import Measurement
from tacit.simulate.experiments.study import Study
from tacit.simulate.experiments.tastan_reveal import REVEAL
from tacit.simulate.experiments.tastan_reveal_page import RevealMeasurement
from tacit.simulate.experiments.tastan_tables import TABLE1, TABLE2, TABLE3

STUDIES: Final[dict[str, Study]] = {
    study.name: study for study in (aso_table1.STUDY, fedrsm_table2.STUDY, sawada_fig5.STUDY, sawada_fig6.STUDY)
}
MEASUREMENTS: Final[dict[str, Measurement]] = {
    measurement.claim.name: measurement
    for measurement in (
        AdaptationMeasurement(claim=TABLE1),
        AdaptationMeasurement(claim=TABLE2),
        AdaptationMeasurement(claim=TABLE3),
        RevealMeasurement(claim=REVEAL),
    )
}
"""What needs no federation."""
