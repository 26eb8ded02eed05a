"""Blocks of a vision transformer on shares, by our protocol and by stock CrypTen: the total cost of a pass.

Ours is a session as in `tacit infer`, once with exact softmax, GELU and LayerNorm, and once with polynomials in their
place; CrypTen computes the same polynomials over gloo. Embedding and head are listed separately. One session fetches
correlated randomness before the clock of a pass starts (online seconds); in another one passes run back to back during
preprocessing (sustained seconds, embedding and head included). Each process computes in one thread. A shaped link is
the one between model owner and data owner.

CrypTen's traffic goes through a relay without a change to CrypTen or gloo. Of every two processes of torch.distributed
the one with the higher published address connects to the other. Here the store is ours: a rank sees those above itself
at higher addresses than its own and those below at 0.0.0.0, with the port of the relay between the two owners. All of
this depends on gloo's published entries, which have no guarantee: the benchmark asks the relay whether bytes have
passed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urlparse

import msgspec
import timm
import torch

# torch.distributed has them too, but not for type checkers.
from torch._C._distributed_c10d import FileStore, Store
from torch.distributed.rendezvous import register_rendezvous_handler

from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import STOCK, Approximation, Block, FriendlyTransformer, convert, with_parameters
from tacit.models.training import resolve_device
from tacit.parties.inference.conversation import AHEAD
from tacit.parties.inference.data_owner import Inferred, PassCosts
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.passes import RoundCost
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.stages import BlockStage, material_bytes, stages
from tacit.protocol.inference.schedule import layer_shapes, weight_bytes
from tacit.simulate.bench.ends import BenchmarkError, Progress, highest_bytes, processor_seconds
from tacit.simulate.bench.results import (
    BlockBenchmarkResult,
    BlockMetrics,
    TacitBlockMetrics,
    per_operation,
)
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.party_files import DEALER, MODEL_OWNER
from tacit.simulate.federation.processes import Program, results
from tacit.simulate.federation.relay import Relay, Shaping, relaying
from tacit.simulate.insecure import Input
from tacit.simulate.private_inference.inference import DATA_OWNER, InferencePlan, run

_SCHEME: Final = "relayed"
_PARTIES: Final = {0, 1}
_LENGTH = struct.Struct("<Q")
# Address family (2: IPv4), port in network order, address.
_SOCKET_ADDRESS = struct.Struct("=H2s4s")
_IPV4: Final = 2
_LOOPBACK: Final = bytes((127, 0, 0, 1))
_THIS_MACHINE: Final = bytes(4)


def prepare(path: Path, rank: int, relay: Relay | None) -> None:
    """Make crypten.init() join, as this rank of two, the processes that meet at this file; one thread computes.

    With a relay, once in a process (then RuntimeError).
    """
    torch.set_num_threads(1)
    os.environ |= {
        "DISTRIBUTED_BACKEND": "gloo",
        "RENDEZVOUS": f"file://{path}" if relay is None else _relayed(path, relay),
        "WORLD_SIZE": str(len(_PARTIES)),
        "RANK": str(rank),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _relayed(path: Path, relay: Relay) -> str:
    stores: list[Store] = []

    def meet(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        parts = urlparse(url)
        numbers = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        rank, ranks = numbers["rank"], numbers["world_size"]
        # Kept alive: the holders keep only the non-Python part.
        stores.append(_RelayedStore(FileStore(parts.path, ranks), rank, relay))
        yield stores[-1], rank, ranks

    register_rendezvous_handler(_SCHEME, meet)  # type: ignore[no-untyped-call]
    return f"{_SCHEME}://{path}"


class _RelayedStore(Store):
    """A store that publishes addresses with the rank of their owner, and rewrites them for each reader.

    Rank r is published as 127.0.0.(r + 1), although it listens at 127.0.0.1 like all.
    """

    def __init__(self, store: Store, rank: int, relay: Relay) -> None:
        super().__init__()
        self._store = store
        self._rank = rank
        self._relay = relay

    def set(self, key: str, value: Any) -> None:
        if (place := _place(value)) is not None:
            _, port, _ = _SOCKET_ADDRESS.unpack_from(value, place)
            value = _with(value, place, port, bytes((127, 0, 0, self._rank + 1)))
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        value = self._store.get(key)
        if (place := _place(value)) is None:
            return value
        _, port, address = _SOCKET_ADDRESS.unpack_from(value, place)
        rank = address[-1] - 1
        if rank >= self._rank:
            return value
        if {rank, self._rank} == _PARTIES:
            port = self._relay.through(int.from_bytes(port, "big")).to_bytes(2, "big")
        return _with(value, place, port, _THIS_MACHINE)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self._store.wait(keys, *timeout)


def _place(value: bytes) -> int | None:
    """Return the offset of the socket's address in a rank's gloo entry: after host name and length. None: no entry."""
    if len(value) < _LENGTH.size:
        return None
    place = _LENGTH.size + _LENGTH.unpack_from(value)[0] + _LENGTH.size
    if place + _SOCKET_ADDRESS.size > len(value):
        return None
    family, _, address = _SOCKET_ADDRESS.unpack_from(value, place)
    return place if family == _IPV4 and address[:3] == _LOOPBACK[:3] else None


def _with(value: bytes, place: int, port: bytes, address: bytes) -> bytes:
    return value[:place] + _SOCKET_ADDRESS.pack(_IPV4, port, address) + value[place + _SOCKET_ADDRESS.size :]


_OWNERS: Final = (MODEL_OWNER, DATA_OWNER)
"""In the order of their ranks."""


class _StockRun(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a process of stock CrypTen; the third party measures only its memory."""

    seconds: list[float] = []
    bytes: int = 0
    """Sent and received in a pass."""
    rounds: int = 0
    output: list[float] = []
    """Set at the data owner."""
    peak_bytes: int = 0


def stock_library() -> Any:
    """Import CrypTen, for comparisons alone. CryptenMissingError, a ValueError, if it is not installed."""
    from tacit.parties.crypten.compatibility import crypten

    return crypten


def relayed_bytes(relay: Relay | None, sent: int) -> int | None:
    """Return the relay's count. BenchmarkError if it is below the owners' own count."""
    if relay is None:
        return None
    forwarded = relay.forwarded()
    if forwarded < sent:
        raise BenchmarkError(
            f"of {sent} bytes between model owner and data owner, {forwarded} have passed through the relay: this "
            "release of torch connects its processes in another way; leave out --latency and --bandwidth"
        )
    return forwarded


async def _stock(control: Control, *, addresses: dict[str, str], **arguments: Any) -> _StockRun:
    os.sched_setaffinity(0, arguments.pop("cores"))
    run = await asyncio.to_thread(_run_stock, control, **arguments)
    return msgspec.structs.replace(run, peak_bytes=highest_bytes())


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
) -> _StockRun:
    """Run one process. The model owner shares the weights, the data owner the input, before the clock starts."""
    prepare(Path(meeting) / "gloo", rank, relay)
    crypten = stock_library()
    crypten.cfg.mpc.provider = provider
    crypten.cfg.communicator.verbose = True
    if rank == len(_OWNERS):
        crypten.mpc.provider.ttp_provider.TTPServer()
        return _StockRun()
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
    return _StockRun(
        seconds=seconds[1:],
        bytes=int(costs["bytes"]),
        rounds=int(costs["rounds"]),
        output=output.flatten().tolist() if rank == DATA else [],
    )


_CALIBRATION_IMAGES: Final = 4
_MARGIN: Final = 1.5
"""Margin of the model's bounds, as in a served model."""
_TOKEN: Final = 0.5
"""Deviation of the class token's values, close to that of other tokens. timm's initial one is almost zero, unlike any
trained model's."""
_BLOCK: Final = "block"


@dataclass(frozen=True, kw_only=True)
class BlockBenchmark:
    """Settings of the benchmark."""

    model: str = "vit_small_patch16_224"
    """A timm vision transformer; only its first blocks are made."""
    blocks: int = 1
    batch: int = 1
    input: Input = "shared"
    repeats: int = 5
    device: str = "cpu"
    """Device of all our parties; CrypTen stays on the CPU."""
    shaping: Shaping = field(default_factory=Shaping)
    """Delay and bandwidth of the link between model owner and data owner."""
    against: Literal["crypten"] | None = None


Cores = Mapping[str, frozenset[int]]
"""Keyed by party."""


def placed(available: Sequence[int]) -> Cores:
    """Return each party's cores: its own if there are enough, else all."""
    parties = (DEALER, *_OWNERS)
    if len(available) < len(parties):
        return dict.fromkeys(parties, frozenset(available))
    return {party: frozenset(available[number :: len(parties)]) for number, party in enumerate(parties)}


@dataclass
class _Resources:
    """Resource use of a session's processes."""

    peaks: dict[str, int] = field(default_factory=dict)
    """Bytes, by party."""
    _seconds: dict[int, dict[str, float]] = field(default_factory=dict)
    """Processor time since the start, by the number of completed passes."""

    def note(self, passes: int) -> None:
        """Record usage after `passes` passes."""
        seconds = self._seconds[passes] = {}
        for party in multiprocessing.active_children():
            # The data owner may have ended after its last pass; use the peak of the passes before.
            with suppress(OSError, BenchmarkError):
                if party.pid is not None:
                    self.peaks[party.name] = highest_bytes(party.pid)
                    seconds[party.name] = processor_seconds(party.pid)

    def seconds_between(self, first: int, last: int) -> dict[str, float]:
        """Return each party's processor time per pass, averaged between these passes."""
        begun, over = self._seconds[first], self._seconds[last]
        return {name: (over[name] - begun[name]) / (last - first) for name in begun if name in over}


@dataclass(frozen=True, repr=False)
class _Task:
    """The model and an input, in the clear and in integers."""

    friendly: FriendlyTransformer
    exact: FriendlyTransformer
    """The same in float64."""
    model: PrivateModel
    images: torch.Tensor

    def error(self, logits: torch.Tensor) -> float:
        """Return the norm of the error of these logits, relative to those in the clear."""
        expected = self.exact(self.images.double())
        error: float = ((logits - expected).norm() / expected.norm()).item()
        return error


def measure(setting: BlockBenchmark, progress: Progress) -> BlockBenchmarkResult:
    """Run the sessions and return their cost. ValueError for an unsupported model, ProcessError if a party fails,
    BenchmarkError if none can be run here; CryptenMissingError, a ValueError, if CrypTen is compared and not installed.

    Our head is private; after CrypTen's blocks it is in the clear.
    """
    resolve_device(setting.device)
    if setting.against is not None:
        stock_library()  # Refused now rather than after minutes.
    progress("making the models")
    true_functions, polynomials = _task(setting, STOCK), _task(setting, Approximation())
    available = sorted(os.sched_getaffinity(0))
    cores = placed(available)
    try:
        return BlockBenchmarkResult(
            model=setting.model,
            blocks=setting.blocks,
            batch=setting.batch,
            input=setting.input,
            repeats=setting.repeats,
            device=setting.device,
            latency_ms=setting.shaping.latency_ms,
            bandwidth_mbit=setting.shaping.bandwidth_mbit,
            cores=len(available),
            own_cores=len(available) >= len(cores),
            true_functions=_ours(setting, true_functions, cores, lambda text: progress(f"true functions, {text}")),
            polynomials=_ours(setting, polynomials, cores, lambda text: progress(f"polynomials, {text}")),
            crypten=_crypten("TFP", setting, polynomials, cores, progress),
            crypten_ttp=_crypten("TTP", setting, polynomials, cores, progress),
        )
    except OSError as error:
        raise BenchmarkError(f"the parties cannot be run here: {error}") from error


def _crypten(
    provider: str, setting: BlockBenchmark, task: _Task, cores: Cores, progress: Progress
) -> BlockMetrics | None:
    """Measure the same polynomials by CrypTen, if requested. ProcessError if a process fails.

    provider: CrypTen's "TFP", where rank 0 makes all tuples, or "TTP", a third party. CrypTen counts the bytes that a
    party sends and receives; half of the data owner's represents either.
    """
    if setting.against is None:
        return None
    parties = [*_OWNERS, *([DEALER] if provider == "TTP" else [])]
    x = task.friendly.embed(task.friendly.patches(task.images))
    with relaying(setting.shaping) as relay, TemporaryDirectory() as meeting:
        given = {
            "meeting": meeting,
            "relay": relay,
            "provider": provider,
            "blocks": list(task.friendly.blocks),
            "x": x,
            "repeats": setting.repeats,
        }
        programs: dict[str, Program] = {
            party: (_stock, {"rank": rank, "cores": cores[party], **given}) for rank, party in enumerate(parties)
        }
        ended = asyncio.run(results(programs, lambda party, message: progress(message["progress"])))
        found = {party: msgspec.convert(ended[party], _StockRun) for party in parties}
        data, first = found[DATA_OWNER], found[MODEL_OWNER]
        relayed = relayed_bytes(relay, (1 + setting.repeats) * data.bytes)
    # Rank 0 counts more than its peer: its requests to the third party, and the answers.
    dealt = first.bytes - data.bytes
    output = torch.tensor(data.output).double().reshape(x.shape)
    return BlockMetrics(
        online_seconds=median(data.seconds),
        sustained_seconds=mean(data.seconds),
        model_owner_bytes=data.bytes // 2,
        data_owner_bytes=data.bytes // 2,
        dealer_bytes={MODEL_OWNER: dealt, DATA_OWNER: 0},
        rounds=data.rounds,
        peak_bytes={party: run.peak_bytes for party, run in found.items()},
        total_bytes=data.bytes + dealt,
        total_rounds=first.rounds,
        relative_error=task.error(task.exact.classify(output)),
        relayed_bytes=relayed,
    )


def _task(setting: BlockBenchmark, approximation: Approximation) -> _Task:
    """Halve the queries for polynomials: a student's scores were kept small in distillation, and random ones can be
    twice as large."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        try:
            model: Any = timm.create_model(setting.model, pretrained=False, depth=setting.blocks).eval()
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{setting.model} is no vision transformer of timm's: {error}") from error
        if model.cls_token is not None:
            torch.nn.init.normal_(model.cls_token, std=_TOKEN)
        if approximation.softmax_degree is not None:
            _halve_queries(model)
        friendly = convert(model, approximation)
        side, channels = model.patch_embed.img_size[0], model.patch_embed.proj.in_channels
        images = torch.randn(_CALIBRATION_IMAGES + setting.batch, channels, side, side)
    typical, mine = images[:_CALIBRATION_IMAGES], images[_CALIBRATION_IMAGES:]
    calibrate(friendly, typical, margin=_MARGIN)
    friendly.requires_grad_(False)
    private = prepared_model(friendly, typical, margin=_MARGIN)
    return _Task(friendly, with_parameters(friendly, lambda name, tensor: tensor.double()), private, mine)


@torch.no_grad()
def _halve_queries(model: Any) -> None:
    for block in model.blocks:
        for values in (block.attn.qkv.weight, block.attn.qkv.bias):
            values[: len(values) // 3] /= 2


def _ours(setting: BlockBenchmark, task: _Task, cores: Cores, progress: Progress) -> TacitBlockMetrics:
    images = task.images.repeat(1 + setting.repeats, 1, 1, 1)
    found, relayed, _ = _session(setting, task, images, None, cores, progress)
    timed = sorted(found.passes[1:], key=_block_seconds)
    middle = timed[len(timed) // 2]
    costs = _block_costs(middle)
    # The last pass does not count: no preprocessing for another one runs beside it.
    following = task.images.repeat(2 + setting.repeats, 1, 1, 1)
    beside, _, resources = _session(setting, task, following, AHEAD, cores, progress)
    dealt, sizes = _dealer_bytes(setting, task.model), task.model.public.sizes
    sent, received = sum(cost.sent for cost in costs), sum(cost.received for cost in costs)
    return TacitBlockMetrics(
        online_seconds=_block_seconds(middle),
        sustained_seconds=mean(each.offline_seconds + each.online_seconds for each in beside.passes[1:-1]),
        model_owner_bytes=received,
        data_owner_bytes=sent,
        dealer_bytes=dealt,
        rounds=len(costs),
        peak_bytes=resources.peaks,
        total_bytes=sent + received + sum(dealt.values()),
        total_rounds=len(costs) + setting.blocks,
        relative_error=task.error(found.logits[-setting.batch :]),
        relayed_bytes=relayed,
        squarings=[form.squarings for form in sizes.forms],
        online_seconds_by_block=[
            sum(cost.seconds for cost in costs if cost.stage == f"{_BLOCK} {index}") for index in range(setting.blocks)
        ],
        preprocessing_wait_seconds=median(each.offline_seconds for each in timed),
        processor_seconds=resources.seconds_between(1, 1 + setting.repeats),
        weights_bytes=sum(
            size for name, size in zip(layer_shapes(sizes), weight_bytes(sizes), strict=True) if "." in name
        ),
        per_operation=per_operation(costs),
        outside_the_blocks=per_operation(cost for cost in middle.rounds if not cost.stage.startswith(_BLOCK)),
    )


def _session(
    setting: BlockBenchmark,
    task: _Task,
    images: torch.Tensor,
    ahead: int | None,
    cores: Cores,
    progress: Progress,
) -> tuple[Inferred, int | None, _Resources]:
    """Run a session over all images; return also the bytes through the relay and each party's resource use.
    BenchmarkError if the relay has missed any bytes."""
    resources = _Resources()

    def show(name: str, done: int) -> None:
        number, passes = done // setting.batch, len(images) // setting.batch
        resources.note(number)
        when = "before" if ahead is None else "beside"
        progress(f"preprocessing {when} the passes: pass {number} of {passes}")

    with relaying(setting.shaping) as relay:
        plan = InferencePlan(
            input=setting.input,
            batch=setting.batch,
            ahead=ahead,
            device=setting.device,
            cores=cores,
            relayed=relay.address if relay else str,
        )
        (found,) = run(task.model, [images], plan, show)
        sent = sum(cost.sent + cost.received for each in found.passes for cost in each.rounds)
        return found, relayed_bytes(relay, sent), resources


def _dealer_bytes(setting: BlockBenchmark, model: PrivateModel) -> dict[str, int]:
    """Return the bytes of the dealer's corrections for the blocks in one pass, by recipient."""
    blocks = [stage for stage in stages(model.public) if isinstance(stage, BlockStage)]
    to_model_owner, to_data_owner = material_bytes(blocks, setting.batch, model.public.sizes)
    return {MODEL_OWNER: to_model_owner, DATA_OWNER: to_data_owner}


def _block_costs(done: PassCosts) -> list[RoundCost]:
    return [cost for cost in done.rounds if cost.stage.startswith(_BLOCK)]


def _block_seconds(done: PassCosts) -> float:
    return sum(cost.seconds for cost in _block_costs(done))
