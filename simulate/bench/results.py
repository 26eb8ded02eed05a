"""Results of `tacit bench`: costs of secure sums, of the network, and of inference and training on shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tacit.parties.runs.results import (
    Caution,
    Column,
    Result,
    Table,
    byte_count,
    decimals,
    percent,
    plain,
    prose,
    scientific,
)
from tacit.simulate.insecure import KNOWN_GIVES_AWAY, Input
from tacit.simulate.private_inference.results import OperationMetrics

if TYPE_CHECKING:
    from tacit.parties.inference.passes import RoundCost

_MODEL_OWNER: Final = "model-owner"
_DATA_OWNER: Final = "data-owner"
_PARTIES: Final = (_MODEL_OWNER, _DATA_OWNER, "dealer")


class SumBenchmarkResult(Result, frozen=True, kw_only=True, tag="tacit.bench-secagg.1"):
    """The cost of one secure sum. Times of clients are over those that did not drop out."""

    clients: int
    dimension: int
    """Entries of the vector."""
    client_total_ms: float
    """Median; likewise by phase."""
    client_total_p95_ms: float
    server_total_ms: float
    client_ms: dict[str, float]
    client_p95_ms: dict[str, float]
    server_ms: dict[str, float]
    bytes_up_per_client: int
    bytes_down_per_client: int
    expansion: float
    """Bytes that the busiest client sent, relative to a float32 vector."""
    masks_per_client: int
    masks_expanded_by_server: int
    keystream_ratio: float
    """Time of masking, relative to that of drawing as much raw keystream."""
    masking_ms: float
    peak_rss_mb: float
    """Peak memory of one client's process, above its size after the imports."""
    server_peak_rss_mb: float
    peak_over_vector: float
    """Peak of that client, relative to a float32 vector."""
    neighbours: int
    threshold: int
    ring_bits: int
    survivors: int
    sum_is_exact: bool
    wall_seconds: float
    profile_seconds: dict[str, float]
    """Seconds of all parties together, by kind of work; empty unless requested."""

    def view(self) -> Iterator[Table | str]:
        """Times by phase, all other metrics, and the profile."""
        phases = [
            (phase, client, self.client_p95_ms[phase], self.server_ms[phase])
            for phase, client in self.client_ms.items()
        ]
        yield Table(
            title="milliseconds by phase",
            columns=(
                Column("phase"),
                Column("client, median", decimals(2)),
                Column("client, p95", decimals(2)),
                Column("server", decimals(1)),
            ),
            rows=[*phases, ("total", self.client_total_ms, self.client_total_p95_ms, self.server_total_ms)],
        )
        values = [(name, getattr(self, name)) for name in self.__struct_fields__ if not name.endswith("_ms")]
        yield Table(
            columns=(Column("metric"), Column("value", _amount)),
            rows=[(name, value) for name, value in values if not isinstance(value, dict | bool)],
        )
        yield "the sum is exact" if self.sum_is_exact else Caution("the sum is NOT exact")
        if self.profile_seconds:
            kinds = sorted(self.profile_seconds.items(), key=lambda item: -item[1])
            yield Table(
                title="seconds by kind of work, all parties together",
                columns=(Column("work"), Column("seconds", decimals(2)), Column("share of all", percent())),
                rows=[(kind, seconds, seconds / self.wall_seconds) for kind, seconds in kinds],
            )


class DelayedRound(msgspec.Struct, frozen=True, kw_only=True):
    """A median round over links with a delay."""

    seconds: float
    one_way_delays: float
    """Additional time in one-way delays, compared with a run without a delay."""


class UploadMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A median upload of all vectors at once, over one line of 1 Gbit/s."""

    megabytes: float
    throughput_mbit: float
    """Megabits per second."""
    utilisation: float
    """Fraction of the line's bandwidth."""


class ServerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Resident memory of a server without torch."""

    idle_mb: float
    clients: int
    connected_mb: float
    """Memory with these clients connected."""
    kb_per_client: float


class NetworkBenchmarkResult(Result, frozen=True, kw_only=True, tag="tacit.bench-network.3"):
    """The cost of the network for a federation, without training; by one-way delay of the links in milliseconds."""

    clients: int
    rounds: int
    parameters: int
    training_seconds: float
    """Excluded from the times."""
    seconds_without_delay: float
    by_delay_ms: dict[str, DelayedRound]
    upload_by_delay_ms: dict[str, UploadMetrics]
    uploading: int
    """Clients that upload these vectors."""
    upload_parameters: int
    """Entries of each of these vectors."""
    memory: ServerMemory

    def view(self) -> Iterator[Table | str]:
        """Rounds and uploads by delay, and the server's memory."""
        rounds = [(f"{delay} ms", 1e3 * one.seconds, one.one_way_delays) for delay, one in self.by_delay_ms.items()]
        yield Table(
            title=f"a round of {self.clients} clients, {self.parameters:,} parameters, without training",
            columns=(
                Column("one-way delay"),
                Column("milliseconds", decimals(0)),
                Column("one-way delays", decimals(1)),
            ),
            rows=[("none", 1e3 * self.seconds_without_delay, None), *rounds],
        )
        megabytes = next(iter(self.upload_by_delay_ms.values())).megabytes
        yield Table(
            title=f"{self.uploading} vectors of {self.upload_parameters:,} entries, {megabytes:.0f} MB, over 1 Gbit/s",
            columns=(Column("one-way delay"), Column("Mbit/s", decimals(0)), Column("utilisation", percent())),
            rows=[
                (f"{delay} ms", one.throughput_mbit, one.utilisation) for delay, one in self.upload_by_delay_ms.items()
            ],
        )
        memory = self.memory
        yield (
            f"server without torch: {memory.idle_mb:.0f} MB alone, {memory.connected_mb:.0f} MB with {memory.clients} "
            f"clients connected ({memory.kb_per_client:.0f} kB each)"
        )


class PassMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the median pass; bytes are those of shares, by sender."""

    online_seconds: float
    """Seconds of a pass whose correlated randomness was received before it."""
    sustained_seconds: float
    """Seconds of a pass among passes back to back, while correlated randomness is made and sent."""
    model_owner_bytes: int
    data_owner_bytes: int
    dealer_bytes: dict[str, int]
    """Bytes of correlated randomness from the dealer, by recipient."""
    rounds: int
    peak_bytes: dict[str, int]
    """Peak memory of each party's process, with all that it has loaded."""


class BlockMetrics(PassMetrics, frozen=True, kw_only=True):
    """The cost of a pass through all blocks."""

    total_bytes: int
    """Sent by both owners and the dealer, or the third party."""
    total_rounds: int
    """Rounds, including requests for correlated randomness: ours ahead of its use, one for each block."""
    relative_error: float
    """Norm of the error of the logits behind the blocks, relative to the norm of those in the clear in float64."""
    relayed_bytes: int | None
    """All bytes through the relay of a shaped link, from the first greeting on; null without one."""


class TacitBlockMetrics(BlockMetrics, frozen=True, kw_only=True):
    """The cost of a pass through all blocks by our protocol."""

    squarings: list[int]
    """Squarings in the softmax of each block, which squares and normalises the softmax of smaller scores."""
    online_seconds_by_block: list[float]
    preprocessing_wait_seconds: float
    """Time until the preprocessing of a pass was complete, before the pass."""
    processor_seconds: dict[str, float]
    """Processor time of each party per pass, in back-to-back passes: on separate hosts, the sustained seconds are no
    less than the largest of one thread."""
    weights_bytes: int
    """Masked weights, sent once."""
    per_operation: dict[str, OperationMetrics]
    outside_the_blocks: dict[str, OperationMetrics]
    """The operations of embedding and head."""


class BlockBenchmarkResult(Result, frozen=True, kw_only=True, tag="tacit.bench-blocks.4"):
    """The cost of transformer blocks on shares, by our protocol and by CrypTen."""

    model: str
    blocks: int
    batch: int
    input: Input
    """Whether the data owner knows the input of a block, which is INSECURE, or no party does."""
    repeats: int
    device: str
    latency_ms: float | None
    bandwidth_mbit: float | None
    cores: int
    """Available to this process."""
    own_cores: bool
    """Whether each party had its own cores, or all shared them."""
    true_functions: TacitBlockMetrics
    """Exact softmax, GELU and LayerNorm."""
    polynomials: TacitBlockMetrics
    """Polynomials in their place, like CrypTen's."""
    crypten: BlockMetrics | None
    """Costs with CrypTen's default provider of correlated randomness; this and the next are null unless measured."""
    crypten_ttp: BlockMetrics | None
    """Costs with CrypTen's trusted third party."""

    def view(self) -> Iterator[Table | str]:
        """Times and bytes of every protocol, and our operations."""
        if self.input == "known":
            yield Caution(f"--input known: {KNOWN_GIVES_AWAY}")
        title = f"{self.model}, blocks: {self.blocks}, batch: {self.batch}, input: {self.input}"
        for limit, unit in ((self.latency_ms, "ms"), (self.bandwidth_mbit, "Mbit/s")):
            title += "" if limit is None else f", {limit:g} {unit}"
        ours = {"true functions": self.true_functions, "polynomials": self.polynomials}
        stock = {"CrypTen": self.crypten, "CrypTen TTP": self.crypten_ttp}
        measured: dict[str, BlockMetrics] = {**ours, **{name: one for name, one in stock.items() if one is not None}}
        rows = [
            (
                name,
                one.online_seconds,
                one.sustained_seconds,
                one.sustained_seconds / self.polynomials.sustained_seconds if name in stock else None,
                one.rounds,
                one.total_rounds,
                one.total_bytes,
                one.relative_error,
            )
            for name, one in measured.items()
        ]
        yield Table(
            title=f"{title}; seconds",
            columns=(
                Column("protocol"),
                Column("online", decimals(3)),
                Column("sustained", decimals(3)),
                Column("ratio", decimals(1)),
                Column("rounds", plain),
                Column("all rounds", plain, minor=1),
                Column("all bytes", byte_count),
                Column("error", scientific),
            ),
            rows=rows,
        )
        yield _by_party("protocol", measured)
        for name, our in ours.items():
            yield Table(
                title=f"{name}, online",
                columns=(
                    Column("operation"),
                    Column("seconds", decimals(3)),
                    Column("sent by model owner", byte_count),
                    Column("by data owner", byte_count),
                    Column("rounds", plain),
                ),
                rows=[
                    (operation, one.seconds, one.model_owner_bytes, one.data_owner_bytes, one.rounds)
                    for operation, one in our.per_operation.items()
                ],
            )
        once = ", ".join(
            f"{our.preprocessing_wait_seconds:.2f} s, {our.weights_bytes / 1e6:.1f} MB ({name})"
            for name, our in ours.items()
        )
        used = ", ".join(
            f"{' / '.join(f'{our.processor_seconds.get(party, 0.0):.2f}' for party in _PARTIES)} s ({name})"
            for name, our in ours.items()
        )
        where = (
            f"each party on its own of {self.cores} cores" if self.own_cores else f"all parties on {self.cores} cores"
        )
        yield (
            f"sustained: passes back to back, their correlated randomness made beside them, {where}; ours with "
            "embedding and head. Ratio: to the sustained seconds of our polynomials. Our correlated randomness alone, "
            f"and masked weights, sent once: {once}. Processor time of a pass, {' / '.join(_PARTIES)}: {used}"
        )


class PartSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step, by part."""

    adapters: float
    """Range checks of all parameters included."""
    head: float
    """Softmax and range checks included."""
    backward: float
    behind: float
    """Time from the last round to the parameters after the step."""


class ImageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """An image's part of a pass through the blocks; bytes by sender."""

    online_seconds: float
    sustained_seconds: float
    """Seconds while correlated randomness is made and sent."""
    model_owner_bytes: int
    data_owner_bytes: int
    dealer_bytes: dict[str, int]
    """Bytes from the dealer, by recipient."""
    rounds: int
    """Rounds of a pass, independent of its number of images."""


class PlaintextStep(msgspec.Struct, frozen=True, kw_only=True):
    """The same in the clear, on one thread."""

    step_seconds: float
    image_seconds: float
    """Seconds of an image through the blocks."""


class LearningMetrics(PassMetrics, frozen=True, kw_only=True):
    """Cost of a step on kept shares, and of an image's pass before."""

    seconds: PartSeconds
    preprocessing_wait_seconds: float
    """Time until the preprocessing of a step was complete, before the step."""
    per_operation: dict[str, OperationMetrics]
    image: ImageMetrics
    plaintext: PlaintextStep


class AdaptationBenchmarkResult(Result, frozen=True, kw_only=True, tag="tacit.bench-adapt.4"):
    """The cost of private adaptation, at the data owner."""

    model: str
    """A timm architecture, with random weights."""
    blocks: int
    tokens: int
    width: int
    batch: int
    repeats: int
    cores: int
    """Shared by all parties."""
    arms: dict[str, LearningMetrics]
    """Costs by trained part."""

    def view(self) -> Iterator[Table | str]:
        """Times by part, bytes by party."""
        names = (
            "an image's pass: online",
            "sustained",
            "rounds",
            "in the clear",
            "a step: online",
            "of it adapters, and checks of parameters",
            "of it head, softmax and range checks",
            "of it backward",
            "of it behind the last round",
            "correlated randomness alone",
            "sustained",
            "rounds",
            "in the clear",
        )
        values = [
            (
                arm.image.online_seconds,
                arm.image.sustained_seconds,
                arm.image.rounds,
                arm.plaintext.image_seconds,
                arm.online_seconds,
                *msgspec.structs.astuple(arm.seconds),
                arm.preprocessing_wait_seconds,
                arm.sustained_seconds,
                arm.rounds,
                arm.plaintext.step_seconds,
            )
            for arm in self.arms.values()
        ]
        yield Table(
            title=f"images of a batch: {self.batch}, blocks: {self.blocks}, tokens: {self.tokens}, width: {self.width}",
            columns=(Column("seconds"), *(Column(name, _amount) for name in self.arms)),
            rows=list(zip(names, *values, strict=True)),
        )
        yield Table(
            columns=(
                Column("learned"),
                Column("of", prose),
                Column("model owner sends", byte_count),
                Column("data owner sends", byte_count),
                *(Column(f"dealer sends to {party}", byte_count) for party in (_MODEL_OWNER, _DATA_OWNER)),
            ),
            rows=[
                (name, of, one.model_owner_bytes, one.data_owner_bytes, *map(one.dealer_bytes.get, _PARTIES[:2]))
                for name, arm in self.arms.items()
                for of, one in (("an image's pass", arm.image), ("a step", arm))
            ],
        )
        yield Table(
            columns=(Column("learned"), *(Column(f"peak memory of {party}", byte_count) for party in _PARTIES)),
            rows=[(name, *map(arm.peak_bytes.get, _PARTIES)) for name, arm in self.arms.items()],
        )
        yield (
            f"in the clear: on one thread. All parties ran on {self.cores} cores; sustained: back to back, correlated "
            "randomness made beside it"
        )


def per_operation(costs: Iterable[RoundCost]) -> dict[str, OperationMetrics]:
    """Sum the costs of rounds, as counted by the data owner, by operation."""
    found: defaultdict[str, OperationMetrics] = defaultdict(OperationMetrics)
    for cost in costs:
        found[cost.operation].add(
            OperationMetrics(
                seconds=cost.seconds, data_owner_bytes=cost.sent, model_owner_bytes=cost.received, rounds=1
            )
        )
    return dict(found)


def _by_party(heading: str, measured: Mapping[str, PassMetrics]) -> Table:
    """Table of every party's bytes and memory; heading: of the names."""
    rows = []
    for name, one in measured.items():
        sent = {_MODEL_OWNER: one.model_owner_bytes, _DATA_OWNER: one.data_owner_bytes}
        for party in _PARTIES:
            if party in one.peak_bytes:
                rows.append((name, party, sent.get(party), one.dealer_bytes.get(party), one.peak_bytes[party]))
    return Table(
        columns=(
            Column(heading),
            Column("party", prose),
            Column("sent online", byte_count),
            Column("from the dealer", byte_count),
            Column("peak memory", byte_count),
        ),
        rows=rows,
    )


def _amount(value: Any) -> str:
    """Format a count with thousands apart, or a number with three decimals."""
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
