"""The experiment file of `tacit adapt`: its own two sections, of which one is one of several, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.models.adapters.configuration import LinearProbeConfiguration, ParallelConfiguration
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import ExperimentError, holds, keys, load_as
from tacit.parties.runs.reference import experiment_toml

KEYS = list(keys(AdaptationExperiment))


def read(directory: Path, text: str) -> AdaptationExperiment:
    (directory / "own.toml").write_text(text)
    return load_as(AdaptationExperiment, directory / "own.toml")


@pytest.mark.parametrize(
    "experiment",
    [
        AdaptationExperiment(),
        AdaptationExperiment(adapter=ParallelConfiguration(rank=3, scale=0.5, initialisation="xavier")),
        AdaptationExperiment(adapter=LinearProbeConfiguration()),
    ],
    ids=["default", "parallel", "linear-probe"],
)
def test_what_is_written_is_what_is_read(tmp_path: Path, experiment: AdaptationExperiment) -> None:
    assert read(tmp_path, experiment_toml(experiment)) == experiment


def test_a_key_is_held_by_its_own_kind_alone() -> None:
    held = {
        kind: {key.path for key in KEYS if holds(AdaptationExperiment().with_adapter(kind), key) and key.choice}
        for kind in ("parallel", "linear-probe")
    }
    assert {path for path in held["parallel"] if path.startswith("adapter.")} == {
        "adapter.kind",
        "adapter.rank",
        "adapter.scale",
        "adapter.initialisation",
    }
    assert {path for path in held["linear-probe"] if path.startswith("adapter.")} == {"adapter.kind"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[adapter]\nkind = "linear-probe"\nscale = 1.0', "adapter.scale = 1.0:"),
        ("[adapter]\nrank = 4", "adapter.kind is missing: "),
        ("[adaptation]\ndecay_rounds = [3, 2]", "adaptation.decay_rounds = [3, 2]:"),
        ("[adaptation]\nknown_classes = []", "adaptation.known_classes = []:"),
        ("[encryption]", "what is learned beside a model has no [protection] and no [encryption]:"),
        ('[data]\nstatistics = "sum"', 'data.statistics = "sum":'),
        ('[aggregation]\nmode = "none"\n[policy]\nmodes = ["none"]', 'aggregation.mode = "none":'),
        ("[adaptation]\nsmallest_cohort = 5", "federation.clients = 4:"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'own.toml'}: {complaint}")


def test_a_model_that_is_not_there_is_noticed_without_torch(tmp_path: Path) -> None:
    experiment = read(tmp_path, f'[adaptation]\nbackbone = "{tmp_path / "nowhere"}"')
    with pytest.raises(ValueError, match="nowhere holds neither"):
        experiment.check_place()
    AdaptationExperiment().check_place()
