"""`Server` and `Client`: custom model, data and training in parties on hosts.

They are `tacit server` and `tacit client` with functions in place of the files' descriptions (docs/hosts.md). The
layout of its tensors verifies that all parties train the same model.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tacit.models.workload import Workload
from tacit.parties.hosting.folder import MENDABLE, OpenedParty, open_party
from tacit.parties.hosting.party_file import ClientFile, ServerFile
from tacit.parties.runs.own_functions import FederationError, FederationResult, experiment_of, named_functions
from tacit.parties.runs.summary import Summary
from tacit.parties.session.event_log import Tell
from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event


class Server:
    """The server of a federation. party: its PARTY.toml. model, data, train, and further keys and sections of an
    experiment file: see `tacit.simulate.Federation`; `data` is never called here.

    ValueError and FederationError for an invalid setup."""

    def __init__(
        self,
        party: str | os.PathLike[str],
        *,
        model: Callable[[], Any],
        data: Callable[[int, int], Any],
        train: Callable[[Any, Any], Any] | None = None,
        clients: int,
        rounds: int,
        **keys: Any,
    ) -> None:
        named, _ = named_functions("Server", {"model": model, "data": data, "training": train}, keep=False)
        self.experiment = experiment_of("Server", named, clients=clients, rounds=rounds, keys=keys)
        with _public_errors():
            self._party = open_party(ServerFile, Path(party))

    def run(self, show: Tell = lambda event: None) -> FederationResult:
        """Run all rounds, or the remaining ones of the same experiment. show: called with every event.

        FederationError if not all are completed, or the server cannot listen; ValueError, OSError."""
        from tacit.parties.hosting.server import ServerHooks, run_server

        reasons: defaultdict[str, list[str]] = defaultdict(list)

        def watch(event: Event) -> None:
            if isinstance(event, RoundEnded) and event.status != "completed":
                reasons[event.text].append("server")
            show(event)

        with _public_errors():
            outcome = asyncio.run(run_server(self._party, show=watch, hooks=ServerHooks(self.experiment)))
        assert outcome.run is not None
        assert isinstance(outcome.result, Summary)
        return FederationResult(outcome.run.path, self.experiment, outcome.result).checked(reasons)


class Client:
    """A client of a federation. party: its PARTY.toml. model, data, train: see `tacit.simulate.Federation`; they may
    differ from the server's functions, and any callable is accepted.

    ValueError and FederationError for an invalid setup."""

    def __init__(
        self,
        party: str | os.PathLike[str],
        *,
        model: Callable[[], Any],
        data: Callable[[int, int], Any],
        train: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._workload = Workload(model=model, data=data, train=train)
        with _public_errors():
            opened = open_party(ClientFile, Path(party))
        # Given functions replace those that the server names, so nothing is imported.
        policy = msgspec.structs.replace(opened.file.policy, factories=("*",))
        file = msgspec.structs.replace(opened.file, policy=policy)
        self._party = OpenedParty(file, opened.keys, opened.roster, opened.folder)

    def run(self, show: Tell = lambda event: None, *, stay: bool = False, spent: float | None = None) -> str:
        """Take part in a session, and return how it ended; stay: in one after the other. show: called with every
        event. spent: as in `tacit client --spent`. FederationError if it failed, or the server was not reached or lost;
        ValueError, OSError."""
        from tacit.parties.hosting.client import ClientHooks, run_client

        hooks = ClientHooks()
        hooks.stay, hooks.spent, hooks.workload = stay, spent, self._workload
        with _public_errors():
            ended = asyncio.run(run_client(self._party, show=show, hooks=hooks)).ended
        if ended.code is not None:
            raise FederationError(f"{self._party.name}: {ended.detail}")
        return ended.detail


@contextmanager
def _public_errors() -> Iterator[None]:
    """Raise errors that an owner can fix as FederationError, except those with a builtin type."""
    try:
        yield
    except (ValueError, OSError):
        raise
    except MENDABLE as error:
        raise FederationError(str(error)) from error
