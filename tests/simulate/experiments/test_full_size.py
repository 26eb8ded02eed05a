"""One round of one arm of every full size: the papers' network at 224 x 224, on generated images of CIFAR-10's shape.

Each moves 22 million coordinates through five clients and the server, which takes most of a minute and several GB.
"""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tacit.simulate.experiments.catalogue import STUDIES
from tacit.simulate.experiments.engine import prepare, run_study
from tacit.simulate.experiments.measures import Request
from tests.simulate.experiments.conftest import Nobody, write_random

ARMS = {
    "aso-table1": "secure-sum-gaussian",
    "sawada-fig5": "scratch-fixed-position",
    "sawada-fig6": "binary-weights-0.8",
}
PARAMETERS = 21_669_514
"""Of vit_small_patch16_224 with ten classes."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("images") / "generated.npz", train=20, test=20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARMS)
def test_a_round_of_the_full_size(name: str, images: Path, tmp_path: Path) -> None:
    """Without the weights that timm would download; all else is as declared."""
    study = STUDIES[name]
    (arm,) = (arm for arm in study.full.rows if arm.name == ARMS[name])
    experiment = msgspec.structs.replace(
        arm.experiment,
        federation=msgspec.structs.replace(arm.experiment.federation, rounds=1),
        model=msgspec.structs.replace(arm.experiment.model, pretrained=False),
    )
    full = replace(study.full, rows=(replace(arm, experiment=experiment),))
    request = Request(seeds=(0,), data=images, device="cpu", out=tmp_path / "out")
    work = prepare(replace(study, full=full, claims=()), request, small=False)
    run_study(work, Nobody())
    (row,) = work.result(command="").finished
    (run,) = row.federated
    assert len(run.accuracies) == 1
    assert 0 <= run.accuracies[0] <= 1
    summary = msgspec.json.decode((tmp_path / "out" / run.directory / "summary.json").read_bytes())
    assert summary["aggregation"]["parameters"] == PARAMETERS
    assert [entry["samples"] for entry in summary["rounds"]] == [20]
    assert len(summary["rounds"][0]["survivors"]) == 5
    if name == "sawada-fig6":
        assert run.moves is not None
        never, once = run.moves
        # 0.8^5 of the coordinates, with a standard deviation of 1e-4.
        assert abs(never / PARAMETERS - 0.8**5) < 1e-3
        assert never + once == PARAMETERS
