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
from typing import Any, Final

import msgspec
import torch

from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.computation import Computation, dealt_computation
from tacit.parties.crypten.dealer import Dealer
from tacit.parties.crypten.link import connect, listen
from tacit.parties.crypten.shared_model import share_model
from tacit.parties.links.keys import generate
from tacit.parties.runs.served import read_student
from tacit.parties.session.events import ListeningStarted
from tacit.protocol.core.roster import Roster
from tacit.simulate.bench.ends import Progress
from tacit.simulate.bench.results import StudentBenchmarkResult
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.party_files import tell
from tacit.simulate.federation.processes import Program, results

DEALER: Final = "dealer"
MODEL_OWNER, DATA_OWNER = PARTIES = ("model-owner", "data-owner")
"""The computing parties in the order of their ranks."""


@dataclass(frozen=True, kw_only=True)
class Inference:
    """Logits of images, and their cost."""

    logits: torch.Tensor
    """float32 [N, classes], computed on shares."""
    seconds: list[float]
    """Time of every batch, at the data owner."""
    megabytes: float
    """Sent by the computing parties to each other, all batches and the sharing of the model together."""
    rounds: int
    """Messages that the data owner waited for."""


class _PartyRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result and cost of a computing party; only the data owner has logits."""

    logits: list[list[float]]
    seconds: list[float]
    bytes_sent: int
    rounds: int


def measure(
    directory: Path, *, images: int | None, batch: int, check: bool, progress: Progress
) -> StudentBenchmarkResult:
    """Run the student of `tacit distill` in `directory` on the first test images, on shares and in the clear.

    Raises as read_student() and infer() do.
    """
    read = read_student(directory)
    data, student = read.data, read.transformer
    x, y = data.x_test[:images], data.y_test[:images]
    with torch.no_grad():
        clear = student(x)
    found = infer(student, x, batch=batch, check=check, progress=lambda done: progress(f"{done} of {len(x)} images"))
    labels, expected = found.logits.argmax(dim=1), clear.argmax(dim=1)
    return StudentBenchmarkResult(
        images=len(x),
        batch=batch,
        check=check,
        agreement=(labels == expected).double().mean().item(),
        accuracy=(labels == y).double().mean().item(),
        accuracy_in_the_clear=(expected == y).double().mean().item(),
        largest_difference=(found.logits - clear).abs().max().item(),
        seconds_per_image=sum(found.seconds) / len(x),
        megabytes_per_image=found.megabytes / len(x),
        rounds_per_batch=found.rounds / len(found.seconds),
    )


def infer(
    model: FriendlyTransformer,
    images: torch.Tensor,
    *,
    batch: int,
    check: bool = False,
    progress: Callable[[int], object] = lambda done: None,
) -> Inference:
    """Logits of images [N, C, S, S] by a calibrated model, computed on shares. `progress` gets the images done.

    The data owner's process has the model's architecture and intervals, with weights of zero. ProcessError with the
    reason when a party fails.
    """
    keys = {name: generate(name) for name in (DEALER, *PARTIES)}
    members = [keys[name].member("client") for name in PARTIES]
    roster = Roster((keys[DEALER].member("server"), *members))
    bare = copy.deepcopy(model).requires_grad_(False)
    for parameter in bare.parameters():
        parameter.zero_()
    rows = model.patches(images.cpu())
    shapes = [tuple(part.shape) for part in torch.split(rows, batch)]

    def program(name: str, target: Any, **arguments: Any) -> Program:
        common = {"keys": keys[name], "roster": roster, "session": b"inference", "patience": 120.0}
        return target, {"common": common, **arguments}

    programs = {
        DEALER: program(DEALER, _deal),
        MODEL_OWNER: program(MODEL_OWNER, _compute, model=model.cpu(), rows=None, shapes=shapes, check=check),
        DATA_OWNER: program(DATA_OWNER, _compute, model=bare, rows=rows, shapes=shapes, check=check),
    }
    found = asyncio.run(
        results(
            programs,
            lambda name, message: progress(message["done"]) if "done" in message else None,
            listening={DEALER: (DEALER,), MODEL_OWNER: (MODEL_OWNER,)},
            echo="MpcError",
        )
    )
    model_owner, data_owner = (msgspec.convert(found[name], _PartyRun) for name in PARTIES)
    return Inference(
        logits=torch.tensor(data_owner.logits),
        seconds=data_owner.seconds,
        megabytes=(model_owner.bytes_sent + data_owner.bytes_sent) / 1e6,
        rounds=data_owner.rounds,
    )


async def _deal(control: Control, *, addresses: dict[str, str], common: dict[str, Any]) -> None:
    def serve() -> None:
        with listen("tcp://127.0.0.1:*", peers=PARTIES, **common) as listener:
            tell(control)(ListeningStarted(address=listener.address))
            Dealer(listener, PARTIES).serve()

    await asyncio.to_thread(serve)


async def _compute(control: Control, **arguments: Any) -> _PartyRun:
    return await asyncio.to_thread(_run, control, **arguments)


def _run(
    control: Control,
    *,
    addresses: dict[str, str],
    common: dict[str, Any],
    model: FriendlyTransformer,
    rows: torch.Tensor | None,
    shapes: list[tuple[int, ...]],
    check: bool,
) -> _PartyRun:
    torch.set_num_threads(1)
    own: str = common["keys"].name
    with ExitStack() as stack:
        if own == MODEL_OWNER:
            listener = stack.enter_context(listen("tcp://127.0.0.1:*", peers=[DATA_OWNER], **common))
            tell(control)(ListeningStarted(address=listener.address))
            links = listener.accept()
        else:
            peer = connect(addresses[MODEL_OWNER], server=MODEL_OWNER, **common)
            links = {MODEL_OWNER: stack.enter_context(peer)}
        dealer = stack.enter_context(connect(addresses[DEALER], server=DEALER, **common))
        computation = stack.enter_context(dealt_computation(own, parties=PARTIES, links=links, dealer=dealer))
        with crypten.no_grad():
            shared = share_model(model, computation, owner=PARTIES.index(MODEL_OWNER), check=check)
            logits, seconds = _batches(control, computation, shared, rows, shapes)
        costs = computation.communicator.costs().values()
        return _PartyRun(
            logits=logits,
            seconds=seconds,
            bytes_sent=sum(cost.bytes_sent for cost in costs),
            rounds=sum(cost.rounds for cost in costs),
        )


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
