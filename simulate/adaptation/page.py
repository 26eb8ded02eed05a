"""report.html of an adaptation: what was learned, what the secure sums and the private passes cost, who could see what.

Made from summary.json, the event logs and the experiment; self-contained as that of a federation (report/page.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import load_as
from tacit.parties.runs.reveals import GIVES_AWAY
from tacit.simulate.adaptation.exposure import collusions, exposures
from tacit.simulate.adaptation.history import history_of
from tacit.simulate.adaptation.plan import Folder
from tacit.simulate.adaptation.summary import figures_of
from tacit.simulate.report.adaptation_outputs import AdaptationFigures, AdaptationRound
from tacit.simulate.report.figures import ACTIVITY_COLOURS, COLOURS, MOST_ROWS, PHASES, compared_curves
from tacit.simulate.report.history import History
from tacit.simulate.report.page import MOST_INCIDENTS, MOST_TROUBLES, bars_of, phase_row, rendered, settings, timelines


def report_of(folder: Folder, *, out: Path | None = None) -> Path:
    """Write the page anew, of a run that may go on or have been killed. Returns its path. ExperimentError, OSError, and
    as of `figures_of` and `make_report`."""
    experiment = load_as(AdaptationExperiment, folder.run.experiment)
    return write_report(folder, experiment, figures_of(folder, experiment), out=out)


def write_report(
    folder: Folder, experiment: AdaptationExperiment, summary: AdaptationFigures, *, out: Path | None = None
) -> Path:
    """Write the page, by default into the folder of the run; returns its path. OSError, and as of `make_report`."""
    path = out or folder.path / "report.html"
    path.write_text(make_report(folder, experiment, summary), encoding="utf-8")
    return path


def make_report(folder: Folder, experiment: AdaptationExperiment, summary: AdaptationFigures) -> str:
    """The page. EventLogError for logs that cannot be read."""
    history = history_of(folder, summary)
    dealer = history.parties[history.server or ""]
    owners = summary["owners"].values()
    values = {
        "title": f"{experiment.name} \N{EN DASH} Tacit report",
        "experiment": experiment,
        "summary": summary,
        "history": history,
        "completed": [row for row in summary["rounds"] if row["status"] == "completed"],
        "notices": _notices(experiment, summary, history),
        "curves": _curves(summary),
        "passes": {
            key: sum(owner[key] for owner in owners)
            for key in ("batches", "refused", "seconds", "bytes_sent", "bytes_received", "weights_bytes")
        },
        "material": sum(summary["dealer_bytes"].values()),
        "moved": sum((dealer.sent + dealer.received).values()),
        "bars": bars_of(dealer, history.clients),
        "phases": [phase_row(phase, dealer, history.clients) for phase in PHASES],
        "activity_colours": {
            "private passes": ACTIVITY_COLOURS["training"],
            **{name: ACTIVITY_COLOURS[name] for name in ("waiting", "between rounds")},
        },
        "colours": {phase: COLOURS[phase] for phase in PHASES},
        "most_rows": MOST_ROWS,
        "timelines": timelines(history, secure=True),
        "drops": [(round, drop) for round in history.rounds for drop in round.drops],
        "troubles": history.troubles[:MOST_TROUBLES],
        "more_troubles": len(history.troubles[MOST_TROUBLES:]),
        "strangers": list(history.strangers.values())[:MOST_TROUBLES],
        "exposures": exposures(experiment, summary),
        "collusions": collusions(experiment),
        "settings": settings(experiment),
    }
    return rendered("adaptation.html.j2", values, package="tacit.simulate.adaptation")


def _notices(experiment: AdaptationExperiment, summary: AdaptationFigures, history: History) -> list[str]:
    """What a reader must know first; nothing if all went well and the model was protected."""
    told, rounds = summary["reveal"], summary["rounds"]
    notices = [] if told == "none" else [f'reveal = "{told}": {GIVES_AWAY}.']
    completed, planned = sum(row["status"] == "completed" for row in rounds), experiment.federation.rounds
    if completed < planned:
        notices.append(f"{completed} of {planned} rounds were completed. The sums ended: {summary['ended']}.")
    notices += [incident.text for incident in history.incidents[:MOST_INCIDENTS]]
    notices += [f"Round {row['round']} was summed and not told: {row['detail']}." for row in rounds if _is_lost(row)]
    if refused := summary["batches"]["refused"]:
        notices.append(
            f"{refused} of {summary['batches']['count']} batches were out of range, and taught nothing. Remedy: raise "
            "adaptation.margin, or lower adaptation.learning_rate."
        )
    return notices


def _is_lost(row: AdaptationRound) -> bool:
    return row["status"] == "lost"


def _curves(summary: AdaptationFigures) -> list[Markup]:
    """Accuracy and loss by round, the beginning being round 0."""
    before, rounds = summary["before"], [row for row in summary["rounds"] if row["status"] == "completed"]
    if not rounds:
        return []
    numbers = [row["round"] for row in rounds]

    def points(*values: Any, first: float | None = None) -> list[tuple[int, float | None]]:
        known = zip(numbers, values, strict=True)
        return [*([] if first is None else [(0, first)]), *((at, value) for at, value in known if value is not None)]

    accuracies = {
        "test images": points(*(row["accuracy"] for row in rounds), first=before["accuracy"]),
        "learned images (sum over owners)": points(*(row["train_accuracy"] for row in rounds)),
        "test images, mean over the classes": points(
            *(row["balanced_accuracy"] for row in rounds), first=before["balanced_accuracy"]
        ),
    }
    losses = {
        "test images": points(*(row["loss"] for row in rounds), first=before["loss"]),
        "learned images (sum over owners)": points(*(row["train_loss"] for row in rounds)),
    }
    return [compared_curves(accuracies, metric="accuracy"), compared_curves(losses, metric="loss")]
