"""report.html of an adaptation: what was learned, what the secure sums and the private passes cost, who could see what.

Made from summary.json, the event logs and the experiment; self-contained as that of a federation (report/page.py). The
state of the run is like a federation's: the dealer is the server of the sums, the data owners are its clients.

What each party could see, and which colluding parties see more, follows from the protocol: parties/adaptation/stages.py
and simulate/insecure/revealed_outputs.py say what a pass opens, and to whom, protocol/adaptation/sums.py which sums are
revealed, and docs/decisions/016-double-blind.md the consequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import load_as
from tacit.parties.runs.incidents import Incident, incidents
from tacit.parties.runs.reveals import GIVES_AWAY
from tacit.parties.runs.state import RunState
from tacit.parties.runs.summary import MOST_EPSILON
from tacit.simulate.adaptation.plan import DEALER, MODEL_OWNER, Folder
from tacit.simulate.adaptation.summary import figures_of, state_of
from tacit.simulate.report.exposure import OWNER_OF_ALL, Exposure
from tacit.simulate.report.figures import ACTIVITY_COLOURS, COLOURS, MOST_ROWS, PHASES, compared_curves
from tacit.simulate.report.outputs import AdaptationFigures, AdaptationRound, SumNoiseFigures
from tacit.simulate.report.page import MOST_INCIDENTS, MOST_TROUBLES, bars_of, phase_row, rendered, settings, timelines


@dataclass(frozen=True)
class Collusion:
    """Parties that pool what they know, though none of them deviates from the protocol."""

    parties: str
    learn: str
    protected: str
    """What stays so."""


def exposures(experiment: AdaptationExperiment, summary: AdaptationFigures) -> list[Exposure]:
    """The parties of a run, from the data owners to the outside world."""
    own, told = experiment.adaptation, experiment.adaptation.reveal
    done = [row for row in summary["rounds"] if row["status"] == "completed"]
    words = f"{len(done)} times {summary['parameters']:,} words"
    what = {"none": (), "sampled": ("outputs of sampled blocks",), "all": ("outputs of all blocks",)}[told]
    orders = "in one secret order of all of them, and others" if own.selection == "enrolment" else "in secret orders"
    pairs = [f"{outputs} of its own images, {orders}; {GIVES_AWAY}" for outputs in what]
    counted, noise = own.weights == "counts", summary["noise"]
    noisy = () if noise is None else (noise_told(noise),)
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
                "how many batches each data owner has gone through, and which were out of range",
                "who is in the sum of a round; its own shares, which look random",
                *(["how many images each data owner has, by which they count"] if counted else []),
            ),
            ("images and labels of anybody, adapters, head, loss and right answers: their sums go to the data owners",),
        ),
        Exposure(
            "dealer",
            (
                "how much material was asked for, by whom and when; who was in a round, and who was lost",
                "the sum of the data owners' shares, which looks random without the model owner's",
            ),
            ("anything of the model, of images, of labels, or of what was learned",),
        ),
        Exposure(
            "anybody on the network",
            ("addresses, sizes and times of packets, which are encrypted (CURVE)",),
            ("contents; a key that is not in the roster does not get beyond the handshake",),
        ),
        OWNER_OF_ALL,
    ]


def noise_told(noise: SumNoiseFigures) -> str:
    """What the model owner's noise on its sums guarantees."""
    weak = ", which guarantees next to nothing: what protects is how few sums are opened"
    return (
        f"the model owner's noise on them: standard deviation {noise['deviation']:g} on every common parameter; after "
        f"{noise['sums']} sums epsilon is {noise['epsilon']:.3g} for delta {noise['delta']:g}, the whole model "
        f"being the unit{weak if noise['epsilon'] > MOST_EPSILON else ''}"
    )


def collusions(experiment: AdaptationExperiment) -> list[Collusion]:
    """Who together sees more than the parties by themselves."""
    own, clients = experiment.adaptation, experiment.clients
    counted = (
        Collusion(
            f"{own.colluders} data owners, whom adaptation.colluders counts",
            f"the sum over at least {own.smallest_cohort} others",
            f"what any one of these has learned, among {own.smallest_cohort - 1} more",
        ),
    )
    return [
        Collusion(
            "model owner and dealer",
            "images and labels of every data owner, and what each has learned: the dealer knows all masks",
            "nothing",
        ),
        Collusion(
            "a data owner and the dealer",
            "the model: its masked weights and their masks",
            "images and labels of the other data owners, and what each has learned",
        ),
        *(counted if own.colluders else ()),
        Collusion(
            f"{clients - 1} of {clients} data owners",
            "what the last one has learned in every round that it was in, as in federated learning",
            "of its batches nothing is told beyond that",
        ),
        Collusion(
            "model owner and data owners",
            "the common adapters; of the other data owners no more than the sum over them",
            "images and labels of the others, and what each has learned",
        ),
    ]


def sums_state(state: RunState, summary: AdaptationFigures) -> RunState:
    """The state of a closed run without what is in no sum: the model owner, and rounds in which nobody learns."""
    rows = {row["round"]: row for row in summary["rounds"]}
    rounds = [round for round in state.rounds if round.number in rows]
    for round in rounds:
        round.lost = rows[round.number]["status"] == "lost"
    parties = {name: party for name, party in state.parties.items() if name != MODEL_OWNER}
    for name, owner in summary["owners"].items():
        parties[name].trained = owner["seconds"]
    return replace(state, parties=parties, rounds=rounds)


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
    whole = state_of(folder, tuple(summary["owners"])).close()
    state = sums_state(whole, summary)
    dealer = state.parties[DEALER]
    owners = summary["owners"].values()
    values = {
        "title": f"{experiment.name} \N{EN DASH} Tacit report",
        "experiment": experiment,
        "summary": summary,
        "state": state,
        "completed": [row for row in summary["rounds"] if row["status"] == "completed"],
        "notices": _notices(experiment, summary, incidents(whole)),
        "curves": _curves(summary),
        "passes": {
            key: sum(owner[key] for owner in owners)
            for key in ("batches", "refused", "seconds", "bytes_sent", "bytes_received", "weights_bytes")
        },
        "material": sum(summary["dealer_bytes"].values()),
        "moved": sum((dealer.sent + dealer.received).values()),
        "bars": bars_of(dealer, state.clients),
        "phases": [phase_row(phase, dealer, state.clients) for phase in PHASES],
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


def _notices(experiment: AdaptationExperiment, summary: AdaptationFigures, happened: Sequence[Incident]) -> list[str]:
    """What a reader must know first; nothing if all went well and the model was protected."""
    told, rounds = summary["reveal"], summary["rounds"]
    notices = [] if told == "none" else [f'reveal = "{told}": {GIVES_AWAY}.']
    completed, planned = sum(row["status"] == "completed" for row in rounds), experiment.federation.rounds
    if completed < planned:
        notices.append(f"{completed} of {planned} rounds were completed. The sums ended: {summary['ended']}.")
    notices += [incident.text for incident in happened[:MOST_INCIDENTS]]
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
