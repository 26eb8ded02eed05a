"""docs/costs.md: what a secure sum costs, measured against N and D, beside the formula of the protocol.

`python -m docs.generate.costs DIRECTORY` measures (minutes) and writes the page, its plot, and the raw results; with
`sums` behind it, only secure sums, and leaves the sections from "A whole run" on as they are.
The formula counts only what grows: with k neighbours, a client makes 2k key agreements and expands k + 1 masks of D
words; the server expands one mask per survivor and one per neighbour of every dropped client. Its constants, the time
of a key agreement and of a byte of a mask, are measured on the same machine. Its bytes are those of vectors and of
records for each neighbour.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from statistics import median
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import msgspec
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from docs.generate import adaptation_costs, declared_costs
from tacit.parties.runs.results import Column, Table, decimals, markdown, plain, thousands
from tacit.protocol.core.primitives import KEY_BYTES, AgreementKey
from tacit.protocol.sum.configuration import share
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import Phase
from tacit.secagg.graph import regular_parameters
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.ring import Ring
from tacit.secagg.shamir import SHARE_BYTES
from tacit.simulate.bench.results import AdaptationBenchmarkResult, SumBenchmarkResult
from tacit.simulate.bench.secagg import SEQUENTIAL_CLIENTS, SumBenchmark, draw_span, measure
from tacit.simulate.report.figures import COLOURS, style

DIMENSION: Final = 100_000
CLIENTS: Final = (10, 30, 100, 300, 1000, 3000, 10_000)
DIMENSIONS: Final = (10_000, 100_000, 1_000_000)
CLIENTS_FOR_DIMENSIONS: Final = 30
FRACTION: Final = 0.05
MILLION: Final = 1_000_000
SIXTEEN: Final = 16


REST: Final = "\n## A whole run\n"
"""Begins the part of the page that has nothing of secure sums."""


def measure_all(progress: Callable[[str], object]) -> list[SumBenchmarkResult]:
    """Measure every setting of the page."""
    settings = [(clients, DIMENSION) for clients in CLIENTS]
    settings += [(CLIENTS_FOR_DIMENSIONS, dimension) for dimension in DIMENSIONS if dimension != DIMENSION]
    rows = []
    for clients, dimension in settings:
        progress(f"{clients} clients, {dimension} entries")
        setting = SumBenchmark(
            clients=clients,
            dimension=dimension,
            dropout=FRACTION,
            tolerate_dropout=FRACTION,
            corrupt=FRACTION,
            active=False,
            graph="auto",
            counts=False,
            sockets=False,
        )
        rows.append(measure(setting, lambda text: None, profile=False))
    return rows


def measure_run() -> dict[str, Any]:
    """The summary of `tacit simulate` with its defaults."""
    with TemporaryDirectory() as directory:
        command = [str(Path(sys.executable).with_name("tacit")), "simulate", "--quiet"]
        run([*command, "--out", f"{directory}/run", "--json", f"{directory}/summary.json"], check=True)
        summary: dict[str, Any] = msgspec.json.decode(Path(directory, "summary.json").read_bytes())
    return summary


def measure_batches() -> AdaptationBenchmarkResult:
    """Run `tacit bench adapt`, with a thread for each process."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "batches.json")
        tacit = str(Path(sys.executable).with_name("tacit"))
        run([tacit, "bench", "adapt", "--json", str(file)], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return msgspec.json.decode(file.read_bytes(), type=AdaptationBenchmarkResult)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Seconds that the formula is made of."""

    agreement: float
    """Of a key agreement."""
    mask_byte: float
    """Of a byte of a mask, drawn and added, on one core."""
    mask_byte_on_all: float
    """The same on all cores at once."""
    keystream_byte: float
    """Of a byte of AES-256-CTR, on one core."""
    hash_: float
    """Of a SHA-256 of 64 bytes."""


def constants() -> Constants:
    """Measured here."""
    keys = [AgreementKey(os.urandom(32)) for _ in range(200)]
    masks = [Mask(os.urandom(32), Usage.SELF_MASK, 1) for _ in range(256)]
    ring = Ring(32)
    words = np.zeros(DIMENSION, ring.word)
    masked = len(masks) * words.nbytes

    def mask() -> None:
        apply_masks(words, masks, ring)

    with patch("os.cpu_count", return_value=1):
        on_one = _seconds(mask) / masked
    return Constants(
        agreement=_seconds(lambda: [AgreementKey.agree(keys[0], key.public) for key in keys[1:]], 1) / (len(keys) - 1),
        mask_byte=on_one,
        mask_byte_on_all=_seconds(mask) / masked,
        keystream_byte=_seconds(lambda: draw_span(1 << 22, 4)) / (4 << 22),
        hash_=_seconds(lambda: [sha256(bytes(64)).digest() for _ in range(10_000)]) / 10_000,
    )


def _seconds(act: Callable[[], object], repeats: int = 9) -> float:
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        spent.append(time.perf_counter() - began)
    return median(spent)


def formula(row: SumBenchmarkResult, constants: Constants) -> tuple[float, float]:
    """Milliseconds of a client and of the server by the formula, on one core."""
    client = 2 * row.neighbours * constants.agreement
    client += _mask_bytes(row, row.masks_per_client) * constants.mask_byte
    server = (row.clients - row.survivors) * row.neighbours * constants.agreement
    server += _mask_bytes(row, row.masks_expanded_by_server) * constants.mask_byte
    return 1e3 * client, 1e3 * server


def _mask_bytes(row: SumBenchmarkResult, masks: int) -> int:
    word_bytes = 4
    return masks * row.dimension * word_bytes


def formula_bytes(row: SumBenchmarkResult) -> tuple[float, float]:
    """Bytes that a client, and that the server sends and receives, by the formula."""
    vector = row.dimension * (row.ring_bits // 8)
    client = vector + row.neighbours * (2 * KEY_BYTES + 2 * PACKET_BYTES + SHARE_BYTES)
    return client, row.clients * client


def draw(rows: Sequence[SumBenchmarkResult], constants: Constants) -> Figure:
    """Three log-log plots: time and bytes against N, and time against D."""
    figure = Figure(figsize=(13.5, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    by_clients = [row for row in rows if row.dimension == DIMENSION]
    by_dimension = sorted((row for row in rows if row.clients == CLIENTS_FOR_DIMENSIONS), key=lambda row: row.dimension)
    clients, entries = f"clients N (D = {DIMENSION:,})", f"entries D (N = {CLIENTS_FOR_DIMENSIONS})"

    def times(row: SumBenchmarkResult) -> tuple[float, float]:
        return row.client_total_ms, row.server_total_ms

    def moved(row: SumBenchmarkResult) -> tuple[float, float]:
        client = (row.bytes_up_per_client + row.bytes_down_per_client) / 1e6
        return client, row.clients * client

    for axis, chosen, place, measured, computed, labels in (
        (axes[0], by_clients, "clients", times, lambda row: formula(row, constants), (clients, "time (ms)")),
        (axes[1], by_clients, "clients", moved, lambda row: [1e-6 * each for each in formula_bytes(row)],
         (clients, "sent and received (MB)")),
        (axes[2], by_dimension, "dimension", times, lambda row: formula(row, constants), (entries, "time (ms)")),
    ):  # fmt: skip
        places = [getattr(row, place) for row in chosen]
        for party, marker, phase in ((0, "o", Phase.TRAIN), (1, "s", Phase.UNMASK)):
            for line, of, word in ((f"{marker}-", measured, "measured"), ("--", computed, "formula")):
                label = f"{('client', 'server')[party]}, {word}"
                axis.loglog(places, [of(row)[party] for row in chosen], line, color=COLOURS[phase], label=label)
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])
        axis.grid(visible=True, which="major")
        for one in (axis.xaxis, axis.yaxis):
            one.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes[0].legend(fontsize=8)
    return figure


def write_page(
    directory: Path,
    rows: Sequence[SumBenchmarkResult],
    constants: Constants,
    rest: Sequence[str] | None = None,
) -> None:
    """Write the page, its plot, and the raw results. rest: the lines from `REST` on; None: those that are there."""
    page = directory / "costs.md"
    if rest is None:
        rest = ["".join(page.read_text(encoding="utf-8").partition(REST)[1:]).removesuffix("\n")]
    with style():
        draw(rows, constants).savefig(directory / "images" / "costs.svg", metadata={"Date": None})
    (directory / "costs.json").write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    lines = [
        "# What a secure sum costs",
        "",
        f"Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench` on {os.cpu_count()} cores, {platform.machine()},",
        f"Python {platform.python_version()}: semi-honest mode, {FRACTION:.0%} corrupt, {FRACTION:.0%} dropped after",
        "SHARE_KEYS, 16-bit values. Client times are medians of one client's work in all phases; nothing is shared",
        f"between parties. Beyond {SEQUENTIAL_CLIENTS:,} clients, where several work at once, times are of the",
        "processor, all cores together. The complete graph serves below 20 clients, the regular one from there on.",
        "",
        "![Time and bytes of a client and of the server against N, and time against D, log-log](images/costs.svg)",
        "",
        *markdown(_sums(rows, constants)),
        "",
        "The formula counts what grows, on one core: a client with k neighbours makes 2k key agreements and expands",
        "k + 1 masks of D words; the server expands one for every survivor, and one for every surviving neighbour of",
        f"a dropped client. A key agreement takes {1e6 * constants.agreement:.0f} us here, a byte of a mask, drawn",
        f"and added, {1e9 * constants.mask_byte:.2f} ns. What is above the formula is hashing, sealing, encoding, and",
        "Python; what is below it, the second core.",
        "",
        "To scale these figures, the reference of this machine, on one core:",
        f"{1e-9 / constants.keystream_byte:.1f} GB/s of AES-256-CTR, {1 / constants.agreement:,.0f} X25519 and",
        f"{1 / constants.hash_:,.0f} SHA-256 of 64 bytes a second.",
        *_remainders(rows, constants),
        *declared_costs.ratios(),
        *_sixteen_cores(rows, constants),
        *_million(constants),
        *rest,
    ]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sums(rows: Sequence[SumBenchmarkResult], constants: Constants) -> Table:
    found = []
    for row in rows:
        client, server = formula(row, constants)
        sent = (row.bytes_up_per_client, row.bytes_down_per_client)
        times = (row.client_total_ms, client, row.server_total_ms, server)
        found.append((row.clients, row.dimension, row.neighbours, *times, *sent))
    return Table(
        columns=(
            Column("N", thousands),
            Column("D", thousands),
            Column("neighbours", plain),
            Column("client (ms)", decimals(1)),
            Column("formula", decimals(1)),
            Column("server (ms)", decimals(0)),
            Column("formula", decimals(0)),
            Column("bytes up", thousands),
            Column("bytes down", thousands),
        ),
        rows=found,
    )


def _remainders(rows: Sequence[SumBenchmarkResult], constants: Constants) -> list[str]:
    """What lies between measurement and formula, by phase."""
    found = []
    for row in rows:
        _, server = formula(row, constants)
        phases = [row.server_ms[phase] for phase in _REMAINDERS]
        found.append((row.clients, row.dimension, *phases, row.server_ms[Phase.UNMASK] - server))
    shown = Table(
        columns=(
            Column("N", thousands),
            Column("D", thousands),
            *(Column(phase.value, decimals(1)) for phase in _REMAINDERS),
            Column("UNMASK less formula", decimals(1)),
        ),
        rows=found,
    )
    return [
        "",
        "## What is left",
        "",
        "A server's milliseconds beyond the formula, by phase. Masks and key agreements of the formula are all in",
        "UNMASK, where every core takes part. In the phases before a server reads, relays and writes messages, and",
        "in MASKED_INPUT adds vectors:",
        "",
        *markdown(shown),
    ]


_REMAINDERS: Final = (Phase.ADVERTISE_KEYS, Phase.SHARE_KEYS, Phase.MASKED_INPUT)


def _sixteen_cores(rows: Sequence[SumBenchmarkResult], constants: Constants) -> list[str]:
    """A server of sixteen cores, by the formula: masks are divided among all cores, and nothing else is."""
    cores, gain = os.cpu_count() or 1, constants.mask_byte / constants.mask_byte_on_all
    found = []
    for row in rows:
        masks, total = 1e3 * _mask_bytes(row, row.masks_expanded_by_server), row.server_total_ms
        here = masks * constants.mask_byte_on_all
        found.append((row.clients, row.dimension, total, here, total - here + masks * constants.mask_byte / SIXTEEN))
    shown = Table(
        columns=(
            Column("N", thousands),
            Column("D", thousands),
            Column(f"{cores} cores, measured", decimals(0)),
            Column("of it masks", decimals(0)),
            Column("16 cores, formula", decimals(0)),
        ),
        rows=found,
    )
    return [
        "",
        "## A server of sixteen cores",
        "",
        f"All cores take masks off a sum and agree on keys; the rest is done by one. On the {cores} cores of this",
        f"machine the masks of vectors of {DIMENSION:,} entries went {gain:.2f} times as fast as on one. Were sixteen",
        "to share them evenly, which nothing here shows, the server's milliseconds would be, at best:",
        "",
        *markdown(shown),
        "",
        "In active mode all cores also check what clients sign (see [below](#signed-packets)).",
    ]


def _million(constants: Constants) -> list[str]:
    """What a million clients would cost."""
    few = share(FRACTION, MILLION)
    neighbours = regular_parameters(MILLION, colluders=few, dropouts=few, active=False).neighbours
    dropped = FRACTION * MILLION
    masks = MILLION - dropped + dropped * neighbours * (1 - FRACTION)
    hours = (masks * DIMENSION * 4 * constants.mask_byte + dropped * neighbours * constants.agreement) / 3600
    gigabytes = MILLION * DIMENSION * 5 / 1e9
    return [
        "",
        "## A million clients",
        "",
        f"The regular graph of a million clients has {neighbours} neighbours, so a client's work and traffic hardly",
        f"differ from those at N = 1,000. The server would expand {masks / 1e6:.1f} million masks of D words,",
        f"{hours:.2f} core-hours by the formula, besides {gigabytes:.0f} GB of vectors to receive (36-bit words). This",
        "implementation takes at most 10,000 clients to a cohort; the field of its shares admits 65,520.",
    ]


def _run(summary: dict[str, Any]) -> list[str]:
    phases = summary["parties"]["server"]["phases"]
    return [
        "",
        "## A whole run",
        "",
        f"`tacit simulate` with its defaults on {datetime.now(UTC):%Y-%m-%d}, five processes of clients beside the",
        f"server: {len(summary['rounds'])} rounds in {sum(entry['seconds'] for entry in summary['rounds']):.1f} s, of",
        f"which the secure sum, from MASKED_INPUT to UNMASK, took {summary['protocol_share']:.1%}. The server's",
        "seconds in each phase (until TRAIN is over it waits for training; SESSION is joining and evaluation):",
        "",
        "| phase | seconds |",
        "|---|---|",
        *(f"| {phase} | {figures['seconds']:.2f} |" for phase, figures in phases.items()),
    ]


if __name__ == "__main__":
    measured = measure_all(lambda text: sys.stderr.write(f"{text}\n"))
    if "sums" in sys.argv:
        write_page(Path(sys.argv[1]), measured, constants())
    else:
        rest = [*_run(measure_run()), *declared_costs.section(), *adaptation_costs.section(measure_batches())]
        write_page(Path(sys.argv[1]), measured, constants(), rest)
