"""Private inference as processes: what comes out, and real kills in the middle of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import Approximation, convert
from tacit.models.networks import build
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.simulate.federation.processes import ProcessError
from tacit.simulate.insecure.known_input import known_rounds
from tacit.simulate.private_inference.inference import (
    DEALER,
    MODEL_OWNER,
    InferencePlan,
    data_owner_names,
    run,
)

Show = Callable[[str, int], None]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """float32 [20, 1, 8, 8]."""
    return torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def model(images: torch.Tensor) -> tuple[PrivateModel, torch.Tensor]:
    """A model of one block, and its logits of the images in the clear."""
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2)
    friendly = convert(build(sizes, classes=3, channels=1, seed=1), Approximation())
    calibrate(friendly, images, margin=1.5)
    with torch.no_grad():
        return prepared_model(friendly, images, margin=1.5), friendly(images).double()


@pytest.mark.end_to_end
def test_data_owners_are_processes_of_their_own(model: tuple[PrivateModel, torch.Tensor], images: torch.Tensor) -> None:
    private, expected = model
    done: dict[str, list[int]] = {}
    parts = (images[:3], images[3:5])
    plan = InferencePlan(
        input="known", batch=2, ahead=None, relayed=lambda address: address.replace("127.0.0.1", "localhost")
    )
    found = run(private, parts, plan, lambda name, count: done.setdefault(name, []).append(count))
    assert done == {"data-owner-1": [2, 3], "data-owner-2": [2]}
    # 2e-3 are promised for a block; both ends are no worse than one more.
    logits = torch.cat([each.logits for each in found])
    assert (logits - expected[:5]).norm() / expected[:5].norm() < 4e-3
    for each in found[0].passes:
        declared = known_rounds(private.public.sizes, each.images)
        assert [(cost.operation, cost.received, cost.sent) for cost in each.rounds] == list(declared)
    assert multiprocessing.active_children() == []


PARTIES = (DEALER, MODEL_OWNER, "data-owner")


@pytest.mark.end_to_end
def test_all_parties_keep_to_the_cores(model: tuple[PrivateModel, torch.Tensor], images: torch.Tensor) -> None:
    cores = frozenset({max(os.sched_getaffinity(0))})
    elsewhere: dict[str, int] = {}

    def show(name: str, count: int) -> None:
        # The last pass is not looked at, since the data owner may be gone after it.
        for process in multiprocessing.active_children() if count < 20 else ():
            threads = os.listdir(f"/proc/{process.pid}/task")
            elsewhere[process.name] = sum(os.sched_getaffinity(int(thread)) != cores for thread in threads)

    run(model[0], (images,), InferencePlan(batch=4, cores=dict.fromkeys(PARTIES, cores)), show)
    # The thread that waits for the supervisor's word was there before the party.
    assert elsewhere == dict.fromkeys(PARTIES, int(len(os.sched_getaffinity(0)) > 1))


def killing(victim: str) -> Show:
    """Kills a process when the first pass of any data owner is done."""

    def show(name: str, count: int) -> None:
        for process in multiprocessing.active_children():
            if process.name == victim and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)

    return show


@pytest.mark.end_to_end
@pytest.mark.parametrize("victim", [MODEL_OWNER, DEALER, "data-owner-2"])
def test_who_is_killed_is_named_and_nobody_stays(
    model: tuple[PrivateModel, torch.Tensor], images: torch.Tensor, victim: str
) -> None:
    many = images.repeat(20, 1, 1, 1)
    with pytest.raises(ProcessError) as failed:
        run(model[0], (many, many), InferencePlan(batch=4), killing(victim))
    # Whichever the supervisor hears of first: the end of the process, or what somebody who waited for it says.
    assert str(failed.value) in {
        f"{victim}: its process ended unexpectedly: killed by SIGKILL",
        *(
            f"{owner}: InferenceError: {victim}: the link to the {victim.replace('-', ' ')} is lost"
            for owner in data_owner_names(2)
        ),
    }
    assert multiprocessing.active_children() == []


@pytest.mark.end_to_end
def test_who_could_not_go_on_says_why(model: tuple[PrivateModel, torch.Tensor], images: torch.Tensor) -> None:
    weights = {name: weight for name, weight in model[0].weights.items() if name != "0.fc2"}
    with pytest.raises(
        ProcessError, match=r"model-owner: it cannot go on \(\w+\); .*; model-owner: \w+ in \w+\.py, line \d+$"
    ):
        run(replace(model[0], weights=weights), (images[:1],), InferencePlan(batch=1), lambda name, count: None)
