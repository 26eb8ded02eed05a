"""The display of `tacit adapt`: which events are lines, and what its progress says."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from tacit.cli.adaptation_screen import AdaptationScreen
from tacit.parties.adaptation.events import AdaptersEvaluated, AdaptersUpdated, BatchEnded, LearningRoundLost
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.events import PartyFailed
from tacit.parties.session.events import SessionEnded
from tacit.protocol.core.events import Event

BATCH = BatchEnded(party="data-owner-1", round=1, number=2, preprocessing_bytes=10)


def shown(*events: Event) -> tuple[list[str], str]:
    text = io.StringIO()
    base = AdaptationExperiment()
    experiment = msgspec.structs.replace(base, adaptation=msgspec.structs.replace(base.adaptation, batches=3))
    screen = AdaptationScreen(Console(file=text, highlight=False, width=200), experiment)
    for event in events:
        screen.show(event)
    return text.getvalue().splitlines(), str(screen.progress.text)


def test_an_evaluation_is_one_line_with_what_was_learned() -> None:
    evaluated = AdaptersEvaluated(round=0, accuracy=0.2, balanced_accuracy=0.25, loss=1.5)
    learned = AdaptersUpdated(party="data-owner-1", round=1, owners=4, images=32, train_loss=1.25, train_accuracy=0.5)
    lines, _ = shown(evaluated, learned, msgspec.structs.replace(evaluated, round=1))
    assert lines == [
        "before learning: test accuracy 0.200, balanced 0.250",
        "round 1: test accuracy 0.200, balanced 0.250; while learning: loss 1.250, accuracy 0.500 on 32 images of 4 "
        "data owners",
    ]


def test_of_the_parties_only_warnings_are_lines_and_a_lost_round_is_one_line() -> None:
    lost = LearningRoundLost(party="data-owner-1", round=2, detail="nobody said who survived")
    lines, _ = shown(
        lost,
        msgspec.structs.replace(lost, party="data-owner-2"),
        SessionEnded(party="data-owner-2", code=None, detail="all rounds are done"),
        PartyFailed(party="data-owner-3", reason="its process ended"),
    )
    assert lines == ["data-owner-1: round 2 is lost: nobody said who survived", "data-owner-3: its process ended"]


def test_progress_counts_the_batches_of_data_owners_in_the_present_round() -> None:
    ahead = msgspec.structs.replace(BATCH, party="data-owner-2", number=1, round=2)
    teacher = msgspec.structs.replace(BATCH, party="model-owner", peer="data-owner-1")
    experiment = AdaptationExperiment()
    rounds, owners = experiment.federation.rounds, experiment.clients
    assert shown(BATCH, teacher)[1] == f"round 1 of {rounds}: 2 of {3 * owners} batches"
    assert shown(BATCH, ahead, teacher)[1] == f"round 2 of {rounds}: 1 of {3 * owners} batches"
