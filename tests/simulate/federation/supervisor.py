"""A program that supervises party processes, for the tests that end it in every way that a program can end.

Usage: supervisor.py DIRECTORY PRELOAD ENDING [TARGET ...], where ENDING is wait, return, raise, abandon (leave without
a stop), or die with so many bytes of what the first target is to do handed over, such as `die 8`. Prints one JSON line
for each message of a party.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from multiprocessing import forkserver
from pathlib import Path

import process_targets

from tacit.simulate.federation.processes import ProcessError, Processes

ABANDONED: list[Processes] = []  # Kept until the interpreter exits, connections and all.


def die_handing_over(written: int) -> None:
    connect = forkserver.connect_to_new_process

    def die(descriptors: list[int]) -> None:
        _, handed = connect(descriptors)
        os.write(handed, b"\x80\x04\x95\xff\x00\x00\x00\x00"[:written])
        os.kill(os.getpid(), signal.SIGKILL)

    forkserver.connect_to_new_process = die


async def supervise(directory: Path, preload: str, ending: str, targets: list[str]) -> None:
    # Enough for those who can end in order; who cannot is given up after that, and the test waits for it.
    processes = Processes(directory, preload=preload, grace_seconds=5.0)
    if ending.startswith("die"):
        die_handing_over(int(ending.split()[1]))
    async with AsyncExitStack() as stack:
        if ending == "abandon":
            ABANDONED.append(processes)
        else:
            await stack.enter_async_context(processes)
        for target in targets:
            await processes.start(target, getattr(process_targets, target))
        heard = 0
        async for name, message in processes.messages():
            print(json.dumps([name, message if isinstance(message, dict) else str(message)]), flush=True)
            heard += 1
            if heard == len(targets) and ending in ("return", "abandon"):
                return
            if heard == len(targets) and ending == "raise":
                raise LookupError("the supervisor has a defect")


if __name__ == "__main__":
    try:
        asyncio.run(supervise(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except ProcessError as error:
        print(json.dumps(["supervisor", str(error)]))
        sys.exit(2)
