"""The page: what it says, that it needs nothing else, and that it stands whatever the logs lack."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

from tacit.parties.runs.classes import described
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
from tacit.parties.runs.events import ClassesEvaluated, ClientCheated
from tacit.parties.runs.experiment import Experiment, ExperimentError, holds, keys
from tacit.parties.runs.reading import read_state
from tacit.parties.session.events import HandshakeRefused, LinkOpened, UpdateComputed, WorkMeasured
from tacit.protocol.session.events import RoundStarted
from tacit.simulate.report.page import MOST_INCIDENTS, make_report, write_report

VOID = {"meta", "br", "hr", "img", "input", "link"}
LOADS = {"src", "srcset", "href", "xlink:href", "data", "poster", "action", "background", "cite"}
SEMI_HONEST = '[aggregation]\nmode = "semi-honest"\n[policy]\nmodes = ["semi-honest"]\nsmallest_cohort = 2\n'

pytestmark = pytest.mark.usefixtures("undrawn")


class Page(HTMLParser):
    """The page as a reader gets it: its text, identifiers, references; fails on tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name in LOADS:
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)


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
    """The page of the eventful run."""
    return make_report(eventful.run)


def test_it_tells_what_happened(markup: str) -> None:
    text = Page(markup).text
    for sentence in (
        "Final accuracy 0.375 on the test images; balanced over the classes 0.188; loss 0.667",
        "Rounds 2 completed, of 3 planned",
        "Wall time 13 s 2 sessions",
        "a lying server learns no more; threshold 3 of 4 clients",
        "2 of 3 rounds were completed. Last session: all rounds are done.",
        "Round 2 was aborted (THRESHOLD): only 1 clients sent a vector; 2 are needed. The model stayed as it was.",
        "Session 1 stopped in round 3. Session 2 repeated the round.",
        "THRESHOLD only 1 clients sent a vector; 2 are needed",
        "1 client-2 MASKED_INPUT TIMEOUT it did not answer in time yes",
        "1 client-3 MASKED_INPUT TIMEOUT it did not answer in time no",
        "client-4 stopped: its log ends here",
        "2 sums over 3 to 4 clients",
        "a mixture of the updates of at least 2 others",
        "24 bits per word; 3.02 kB per client and round",
        "Clipped coordinates by round",
        "Round 3 completed, the last, 3 s",
        "Round 1 completed, the slowest, 3 s, 2 dropped",
        "Round 2 aborted, 3 s",
    ):
        assert sentence in text, sentence


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


@pytest.mark.parametrize(
    ("toml", "expected"),
    [("", "This holds even if the server lies, and up to 1 of 4"), (SEMI_HONEST, "does not defend against a server")],
)
def test_what_the_server_could_see_depends_on_the_mode(script: Any, toml: str, expected: str) -> None:
    run = script(toml=toml)
    run.session()
    run.round(1)
    text = page(run).text
    assert expected in text
    assert ("the signed list of survivors" in text) == (toml == "")


def test_a_sum_of_two_is_a_warning(script: Any) -> None:
    run = script(clients=2, toml=SEMI_HONEST)
    run.session()
    run.round(1)
    text = page(run).text
    assert "each of them can work out the update of the other" in text
    assert "the update of the one other client, because a sum had only two" in text


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


def test_of_many_incidents_the_first_are_told(script: Any) -> None:
    run = script()
    run.session()
    for number in range(1, MOST_INCIDENTS + 4):
        run.round(number, status="aborted")
    run.end()
    text = page(run).text
    assert f"Round {MOST_INCIDENTS} was aborted" in text
    assert f"Round {MOST_INCIDENTS + 1} was aborted" not in text
    assert "3 more incidents are in summary.json and in the tables below." in text


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


def test_waiting_is_told_apart_from_computing(script: Any) -> None:
    run = script()
    run.session()
    update = UpdateComputed(round=1, kept=0, layers=[], training_seconds=0.75, choosing_seconds=0.0, uncounted=0)
    run.log("client-1", update)
    run.log("client-1", WorkMeasured(seconds={"masking": 0.125, "sharing": 0.125}), after=1.0)
    run.log("server", WorkMeasured(seconds={"summing": 0.25}), after=1.0)
    run.round(1)
    run.end()
    state = read_state(run.run.path / "events")
    assert state.parties["client-1"].activities == {
        "training": 0.75,
        "computing the protocol": 0.25,
        "waiting": 1.75,
        "between rounds": 0.25,
    }
    assert (
        "Rounds took 2.75 s of the server's time. For 2 s of it the server waited for the clients' vectors, and no "
        "client trained for more than 750 ms; from then to the sums it was 750 ms more, of which the server computed "
        "250 ms at most."
    ) in page(run).text


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


def test_a_cheat_is_told_first_and_among_the_warnings(script: Any) -> None:
    run = script()
    run.session()
    run.log("client-2", ClientCheated(round=1, how="words", detail="it sent noise"), after=0.5)
    run.round(1)
    run.end()
    text = page(run).text
    assert "client-2 cheated in round 1: it sent noise." in text
    assert "client-2 cheats: it sent noise" in text


def test_it_is_written_where_the_run_is(script: Any) -> None:
    run = script().run
    path = write_report(run)
    assert path == run.path / "report.html"
    assert path.read_text(encoding="utf-8") == make_report(run)
    other = run.path / "other.html"
    assert write_report(run, out=other) == other
    assert other.read_bytes() == path.read_bytes()


def test_a_directory_without_an_experiment_is_refused(tmp_path: Any) -> None:
    with pytest.raises(RunDirectoryError, match=r"is no run directory: experiment\.toml is missing"):
        RunDirectory.of_a_run(tmp_path)


def test_a_broken_experiment_is_refused(script: Any) -> None:
    run = script().run
    run.experiment.write_text("name = 3\n")
    with pytest.raises(ExperimentError, match=r"experiment\.toml: name = 3"):
        make_report(run)
