"""Studies of protections: the papers' settings in the full size, and arms that differ only in what they compare."""

from pathlib import Path

import msgspec
import pytest

from tacit.parties.runs.experiment import parse
from tacit.parties.runs.reference import experiment_toml
from tacit.simulate.experiments.catalogue import STUDIES
from tacit.simulate.experiments.engine import prepare
from tacit.simulate.experiments.federations import Federations
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.study import Size

COMPARED = {
    "aso-table1": ("encryption", "aggregation", "policy"),
    "sawada-fig5": ("protection",),
    "sawada-fig6": ("protection",),
}
"""The sections of the experiment that the arms of a study may differ in."""
NAMES = tuple(COMPARED)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_arms_differ_only_in_what_they_compare(name: str, small: bool) -> None:
    study = STUDIES[name]
    size = study.size(small=small)
    first = msgspec.to_builtins(size.rows[0].experiment)
    for arm in size.rows:
        found = msgspec.to_builtins(arm.experiment)
        for section in set(first) - set(COMPARED[name]) - {"model"}:
            assert found[section] == first[section], f"{arm.name}: {section}"
        assert found["model"] | {"pretrained": None} == first["model"] | {"pretrained": None}
    assert len({msgspec.json.encode((arm.pretrained, arm.experiment)) for arm in size.rows}) == len(size.rows)


def starts(size: Size) -> bool:
    return any(arm.pretrained for arm in size.rows)


@pytest.mark.parametrize("name", NAMES)
def test_the_twins_run_on_digits_as_written_to_the_run_directory(name: str, tmp_path: Path) -> None:
    study = STUDIES[name]
    out = tmp_path / "out"
    request = Request(seeds=(4, 6), data=None, device="cpu", out=out)
    work = prepare(study, request, small=True)
    measure, measuring = study.small.measure, work.measuring
    assert isinstance(measure, Federations)
    assert (measure.pretraining is not None) == starts(study.small)
    assert measuring.federated.source == (str(out / "data" / "federated.npz") if starts(study.small) else "digits")
    jobs = list(work.jobs())
    assert [(job.seed, job.row) for job in jobs] == [(seed, arm) for seed in (4, 6) for arm in study.small.rows]
    assert len({measuring.run_directory(job.row, job.seed) for job in jobs}) == len(jobs)
    for job in jobs:
        experiment = measuring.experiment(job.row, job.seed)
        assert experiment.federation.seed == job.seed
        assert experiment.data == measuring.federated
        assert experiment.aggregation.max_weight >= 287, "the largest share of 1,437 images among five"
        expected = str(out / "data" / f"pretrained-{job.seed}.safetensors") if job.row.pretrained else ""
        assert experiment.model.checkpoint == expected
        assert parse(experiment_toml(experiment), "experiment.toml") == experiment
