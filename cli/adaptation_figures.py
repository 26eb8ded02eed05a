"""What `tacit bench adapt` shows of its figures."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console

from tacit.cli.inference_figures import megabytes
from tacit.cli.legacy_output import table
from tacit.cli.output import say

_PARTS: Final = {
    "backbone": "embedding and blocks",
    "adapters": "adapters",
    "head": "head",
    "backwards": "backwards",
    "in_the_clear": "in the clear",
}
_PARTIES: Final = ("model-owner", "data-owner", "dealer")


def show_adaptation(console: Console, figures: dict[str, Any]) -> None:
    """Those of batches by what is told, of their parts, of smaller sizes, and in the clear."""
    arms = {f"told: {reveal}": arm for reveal, arm in figures["arms"].items()}
    title = f"a batch, images: {figures['batch']}, blocks: {figures['blocks']}"
    rows = [("online", *(f"{arm['online_seconds']:.3f}" for arm in arms.values()))]
    rows += [(f"  {name}", *(f"{arm['seconds'][part]:.3f}" for arm in arms.values())) for part, name in _PARTS.items()]
    rows += [
        ("backward / forward", *(_ratio(arm["backward_of_forward"]) for arm in arms.values())),
        ("material alone", *(f"{arm['waited_seconds']:.3f}" for arm in arms.values())),
        ("sustained", *(f"{arm['sustained_seconds']:.3f}" for arm in arms.values())),
    ]
    console.print(table(("seconds", *arms), rows, title=title))
    sizes = [
        (
            name,
            megabytes(one["online_bytes_sent"], digits=1),
            megabytes(one["dealer_bytes"], digits=1),
            str(one["rounds"]),
            " / ".join(f"{one['peak_bytes'][party] / 1e6:.0f}" for party in _PARTIES if party in one["peak_bytes"]),
        )
        for name, one in arms.items()
    ]
    headings = (
        "MB",
        "sent by\nmodel / data",
        "by dealer to\nmodel / data",
        "rounds",
        "memory of model\n/ data / dealer",
    )
    console.print(table(headings, sizes))
    for name, arm in arms.items():
        for key, what in (("by_blocks", "block"), ("by_batch", "image")):
            grown = arm[key]
            more = [
                (size, f"{seconds:.3f}", _milliseconds(grown["seconds_for_each_more"].get(size)))
                for size, seconds in grown["seconds"].items()
            ]
            console.print(table((f"{name}, {what}s", "seconds", f"ms for each\n{what} more"), more))
    plain = figures["plaintext"]
    say(
        console,
        f"in the clear, on one thread: {1e3 * plain['step_seconds']:.1f} ms for the step, "
        f"{1e3 * plain['with_backbone_seconds']:.1f} ms with the blocks. All parties ran on {figures['cores']} cores; "
        "sustained: batches back to back, their material made beside them",
    )


def _ratio(found: float | None) -> str:
    return "" if found is None else f"{found:.2f}"


def _milliseconds(found: float | None) -> str:
    return "" if found is None else f"{1e3 * found:.0f}"
