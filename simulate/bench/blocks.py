"""Blocks of a vision transformer on shares, by our protocol and by stock CrypTen: seconds, bytes, rounds and error.

Ours: model owner, data owner and dealer, each a process, over CURVE on loopback TCP. CrypTen computes the same
polynomials over gloo, with its default provider and with its trusted third party. One thread for each process. The
model has random weights and is calibrated on random images; the measured pass is on others. Material is fetched before
the clock starts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import timm
import torch

from tacit.models.friendly.blocks import Approximation, Block, with_parameters
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.convert import convert
from tacit.parties.inference.bounds import measured
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.scales import Scales, Shape, fitted, stream_scale
from tacit.parties.inference.session import InferenceSession, Layers, known_input
from tacit.parties.inference.shell import Record
from tacit.parties.inference.supply import deal
from tacit.parties.inference.weights import IntegerWeight, integer_weights
from tacit.parties.keys import generate
from tacit.parties.mpc.crypten_compatibility import crypten
from tacit.parties.mpc.link import connect, listen
from tacit.protocol.roster import Roster
from tacit.simulate.bench.ends import BenchmarkError
from tacit.simulate.bench.inference import DATA_OWNER, DEALER, MODEL_OWNER, PARTIES, Seat
from tacit.simulate.child import Control
from tacit.simulate.processes import Exit, Processes

_CALIBRATION_IMAGES: Final = 4
_MARGIN: Final = 2.0
_LISTEN: Final = "tcp://127.0.0.1:*"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is measured."""

    model: str = "vit_small_patch16_224"
    """A vision transformer of timm's; only its first blocks are made."""
    blocks: int = 1
    batch: int = 1
    known: bool = True
    """Whether the data owner knows the input of every block, or nobody does."""
    repeats: int = 5


@dataclass(frozen=True, repr=False)
class _Task:
    """The model and an input, in the clear and in whole numbers."""

    blocks: list[Block]
    x: torch.Tensor
    expected: torch.Tensor
    shape: Shape
    scales: list[Scales]
    weights: list[dict[str, IntegerWeight]]


def measure(setting: Setting, progress: Callable[[str], object], *, against_crypten: bool = False) -> dict[str, Any]:
    """The figures, under stable keys. ValueError for a model that cannot be computed; BenchmarkError if a party fails.

    Bytes are those of shares, of one pass of all blocks. CrypTen counts what a party sends and receives; half of that
    is given, the data owner's for both, since what rank 0 receives from the third party is no exchange with its peer.
    """
    progress("making the model")
    task = _task(setting)
    figures: dict[str, Any] = {
        "model": setting.model,
        "blocks": setting.blocks,
        "batch": setting.batch,
        "input": "known" if setting.known else "shared",
        "repeats": setting.repeats,
        "ours": asyncio.run(_ours(setting, task, progress)),
    }
    if against_crypten:
        for key, provider in (("crypten", "TFP"), ("crypten_ttp", "TTP")):
            figures[key] = asyncio.run(_crypten(setting, task, provider, progress))
    return figures


def _task(setting: Setting) -> _Task:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        try:
            model: Any = timm.create_model(setting.model, pretrained=False, depth=setting.blocks).eval()
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{setting.model} is no vision transformer of timm's: {error}") from error
        friendly = convert(model, Approximation())
        side, channels = model.patch_embed.img_size[0], model.patch_embed.proj.in_channels
        images = torch.randn(_CALIBRATION_IMAGES + setting.batch, channels, side, side)
    typical, mine = images[:_CALIBRATION_IMAGES], images[_CALIBRATION_IMAGES:]
    calibrate(friendly, typical, margin=_MARGIN)
    friendly.requires_grad_(False)
    blocks: list[Block] = list(friendly.blocks)  # type: ignore[arg-type]
    x = friendly.embed(friendly.patches(typical))
    bounds = []
    for block in blocks:
        bounds.append(measured(block, x, margin=_MARGIN))
        x = block(x)
    given = friendly.embed(friendly.patches(mine)).double()
    expected = given
    for block in blocks:
        expected = with_parameters(block, lambda name, tensor: tensor.double())(expected)
    first = blocks[0]
    shape = Shape(
        images=setting.batch,
        tokens=given.shape[1],
        width=given.shape[2],
        heads=first.attn.heads,
        hidden=first.mlp.fc1.weight.shape[0],
    )
    stream = min(stream_scale(shape, bound) for bound in bounds)
    scales = []
    for block, bound in zip(blocks, bounds, strict=True):
        degree, steps = block.attn.degree, block.attn.steps
        assert degree is not None
        assert steps is not None
        scales.append(
            fitted(
                shape,
                bound,
                scale=block.attn.scale,
                degree=degree,
                steps=steps,
                eps=block.norm1.eps,
                stream=stream,
            )
        )
    weights = [integer_weights(block, scale) for block, scale in zip(blocks, scales, strict=True)]
    return _Task(blocks, given, expected, shape, scales, weights)


async def _ours(setting: Setting, task: _Task, progress: Callable[[str], object]) -> dict[str, Any]:
    keys = {name: generate(name) for name in (DEALER, *PARTIES)}
    members = [keys[name].member("client") for name in PARTIES]
    roster = Roster((keys[DEALER].member("server"), *members))
    common = {"shape": task.shape, "scales": task.scales, "known": setting.known, "repeats": setting.repeats}
    programs: dict[str, tuple[Any, dict[str, Any]]] = {
        DEALER: (_deal, {}),
        MODEL_OWNER: (_compute, {"weights": task.weights, "x": None, **common}),
        DATA_OWNER: (_compute, {"weights": None, "x": task.x, **common}),
    }
    addresses: dict[str, str] = {}

    async def seated(processes: Processes, name: str) -> None:
        target, arguments = programs[name]
        seat = Seat(keys=keys[name], roster=roster, addresses=dict(addresses))
        await processes.start(name, target, seat=seat, **arguments)

    async def on_message(processes: Processes, name: str, message: dict[str, Any]) -> None:
        addresses[name] = message["address"]
        await seated(processes, list(programs)[len(addresses)])

    results = await _supervised(seated, on_message, list(programs), progress, first=1)
    owners = [results[name] for name in PARTIES]
    output = torch.tensor(results[DATA_OWNER]["output"]).double().reshape(task.expected.shape)
    return _figures(owners, output, task.expected) | {
        "online_seconds_by_block": results[DATA_OWNER]["seconds_by_block"],
        "offline_seconds": results[MODEL_OWNER]["offline_seconds"],
        "offline_bytes": sum(owner["offline_bytes"] for owner in owners),
        "weights_bytes": results[MODEL_OWNER]["weights_bytes"],
        "per_operation": {
            name: {
                "seconds": results[DATA_OWNER]["operations"][name]["seconds"],
                "bytes_sent": {party: results[party]["operations"][name]["bytes_sent"] for party in PARTIES},
                "rounds": results[DATA_OWNER]["operations"][name]["rounds"],
            }
            for name in results[DATA_OWNER]["operations"]
        },
    }


def _figures(owners: list[dict[str, Any]], output: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    return {
        "online_seconds": owners[DATA]["seconds"],
        "online_bytes_sent": {name: owner["bytes_sent"] for name, owner in zip(PARTIES, owners, strict=True)},
        "rounds": owners[DATA]["rounds"],
        "relative_error": ((output - expected).norm() / expected.norm()).item(),
    }


async def _supervised(
    start: Callable[[Processes, str], Any],
    on_message: Callable[[Processes, str, dict[str, Any]], Any],
    names: list[str],
    progress: Callable[[str], object],
    *,
    first: int,
) -> dict[str, Any]:
    """Run the processes to their ends; what each of them returned. BenchmarkError with the reason when one fails."""
    results: dict[str, Any] = {}
    with TemporaryDirectory() as logs:
        async with Processes(Path(logs), grace_seconds=5.0) as processes:
            for name in names[:first]:
                await start(processes, name)
            async for name, message in processes.messages():
                if isinstance(message, Exit):
                    if name not in results:
                        raise BenchmarkError(f"{name}: its process ended unexpectedly: {message}")
                elif "address" in message:
                    await on_message(processes, name, message)
                elif "progress" in message:
                    progress(message["progress"])
                elif "finished" in message:
                    results[name] = message["finished"]
                else:
                    raise BenchmarkError(f"{name}: {message.get('failed', message)}")
    return results


async def _deal(control: Control, *, seat: Seat) -> dict[str, Any]:
    def serve() -> dict[str, Any]:
        torch.set_num_threads(1)
        with listen(_LISTEN, peers=PARTIES, **seat.link_options) as listener:
            control.send({"address": listener.address})
            return {"requests": deal(listener, PARTIES)}

    return await asyncio.to_thread(serve)


async def _compute(control: Control, **arguments: Any) -> dict[str, Any]:
    return await asyncio.to_thread(_run, control, **arguments)


def _run(
    control: Control,
    *,
    seat: Seat,
    weights: list[dict[str, IntegerWeight]] | None,
    x: torch.Tensor | None,
    shape: Shape,
    scales: list[Scales],
    known: bool,
    repeats: int,
) -> dict[str, Any]:
    torch.set_num_threads(1)
    rank = PARTIES.index(seat.keys.name)
    with ExitStack() as stack:
        if rank == MODEL:
            listener = stack.enter_context(listen(_LISTEN, peers=[DATA_OWNER], **seat.link_options))
            control.send({"address": listener.address})
            peer = listener.accept()[DATA_OWNER]
        else:
            address = seat.addresses[MODEL_OWNER]
            peer = stack.enter_context(connect(address, server=MODEL_OWNER, **seat.link_options))
        dealer = stack.enter_context(connect(seat.addresses[DEALER], server=DEALER, **seat.link_options))
        session = InferenceSession(rank, peer, dealer)
        layers = [session.mask(None if weights is None else weights[index], shape) for index in range(len(scales))]
        weights_bytes = sum(cost.bytes_sent for cost in peer.counters.values())
        passes = []
        for repeat in range(repeats + 1):
            if rank == DATA:
                control.send({"progress": f"pass {repeat} of {repeats}" if repeat else "warming up"})
            passes.append(_pass(session, layers, shape, scales, x, known=known))
        session.finish()
        offline_bytes = sum(cost.bytes_received for cost in dealer.counters.values()) // (repeats + 1)
    timed = sorted(passes[1:], key=lambda one: sum(one.seconds))
    middle = timed[len(timed) // 2]
    return {
        "seconds": sum(middle.seconds),
        "seconds_by_block": middle.seconds,
        "offline_seconds": median(one.offline_seconds for one in timed),
        "bytes_sent": middle.record.bytes_sent,
        "rounds": middle.record.rounds,
        "offline_bytes": offline_bytes,
        "weights_bytes": weights_bytes,
        "operations": {
            name: {"seconds": cost.seconds, "bytes_sent": cost.bytes_sent, "rounds": cost.rounds}
            for name, cost in middle.record.operations.items()
        },
        "output": None if middle.output is None else middle.output.flatten().tolist(),
    }


@dataclass(repr=False)
class _Pass:
    record: Record
    seconds: list[float]
    """Online, of every block."""
    offline_seconds: float = 0.0
    output: torch.Tensor | None = None


def _pass(
    session: InferenceSession,
    layers: list[Layers],
    shape: Shape,
    scales: list[Scales],
    x: torch.Tensor | None,
    *,
    known: bool,
) -> _Pass:
    done = _Pass(Record(), [])
    share: torch.Tensor | None = None if known else session.share(x, shape, scales[0])
    for index, (block_layers, block_scales) in enumerate(zip(layers, scales, strict=True)):
        begin = time.perf_counter()
        block = session.prepare(shape, block_scales, block_layers, known=known)
        session.wait()
        ready = time.perf_counter()
        done.offline_seconds += ready - begin
        if known:
            stream, normalised = known_input(x, shape, block_scales)
            share = session.run(block, stream, normalised, done.record)
        else:
            assert share is not None
            share = session.run(block, share, None, done.record)
        if known or index == len(layers) - 1:
            done.output = x = session.result(share, block_scales, done.record)
        done.seconds.append(time.perf_counter() - ready)
    return done


async def _crypten(setting: Setting, task: _Task, provider: str, progress: Callable[[str], object]) -> dict[str, Any]:
    names = [*PARTIES, *(["crypten-third-party"] if provider == "TTP" else [])]
    with TemporaryDirectory() as meeting:

        async def start(processes: Processes, name: str) -> None:
            rank = names.index(name)
            await processes.start(
                name,
                _stock,
                rank=rank,
                meeting=meeting,
                provider=provider,
                blocks=task.blocks,
                x=task.x,
                repeats=setting.repeats,
            )

        results = await _supervised(start, lambda *_: None, names, progress, first=len(names))
    owners = [results[name] for name in PARTIES]
    output = torch.tensor(owners[DATA]["output"]).double().reshape(task.expected.shape)
    owners[MODEL]["bytes_sent"] = owners[DATA]["bytes_sent"]
    return _figures(owners, output, task.expected)


async def _stock(control: Control, **arguments: Any) -> dict[str, Any]:
    return await asyncio.to_thread(_run_stock, control, **arguments)


def _run_stock(
    control: Control, *, rank: int, meeting: str, provider: str, blocks: list[Block], x: torch.Tensor, repeats: int
) -> dict[str, Any]:
    """One process of stock CrypTen. Its model owner shares the weights, its data owner the input, beforehand."""
    torch.set_num_threads(1)
    os.environ |= {
        "DISTRIBUTED_BACKEND": "gloo",
        "RENDEZVOUS": f"file://{meeting}/gloo",
        "WORLD_SIZE": str(len(PARTIES)),
        "RANK": str(rank),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    crypten.cfg.mpc.provider = provider
    crypten.cfg.communicator.verbose = True
    if rank == len(PARTIES):
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
