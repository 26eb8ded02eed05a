"""report.html of an adaptation: metrics, cost of the secure sums and the private passes, and the parties' views.

Made from summary.json, the event logs and the experiment; self-contained as that of a federation (report/page.py).
docs/decisions/016-double-blind.md lists what each party could see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from markupsafe import Markup

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import load_as
from tacit.parties.runs.incidents import Incident, incidents
from tacit.parties.runs.results import Column, Table, prose
from tacit.parties.runs.reveals import GIVES_AWAY
from tacit.parties.runs.state import RunState
from tacit.simulate.adaptation.plan import Folder
from tacit.simulate.adaptation.results import AdaptationSummary
from tacit.simulate.adaptation.summary import state_of, summary_so_far
from tacit.simulate.federation.party_files import DEALER, MODEL_OWNER
from tacit.simulate.report.exposure import OUTSIDER, OWNER_OF_ALL, Exposure
from tacit.simulate.report.figures import ACTIVITY_COLOURS, COLOURS, MOST_ROWS, PHASES, compared_curves
from tacit.simulate.report.page import MOST_INCIDENTS, MOST_TROUBLES, bars_of, rendered, settings, timelines
from tacit.simulate.report.tables import phase_table


def exposures(experiment: AdaptationExperiment, summary: AdaptationSummary) -> list[Exposure]:
    own, told = experiment.adaptation, experiment.adaptation.reveal
    words = f"{len(summary.completed)} times {summary.parameters:,} words"
    what = {"none": (), "sampled": ("outputs of sampled blocks",), "all": ("outputs of all blocks",)}[told]
    orders = "in one secret order of all of them, and others" if own.selection == "enrolment" else "in secret orders"
    pairs = [f"{outputs} of its own images, {orders}; {GIVES_AWAY}" for outputs in what]
    counted = own.weights == "counts"
    noisy = () if summary.noise is None else (summary.noise.guarantee,)
    weights = "weights of the model, and what its blocks leave" if told == "none" else "weights of the model as such"
    return [
        Exposure(
            "each data owner",
            (
                f"the common adapters and head after every round, the sum over all data owners: {words} in all; the "
                "update of the head is linear in what the model makes of images",
                *noisy,
                *pairs,
                "of every batch of its own, whether it was out of range; loss and right answers of all data owners "
                "together, once a round",
                "sizes of the model, bounds and scales of the learning",
            ),
            (
                weights,
                "images, labels, adapters, loss or number of right answers of any one other data owner",
            ),
            (
                "This holds towards data owners that follow the protocol: one that opens wrong shares reads weights, "
                "and is not found out.",
            ),
        ),
        Exposure(
            "model owner",
            (
                "how many images and batches each data owner has, and in which order its images are taken",
                "who is in the sum of a round; its own shares, which look random",
                *(["how many images each data owner has, by which they count"] if counted else []),
            ),
            ("images and labels of anybody, adapters, head, loss and right answers: their sums go to the data owners",),
        ),
        Exposure(
            "dealer",
            (
                "how much correlated randomness each owner requested, and when; who was in a round, and who was lost",
                "the sum of the data owners' shares, which looks random without the model owner's",
            ),
            ("anything of the model, of images, of labels, or of what was learned",),
        ),
        OUTSIDER,
        OWNER_OF_ALL,
    ]


def collusions(experiment: AdaptationExperiment) -> Table:
    """Colluding parties, and what they learn together although none of them deviates from the protocol."""
    own, clients = experiment.adaptation, experiment.clients
    counted = (
        f"{own.colluders} data owners, whom adaptation.colluders counts",
        f"the sum over at least {own.smallest_cohort} others",
        f"what any one of these has learned, among {own.smallest_cohort - 1} more",
    )
    rows = [
        (
            "model owner and dealer",
            "images and labels of every data owner, and what each has learned: the dealer knows all masks",
            "nothing",
        ),
        (
            "a data owner and the dealer",
            "the model: its masked weights and their masks",
            "images and labels of the other data owners, and what each has learned",
        ),
        *([counted] if own.colluders else ()),
        (
            f"{clients - 1} of {clients} data owners",
            "what the last one has learned in every round that it was in, as in federated learning",
            "of its batches nothing is revealed beyond that",
        ),
        (
            "model owner and data owners",
            "the common adapters; of the other data owners no more than the sum over them",
            "images and labels of the others, and what each has learned",
        ),
    ]
    columns = (Column("Together"), Column("They learn", prose), Column("What stays protected", prose))
    return Table(columns=columns, rows=rows)


def sums_state(state: RunState, summary: AdaptationSummary) -> RunState:
    """Return a closed run's state without all that is in no sum: model owner, and rounds without training."""
    status = {row.round: row.status for row in summary.rounds}
    rounds = [round for round in state.rounds if round.number in status]
    for round in rounds:
        round.lost = status[round.number] == "lost"
    parties = {name: party for name, party in state.parties.items() if name != MODEL_OWNER}
    for name, owner in summary.owners.items():
        parties[name].trained = owner.online_seconds
    return replace(state, parties=parties, rounds=rounds)


def report_of(folder: Folder, *, out: Path | None = None) -> Path:
    """Write the page of a run that may be running or killed; return its path. ExperimentError, OSError, and as
    `summary_so_far` and `make_report`."""
    experiment = load_as(AdaptationExperiment, folder.run.experiment)
    return write_report(folder, experiment, summary_so_far(folder, experiment), out=out)


def write_report(
    folder: Folder, experiment: AdaptationExperiment, summary: AdaptationSummary, *, out: Path | None = None
) -> Path:
    """Write the page, by default into the folder of the run; return its path. OSError, and as `make_report`."""
    path = out or folder.path / "report.html"
    path.write_text(make_report(folder, experiment, summary), encoding="utf-8")
    return path


def make_report(folder: Folder, experiment: AdaptationExperiment, summary: AdaptationSummary) -> str:
    whole = state_of(folder, tuple(summary.owners)).close()
    state = sums_state(whole, summary)
    dealer = state.parties[DEALER]
    values = {
        "title": f"{experiment.name} \N{EN DASH} Tacit report",
        "experiment": experiment,
        "summary": summary,
        "state": state,
        "notices": _notices(experiment, summary, incidents(whole)),
        "curves": _curves(summary),
        "sums_bytes": sum((dealer.sent + dealer.received).values()),
        "bars": bars_of(dealer, state.clients),
        "phases": phase_table(dealer, state.clients, serving="Dealer", served="Data owners"),
        "activity_colours": {
            "private passes": ACTIVITY_COLOURS["training"],
            **{name: ACTIVITY_COLOURS[name] for name in ("waiting", "between rounds")},
        },
        "colours": {phase: COLOURS[phase] for phase in PHASES},
        "most_rows": MOST_ROWS,
        "timelines": timelines(state, secure=True),
        "drops": [(round, drop) for round in state.rounds for drop in round.drops.values()],
        "warnings": state.warnings[:MOST_TROUBLES],
        "more_warnings": len(state.warnings[MOST_TROUBLES:]),
        "strangers": list(state.strangers.values())[:MOST_TROUBLES],
        "exposures": exposures(experiment, summary),
        "collusions": collusions(experiment),
        "settings": settings(experiment),
    }
    return rendered("adaptation.html.j2", values, package="tacit.simulate.adaptation")


def _notices(experiment: AdaptationExperiment, summary: AdaptationSummary, happened: Sequence[Incident]) -> list[str]:
    """Return the notices at the top of the page; none if all went well and the model was protected."""
    told = summary.reveal
    notices = [] if told == "none" else [f'reveal = "{told}": {GIVES_AWAY}.']
    completed, planned = len(summary.completed), experiment.federation.rounds
    if completed < planned:
        notices.append(f"{completed} of {planned} rounds were completed. The sums ended: {summary.ended}.")
    notices += [incident.text for incident in happened[:MOST_INCIDENTS]]
    notices += [
        f"Round {row.round} was summed, but data owners did not receive the sum: {row.detail}."
        for row in summary.failed
        if row.status == "lost"
    ]
    if refused := summary.batches.refused:
        notices.append(
            f"{refused} of {summary.batches.count} batches were out of range, and taught nothing. Remedy: raise "
            "adaptation.margin, or lower adaptation.learning_rate."
        )
    return notices


_MEASURED: Final = {
    "accuracy": {
        "test images": "accuracy",
        "learned images (sum over owners)": "train_accuracy",
        "test images, mean over the classes": "balanced_accuracy",
    },
    "loss": {"test images": "loss", "learned images (sum over owners)": "train_loss"},
}


def _curves(summary: AdaptationSummary) -> list[Markup]:
    if not summary.completed:
        return []

    def points(key: str) -> list[tuple[int, float | None]]:
        known = [
            (0, getattr(summary.before, key, None)),
            *((row.round, getattr(row, key)) for row in summary.completed),
        ]
        return [(at, value) for at, value in known if value is not None]

    return [
        compared_curves({name: [points(key)] for name, key in curves.items()}, metric=metric)
        for metric, curves in _MEASURED.items()
    ]
