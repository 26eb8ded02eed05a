"""`tacit bench`: figures of this machine, on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.adaptation_figures import show_adaptation
from tacit.cli.inference_figures import show_blocks, show_student
from tacit.cli.legacy_output import measured, table
from tacit.cli.output import FAILED, json_option, say
from tacit.simulate.insecure import KNOWN_GIVES_AWAY

JsonFile = Annotated[Path | None, json_option("Write the figures to this file.")]
Progress = Callable[[str], None]

app = typer.Typer(no_args_is_help=True, help="Measure what things cost on this machine.")


@app.command()
def secagg(
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="Clients of the sum.")] = 100,
    dimension: Annotated[int, typer.Option(min=1, help="Entries of the vector.")] = 100_000,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that drops out after sharing.")] = 0.0,
    tolerate_dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may drop out.")] = 0.33,
    corrupt: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may collude.")] = 0.33,
    mode: Annotated[
        Literal["semi-honest", "active"], typer.Option(help="What the server is trusted with.")
    ] = "semi-honest",
    graph: Annotated[
        Literal["auto", "complete", "regular"],
        typer.Option(help="Who masks with whom; auto: regular from 20 clients on in semi-honest mode."),
    ] = "auto",
    counts: Annotated[bool, typer.Option("--counts", help="Let every coordinate carry a count.")] = False,
    transport: Annotated[Literal["memory", "zmq"], typer.Option(help="How messages travel.")] = "memory",
    profile: Annotated[bool, typer.Option("--profile", help="Show the seconds by kind of work.")] = False,
    json_file: JsonFile = None,
) -> None:
    """One secure sum with the real machines and real cryptography, timed party by party.

    Exit status: 0 the sum is exact; 1 it is not, could not be computed, or the file cannot be written; 2 wrong input.
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

    def work(progress: Progress) -> dict[str, Any]:
        return measure(setting, lambda phase: progress(phase.lower().replace("_", " ")), profile=profile)

    figures = _measured(work, _show_sum, json_file, "bench-secagg")
    raise typer.Exit(0 if figures["sum_is_exact"] else FAILED)


@app.command()
def network(
    clients: Annotated[int, typer.Option(min=3, max=100, help="Clients of the rounds.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds; their median is told.")] = 9,
    delay: Annotated[
        list[float] | None, typer.Option(metavar="MS", help="One-way delay; repeat it.", show_default="1, 20 and 50")
    ] = None,
    connected: Annotated[
        int, typer.Option(min=3, max=200, help="Clients that the server's memory is told with.")
    ] = 100,
    json_file: JsonFile = None,
) -> None:
    """What the network costs a federation beyond training, with the real machines, CURVE and ZeroMQ, and no torch.

    Rounds in active mode over a link with delays, the upload of vectors over 1 Gbit/s, and the server's memory.

    Exit status: 0 done; 1 a session failed, or the file cannot be written; 2 wrong input.

    In the JSON file: "by_delay_ms", with "seconds" and "one_way_delays" of a round; "upload" by delay, with "mbit" and
    "of_the_line"; "memory", with "alone_mb", "connected_mb" and "kb_per_client".
    """
    from tacit.simulate.bench.network import NetworkBenchmark, measure

    setting = NetworkBenchmark(
        clients=clients, rounds=rounds, delays_ms=tuple(delay or (1.0, 20.0, 50.0)), connected=connected
    )
    _measured(lambda progress: measure(setting, progress), _show_network, json_file, "bench-network")


@app.command()
def inference(
    context: typer.Context,
    directory: Annotated[Path | None, typer.Argument(metavar="DIR", help="Results of `tacit distill`.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="With DIR: only so many of the test images.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Images at a time.", show_default="60 with DIR, 1 without")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With DIR: compare every gauge on shares, which tells a bit each.")
    ] = False,
    model: Annotated[str, typer.Option(help="Without DIR: a vision transformer of timm's.")] = "vit_small_patch16_224",
    blocks: Annotated[int, typer.Option(min=1, max=64, help="Without DIR: so many blocks, one after the other.")] = 1,
    known: Annotated[
        Literal["known", "shared"],
        typer.Option(
            "--input",
            help="Without DIR: nobody knows the input of a block (shared), or the data owner does (known). "
            f"Known: {KNOWN_GIVES_AWAY}.",
        ),
    ] = "shared",
    against: Annotated[Literal["crypten"] | None, typer.Option(help="Without DIR: measure stock CrypTen too.")] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="MS", help="Without DIR: delay the link between the owners, one way.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="MBIT", help="Without DIR: limit its rate, in megabits a second each way.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Without DIR: repetitions; their median is told.")] = 5,
    device: Annotated[str, typer.Option(help="Without DIR: where both owners compute: cpu or cuda.")] = "cpu",
    json_file: JsonFile = None,
) -> None:
    """Inference on shares, between a model owner, a data owner and a dealer on loopback TCP.

    With DIR: a distilled student on its test images, on CrypTen with our transport and dealer. Without: transformer
    blocks of a model with random weights, by the protocol of our own, on a link of the two owners that can be shaped;
    it is shaped for CrypTen too. Dealer and third party are not delayed. All parties run on two cores, and
    the sustained seconds are those of passes back to back, with the material that they use up made beside them.

    Exit status: 0 done; 1 a party failed, or the file cannot be written; 2 wrong input; 130 Ctrl-C.

    Ours is measured twice: with softmax, GELU and LayerNorm themselves, and with the polynomials of friendly blocks,
    which CrypTen computes too.

    In the JSON file: "true_functions" and "polynomials", beside them "crypten" and "crypten_ttp", each with
    "online_seconds", "sustained_seconds", "online_bytes_sent", "dealer_bytes" and "peak_bytes" by party, "rounds",
    "total" ("bytes", "rounds") and "relative_error"; ours have "per_operation" and "far" (their scores reach far) as
    well.
    """

    def work(progress: Progress) -> dict[str, Any]:
        progress("starting the parties")
        if directory is not None:
            _refuse(context, _OF_BLOCKS, "of blocks with random weights only; leave out the directory")
            from tacit.simulate.bench.inference import measure

            return measure(directory, images=images, batch=batch or 60, check=check, progress=progress)
        _refuse(context, _OF_STUDENTS, "of a student only; name the directory of its results")
        from tacit.simulate.bench import blocks as measured_blocks
        from tacit.simulate.federation.relay import Shaping

        setting = measured_blocks.BlockBenchmark(
            model=model,
            blocks=blocks,
            batch=batch or 1,
            input=known,
            repeats=repeats,
            device=device,
            shaping=Shaping(latency_ms=latency, bandwidth_mbit=bandwidth),
            against=against,
        )
        return measured_blocks.measure(setting, progress)

    show, schema = (show_blocks, "bench-blocks") if directory is None else (show_student, "bench-student")
    _measured(work, show, json_file, schema)


@app.command()
def adapt(
    blocks: Annotated[int, typer.Option(min=1, max=64, help="Of the model; fewer are measured too.")] = 4,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Images; smaller batches are measured too.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Batches of each; their median is told.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Batches of `tacit adapt` between a model owner, a data owner and a dealer on loopback TCP: learning included.

    A model with random weights of the default sizes, adapters of rank 8, ten classes; data owners are told nothing of
    what blocks leave, or the outputs of all blocks. All parties run on two cores. Sustained seconds are those of
    batches back to back, with the material that they use up made beside them.

    Exit status: 0 done; 1 a party failed, a batch was out of range, or the file cannot be written; 2 wrong input;
    130 Ctrl-C.

    In the JSON file: "arms", by what is told ("none", "all"), each with "online_seconds", their parts in "seconds",
    "backward_of_forward", "waited_seconds" for material, "sustained_seconds", "online_bytes_sent", "dealer_bytes" and
    "peak_bytes" by party, "rounds", "per_operation", and "by_blocks" and "by_batch" for smaller sizes; and "plaintext",
    the same step in the clear.
    """

    def work(progress: Progress) -> dict[str, Any]:
        progress("starting the parties")
        from tacit.simulate.bench.adaptation import AdaptationBenchmark, measure

        return measure(AdaptationBenchmark(blocks=blocks, batch=batch, repeats=repeats), progress)

    _measured(work, show_adaptation, json_file, "bench-adapt")


def _measured(
    work: Callable[[Progress], dict[str, Any]],
    show: Callable[[Console, dict[str, Any]], None],
    json_file: Path | None,
    schema: str,
) -> dict[str, Any]:
    from tacit.simulate.bench.ends import BenchmarkError
    from tacit.simulate.federation.processes import ProcessError

    return measured(work, show, json_file, schema=schema, failed=(BenchmarkError, ProcessError))


_OF_STUDENTS = {"images", "check"}
_OF_BLOCKS = {"model", "blocks", "known", "against", "latency", "bandwidth", "repeats", "device"}


def _refuse(context: typer.Context, names: set[str], remedy: str) -> None:
    """ValueError if one of these parameters of the command was given."""
    given = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            given.append(parameter.opts[0])
    if given:
        raise ValueError(f"{', '.join(given)}: {remedy}")


def _show_network(console: Console, figures: dict[str, Any]) -> None:
    """Rounds by delay, uploads, and the server's memory."""
    rows = [("none", f"{figures['seconds_without_delay'] * 1e3:.0f}", "")]
    rows += [
        (f"{delay} ms", f"{one['seconds'] * 1e3:.0f}", f"{one['one_way_delays']:.1f}")
        for delay, one in figures["by_delay_ms"].items()
    ]
    title = f"a round of {figures['clients']} clients, {figures['parameters']:,} parameters, without training"
    console.print(table(("one-way delay", "milliseconds", "one-way delays"), rows, title=title))
    uploads = [
        (f"{delay} ms", f"{one['mbit']:.0f}", f"{one['of_the_line']:.0%}") for delay, one in figures["upload"].items()
    ]
    megabytes = next(iter(figures["upload"].values()))["megabytes"]
    title = f"vectors of {megabytes:.0f} MB together, over 1 Gbit/s"
    console.print(table(("one-way delay", "Mbit/s", "of the line"), uploads, title=title))
    memory = figures["memory"]
    say(
        console,
        f"server without torch: {memory['alone_mb']:.0f} MB alone, {memory['connected_mb']:.0f} MB with "
        f"{memory['connected']} clients connected ({memory['kb_per_client']:.0f} kB each)",
    )


def _show_sum(console: Console, figures: dict[str, Any]) -> None:
    """One sum: milliseconds by phase, and the rest."""
    costs = [
        (phase, client, figures["client_p95_ms"][phase], figures["server_ms"][phase])
        for phase, client in figures["client_ms"].items()
    ]
    costs.append(("total", *(figures[key] for key in ("client_total_ms", "client_total_p95_ms", "server_total_ms"))))
    rows = [(phase, f"{middle:.2f}", f"{most:.2f}", f"{server:.1f}") for phase, middle, most, server in costs]
    headings = ("phase", "client, median", "client, p95", "server")
    console.print(table(headings, rows, title="milliseconds by phase"))
    shown = Table(show_header=False)
    for key, value in figures.items():
        if not (isinstance(value, dict | bool) or key.endswith("_ms")):
            shown.add_row(key, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")
    shown.add_row("sum_is_exact", "yes" if figures["sum_is_exact"] else "NO")
    console.print(shown)
    if kinds := figures.get("profile_seconds"):
        shares = [
            (kind, f"{seconds:.2f}", f"{seconds / figures['wall_seconds']:.0%}")
            for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1])
        ]
        title = "seconds by kind of work, all parties together"
        console.print(table(("work", "seconds", "share of all"), shares, title=title))
