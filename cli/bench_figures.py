"""What `tacit bench` shows of the figures of sums, protections, networks and starts."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from tacit.cli.output import say, table


def show_network(console: Console, figures: dict[str, Any]) -> None:
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


def show_start(console: Console, figures: dict[str, Any]) -> None:
    """Seconds until something happens, and what the parties' imports take."""
    seconds = figures["seconds"]
    beyond = seconds["hosts_first_round"] - seconds["imports"] - seconds["training"]
    rows = [
        ("tacit --help", seconds["help"]),
        ("tacit simulate with a wrong key", seconds["wrong_input"]),
        ("tacit simulate: the first round is done", seconds["simulate_first_round"]),
        (f"tacit infer, {figures['images']} images", seconds["infer"]),
        (
            f"tacit server and {figures['clients']} x tacit client: the first round is done",
            seconds["hosts_first_round"],
        ),
        ("  of which imports, all at once", seconds["imports"]),
        ("  of which training", seconds["training"]),
        ("  and all else", beyond),
    ]
    for title, timed in (("until", rows), ("loading what parties need", figures["profile"].items())):
        console.print(table(("what", "seconds"), [(what, f"{taken:.2f}") for what, taken in timed], title=title))


def show_crypten(console: Console, figures: dict[str, Any]) -> None:
    """CrypTen's operations over three transports."""
    headings = ("milliseconds", "gloo", "plain", "CURVE", "plain/gloo", "CURVE/gloo", "rounds", "MB sent")
    keys = ("gloo_ms", "plain_ms", "curve_ms", "plain_to_gloo", "curve_to_gloo")
    rows = [
        (name, *(f"{row[key]:.2f}" for key in keys), str(row["rounds"]), f"{row['megabytes_sent']:.2f}")
        for name, row in figures["rows"].items()
    ]
    made = table(headings, rows, title=f"CrypTen over three transports, median of {figures['repeats']}")
    made.padding = (0, 0)
    made.columns[0].no_wrap = True
    console.print(made)


def show_protection(console: Console, figures: dict[str, Any]) -> None:
    """What keys and schemes cost a client."""
    large, default = figures["large"], figures["default"]
    costs = {"binary masks": large["binary_masks_ms"], "coordinated masks": large["coordinated_masks_ms"]}
    rows = [(name, f"{cost:.1f}") for name, cost in costs.items()]
    for matrix in ("orthogonal", "gaussian"):
        kind = large[matrix]
        rows += [
            (f"{matrix} key, condition {kind['condition']:.3g}", f"{kind['draw_ms']:.1f}"),
            ("  encrypt", f"{kind['encrypt_ms']:.1f}"),
            ("  decrypt", f"{kind['decrypt_ms']:.1f}"),
        ]
    console.print(table(("", "milliseconds"), rows, title=f"{large['parameters']:,} parameters"))
    schemes = [(f"local round, {default['samples']} images", f"{default['local_round_ms']:.0f}", "")]
    for scheme, cost in default["cost_ms"].items():
        schemes.append((scheme, f"{cost:.2f}", f"{default['cost_percent'][scheme]:.2f}%"))
    headings = ("scheme", "milliseconds", "of a local round")
    console.print(table(headings, schemes, title=f"{default['parameters']:,} parameters"))


def show_cohorts(console: Console, figures: dict[str, Any]) -> None:
    """All figures of a sum, or of those of many cohorts, that are one number each."""
    shown = Table(show_header=False)
    for key, value in figures.items():
        if not isinstance(value, dict | bool):
            shown.add_row(key, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")
    shown.add_row("sum_is_exact", "yes" if figures["sum_is_exact"] else "NO")
    console.print(shown)


def show_sum(console: Console, figures: dict[str, Any]) -> None:
    """One sum: milliseconds by phase, and the rest."""
    costs = [
        (phase, client, figures["client_p95_ms"][phase], figures["server_ms"][phase])
        for phase, client in figures["client_ms"].items()
    ]
    costs.append(("total", *(figures[key] for key in ("client_total_ms", "client_total_p95_ms", "server_total_ms"))))
    rows = [(phase, f"{middle:.2f}", f"{most:.2f}", f"{server:.1f}") for phase, middle, most, server in costs]
    headings = ("phase", "client, median", "client, p95", "server")
    console.print(table(headings, rows, title="milliseconds by phase"))
    show_cohorts(console, {key: value for key, value in figures.items() if not key.endswith("_ms")})
    if kinds := figures.get("profile_seconds"):
        shares = [
            (kind, f"{seconds:.2f}", f"{seconds / figures['wall_seconds']:.0%}")
            for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1])
        ]
        title = "seconds by kind of work, all parties together"
        console.print(table(("work", "seconds", "share of all"), shares, title=title))
