"""`python -m tests.cli.rehearsed PARTY.toml SEED [EXPERIMENT.toml]`: a party on a host of its own, by the
files that a simulation with this seed has left. It is what `tacit server` and `tacit client` run, but for the seeds."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from tacit.parties.hosting.client import ClientHooks, run_client
from tacit.parties.hosting.folder import OpenedParty, at_work, open_party
from tacit.parties.hosting.party_file import ClientFile, ServerFile, read_any
from tacit.parties.hosting.server import HostedRun, ServerHooks, hold_rounds, server_status
from tacit.parties.runs.experiment import Experiment, load
from tacit.simulate.federation.hosted_parties import client_seed


class SeededServer(ServerHooks):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.sampling = seed, hashlib.sha256(b"sampling %d" % seed).digest()

    def hosted(self, party: OpenedParty[ServerFile], experiment: Experiment | None) -> HostedRun:
        return replace(super().hosted(party, experiment), weights_seed=self.seed)


class SeededClient(ClientHooks):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed


async def _run(path: Path, seed: int, experiment: Path | None) -> int:
    if isinstance(read_any(path), ClientFile):
        client = open_party(ClientFile, path)
        own = SeededClient(client_seed(seed, client.roster.index(client.name)))
        ended = await run_client(client, stay=False, show=lambda event: None, hooks=own)
    else:
        server = open_party(ServerFile, path)
        chosen = None if experiment is None else load(experiment, numbered=False)
        with at_work(server, server_status(server), lambda event: None) as tell:
            _, ended = await hold_rounds(server, chosen, tell, SeededServer(seed))
    return 0 if ended.code is None else 1


if __name__ == "__main__":
    given = [Path(text) for text in sys.argv[3:]]
    sys.exit(asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2]), given[0] if given else None)))
