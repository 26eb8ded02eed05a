"""Coroutines that the tests of processes.py run in child processes; they must be importable by name there."""

import asyncio
import os
import signal
import sys
import threading
from typing import Any

from tacit.simulate.federation.child import Control


async def echo(control: Control, *, word: str) -> dict[str, Any]:
    control.send({"said": word})
    control.send({"said": word * 2})
    return {"words": 2}


async def wait_for_ever(control: Control) -> None:
    control.send({"pid": os.getpid(), "parent": os.getppid()})
    try:
        await asyncio.Future()
    finally:
        print("cleaned up")


async def block_the_loop(control: Control) -> None:
    control.send({"pid": os.getpid(), "parent": os.getppid()})
    threading.Event().wait()


async def ignore_terminate(control: Control) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    await block_the_loop(control)


async def finish_while_a_thread_is_busy(_control: Control) -> str:
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    return "done"


async def say_farewell(control: Control) -> None:
    try:
        control.send({"waiting": True})
        await asyncio.Future()
    except asyncio.CancelledError as cancelled:
        control.send({"farewell": str(cancelled)})


async def raise_an_error(_control: Control) -> None:
    raise RuntimeError("the disk\nis full")


async def exit_with_three(control: Control) -> None:
    control.send({"last": "words"})
    os._exit(3)


async def kill_itself(control: Control) -> None:
    control.send({"last": "words"})
    os.kill(os.getpid(), signal.SIGKILL)


async def return_something_strange(_control: Control) -> object:
    return object()


async def describe_torch(_control: Control) -> dict[str, Any]:
    loaded = "torch" in sys.modules
    import torch

    def backward_threads() -> int:
        weights = torch.ones(64, 64, requires_grad=True)
        (weights @ weights).sum().backward()
        return torch.get_num_threads()

    return {
        "loaded": loaded,
        "threads": torch.get_num_threads(),
        "threads_in_thread": await asyncio.to_thread(backward_threads),
        "fork_server_threads": len(os.listdir(f"/proc/{os.getppid()}/task")),
    }
