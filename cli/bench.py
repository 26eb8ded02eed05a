"""`tacit bench`: figures of this machine, on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.json_file import check_json, keep_json
from tacit.cli.options import Input
from tacit.cli.outcome import FAILED, INTERRUPTED, WRONG_INPUT, complain

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Measure what things cost on this machine.")


class Mode(StrEnum):
    """What the server is trusted with."""

    SEMI_HONEST = "semi-honest"
    ACTIVE = "active"


class GraphOption(StrEnum):
    """Who masks with whom."""

    AUTO = "auto"
    COMPLETE = "complete"
    REGULAR = "regular"


class Transport(StrEnum):
    """How messages travel."""

    MEMORY = "memory"
    ZMQ = "zmq"


class Against(StrEnum):
    """What is measured beside."""

    CRYPTEN = "crypten"


@app.command()
def secagg(
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="Clients of the sum.")] = 100,
    dimension: Annotated[int, typer.Option(min=1, help="Entries of the vector.")] = 100_000,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that drops out after sharing.")] = 0.0,
    tolerate_dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may drop out.")] = 0.33,
    corrupt: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may collude.")] = 0.33,
    mode: Annotated[Mode, typer.Option(help="What the server is trusted with.")] = Mode.SEMI_HONEST,
    graph: Annotated[
        GraphOption, typer.Option(help="Who masks with whom; auto: regular from 20 on.")
    ] = GraphOption.AUTO,
    counts: Annotated[bool, typer.Option("--counts", help="Let every coordinate carry a count.")] = False,
    transport: Annotated[Transport, typer.Option(help="How messages travel.")] = Transport.MEMORY,
    profile: Annotated[bool, typer.Option("--profile", help="Show the seconds by kind of work.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """One secure sum with the real machines and real cryptography, timed party by party.

    Exit status: 0 the sum is exact; 1 it is not, could not be computed, or the file cannot be written; 2 wrong input.
    """
    from tacit.simulate.bench.secagg import SumBenchmark, measure

    check_json(json_file)
    setting = SumBenchmark(
        clients=clients,
        dimension=dimension,
        dropout=dropout,
        tolerate_dropout=tolerate_dropout,
        corrupt=corrupt,
        active=mode is Mode.ACTIVE,
        graph=graph.value,
        counts=counts,
        sockets=transport is Transport.ZMQ,
    )

    def work(progress: Callable[[str], None]) -> dict[str, Any]:
        return measure(setting, lambda text: progress(text.lower().replace("_", " ")), profile=profile)

    figures = _measured(work, _show, json_file)
    raise typer.Exit(0 if figures["sum_is_exact"] else FAILED)


@app.command()
def protection(
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions; their median is told.")] = 7,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """What the protections of an update cost a client, alone and as a share of its local training."""
    from tacit.simulate.bench.protection import measure

    check_json(json_file)
    _measured(lambda progress: measure(progress, repeats=repeats), _show_protection, json_file)


@app.command()
def crypten(
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions; their median is told.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """CrypTen over its own transport and over ours, with and without encryption, between two processes.

    Exit status: 0 done; 1 a party ended early, or the file cannot be written; 2 wrong input.
    """
    from tacit.simulate.bench.crypten import measure

    check_json(json_file)
    _measured(lambda progress: measure(progress, repeats=repeats), _show_crypten, json_file)


@app.command()
def inference(
    context: typer.Context,
    directory: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Results of `tacit distill`.")] = None,
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
        Input,
        typer.Option("--input", help="Without DIR: the data owner knows the input of every block, or nobody does."),
    ] = Input.KNOWN,
    against: Annotated[Against | None, typer.Option(help="Without DIR: measure stock CrypTen too.")] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="MS", help="Without DIR: delay the link between the owners, one way.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="MBIT", help="Without DIR: limit its rate, in megabits a second each way.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Without DIR: repetitions; their median is told.")] = 5,
    device: Annotated[str, typer.Option(help="Without DIR: where both owners compute: cpu or cuda.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Inference on shares, between a model owner, a data owner and a dealer on loopback TCP.

    With DIR: a distilled student on its test images, on CrypTen with our transport and dealer. Without: transformer
    blocks of a model with random weights, by the protocol of our own, on a link of the two owners that can be shaped;
    it is shaped for CrypTen too. Dealer and third party are not delayed.

    Exit status: 0 done; 1 a party failed, or the file cannot be written; 2 wrong input; 130 Ctrl-C.

    In the JSON file: "ours", and with CrypTen "crypten" and "crypten_ttp", each with "online_seconds",
    "online_bytes_sent" by party, "rounds" and "relative_error"; "ours" has "offline_bytes" and "per_operation" as well.
    """
    check_json(json_file)

    def work(progress: Callable[[str], None]) -> dict[str, Any]:
        progress("starting the parties")
        if directory is not None:
            _refuse(context, _OF_BLOCKS, "of blocks with random weights only; leave out the directory")
            from tacit.simulate.bench.inference import measure

            return measure(directory, images=images, batch=batch or 60, check=check, progress=progress)
        _refuse(context, _OF_STUDENTS, "of a student only; name the directory of its results")
        from tacit.simulate.bench import blocks as measured_blocks
        from tacit.simulate.bench.relay import Shaping

        setting = measured_blocks.BlockBenchmark(
            model=model,
            blocks=blocks,
            batch=batch or 1,
            input=known.value,
            repeats=repeats,
            device=device,
            shaping=Shaping(latency_ms=latency, bandwidth_mbit=bandwidth),
        )
        return measured_blocks.measure(setting, progress, against_crypten=against is Against.CRYPTEN)

    _measured(work, _show_blocks if directory is None else _show_student, json_file)


def _measured(
    work: Callable[[Callable[[str], None]], dict[str, Any]],
    show: Callable[[Any, dict[str, Any]], None],
    json_file: Path | None,
) -> dict[str, Any]:
    """Measure, show and keep the figures; end the command with a complaint if they cannot be measured."""
    from rich.console import Console

    from tacit.simulate.bench.ends import BenchmarkError
    from tacit.simulate.federation.processes import ProcessError

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        with console.status("starting") as status:
            figures = work(status.update)
    except (BenchmarkError, ProcessError) as error:
        raise typer.Exit(complain(errors, error, FAILED)) from None
    except (ValueError, OSError) as error:
        raise typer.Exit(complain(errors, error, WRONG_INPUT)) from None
    except KeyboardInterrupt:
        raise typer.Exit(complain(errors, "interrupted", INTERRUPTED)) from None
    show(console, figures)
    keep_json(json_file, figures)
    return figures


def _table(*headings: str, **options: Any) -> Table:
    """A column of names and columns of figures, which are justified to the right."""
    from rich.table import Table

    table = Table(*headings, **options)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


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


def _show_student(console: Any, figures: dict[str, Any]) -> None:
    console.print(
        f"{figures['images']} images: the same label on shares and in the clear for {figures['agreement']:.2%}; "
        f"logits differ by at most {figures['largest_difference']:.4f}; test accuracy {figures['accuracy']:.3f} on "
        f"shares, {figures['accuracy_in_the_clear']:.3f} in the clear",
        soft_wrap=True,
    )
    console.print(
        f"{figures['seconds_per_image'] * 1000:.0f} ms, {figures['megabytes_per_image']:.2f} MB for an image, "
        f"{figures['rounds_per_batch']:.0f} rounds for a batch of {figures['batch']}",
        soft_wrap=True,
    )


def _show_blocks(console: Any, figures: dict[str, Any]) -> None:
    title = f"{figures['model']}, blocks: {figures['blocks']}, batch: {figures['batch']}, input: {figures['input']}"
    if figures["latency_ms"] is not None:
        title += f", {figures['latency_ms']:g} ms"
    if figures["bandwidth_mbit"] is not None:
        title += f", {figures['bandwidth_mbit']:g} Mbit/s"
    table = _table("", "seconds", "MB sent by\nmodel / data owner", "rounds", "error", title=title)
    names = {"ours": "tacit", "crypten": "CrypTen", "crypten_ttp": "CrypTen, third party"}
    for key, name in names.items():
        if key in figures:
            row = figures[key]
            megabytes = " / ".join(f"{sent / 1e6:.2f}" for sent in row["online_bytes_sent"].values())
            error = f"{row['relative_error']:.1e}"
            table.add_row(name, f"{row['online_seconds']:.3f}", megabytes, f"{row['rounds']}", error)
    for operation, row in figures["ours"]["per_operation"].items():
        megabytes = " / ".join(f"{sent / 1e6:.2f}" for sent in row["bytes_sent"].values())
        table.add_row(f"  {operation}", f"{row['seconds']:.3f}", megabytes, f"{row['rounds']}", "")
    console.print(table)
    ours = figures["ours"]
    console.print(
        f"ahead of each pass: {ours['offline_bytes'] / 1e6:.1f} MB from the dealer, {ours['offline_seconds']:.2f} s; "
        f"a pass with the material fetched beside it: {ours['overlapped_seconds']:.2f} s; once for the weights: "
        f"{ours['weights_bytes'] / 1e6:.1f} MB",
        soft_wrap=True,
    )


def _show_crypten(console: Any, figures: dict[str, Any]) -> None:
    headings = ("milliseconds", "gloo", "plain", "CURVE", "plain/gloo", "CURVE/gloo", "rounds", "MB sent")
    table = _table(*headings, title=f"CrypTen over three transports, median of {figures['repeats']}", padding=(0, 0))
    table.columns[0].no_wrap = True
    for name, row in figures["rows"].items():
        times = [f"{row[f'{transport}_ms']:.2f}" for transport in ("gloo", "plain", "curve")]
        ratios = [f"{row[f'{transport}_to_gloo']:.2f}" for transport in ("plain", "curve")]
        table.add_row(name, *times, *ratios, f"{row['rounds']}", f"{row['megabytes_sent']:.2f}")
    console.print(table)


def _show_protection(console: Any, figures: dict[str, Any]) -> None:
    large, default = figures["large"], figures["default"]
    table = _table("", "milliseconds", title=f"{large['parameters']:,} parameters")
    table.add_row("binary masks", f"{large['binary_masks_ms']:.1f}")
    table.add_row("coordinated masks", f"{large['coordinated_masks_ms']:.1f}")
    for matrix in ("orthogonal", "gaussian"):
        kind = large[matrix]
        table.add_row(f"{matrix} key, condition {kind['condition']:.3g}", f"{kind['draw_ms']:.1f}")
        table.add_row("  encrypt", f"{kind['encrypt_ms']:.1f}")
        table.add_row("  decrypt", f"{kind['decrypt_ms']:.1f}")
    console.print(table)
    schemes = _table("scheme", "milliseconds", "of a local round", title=f"{default['parameters']:,} parameters")
    schemes.add_row(f"local round, {default['samples']} images", f"{default['local_round_ms']:.0f}", "")
    for scheme, cost in default["cost_ms"].items():
        schemes.add_row(scheme, f"{cost:.2f}", f"{default['cost_percent'][scheme]:.2f}%")
    console.print(schemes)


def _show(console: Any, figures: dict[str, Any]) -> None:
    from rich.table import Table

    phases = _table("phase", "client, median", "client, p95", "server", title="milliseconds by phase")
    for phase, client in figures["client_ms"].items():
        phases.add_row(
            phase, f"{client:.2f}", f"{figures['client_p95_ms'][phase]:.2f}", f"{figures['server_ms'][phase]:.1f}"
        )
    phases.add_row(
        "total",
        f"{figures['client_total_ms']:.2f}",
        f"{figures['client_total_p95_ms']:.2f}",
        f"{figures['server_total_ms']:.1f}",
    )
    console.print(phases)
    rest = Table(show_header=False)
    for key, value in figures.items():
        if not isinstance(value, dict | bool) and not key.endswith("_ms"):
            rest.add_row(key, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")
    rest.add_row("sum_is_exact", "yes" if figures["sum_is_exact"] else "NO")
    console.print(rest)
    if kinds := figures.get("profile_seconds"):
        work = _table("work", "seconds", "share of all", title="seconds by kind of work, all parties together")
        for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1]):
            work.add_row(kind, f"{seconds:.2f}", f"{seconds / figures['wall_seconds']:.0%}")
        console.print(work)
