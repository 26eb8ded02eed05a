"""What `tacit bench inference` shows of its figures."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tacit.cli.legacy_output import table
from tacit.cli.output import say
from tacit.simulate.insecure import KNOWN_GIVES_AWAY

_OURS = {"true_functions": "tacit, true functions", "polynomials": "tacit, polynomials"}
_PROTOCOLS = {**_OURS, "crypten": "CrypTen", "crypten_ttp": "CrypTen, 3rd party"}
_CRYPTEN = ("crypten", "crypten_ttp")
_PARTIES = ("model-owner", "data-owner", "dealer")


def show_student(console: Console, figures: dict[str, Any]) -> None:
    """Those of a student on its test images."""
    say(
        console,
        f"{figures['images']} images: the same label on shares and in the clear for {figures['agreement']:.2%}; "
        f"logits differ by at most {figures['largest_difference']:.4f}; test accuracy {figures['accuracy']:.3f} on "
        f"shares, {figures['accuracy_in_the_clear']:.3f} in the clear",
    )
    say(
        console,
        f"{figures['seconds_per_image'] * 1000:.0f} ms, {figures['megabytes_per_image']:.2f} MB for an image, "
        f"{figures['rounds_per_batch']:.0f} rounds for a batch of {figures['batch']}",
    )


def show_blocks(console: Console, figures: dict[str, Any]) -> None:
    """Those of blocks, by every protocol that was measured: times, bytes, and our operations."""
    if figures["input"] == "known":
        say(console, f"--input known: {KNOWN_GIVES_AWAY}")
    title = f"{figures['model']}, blocks: {figures['blocks']}, batch: {figures['batch']}, input: {figures['input']}"
    for key, unit in (("latency_ms", "ms"), ("bandwidth_mbit", "Mbit/s")):
        if figures[key] is not None:
            title += f", {figures[key]:g} {unit}"
    found = [(name, figures[key]) for key, name in _PROTOCOLS.items() if key in figures]
    ratios = {
        _PROTOCOLS[key]: f"{figures[key]['sustained_seconds'] / figures['polynomials']['sustained_seconds']:.1f}"
        for key in _CRYPTEN
        if key in figures
    }
    times = [
        (
            name,
            f"{one['online_seconds']:.3f}",
            f"{one['sustained_seconds']:.3f}",
            ratios.get(name, ""),
            f"{one['rounds']} / {one['total']['rounds']}",
            f"{one['relative_error']:.1e}",
        )
        for name, one in found
    ]
    time_headings = ("", "seconds\nonline", "seconds\nsustained", "times\ntacit", "rounds\n/ total", "error")
    console.print(table(time_headings, times, title=title))
    sizes = [
        (
            name,
            megabytes(one["online_bytes_sent"], digits=1),
            megabytes(one["dealer_bytes"], digits=1),
            f"{one['total']['bytes'] / 1e6:.1f}",
            " / ".join(f"{one['peak_bytes'][party] / 1e6:.0f}" for party in _PARTIES if party in one["peak_bytes"]),
        )
        for name, one in found
    ]
    size_headings = (
        "MB",
        "sent by\nmodel / data",
        "by dealer to\nmodel / data",
        "total",
        "memory of model\n/ data / dealer",
    )
    console.print(table(size_headings, sizes))
    for key, title in _OURS.items():
        operations = [
            (name, f"{one['seconds']:.3f}", megabytes(one["bytes_sent"]), str(one["rounds"]))
            for name, one in figures[key]["per_operation"].items()
        ]
        console.print(table((f"{title}, online", "seconds", "MB sent by\nmodel / data", "rounds"), operations))
    once = [f"{figures[key]['offline_seconds']:.2f} s, {figures[key]['weights_bytes'] / 1e6:.1f} MB" for key in _OURS]
    say(
        console,
        f"sustained: passes back to back, their material made beside them, all parties on {figures['cores']} cores; of "
        "tacit with embedding and head. Times tacit: beside its polynomials. Its "
        f"material alone, and what is sent once for the weights: {once[0]} (true functions), {once[1]} (polynomials)",
    )


def megabytes(counts: dict[str, int], *, digits: int = 2) -> str:
    return " / ".join(f"{count / 1e6:.{digits}f}" for count in counts.values())
