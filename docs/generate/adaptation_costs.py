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
        f"parties on {measured.cores} cores: medians of {measured.repeats} steps on {measured.batch} images beside",
        f"{measured.blocks} blocks of {measured.model}, {measured.tokens} tokens of width {measured.width}, random",
        "weights; ten classes, the head alone (linear-probe) or with adapters of rank 8 (parallel). An image passes",
        "the blocks once; steps are on kept shares.",
    ]
    for item in measured.view():
        sentence = "" if isinstance(item, Table) else f"{item[0].upper()}{item[1:]}."
        lines += ["", *(markdown(item) if isinstance(item, Table) else textwrap.wrap(sentence, 110))]
    return lines
