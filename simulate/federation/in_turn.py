"""Processes of parties that find each other: started in turn, and followed until they have come to their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tacit.simulate.federation.processes import Exit, Message, ProcessError, Processes

Program = tuple[Callable[..., Coroutine[Any, Any, object]], dict[str, Any]]
"""What a process runs, and its arguments; beside them it gets `addresses`, of those that listen before it starts."""

_GRACE_SECONDS: Final = 0.5


async def results(
    programs: Mapping[str, Program],
    told: Callable[[str, Message], object],
    *,
    listening: Mapping[str, Callable[[str], str]] | None = None,
    wanted: Collection[str] = (),
    lost: Callable[[str, str], object] | None = None,
    echo: str | None = None,
    logs: Path | None = None,
) -> dict[str, Any]:
    """What the programs return, by name. They are over when those wanted have finished: all if none are named.

    listening: programs that send {"address": ...}, for which the next ones wait; each with what makes of it the address
    for the others. told: gets what else they send. lost: makes the result of a program whose process has ended without
    one, from its name and how; without it that is a failure, as it is of programs that others have waited for. echo: a
    failure that says this is the echo of another, which is waited for; logs: the folder for the output of the
    processes, None: one that does not last. ProcessError names who failed.
    """
    waiting, addresses = list(programs), dict[str, str]()
    found, failures = dict[str, Any](), dict[str, str]()
    with TemporaryDirectory() as scratch:
        async with Processes(logs or Path(scratch), grace_seconds=_GRACE_SECONDS) as processes:

            async def start_next() -> None:
                while waiting:
                    name = waiting.pop(0)
                    target, arguments = programs[name]
                    await processes.start(name, target, addresses=dict(addresses), **arguments)
                    if name in (listening or {}):
                        return

            await start_next()
            async for name, message in processes.messages():
                if isinstance(message, Exit):
                    if name in found or name in failures:
                        continue
                    failure = f"its process ended unexpectedly: {message}"
                    if lost is None or name in (listening or {}):
                        message = {"failed": failure}
                    else:
                        message = {"finished": lost(name, failure)}
                if "failed" in message:
                    failures[name] = f"{name}: {message['failed']}"
                    if echo is None or echo not in message["failed"]:
                        raise ProcessError(failures[name])
                elif "finished" in message:
                    found[name] = message["finished"]
                    if found.keys() >= set(wanted or programs):
                        return found
                elif listening and "address" in message:
                    addresses[name] = listening[name](message["address"])
                    await start_next()
                else:
                    told(name, message)
    raise ProcessError(next(iter(failures.values())))
