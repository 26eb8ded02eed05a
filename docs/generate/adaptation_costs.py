"""The section of docs/costs.md on batches of private adaptation: the result of `tacit bench adapt` in Markdown."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime

from tacit.parties.runs.results import Table, markdown
from tacit.simulate.bench.results import AdaptationBenchmarkResult


def section(measured: AdaptationBenchmarkResult) -> list[str]:
    """Lines of docs/costs.md."""
    lines = [
        "",
        "## Batches of adaptation",
        "",
        f"`OMP_NUM_THREADS=1 tacit bench adapt --json FILE` on {datetime.now(UTC):%Y-%m-%d}, all",
        f"parties on {measured.cores} cores: medians of {measured.repeats} batches of {measured.batch} images"
        f" through {measured.blocks} blocks of",
        "17 tokens of width 128, with learning: adapters of rank 8, ten classes. Data owners receive no outputs of",
        "blocks (reveal none), or all of them in secret orders, and step in the clear (reveal all).",
    ]
    for item in measured.view():
        sentence = "" if isinstance(item, Table) else f"{item[0].upper()}{item[1:]}."
        lines += ["", *(markdown(item) if isinstance(item, Table) else textwrap.wrap(sentence, 110))]
    return lines
