"""The section of docs/costs.md on the protections of an update, from the figures of `tacit bench protection`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tacit.simulate.bench.protection import FEWEST, MATRICES, MEMBERS


def section(figures: dict[str, Any]) -> list[str]:
    """Lines of docs/costs.md: the figures, their keys in the JSON of the command, and what they are of."""
    large, default = figures["large"], figures["default"]
    lines = [
        "",
        "## Protections",
        "",
        f"`OMP_NUM_THREADS=1 tacit bench protection --json FILE` on {datetime.now(UTC):%Y-%m-%d}, on one of",
        f"{figures['cores']} cores: medians of {figures['repeats']}. The large model is a ViT-S of",
        f"{large['parameters']:,} parameters (`large.parameters`), whose patches have 768 values. Masks include their",
        f"keystream; coordinated ones are of {MEMBERS} clients with at least {FEWEST} at a coordinate. A key is drawn",
        "once, until the group key is renewed.",
        "",
        "| large model | key in the JSON | milliseconds |",
        "|---|---|---|",
        f"| binary masks | `large.binary_masks_ms` | {large['binary_masks_ms']:.0f} |",
        f"| coordinated masks | `large.coordinated_masks_ms` | {large['coordinated_masks_ms']:.0f} |",
    ]
    for matrix in MATRICES:
        for work, key in (("draw a key", "draw_ms"), ("encrypt a model", "encrypt_ms"), ("decrypt one", "decrypt_ms")):
            lines.append(f"| {matrix}: {work} | `large.{matrix}.{key}` | {large[matrix][key]:.0f} |")
    lines += [
        "",
        *(
            f"The {matrix} matrix has condition number {large[matrix]['condition']:,.0f} (`large.{matrix}.condition`); "
            f"decryption makes errors up to {large[matrix]['error_amplification']:,.0f} times larger "
            f"(`large.{matrix}.error_amplification`)."
            for matrix in MATRICES
        ),
        "",
        f"A scheme is put beside one local round of the default experiment: {default['parameters']:,} parameters",
        f"(`default.parameters`), {default['samples']} images (`default.samples`), {default['epochs']} epochs",
        f"(`default.epochs`), {default['local_round_ms']:,.0f} ms (`default.local_round_ms`).",
        "",
        "| scheme | milliseconds (`default.cost_ms`) | of a local round (`default.cost_percent`) |",
        "|---|---|---|",
    ]
    for scheme, cost in default["cost_ms"].items():
        lines.append(f"| {scheme} | {cost:.2f} | {default['cost_percent'][scheme]:.2f}% |")
    return lines
