"""A friendly model on shares, between a model owner, a data owner and a dealer: processes, sockets, CURVE.

Each is a process of its own; they talk over loopback TCP. The data owner learns the logits, which are compared with
those of the same model in the clear; the time and the traffic of a batch are measured.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.computation import Computation, dealt_computation
from tacit.parties.crypten.dealer import Dealer
from tacit.parties.crypten.link import connect, listen
from tacit.parties.crypten.shared_model import share_model
from tacit.parties.links.keys import PartyKeys, generate
from tacit.protocol.core.roster import Roster
from tacit.simulate.bench.ends import BenchmarkError
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import Exit, Processes
from tacit.simulate.private_inference.distillation import read

DEALER: Final = "dealer"
MODEL_OWNER, DATA_OWNER = PARTIES = ("model-owner", "data-owner")
"""The computing parties in the order of their ranks."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What a process is started with."""

    keys: PartyKeys
    roster: Roster
    addresses: dict[str, str]
    """Where those listen who have started before."""

    @property
    def link_options(self) -> dict[str, Any]:
        """What every link of this party has."""
        return {"keys": self.keys, "roster": self.roster, "session": b"inference", "patience": 120.0}


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What came out."""

    logits: torch.Tensor
    """float32 [N, classes], computed on shares."""
    seconds: list[float]
    """Of every batch, at the data owner."""
    megabytes: float
    """Sent by the computing parties to each other, all batches and the sharing of the model together."""
    rounds: int
    """Messages that the data owner has waited for."""


def measure(
    directory: Path, *, images: int | None, batch: int, check: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    """What the student of `tacit distill` in `directory` says of the first test images on shares and in the clear.

    Raises as tacit.simulate.private_inference.distillation.read and infer() do.
    """
    _, data, student = read(directory)
    x, y = data.x_test[:images], data.y_test[:images]
    with torch.no_grad():
        clear = student(x)
    found = infer(student, x, batch=batch, check=check, progress=lambda done: progress(f"{done} of {len(x)} images"))
    labels, expected = found.logits.argmax(dim=1), clear.argmax(dim=1)
    return {
        "images": len(x),
        "batch": batch,
        "check": check,
        "agreement": (labels == expected).double().mean().item(),
        "accuracy": (labels == y).double().mean().item(),
        "accuracy_in_the_clear": (expected == y).double().mean().item(),
        "largest_difference": (found.logits - clear).abs().max().item(),
        "seconds_per_image": sum(found.seconds) / len(x),
        "megabytes_per_image": found.megabytes / len(x),
        "rounds_per_batch": found.rounds / len(found.seconds),
    }


def infer(
    model: FriendlyTransformer,
    images: torch.Tensor,
    *,
    batch: int,
    check: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Inference:
    """Logits of images [N, C, S, S] by a calibrated model, computed on shares. `progress` gets the images done.

    The data owner's process has the model's architecture and intervals, with weights of zero. BenchmarkError with the
    reason when a party fails.
    """
    return asyncio.run(_supervise(model, images, batch=batch, check=check, progress=progress))


async def _supervise(
    model: FriendlyTransformer, images: torch.Tensor, *, batch: int, check: bool, progress: Callable[[int], None]
) -> Inference:
    keys = {name: generate(name) for name in (DEALER, *PARTIES)}
    members = [keys[name].member("client") for name in PARTIES]
    roster = Roster((keys[DEALER].member("server"), *members))
    bare = copy.deepcopy(model).requires_grad_(False)
    for parameter in bare.parameters():
        parameter.zero_()
    rows = model.patches(images.cpu())
    shapes = [tuple(part.shape) for part in torch.split(rows, batch)]
    programs: dict[str, tuple[Any, dict[str, Any]]] = {
        DEALER: (_deal, {}),
        MODEL_OWNER: (_compute, {"model": model.cpu(), "rows": None, "shapes": shapes, "check": check}),
        DATA_OWNER: (_compute, {"model": bare, "rows": rows, "shapes": shapes, "check": check}),
    }
    waiting = list(programs)
    addresses: dict[str, str] = {}
    results: dict[str, Any] = {}
    failures: list[str] = []
    with TemporaryDirectory() as logs:
        async with Processes(Path(logs), grace_seconds=5.0) as processes:

            async def start_next() -> None:
                name = waiting.pop(0)
                target, arguments = programs[name]
                seat = Seat(keys=keys[name], roster=roster, addresses=dict(addresses))
                await processes.start(name, target, seat=seat, **arguments)

            await start_next()
            async for name, message in processes.messages():
                if isinstance(message, Exit):
                    if name not in results and not any(failure.startswith(f"{name}: ") for failure in failures):
                        failures.append(f"{name}: its process ended unexpectedly: {message}")
                elif "address" in message:
                    addresses[name] = message["address"]
                    await start_next()
                elif "done" in message:
                    progress(message["done"])
                elif "finished" in message:
                    results[name] = message["finished"]
                else:
                    failures.append(f"{name}: {message.get('failed', message)}")
                # A party that fails tells the others, who then fail too: the cause is what is no fault of a link.
                if failures and "MpcError" not in failures[-1]:
                    break
    if failures:
        raise BenchmarkError(failures[-1] if "MpcError" not in failures[-1] else failures[0])
    found = results[DATA_OWNER]
    costs = [results[name]["bytes_sent"] for name in PARTIES]
    return Inference(
        logits=torch.tensor(found["logits"]),
        seconds=found["seconds"],
        megabytes=sum(costs) / 1e6,
        rounds=found["rounds"],
    )


async def _deal(control: Control, *, seat: Seat) -> dict[str, Any]:
    def serve() -> dict[str, Any]:
        with listen("tcp://127.0.0.1:*", peers=PARTIES, **seat.link_options) as listener:
            control.send({"address": listener.address})
            dealer = Dealer(listener, PARTIES)
            dealer.serve()
            return {"requests": dealer.dealt}

    return await asyncio.to_thread(serve)


async def _compute(control: Control, **arguments: Any) -> dict[str, Any]:
    return await asyncio.to_thread(_run, control, **arguments)


def _run(
    control: Control,
    *,
    seat: Seat,
    model: FriendlyTransformer,
    rows: torch.Tensor | None,
    shapes: list[tuple[int, ...]],
    check: bool,
) -> dict[str, Any]:
    torch.set_num_threads(1)
    own = seat.keys.name
    with ExitStack() as stack:
        if own == MODEL_OWNER:
            listener = stack.enter_context(listen("tcp://127.0.0.1:*", peers=[DATA_OWNER], **seat.link_options))
            control.send({"address": listener.address})
            peer = listener.accept()[DATA_OWNER]
        else:
            address = seat.addresses[MODEL_OWNER]
            peer = stack.enter_context(connect(address, server=MODEL_OWNER, **seat.link_options))
        dealer = stack.enter_context(connect(seat.addresses[DEALER], server=DEALER, **seat.link_options))
        links = {name: peer for name in PARTIES if name != own}
        computation = stack.enter_context(dealt_computation(own, parties=PARTIES, links=links, dealer=dealer))
        with crypten.no_grad():
            shared = share_model(model, computation, owner=PARTIES.index(MODEL_OWNER), check=check)
            logits, seconds = _batches(control, computation, shared, rows, shapes)
        costs = computation.communicator.costs().values()
        return {
            "logits": logits,
            "seconds": seconds,
            "bytes_sent": sum(cost.bytes_sent for cost in costs),
            "rounds": sum(cost.rounds for cost in costs),
        }


def _batches(
    control: Control,
    computation: Computation,
    shared: FriendlyTransformer,
    rows: torch.Tensor | None,
    shapes: list[tuple[int, ...]],
) -> tuple[list[list[float]], list[float]]:
    source = PARTIES.index(DATA_OWNER)
    logits: list[list[float]] = []
    seconds: list[float] = []
    plans: dict[tuple[int, ...], Any] = {}
    parts = [torch.zeros(shape) for shape in shapes] if rows is None else torch.split(rows, shapes[0][0])
    done = 0
    for part, shape in zip(parts, shapes, strict=True):
        begin = time.perf_counter()
        # The first batch of a shape records what it asks the dealer for; for the next ones the dealer works ahead.
        if shape in plans:
            computation.supply.announce(plans[shape])
        with computation.supply.recorded() as plan:
            result = shared(crypten.cryptensor(part, src=source)).get_plain_text(dst=source)
        plans.setdefault(shape, plan)
        if rows is not None:
            logits += result.tolist()
            done += shape[0]
            control.send({"done": done})
        seconds.append(time.perf_counter() - begin)
    return logits, seconds
