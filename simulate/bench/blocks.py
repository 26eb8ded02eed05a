"""Blocks of a vision transformer on shares, by our protocol and by stock CrypTen: seconds, bytes, rounds and error.

Ours is a session as of `tacit infer`: model owner, data owner and dealer, each a process, over CURVE on loopback
TCP, for a model of so many blocks with random weights, calibrated on random images and asked about others. What is
counted are the rounds of its blocks; those of the embedding and the head come apart. Material is fetched before the
clock of a pass starts, and once more beside the passes, as it is in use. CrypTen (stock_blocks.py) computes the same
polynomials over gloo. One thread for each process. A link that is shaped is the one between model owner and data owner,
in all three; links of the dealer and of the third party never are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

import timm
import torch

from tacit.models.device import resolve_device
from tacit.models.friendly.blocks import Approximation, Block, with_parameters
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.convert import convert
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.data_owner import Inferred, PassCosts
from tacit.parties.inference.material import correction_bytes
from tacit.parties.inference.owner import AHEAD
from tacit.parties.inference.passes import RoundCost
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.stages import BlockStage, stages
from tacit.protocol.inference.messages import Input
from tacit.protocol.inference.schedule import layer_shapes, weight_bytes
from tacit.simulate.bench import stock_blocks
from tacit.simulate.bench.ends import BenchmarkError
from tacit.simulate.bench.relay import Shaping, relaying
from tacit.simulate.private_inference.inference import DATA_OWNER, MODEL_OWNER, InferencePlan, run

_CALIBRATION_IMAGES: Final = 4
_MARGIN: Final = 2.0
_BLOCK: Final = "block"


@dataclass(frozen=True, kw_only=True)
class BlockBenchmark:
    """What is measured."""

    model: str = "vit_small_patch16_224"
    """A vision transformer of timm's; only its first blocks are made."""
    blocks: int = 1
    batch: int = 1
    input: Input = "known"
    repeats: int = 5
    device: str = "cpu"
    """Where both owners of ours compute; CrypTen stays on the CPU."""
    shaping: Shaping = field(default_factory=Shaping)
    """Of the link between model owner and data owner."""


@dataclass(frozen=True, repr=False)
class _Task:
    """The model and an input, in the clear and in whole numbers."""

    friendly: FriendlyTransformer
    exact: FriendlyTransformer
    """The same in float64."""
    model: PrivateModel
    images: torch.Tensor

    def error(self, logits: torch.Tensor) -> float:
        """Of these logits, relative to the norm of those in the clear."""
        expected = self.exact(self.images.double())
        error: float = ((logits - expected).norm() / expected.norm()).item()
        return error


def measure(
    setting: BlockBenchmark, progress: Callable[[str], object], *, against_crypten: bool = False
) -> dict[str, Any]:
    """The figures, under stable keys. ValueError for a model that cannot be computed, ProcessError if a party fails,
    BenchmarkError if none can be run here.

    Bytes are those of shares, of one pass of all blocks; `relayed_bytes` are all that have passed the relay of a shaped
    link, from the first greeting on. Errors are those of the logits behind the blocks, relative to their norm; the head
    is private in ours, and in the clear behind CrypTen's blocks. CrypTen counts what a party sends and receives; half
    of that is given, the data owner's for both, since what rank 0 receives from the third party is no exchange with its
    peer.
    """
    resolve_device(setting.device)
    progress("making the model")
    task = _task(setting)
    figures = asdict(setting)
    figures |= figures.pop("shaping")
    try:
        figures["ours"] = _ours(setting, task, progress)
        if against_crypten:
            blocks: list[Block] = list(task.friendly.blocks)  # type: ignore[arg-type]
            given = task.friendly.embed(task.friendly.patches(task.images))
            for key, provider in (("crypten", "TFP"), ("crypten_ttp", "TTP")):
                row = stock_blocks.measure(
                    blocks,
                    given,
                    provider=provider,
                    repeats=setting.repeats,
                    shaping=setting.shaping,
                    progress=progress,
                )
                output = row.pop("output")
                figures[key] = row | {"relative_error": task.error(task.exact.classify(output))}
    except OSError as error:
        raise BenchmarkError(f"the parties cannot be run here: {error}") from error
    return figures


def _task(setting: BlockBenchmark) -> _Task:
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
    private = prepared_model(friendly, typical, margin=_MARGIN)
    return _Task(friendly, with_parameters(friendly, lambda name, tensor: tensor.double()), private, mine)


def _ours(setting: BlockBenchmark, task: _Task, progress: Callable[[str], object]) -> dict[str, Any]:
    images = task.images.repeat(1 + setting.repeats, 1, 1, 1)
    passes, relayed = _session(setting, task, images, None, progress)
    timed = sorted(passes.passes[1:], key=_block_seconds)
    middle = timed[len(timed) // 2]
    costs = _block_costs(middle)
    beside, _ = _session(setting, task, images, AHEAD, progress)
    sizes = task.model.public.sizes
    return {
        "online_seconds": _block_seconds(middle),
        "online_bytes_sent": _bytes_sent(costs),
        "rounds": len(costs),
        "relative_error": task.error(passes.logits[-setting.batch :]),
        "relayed_bytes": relayed,
        "online_seconds_by_block": [
            sum(cost.seconds for cost in costs if cost.stage == f"{_BLOCK} {index}") for index in range(setting.blocks)
        ],
        "offline_seconds": median(each.offline_seconds for each in timed),
        "offline_bytes": _offline_bytes(setting, task.model),
        "overlapped_seconds": median(each.offline_seconds + each.online_seconds for each in beside.passes[1:]),
        "weights_bytes": sum(
            size for name, size in zip(layer_shapes(sizes), weight_bytes(sizes), strict=True) if "." in name
        ),
        "per_operation": _by_operation(costs),
        "outside_the_blocks": _by_operation([cost for cost in middle.rounds if not cost.stage.startswith(_BLOCK)]),
    }


def _session(
    setting: BlockBenchmark, task: _Task, images: torch.Tensor, ahead: int | None, progress: Callable[[str], object]
) -> tuple[Inferred, int | None]:
    """One session over all images, and the bytes that passed the relay. BenchmarkError if the relay has missed any."""

    def show(name: str, done: int) -> None:
        number = done // setting.batch
        how = "material ahead of every pass" if ahead is None else "material beside the passes"
        progress(f"{how}: pass {number} of {1 + setting.repeats}")

    with relaying(setting.shaping) as relay:
        plan = InferencePlan(
            input=setting.input,
            batch=setting.batch,
            ahead=ahead,
            device=setting.device,
            relayed=relay.address if relay else str,
        )
        (found,) = run(task.model, [images], plan, show)
        sent = sum(cost.sent + cost.received for each in found.passes for cost in each.rounds)
        return found, stock_blocks.relayed_bytes(relay, sent)


def _offline_bytes(setting: BlockBenchmark, model: PrivateModel) -> int:
    """Of the dealer's corrections for the blocks in one pass."""
    public = model.public
    numbers = {name: number for number, name in enumerate(layer_shapes(public.sizes))}
    return sum(
        correction_bytes(request)
        for stage in stages(public, known=setting.input == "known")
        if isinstance(stage, BlockStage)
        for request in stage.requests(setting.batch, numbers)
    )


def _block_costs(done: PassCosts) -> list[RoundCost]:
    return [cost for cost in done.rounds if cost.stage.startswith(_BLOCK)]


def _block_seconds(done: PassCosts) -> float:
    return sum(cost.seconds for cost in _block_costs(done))


def _bytes_sent(costs: list[RoundCost]) -> dict[str, int]:
    return {MODEL_OWNER: sum(cost.received for cost in costs), DATA_OWNER: sum(cost.sent for cost in costs)}


def _by_operation(costs: list[RoundCost]) -> dict[str, Any]:
    parts: defaultdict[str, list[RoundCost]] = defaultdict(list)
    for cost in costs:
        parts[cost.operation].append(cost)
    return {
        name: {"seconds": sum(cost.seconds for cost in part), "bytes_sent": _bytes_sent(part), "rounds": len(part)}
        for name, part in parts.items()
    }
