"""`python recorded.py FOLDER ARGUMENT...`: the command `tacit ARGUMENT...`; what it contributes or sums goes to FOLDER.

It is what `tacit simulate --verify` keeps: a client's words by round, and the server's sum with the names of the
survivors; the server adds its model after each sum that it applied. What a round of another session left is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tacit.cli.main import app
from tacit.parties.hosting import client, server
from tacit.parties.hosting.client import ClientWork
from tacit.parties.hosting.server import serve
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Update
from tacit.parties.runs.directory import RunDirectory, write_arrays
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total


def record_update(folder: Path, name: str) -> Callable[[int, Update], None]:
    """What keeps a client's contributions."""
    return lambda round, update: write_arrays(
        RunDirectory(folder).verification(round, name), words=update.words, values=update.values
    )


def record_sum(folder: Path, done: RoundDone, total: Total, keeper: Keeper, configuration: Configuration) -> None:
    """Keep a sum that was applied."""
    bound = configuration.packing().error_bound(len(done.survivors))
    found: dict[str, Any] = {"words": done.total, "values": total.values, "bound": bound, "names": list(done.survivors)}
    run = RunDirectory(folder)
    write_arrays(run.verification(done.round, "model"), after=keeper.flat, mean=keeper.mean(total)[0])
    write_arrays(run.verification(done.round, "sum"), **found)


def _main(folder: Path, arguments: list[str]) -> None:
    def work(job: Any, *given: Any, **more: Any) -> ClientWork:
        return ClientWork(job, *given, on_update=record_update(folder, job.keys.name), **more)

    for module, name, changed in (
        (client, "ClientWork", work),
        (server, "serve", partial(serve, on_sum=partial(record_sum, folder))),
    ):
        setattr(module, name, changed)
    app(arguments)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
