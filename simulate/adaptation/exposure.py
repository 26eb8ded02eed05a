"""What each party of an adaptation could see, and who together sees more, in words.

The sentences follow the protocol: parties/adaptation/stages.py and simulate/insecure/revealed_outputs.py say what a
pass opens, and to whom, protocol/adaptation/sums.py which sums are told, and docs/decisions/016-double-blind.md what it
comes to.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.reveals import GIVES_AWAY
from tacit.parties.runs.summary import MOST_EPSILON
from tacit.simulate.report.adaptation_outputs import AdaptationFigures, SumNoiseFigures
from tacit.simulate.report.exposure import OWNER_OF_ALL, Exposure


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
    own, clients = experiment.adaptation, experiment.federation.clients
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
