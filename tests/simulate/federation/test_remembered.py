"""Runs whose clients remember something are resumed after everybody was killed, as if nothing had happened."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.runs.directory import RunDirectoryError
from tacit.parties.runs.experiment import Experiment, parse
from tacit.parties.session.event_log import read
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
SCHEMES = {"fedrsm": "", "fedsplit": "", "fedcg": FEDCG}
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
    return asyncio.run(simulate(plan, lambda party, event, fields: None))


def events(directory: Path, party: str, event: str) -> list[dict[str, Any]]:
    return [said for said in read(directory / "events" / f"{party}.jsonl") if said["event"] == event]


@pytest.fixture(scope="module", params=["fedrsm", FEDSPLIT, pytest.param("fedcg", marks=pytest.mark.exhaustive)])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A scheme, and a run that nothing has interrupted."""
    scheme = str(request.param)
    directory = tmp_path_factory.mktemp("whole") / "run"
    hold(new_plan(experiment(scheme), directory, report=False))
    return scheme, directory


def judged(directory: Path) -> set[tuple[str, int, float, float]]:
    """What every client found of the model that it has, which its own half is part of."""
    found = [said for name in party_names(4)[1:] for said in events(directory, name, "evaluated")]
    return {(said["party"], said["round"], said["accuracy"], said["loss"]) for said in found}


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
        name: [said["round"] for said in events(tmp_path / "run", name, "remembered")] for name in party_names(4)
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
    assert [said["round"] for said in events(tmp_path / "run", "client-2", "remembered")] == [1, 2]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def other_run(path: Path) -> None:
    content = path.read_bytes()
    run = re.search(rb'\\\\?"run\\\\?":\\\\?"([A-Za-z0-9+/=]+)', content)
    assert run is not None
    path.write_bytes(content.replace(run.group(1), b"A" * (len(run.group(1)) - 1) + b"="))


def of_another_client(path: Path) -> None:
    path.write_bytes(path.with_name("client-1.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (damage, "client-2.safetensors is damaged, or not what a client remembers"),
        pytest.param(
            other_run,
            "client-2.safetensors is of another experiment: delete it if that one is over",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            of_another_client,
            "client-2.safetensors is what client-1 remembers, and this is client-2",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_file_that_is_not_this_clients_own_is_refused(tmp_path: Path, spoil: Any, complaint: str) -> None:
    """It says so in a line, and the others go on without it; its file stays as it was."""
    dying = read_faults(drop=["server@MASKED_INPUT:2"], parties=party_names(4))
    plan = new_plan(experiment("fedsplit"), tmp_path / "run", report=False, faults=dying)
    with pytest.raises(SimulationError):
        hold(plan)
    spoil(plan.run.memory("client-2"))
    left = plan.run.memory("client-2").read_bytes()
    hold(resumed_plan(plan.experiment, plan.run, report=False))
    (refused,) = events(tmp_path / "run", "client-2", "cannot-train")
    assert complaint in refused["detail"]
    assert plan.run.memory("client-2").read_bytes() == left
    assert plan.run.progress().round == 3


def test_a_server_that_was_set_back_is_refused(tmp_path: Path) -> None:
    """Its model of round 1 is put in the place of a later one: clients contributed to round 3, from another model."""
    first = new_plan(
        experiment("fedsplit"),
        tmp_path / "run",
        report=False,
        faults=read_faults(drop=["server@MASKED_INPUT:2"], parties=party_names(4)),
    )
    with pytest.raises(SimulationError):
        hold(first)
    backup = first.run.model.read_bytes()
    faults = read_faults(drop=["server@UNMASK:3"], parties=party_names(4))
    with pytest.raises(SimulationError):
        hold(resumed_plan(first.experiment, first.run, report=False, faults=faults))
    first.run.model.write_bytes(backup)
    summary = hold(resumed_plan(first.experiment, first.run, report=False))
    # When two have refused the session may end before the others have looked.
    assert re.match("only [0-2] clients are there; a round takes at least 3", summary["ended"])
    assert first.run.model.read_bytes() == backup
    details = [said["detail"] for name in party_names(4)[1:] for said in events(tmp_path / "run", name, "cannot-train")]
    assert len(details) >= 2
    for detail in details:
        assert re.search(
            r"client-\d.safetensors: this client remembers round 3, and the server begins round 2 with another model "
            "than was there then: it was set back; give the server its newer run again, or delete the file",
            detail,
        )
