"""The section of docs/costs.md on batches of double-blind adaptation, from the figures of `tacit bench adapt`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

_PARTS: Final = (
    ("embedding and blocks", "backbone"),
    ("adapters", "adapters"),
    ("head, softmax, and what is checked", "head"),
    ("backwards", "backwards"),
    ("behind the last round", "in_the_clear"),
)


def section(figures: dict[str, Any]) -> list[str]:
    """Lines of docs/costs.md: the figures, their keys in the JSON of the command, and what they are of."""
    arms, plain = figures["arms"], figures["plaintext"]
    none, told = arms["none"], arms["all"]
    seconds = [("online", "online_seconds", *(arm["online_seconds"] for arm in (none, told)))]
    seconds += [
        (f"of it {name}", f"seconds.{part}", *(arm["seconds"][part] for arm in (none, told))) for name, part in _PARTS
    ]
    seconds += [
        (name, key, *(arm[key] for arm in (none, told)))
        for name, key in (("material alone", "waited_seconds"), ("sustained", "sustained_seconds"))
    ]
    lines = [
        "",
        "## Batches of adaptation",
        "",
        f"`OMP_NUM_THREADS=1 tacit bench adapt --json FILE` on {datetime.now(UTC):%Y-%m-%d}, all",
        f"parties on {figures['cores']} cores: medians of {figures['repeats']} batches of {figures['batch']} images"
        f" through {figures['blocks']} blocks of",
        "17 tokens of width 128, with learning: adapters of rank 8, ten classes. Data owners are told nothing of what",
        "blocks leave, or all of it, in secret orders, and step in the clear.",
        "",
        "| seconds | key in `arms` of the JSON | told nothing | told all |",
        "|---|---|---|---|",
        *(f"| {name} | `{key}` | {one:.3f} | {other:.3f} |" for name, key, one, other in seconds),
        "",
        f"Backwards is {none['backward_of_forward']:.2f} of forwards (`backward_of_forward`). Online each batch has",
        "its material; sustained, it is made beside the batch before. In MB, model owner and data owner apart:",
        "",
        "| | rounds | sent by owners | by the dealer to them | memory at most, and of the dealer |",
        "|---|---|---|---|---|",
    ]
    for name, row in (("told nothing", none), ("told all", told)):
        sizes = (_megabytes(row[key]) for key in ("online_bytes_sent", "dealer_bytes", "peak_bytes"))
        lines.append(f"| {name} | {row['rounds']} | {' | '.join(sizes)} |")
    lines += [
        "",
        "By the number of blocks, and of images: seconds, and milliseconds that each block or image more has cost from",
        "one size to the next.",
        "",
        "| | told nothing | each more | told all | each more |",
        "|---|---|---|---|---|",
    ]
    for what, key in (("blocks", "by_blocks"), ("images", "by_batch")):
        for size in none[key]["seconds"]:
            cells = (
                cell
                for arm in (none, told)
                for cell in (f"{arm[key]['seconds'][size]:.3f}", _more(arm[key]["seconds_for_each_more"].get(size)))
            )
            lines.append(f"| {size} {what} | {' | '.join(cells)} |")
    lines += [
        "",
        f"The same step in the clear takes {1e3 * plain['step_seconds']:.1f} ms on one thread, and"
        f" {1e3 * plain['with_backbone_seconds']:.0f} ms with the blocks.",
    ]
    return lines


def _megabytes(counts: dict[str, int]) -> str:
    return " / ".join(
        f"{counts[party] / 1e6:.1f}" for party in ("model-owner", "data-owner", "dealer") if party in counts
    )


def _more(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.0f}"
