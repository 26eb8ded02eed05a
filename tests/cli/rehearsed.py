"""`python -m tests.cli.rehearsed PARTY.toml SEED [EXPERIMENT.toml]`: a party on a host of its own, by the
files that a simulation with this seed has left. It is what `tacit server` and `tacit client` run, but for the seeds."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.parties.hosting.client import ClientHooks
from tacit.parties.hosting.folder import OpenedParty, open_party
from tacit.parties.hosting.party_file import ClientFile, ServerFile, read_any
from tacit.parties.hosting.running import run_party
from tacit.parties.hosting.server import HostedRun, ServerHooks
from tacit.parties.runs.experiment import Experiment, load
from tacit.parties.session.shell import Hooks
from tacit.simulate.federation.hosted_parties import client_seed


class SeededServer(ServerHooks):
    def __init__(self, seed: int, experiment: Experiment | None) -> None:
        super().__init__(experiment)
        self.seed, self.sampling = seed, hashlib.sha256(b"sampling %d" % seed).digest()

    def hosted(self, party: OpenedParty[ServerFile]) -> HostedRun:
        return replace(super().hosted(party), weights_seed=self.seed)


class SeededClient(ClientHooks):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed


async def _run(path: Path, seed: int, experiment: Path | None) -> int:
    party: OpenedParty[Any]
    hooks: Hooks
    if isinstance(read_any(path), ClientFile):
        party = open_party(ClientFile, path)
        hooks = SeededClient(client_seed(seed, party.roster.index(party.name)))
    else:
        party = open_party(ServerFile, path)
        hooks = SeededServer(seed, None if experiment is None else load(experiment, numbered=False))
    outcome = await run_party(party, show=lambda event: None, hooks=hooks)
    return 0 if outcome.ended.code is None else 1


if __name__ == "__main__":
    given = [Path(text) for text in sys.argv[3:]]
    sys.exit(asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2]), given[0] if given else None)))
