"""A server with momentum that was killed goes on with its velocity, as if nothing had happened."""

import asyncio
from pathlib import Path

import pytest

from tacit.parties.runs.experiment import parse
from tacit.simulate.federation.faults import read_faults
from tacit.simulate.federation.processes import ServerLostError
from tacit.simulate.federation.roles import Plan
from tacit.simulate.federation.run import new_plan, party_names, resumed_plan, simulate

pytestmark = pytest.mark.end_to_end

EXPERIMENT = parse(
    """
[federation]
clients = 4
rounds = 3
seed = 7
[model]
name = "lenet"
image_size = 8
[training]
algorithm = "fedsgd"
fedsgd_images = 16
learning_rate = 0.5
momentum = 0.9
decay = 0.1
decay_rounds = [3]
""",
    "test",
)


def hold(plan: Plan) -> None:
    asyncio.run(simulate(plan, lambda event: None))


def killed(directory: Path) -> Plan:
    faults = read_faults(drop=["server@MASKED_INPUT:2"], parties=party_names(4))
    plan = new_plan(EXPERIMENT, directory, report=False, faults=faults)
    with pytest.raises(ServerLostError):
        hold(plan)
    return plan


def velocities(plan: Plan) -> list[str]:
    return [path.name for path in plan.run.path.glob("velocity-*")]


def test_a_run_that_was_killed_ends_with_the_model_and_the_velocity_of_one_that_was_not(tmp_path: Path) -> None:
    whole = new_plan(EXPERIMENT, tmp_path / "whole", report=False)
    hold(whole)
    plan = killed(tmp_path / "run")
    assert velocities(plan) == ["velocity-1.safetensors"]
    # As a process leaves it that is killed between the two files of a round.
    plan.run.velocity(2).write_bytes(b"another")
    hold(resumed_plan(EXPERIMENT, plan.run, report=False))
    assert velocities(plan) == velocities(whole) == ["velocity-3.safetensors"]
    assert plan.run.model.read_bytes() == whole.run.model.read_bytes()
    assert plan.run.velocity(3).read_bytes() == whole.run.velocity(3).read_bytes()
