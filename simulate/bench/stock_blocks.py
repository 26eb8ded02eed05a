"""Stock CrypTen on the blocks of a transformer, over gloo on loopback, to compare with our protocol.

It makes its tuples while it computes: its time includes preprocessing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from tacit.models.friendly.transformer import Block, with_parameters
from tacit.parties.inference.operations import DATA, MODEL
from tacit.simulate.bench.ends import BenchmarkError
from tacit.simulate.bench.peak import highest_bytes
from tacit.simulate.bench.relayed_gloo import prepare
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.in_turn import Program, results
from tacit.simulate.federation.relay import Relay, Shaping, relaying
from tacit.simulate.private_inference.inference import DATA_OWNER, DEALER, MODEL_OWNER

_OWNERS: Final = (MODEL_OWNER, DATA_OWNER)
"""In the order of their ranks."""


def stock_library() -> Any:
    """CrypTen, which only comparisons load. CryptenMissingError, a ValueError, where it is not installed."""
    from tacit.parties.crypten.compatibility import crypten

    return crypten


def measure(
    blocks: Sequence[Block],
    x: torch.Tensor,
    *,
    provider: str,
    repeats: int,
    shaping: Shaping,
    cores: Collection[int],
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """Figures of a pass of x through the blocks, and its `output` [n]. ProcessError if a process fails.

    provider: CrypTen's "TFP", where rank 0 makes all tuples, or "TTP", a third party; cores: where all processes run.
    """
    parties = [*_OWNERS, *([DEALER] if provider == "TTP" else [])]
    with relaying(shaping) as relay, TemporaryDirectory() as meeting:
        given = {
            "meeting": meeting,
            "relay": relay,
            "provider": provider,
            "blocks": blocks,
            "x": x,
            "repeats": repeats,
            "cores": cores,
        }
        programs: dict[str, Program] = {party: (_stock, {"rank": rank, **given}) for rank, party in enumerate(parties)}
        found = asyncio.run(results(programs, lambda party, message: progress(message["progress"])))
        data, first = found[DATA_OWNER], found[MODEL_OWNER]
        relayed = relayed_bytes(relay, (1 + repeats) * data["bytes"])
    # What rank 0 counts beyond its peer it has asked of the third party, and received from it.
    dealt = first["bytes"] - data["bytes"]
    return {
        "online_seconds": median(data["seconds"]),
        "sustained_seconds": mean(data["seconds"]),
        "online_bytes_sent": dict.fromkeys(_OWNERS, data["bytes"] // 2),
        "dealer_bytes": {MODEL_OWNER: dealt, DATA_OWNER: 0},
        "rounds": data["rounds"],
        "total": {"bytes": data["bytes"] + dealt, "rounds": first["rounds"]},
        "peak_bytes": {party: found[party]["peak_bytes"] for party in parties},
        "relayed_bytes": relayed,
        "output": torch.tensor(data["output"]).double(),
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
    os.sched_setaffinity(0, arguments.pop("cores"))
    figures = await asyncio.to_thread(_run_stock, control, **arguments)
    return figures | {"peak_bytes": highest_bytes()}


def _run_stock(
    control: Control,
    *,
    rank: int,
    meeting: str,
    relay: Relay | None,
    provider: str,
    blocks: Sequence[Block],
    x: torch.Tensor,
    repeats: int,
) -> dict[str, Any]:
    """One process. Its model owner shares the weights, its data owner the input, beforehand."""
    prepare(Path(meeting) / "gloo", rank, relay)
    crypten = stock_library()
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
        "seconds": seconds[1:],
        "bytes": int(costs["bytes"]),
        "rounds": int(costs["rounds"]),
        "output": output.flatten().tolist() if rank == DATA else None,
    }
