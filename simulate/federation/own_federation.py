"""`Federation`: one's own model, data and training in the processes of a simulation."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from tacit.parties.runs.events import PartyFailed
from tacit.parties.runs.own_functions import FederationResult, experiment_of
from tacit.parties.runs.summary import Summary
from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event
from tacit.simulate.federation.processes import ProcessError, Show, SimulationError
from tacit.simulate.federation.run import default_directory, new_plan, simulate


class Federation:
    """A server and clients on this machine, each a process, that train one's own model under secure aggregation.

    model: () -> nn.Module, whose state is float32. data: (client, clients) -> what a client has, the first being 0.
    train: (model, data) -> None if it trained the model in place, or a trained model, or an update that is added: a
    vector, or a mapping of names to tensors; None: the training of `training=`, on images and labels (x, y).
    A client counts for as many samples as its data have.

    They are functions or classes at the top level of a module, or of the script that is run; that script calls `run`
    under `if __name__ == "__main__":`, because every process imports it. keys: further keys and sections of an
    experiment file (docs/configuration.md), such as aggregation={"clip": 1.0}. directory: a new one; by default
    runs/<time>-<name>. ValueError for what cannot run.
    """

    def __init__(
        self,
        *,
        model: Callable[[], Any],
        data: Callable[[int, int], Any],
        train: Callable[[Any, Any], Any] | None = None,
        clients: int = 5,
        rounds: int = 10,
        seed: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        **keys: Any,
    ) -> None:
        self.experiment = experiment_of(
            "Federation", model, data, train, clients=clients, rounds=rounds, seed=seed, keys=keys
        )
        self._directory = None if directory is None else Path(directory)
        self._device = device

    def run(self, show: Show = lambda event: None) -> FederationResult:
        """Run all rounds. show: called with every event of the parties.

        FederationError if not all rounds are completed; ValueError if the directory is taken; OSError if the disk is
        full; RuntimeError where the script lacks the `if __name__ == "__main__":`, or in an event loop.
        """
        _check_place()
        directory = self._directory or default_directory(self.experiment.name)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ValueError(f"Federation: directory = {directory}: there is something already; name another one")
        plan = new_plan(self.experiment, directory, device=self._device)
        reasons: defaultdict[str, list[str]] = defaultdict(list)

        def watch(event: Event) -> None:
            aborted = isinstance(event, RoundEnded) and event.status != "completed"
            if aborted or isinstance(event, PartyFailed):
                reasons[event.text].append(event.party)
            show(event)

        summary: Summary | None = None
        try:
            summary = asyncio.run(simulate(plan, watch))
        except (SimulationError, ProcessError) as error:
            reasons[str(error)] = []
        return FederationResult(directory, self.experiment, summary).checked(reasons)


def _check_place() -> None:
    # What multiprocessing sets while it imports the script of a process that it has started.
    if getattr(current_process(), "_inheriting", False):
        raise RuntimeError(
            'Federation.run: every process imports this script; call it under `if __name__ == "__main__":`'
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("Federation.run: an event loop runs here; call it by `await asyncio.to_thread(federation.run)`")
