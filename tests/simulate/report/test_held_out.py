"""Accuracy on held-out images wherever a run is shown: it is never taken for that on the server's test images, and is
said to be of the model that its round began with."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tacit.parties.runs.experiment import load
from tacit.parties.runs.reading import read_state, recorded
from tacit.parties.runs.summary import summarise
from tacit.parties.session.events import HeldOut
from tacit.simulate.dashboard.metrics import Metrics
from tacit.simulate.dashboard.view import Live, page
from tacit.simulate.report.page import make_report

pytestmark = pytest.mark.usefixtures("undrawn")


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL).split())


@pytest.fixture
def judged(script: Any) -> Any:
    """Of three rounds the second has no sum, so that the third judges the same model."""
    run = script()
    run.session()
    run.round(1, held_out=0.625)
    run.round(2, status="aborted")
    run.round(3, held_out=0.75)
    run.end()
    return run


def test_summary(judged: Any) -> None:
    rounds = summarise(judged.run, load(judged.run.experiment), ended="").rounds
    assert [one.held_out for one in rounds] == [
        HeldOut(round=0, images=40, accuracy=0.625, loss=0.5),
        None,
        HeldOut(round=2, images=40, accuracy=0.75, loss=0.5),
    ]
    assert [one.accuracy for one in rounds] == [0.125, 0.25, 0.375]


def test_report(judged: Any) -> None:
    html = make_report(judged.run)
    text = text_of(html)
    assert "Held-out accuracy 0.750 of the model after round 2, on 40 images that clients do not train on" in text
    assert "Final accuracy 0.375 on the test images" in text
    assert "Training loss Held-out accuracy before it In the sum" in text
    assert "1 completed 0.125 0.062 2.000 0.500 1.500 0.625 4 of 4" in text
    assert "3 completed 0.375 0.188 0.667 0.500 1.500 0.750 4 of 4" in text
    assert "held-out images (secure sum)" in html
    assert "of images that they do not train on as well" in text


def test_dashboard(judged: Any) -> None:
    live = Live(load(judged.run.experiment), recorded(judged.run.path / "events"))
    text = text_of(page(live))
    assert "Held-out accuracy 75.0% of the model after round 2, on 40 images that clients do not train on" in text
    assert "tacit_held_out_accuracy 0.75\n" in Metrics(lambda: live.state).text().decode()
    assert "tacit_accuracy 0.375\n" in Metrics(lambda: live.state).text().decode()


def test_figures_of_the_training_are_not_called_those_of_test_images(script: Any) -> None:
    run = script()
    run.session(evaluates="sums")
    run.round(1)
    run.end()
    html = make_report(run.run)
    assert "Final accuracy 0.125 on the images that clients train on, by their sum" in text_of(html)
    live = text_of(page(Live(load(run.run.experiment), recorded(run.run.path / "events"))))
    assert "on the images that clients train on, by their sum" in live
    for shown in (html, live):
        assert "test images" not in shown
        assert "Test metrics" not in shown


def test_nothing_is_said_where_nothing_is_held_out(script: Any) -> None:
    run = script()
    run.session()
    run.round(1)
    live = Live(load(run.run.experiment), recorded(run.run.path / "events"))
    assert read_state(run.run.path).held_out == []
    for html in (page(live), make_report(run.run)):
        # The experiment's own key has a row among the settings.
        assert "held-out" not in html.lower().replace("held_out", "")
    assert "tacit_held_out_accuracy 0" not in Metrics(lambda: live.state).text().decode()
