"""Stock CrypTen on the blocks of a transformer, over gloo on loopback: what our protocol is compared with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from tacit.models.friendly.blocks import Block, with_parameters
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.inference.operations import DATA, MODEL
from tacit.simulate.bench.ends import BenchmarkError
from tacit.simulate.bench.relay import Relay, Shaping, relaying
from tacit.simulate.bench.relayed_gloo import prepare
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.in_turn import Program, results
from tacit.simulate.private_inference.inference import DATA_OWNER, MODEL_OWNER

_OWNERS: Final = (MODEL_OWNER, DATA_OWNER)
"""In the order of their ranks."""


def measure(
    blocks: list[Block],
    x: torch.Tensor,
    *,
    provider: str,
    repeats: int,
    shaping: Shaping,
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """Figures of a pass of x [B, T, D] through the blocks, and its `output`. ProcessError if a process fails.

    provider: CrypTen's "TFP", where rank 0 makes all tuples, or "TTP", a third party.
    """
    names = [*_OWNERS, *(["crypten-third-party"] if provider == "TTP" else [])]
    with relaying(shaping) as relay, TemporaryDirectory() as meeting:
        given = {"meeting": meeting, "relay": relay, "provider": provider, "blocks": blocks, "x": x, "repeats": repeats}
        programs: dict[str, Program] = {name: (_stock, {"rank": rank, **given}) for rank, name in enumerate(names)}
        data = asyncio.run(results(programs, lambda name, message: progress(message["progress"])))[DATA_OWNER]
        relayed = relayed_bytes(relay, (1 + repeats) * 2 * data["bytes_sent"])
    return {
        "online_seconds": data["seconds"],
        "online_bytes_sent": dict.fromkeys(_OWNERS, data["bytes_sent"]),
        "rounds": data["rounds"],
        "relayed_bytes": relayed,
        "output": torch.tensor(data["output"]).double().reshape(x.shape),
    }


def relayed_bytes(relay: Relay | None, sent: int) -> int | None:
    """The relay's count. BenchmarkError if it is below what the owners have sent each other."""
    if relay is None:
        return None
    forwarded = relay.forwarded()
    if forwarded < sent:
        raise BenchmarkError(
            f"of {sent} bytes between model owner and data owner, {forwarded} have passed through the relay: this "
            "release of torch connects its processes in another way; leave out --latency and --bandwidth"
        )
    return forwarded


async def _stock(control: Control, *, addresses: dict[str, str], **arguments: Any) -> dict[str, Any]:
    return await asyncio.to_thread(_run_stock, control, **arguments)


def _run_stock(
    control: Control,
    *,
    rank: int,
    meeting: str,
    relay: Relay | None,
    provider: str,
    blocks: list[Block],
    x: torch.Tensor,
    repeats: int,
) -> dict[str, Any]:
    """One process of stock CrypTen. Its model owner shares the weights, its data owner the input, beforehand."""
    prepare(Path(meeting) / "gloo", rank, relay)
    crypten.cfg.mpc.provider = provider
    crypten.cfg.communicator.verbose = True
    if rank == len(_OWNERS):
        crypten.mpc.provider.ttp_provider.TTPServer()
        return {}
    crypten.init()
    communicator = crypten.communicator.get()
    with crypten.no_grad():
        shared = [
            with_parameters(block, lambda name, tensor: crypten.cryptensor(tensor, src=MODEL)) for block in blocks
        ]
        seconds = []
        for repeat in range(repeats + 1):
            if rank == DATA:
                control.send({"progress": f"CrypTen, {provider}, pass {repeat} of {repeats}"})
            stream = crypten.cryptensor(x.float(), src=DATA)
            communicator.barrier()
            communicator.reset_communication_stats()
            begin = time.perf_counter()
            for block in shared:
                stream = block(stream)
            seconds.append(time.perf_counter() - begin)
        costs = communicator.get_communication_stats()
        output = stream.get_plain_text(dst=DATA)
    communicator.barrier()
    crypten.uninit()
    return {
        "seconds": median(seconds[1:]),
        "bytes_sent": int(costs["bytes"]) // 2,
        "rounds": int(costs["rounds"]),
        "output": output.flatten().tolist() if rank == DATA else None,
    }
