"""`python recorded.py FOLDER ARGUMENT...`: the command `tacit ARGUMENT...`; what it contributes or sums goes to FOLDER.

It is what `tacit simulate --verify` keeps: a client's words by round, and the server's sum with the names of the
survivors; the server adds its model after each sum that it applied. What a round of another session left is replaced.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from tacit.cli.main import app
from tacit.parties.hosting import client, server
from tacit.parties.hosting.client import ClientHooks
from tacit.parties.hosting.server import ServerHooks
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Update
from tacit.parties.runs.directory import RunDirectory, write_arrays
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total


def record(folder: Path, party: Path) -> None:
    """Give the party of this file hooks that record, in the place of those that do nothing."""
    run, name = RunDirectory(folder), Path(tomllib.loads(party.read_text(encoding="utf-8"))["key"]).stem

    class RecordedClient(ClientHooks):
        def contributed(self, round: int, update: Update) -> None:
            write_arrays(run.verification(round, name), words=update.words, values=update.values)

    class RecordedServer(ServerHooks):
        def opened_sum(self, done: RoundDone, total: Total, keeper: Keeper, configuration: Configuration) -> None:
            bound, names = configuration.packing().error_bound(len(done.survivors)), list(done.survivors)
            found: dict[str, Any] = {"words": done.total, "values": total.values, "bound": bound, "names": names}
            write_arrays(run.verification(done.round, "model"), after=keeper.flat, mean=keeper.mean(total)[0])
            write_arrays(run.verification(done.round, "sum"), **found)

    vars(client)["ClientHooks"], vars(server)["ServerHooks"] = RecordedClient, RecordedServer


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[3]))
    app(sys.argv[2:])
