"""rounds.csv and clients.csv: the rounds of a summary as tables, for programs that read rows.

A row of the first is a round; one of the second, a client in a round. What is not known is empty.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tacit.parties.runs.directory import RunDirectory, write_output, writing

ROUND_COLUMNS: Final = (
    "round", "status", "code", "culprit", "accuracy", "balanced_accuracy", "loss", "train_accuracy", "train_loss",
    "held_out_round", "held_out_images", "held_out_accuracy", "held_out_loss", "samples", "clipped", "cohort",
    "survivors", "dropped", "seconds", "bytes_sent",
)  # fmt: skip
CLIENT_COLUMNS: Final = (
    "round", "client", "in_sum", "dropped_phase", "dropped_code", "dropped_detail", "bytes_sent", "training_seconds",
    "choosing_seconds", "kept",
)  # fmt: skip


def keep_summary(run: RunDirectory, summary: Mapping[str, Any]) -> None:
    """Write summary.json and both tables. OSError, as of `writing`, if one of them cannot be written."""
    write_output("summary", summary, run.summary)
    for name, columns, rows in (
        ("rounds.csv", ROUND_COLUMNS, _rounds(summary)),
        ("clients.csv", CLIENT_COLUMNS, _clients(summary)),
    ):
        path = run.path / name
        with writing(path), path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
            table.writeheader()
            table.writerows(rows)


def _rounds(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in summary["rounds"]:
        held_out = {f"held_out_{key}": value for key, value in (entry["held_out"] or {}).items()}
        counts = {key: len(entry[key] or ()) for key in ("cohort", "survivors", "dropped")}
        # Of all parties together; by client they are in the other table.
        yield entry | held_out | counts | {"bytes_sent": sum(entry["bytes_sent"].values())}


def _clients(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in summary["rounds"]:
        dropped = {drop["party"]: drop for drop in entry["dropped"] or ()}
        for client in entry["cohort"] or ():
            lost = {f"dropped_{key}": value for key, value in dropped.get(client, {}).items()}
            yield {
                "round": entry["round"],
                "client": client,
                "in_sum": client in (entry["survivors"] or ()),
                "bytes_sent": entry["bytes_sent"].get(client),
                **lost,
                **entry["local"].get(client, {}),
            }
