"""Runs whose clients remember something are resumed after everybody was killed, as if nothing had happened."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.runs.directory import RunDirectoryError
from tacit.parties.runs.experiment import Experiment, parse
from tacit.parties.session.event_log import EventT, read
from tacit.parties.session.events import ModelEvaluated, StateRestored
from tacit.simulate.federation import processes
from tacit.simulate.federation.faults import read_faults
from tacit.simulate.federation.processes import SimulationError
from tacit.simulate.federation.roles import Plan
from tacit.simulate.federation.run import kept, new_plan, party_names, resumed_plan, simulate

pytestmark = pytest.mark.end_to_end

TOML = """
[federation]
clients = 4
rounds = 3
seed = 7
[model]
name = "lenet"
image_size = 8
[training]
epochs = 1
[deadlines]
grace = 3.0
[protection]
scheme = "SCHEME"
"""
FEDCG = 'distillation_steps = 2\n[aggregation]\nmode = "none"\n[policy]\nmodes = ["none"]'
SCHEMES = {"fedrsm": "[policy]\nuncoordinated_weights = true\n", "fedsplit": "", "fedcg": FEDCG}
FEDSPLIT = pytest.param("fedsplit", marks=pytest.mark.exhaustive)


@pytest.fixture(scope="module", autouse=True)
def _time_to_leave() -> Iterator[None]:
    """A client that is stopped before it has heard that the run is over does not remove what it remembers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "LEAVE_SECONDS", 120.0)
        yield


def experiment(scheme: str) -> Experiment:
    return parse(TOML.replace("SCHEME", scheme) + SCHEMES[scheme], "test")


def hold(plan: Plan) -> dict[str, Any]:
    return asyncio.run(simulate(plan, lambda event: None))


def events(directory: Path, party: str, kind: type[EventT]) -> list[EventT]:
    return [event for event in read(directory / "events" / f"{party}.jsonl") if isinstance(event, kind)]


@pytest.fixture(scope="module", params=["fedrsm", FEDSPLIT, pytest.param("fedcg", marks=pytest.mark.exhaustive)])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    scheme = str(request.param)
    directory = tmp_path_factory.mktemp("whole") / "run"
    hold(new_plan(experiment(scheme), directory, report=False))
    return scheme, directory


def judged(directory: Path) -> set[tuple[str, int, float, float]]:
    """What every client found of the model that it has, which its own half is part of."""
    found = [event for name in party_names(4)[1:] for event in events(directory, name, ModelEvaluated)]
    return {(event.party, event.round, event.accuracy, event.loss) for event in found}


def test_a_federation_that_was_killed_goes_on_as_if_it_had_not_been(whole: tuple[str, Path], tmp_path: Path) -> None:
    """In round 2, when most had contributed to it: that round is repeated, from what they remembered before it."""
    scheme, uninterrupted = whole
    masked = scheme != "fedcg"
    # Without masks the server is in no phase between its word that a round begins and the end of it.
    died = "UNMASK" if masked else "TRAIN"
    dying = read_faults(drop=[f"server@{died}:2", "client-3@TRAIN:2"], parties=party_names(4))
    plan = new_plan(experiment(scheme), tmp_path / "run", report=False, faults=dying)
    with pytest.raises(SimulationError):
        hold(plan)
    assert kept(plan).startswith("finished rounds are kept: tacit simulate --resume")
    assert plan.run.progress().round == 1
    for name in party_names(4)[1:]:
        assert plan.run.memory(name).stat().st_mode & 0o777 == 0o600
    hold(resumed_plan(plan.experiment, plan.run, report=False))
    assert plan.run.model.read_bytes() == (uninterrupted / "model.safetensors").read_bytes()
    assert judged(tmp_path / "run") >= judged(uninterrupted)
    taken_up = {
        name: [event.round for event in events(tmp_path / "run", name, StateRestored)] for name in party_names(4)
    }
    assert taken_up.pop("server") == []
    last = [2] if masked else [1]
    # On a busy machine its kill may come when it has contributed, so that it remembers what the others do.
    assert taken_up.pop("client-3") in ([1], last)
    assert taken_up == {"client-1": last, "client-2": last, "client-4": last}
    for directory in (uninterrupted, tmp_path / "run"):
        assert not list((directory / "memory").iterdir()), "the run is over"
    with pytest.raises(RunDirectoryError, match="its clients removed what they remembered when its rounds were done"):
        resumed_plan(
            parse(TOML.replace("SCHEME", scheme).replace("rounds = 3", "rounds = 4") + SCHEMES[scheme], ""), plan.run
        )


@pytest.mark.parametrize("whole", ["fedrsm", FEDSPLIT], indirect=True)
def test_a_client_that_was_killed_remembers(whole: tuple[str, Path], tmp_path: Path) -> None:
    """It dies in every round when its vector is in the sum, and is back in the next."""
    scheme, uninterrupted = whole
    dying = read_faults(restart=["client-2@UNMASK:1", "client-2@UNMASK:2"], parties=party_names(4))
    # A grace in which it is back, however slowly it starts.
    slow = parse(TOML.replace("SCHEME", scheme).replace("grace = 3.0", "grace = 3600.0") + SCHEMES[scheme], "test")
    hold(new_plan(slow, tmp_path / "run", report=False, faults=dying))
    assert [event.round for event in events(tmp_path / "run", "client-2", StateRestored)] == [1, 2]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()
