"""`tacit bench`: figures of this machine, on the screen and as JSON."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Measure what things cost on this machine.")


class Mode(StrEnum):
    """What the server is trusted with."""

    SEMI_HONEST = "semi-honest"
    ACTIVE = "active"


class Graph(StrEnum):
    """Who masks with whom."""

    AUTO = "auto"
    COMPLETE = "complete"
    REGULAR = "regular"


class Transport(StrEnum):
    """How messages travel."""

    MEMORY = "memory"
    ZMQ = "zmq"


@app.command()
def secagg(
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="Clients of the sum.")] = 100,
    dimension: Annotated[int, typer.Option(min=1, help="Entries of the vector.")] = 100_000,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that drops out after sharing.")] = 0.0,
    tolerate_dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may drop out.")] = 0.33,
    corrupt: Annotated[float, typer.Option(min=0, max=0.99, help="Fraction that may collude.")] = 0.33,
    mode: Annotated[Mode, typer.Option(help="What the server is trusted with.")] = Mode.SEMI_HONEST,
    graph: Annotated[Graph, typer.Option(help="Who masks with whom; auto: regular from 20 on.")] = Graph.AUTO,
    counts: Annotated[bool, typer.Option("--counts", help="Let every coordinate carry a count.")] = False,
    transport: Annotated[Transport, typer.Option(help="How messages travel.")] = Transport.MEMORY,
    profile: Annotated[bool, typer.Option("--profile", help="Show the seconds by kind of work.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """One secure sum with the real machines and real cryptography, timed party by party.

    Exit status: 0 the sum is exact; 1 it is not, or could not be held; 2 wrong input.
    """
    import msgspec
    from rich.console import Console

    from tacit.simulate.bench.ends import BenchmarkError
    from tacit.simulate.bench.secagg import Setting, measure

    setting = Setting(
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
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        with console.status("starting") as status:
            figures = measure(setting, lambda text: status.update(text.lower().replace("_", " ")), profile=profile)
    except (BenchmarkError, ValueError) as error:
        errors.print(f"tacit: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, BenchmarkError) else 2) from None
    _show(console, figures)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    raise typer.Exit(0 if figures["sum_is_exact"] else 1)


def _show(console: Any, figures: dict[str, Any]) -> None:
    from rich.table import Table

    phases = Table(title="milliseconds by phase")
    for heading in ("phase", "client, median", "client, p95", "server"):
        phases.add_column(heading, justify="left" if heading == "phase" else "right")
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
        work = Table(title="seconds by kind of work, all parties together")
        for heading in ("work", "seconds", "share of all"):
            work.add_column(heading, justify="left" if heading == "work" else "right")
        for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1]):
            work.add_row(kind, f"{seconds:.2f}", f"{seconds / figures['wall_seconds']:.0%}")
        console.print(work)
