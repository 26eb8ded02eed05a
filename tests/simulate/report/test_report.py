"""The page: what it says, that it needs nothing else, and that it stands whatever the logs lack."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tacit.parties.runs.classes import described
from tacit.parties.runs.events import ClassesEvaluated
from tacit.parties.runs.experiment import Experiment, holds, keys
from tacit.parties.session.events import HandshakeRefused, LinkOpened
from tacit.protocol.session.events import RoundStarted
from tacit.simulate.report.page import make_report
from tests.simulate.pages import Page

pytestmark = pytest.mark.usefixtures("undrawn")


def page(run: Any) -> Page:
    return Page(make_report(run.run))


@pytest.fixture(scope="module")
def eventful(script: Any) -> Any:
    """A dropout, an aborted round, a killed server, a resumed session, strangers, clipping."""
    run = script()
    run.session()
    run.log(
        "server",
        HandshakeRefused(reason="not in the roster", public_key="<script>alert(1)</script>", address="::1"),
    )
    run.round(1, dropped={"client-2": True, "client-3": False}, clipped=40)
    run.round(2, status="aborted")
    run.round(3, status=None, killed=["client-4"])
    run.now += 100.0
    run.session()
    run.round(3)
    run.end()
    return run


@pytest.fixture(scope="module")
def markup(eventful: Any) -> str:
    return make_report(eventful.run)


def test_what_strangers_write_is_text(markup: str) -> None:
    found = Page(markup)
    assert "script" not in found.tags
    assert "<script>alert(1)</script>" in found.text


def test_it_loads_nothing(markup: str) -> None:
    found = Page(markup)
    assert found.references
    assert all(reference.startswith("#") for reference in found.references)
    assert {reference[1:] for reference in found.references} <= set(found.ids)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & set(found.tags)
    assert "@import" not in markup
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in markup


def test_every_key_of_the_experiment_is_listed(script: Any) -> None:
    """Of other protections, and of sections that it does not have, nothing is."""
    text = page(script(toml='name = "other & <name>"')).text
    for key in keys(Experiment):
        if not key.is_section and holds(Experiment(), key):
            assert key.path in text
            assert key.description in text
    assert "protection.masked_layers" not in text
    assert "encryption.rekey_every" not in text
    assert text.startswith("other & <name>")


def test_logs_of_a_run_that_is_hardly_there(script: Any) -> None:
    run = script()
    assert "There is no event log of the server" in page(run).text
    run.log("client-1", LinkOpened(peer="server"))
    assert "There is no event log of the server" in page(run).text
    run.session()
    assert "0 of 3 rounds were completed" in page(run).text
    run.log("server", RoundStarted(round=1, cohort=run.clients))
    assert "Session 1 stopped in round 1. The round was not repeated." in page(run).text
    run.run.events("client-4").unlink()
    assert "The event logs of 1 of 4 clients are missing." in page(run).text


def test_what_nobody_judged_has_no_empty_curves_columns_or_figures(script: Any) -> None:
    """A step of one's own tells no accuracy: the rest of the page is as ever."""
    run = script()
    run.session(evaluates="sums")
    run.round(1, judged=False)
    run.end()
    found = page(run)
    assert "accuracy" not in found.text.partition("Time and traffic Rounds took")[0].lower()
    assert "reports neither accuracies nor losses" in found.text
    assert "No coordinate of any update was clipped." in found.text
    assert "1 completed 4 of 4 300" in found.text
    assert found.tags.count("svg") == 4 + 2


def test_who_was_lost_is_told_first_and_how_a_calm_run_went_too(markup: str, script: Any) -> None:
    head = Page(markup.partition("<dl")[0] + "</header></body></html>").text
    assert "client-2 was lost in round 1, in MASKED_INPUT: it did not answer in time. Its update is in the sum." in head
    assert "client-3 was lost in round 1, in MASKED_INPUT: it did not answer in time. Its update is not in the" in head
    told = [head.index(text) for text in ("client-3 was lost in round 1", "Round 2 was aborted", "Session 1 stopped")]
    assert told == sorted(told)
    run = script()
    run.session()
    for number in (1, 2, 3):
        run.round(number)
    run.end()
    assert "All 3 rounds were completed, and no client was lost." in page(run).text


def test_the_classes_of_the_last_model_are_drawn_and_listed_from_the_worst(script: Any) -> None:
    run = script()
    run.session()
    run.round(1)
    matrix = torch.tensor([[9, 1, 0], [4, 5, 1], [0, 0, 0]])
    run.log("server", ClassesEvaluated(found=described(1, ["healthy", "ill", "<unknown>"], matrix)))
    found = page(run)
    assert "By class, after round 1" in found.text
    assert "Class Accuracy Images ill 0.500 10 healthy 0.900 10 <unknown> – 0" in found.text  # noqa: RUF001
    assert "ill predicted as healthy (4), healthy predicted as ill (1), ill predicted as <unknown> (1)." in found.text
    assert "Confusion matrix" in found.text
