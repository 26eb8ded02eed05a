"""`tacit bench`: measurements on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tacit.cli.output import FAILED, Found, json_option, measured
from tacit.simulate.insecure import KNOWN_GIVES_AWAY

if TYPE_CHECKING:
    from tacit.simulate.bench.results import AdaptationBenchmarkResult, BlockBenchmarkResult, SumBenchmarkResult

JsonFile = Annotated[Path | None, json_option("Write the metrics to this file.")]
Progress = Callable[[str], None]

app = typer.Typer(no_args_is_help=True, help="Measure costs on this machine.")


@app.command()
def secagg(
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="Clients of the sum.")] = 100,
    dimension: Annotated[int, typer.Option(min=1, help="Entries of the vector.")] = 100_000,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that drops out after sharing.")] = 0.0,
    tolerate_dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may drop out.")] = 0.33,
    corrupt: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may collude.")] = 0.33,
    mode: Annotated[
        Literal["semi-honest", "active"], typer.Option(help="Adversary model of the server.")
    ] = "semi-honest",
    graph: Annotated[
        Literal["auto", "complete", "regular"],
        typer.Option(help="Masking graph; auto: regular from 20 clients on in semi-honest mode."),
    ] = "auto",
    counts: Annotated[bool, typer.Option("--counts", help="Add a count to every coordinate.")] = False,
    transport: Annotated[Literal["memory", "zmq"], typer.Option(help="Transport of messages.")] = "memory",
    profile: Annotated[bool, typer.Option("--profile", help="Show the seconds by kind of work.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Measure one secure aggregation, with the real state machines and cryptography.

    Exit status: 0 the sum is exact; 1 it is wrong or failed, or the file cannot be written; 2 wrong input.
    """
    from tacit.simulate.bench.secagg import SumBenchmark, measure

    setting = SumBenchmark(
        clients=clients,
        dimension=dimension,
        dropout=dropout,
        tolerate_dropout=tolerate_dropout,
        corrupt=corrupt,
        active=mode == "active",
        graph=graph,
        counts=counts,
        sockets=transport == "zmq",
    )

    def work(progress: Progress) -> SumBenchmarkResult:
        return measure(setting, lambda phase: progress(phase.lower().replace("_", " ")), profile=profile)

    raise typer.Exit(0 if _measured(work, json_file).sum_is_exact else FAILED)


@app.command()
def network(
    clients: Annotated[int, typer.Option(min=3, max=100, help="Clients of the rounds.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds; the median counts.")] = 9,
    delay: Annotated[
        list[float] | None, typer.Option(metavar="MS", help="One-way delay; repeat it.", show_default="1, 20 and 50")
    ] = None,
    connected: Annotated[int, typer.Option(min=3, max=200, help="Clients to measure the server's memory with.")] = 100,
    uploading: Annotated[int, typer.Option(min=3, max=100, help="Clients that upload vectors at once.")] = 3,
    parameters: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="Entries of each of these vectors.")
    ] = 4_000_000,
    json_file: JsonFile = None,
) -> None:
    """Measure the network cost of a federation: real machines, CURVE and ZeroMQ, no training.

    Measures rounds in active mode over a delayed link, the upload of vectors over 1 Gbit/s, and the server's memory.

    Exit status: 0 done; 1 a session failed, or the file cannot be written; 2 wrong input.
    """
    from tacit.simulate.bench.network import NetworkBenchmark, measure

    setting = NetworkBenchmark(
        clients=clients,
        rounds=rounds,
        delays_ms=tuple(delay or (1.0, 20.0, 50.0)),
        connected=connected,
        uploading=uploading,
        upload_parameters=parameters,
    )
    _measured(lambda progress: measure(setting, progress), json_file)


@app.command()
def inference(
    model: Annotated[str, typer.Option(help="A vision transformer of timm's.")] = "vit_small_patch16_224",
    blocks: Annotated[int, typer.Option(min=1, max=64, help="Number of consecutive blocks.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Images at a time.")] = 1,
    known: Annotated[
        Literal["known", "shared"],
        typer.Option(
            "--input",
            help=f"Block inputs are secret-shared, or known to the data owner. Known: {KNOWN_GIVES_AWAY}.",
        ),
    ] = "shared",
    against: Annotated[Literal["crypten"] | None, typer.Option(help="Measure stock CrypTen too.")] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="MS", help="Delay the link between the owners, one way.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="MBIT", help="Limit its rate, in megabits a second each way.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions; the median counts.")] = 5,
    device: Annotated[str, typer.Option(help="Device of all parties: cpu or cuda.")] = "cpu",
    json_file: JsonFile = None,
) -> None:
    """Measure ViT blocks on secret shares, between a model owner, a data owner and a dealer.

    The model has random weights. --latency and --bandwidth shape the link between the owners, for CrypTen too; the
    links to the dealer and to CrypTen's third party stay fast. With three cores or more each party has its own; all
    talk over loopback TCP. Sustained seconds are those of consecutive passes, including their preprocessing.

    Our protocol is measured with softmax, GELU and LayerNorm, and with polynomials in their place, which CrypTen
    computes too.

    Exit status: 0 done; 1 a party failed, or the file cannot be written; 2 wrong input; 130 Ctrl-C.
    """

    def work(progress: Progress) -> BlockBenchmarkResult:
        progress("starting the parties")
        from tacit.simulate.bench import blocks as measured_blocks
        from tacit.simulate.federation.relay import Shaping

        setting = measured_blocks.BlockBenchmark(
            model=model,
            blocks=blocks,
            batch=batch,
            input=known,
            repeats=repeats,
            device=device,
            shaping=Shaping(latency_ms=latency, bandwidth_mbit=bandwidth),
            against=against,
        )
        return measured_blocks.measure(setting, progress)

    _measured(work, json_file)


@app.command()
def adapt(
    model: Annotated[str, typer.Option(help="A vision transformer of timm's.")] = "vit_small_patch16_224",
    blocks: Annotated[int, typer.Option(min=1, max=64, help="Its blocks.")] = 2,
    image_size: Annotated[int, typer.Option(min=8, max=1024, metavar="PIXELS", help="Edge of an image.")] = 112,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Images of a batch.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Steps; the median counts.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """Measure passes and steps of `tacit adapt`, over loopback TCP.

    Uses a model with random weights and ten classes, and trains the head alone, then with adapters of rank 8. All
    parties share two cores. Sustained seconds are those of consecutive passes, including their preprocessing.

    Exit status: 0 done; 1 a party failed, a batch was out of range, or the file cannot be written; 2 wrong input; 130
    Ctrl-C.
    """

    def work(progress: Progress) -> AdaptationBenchmarkResult:
        progress("starting the parties")
        from tacit.simulate.bench.adaptation import AdaptationBenchmark, measure

        setting = AdaptationBenchmark(model=model, blocks=blocks, image_size=image_size, batch=batch, repeats=repeats)
        return measure(setting, progress)

    _measured(work, json_file)


def _measured(work: Callable[[Progress], Found], json_file: Path | None) -> Found:
    from tacit.simulate.bench.ends import BenchmarkError
    from tacit.simulate.federation.processes import ProcessError

    return measured(work, json_file, failed=(BenchmarkError, ProcessError))


PANEL: Final = "On this machine"
COMMANDS: Final = {"bench": app}
RESULTS: Final = {
    "bench-secagg": ("bench secagg", "tacit.simulate.bench.results:SumBenchmarkResult"),
    "bench-network": ("bench network", "tacit.simulate.bench.results:NetworkBenchmarkResult"),
    "bench-blocks": ("bench inference", "tacit.simulate.bench.results:BlockBenchmarkResult"),
    "bench-adapt": ("bench adapt", "tacit.simulate.bench.results:AdaptationBenchmarkResult"),
}
