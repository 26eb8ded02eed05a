"""The page in a real Chromium: by daylight and at night, on a desk and on a telephone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tacit.parties.session.events import SessionEnded, WaitingChanged
from tacit.protocol.session.events import RoundStarted
from tests.simulate.conftest import now

pytestmark = pytest.mark.end_to_end
PATIENCE = 60_000
"""Milliseconds."""
SIZES = {"desktop": (1280, 800), "telephone": (360, 640)}


class Watched:
    """A page, with all that it asked for and all that it complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[tuple[str, str]] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append((request.method, request.url)))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", lambda request: self.complaints.append(f"{request.url}: {request.failure}"))


@pytest.fixture
def visit(browser: Browser) -> Iterator[Any]:
    """visit(link, size=, scheme=) opens a page in a window of its own, and waits until it is live."""
    opened = []

    def visit(link: str, size: str = "desktop", scheme: Any = "light") -> Watched:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        opened.append(context)
        watched = Watched(context.new_page())
        watched.page.goto(link)
        watched.page.wait_for_selector("#connection.live")
        return watched

    yield visit
    for context in opened:
        context.close()


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("telephone", "dark")])
def test_it_fits_is_readable_and_asks_nobody_else(show: Any, eventful: Any, visit: Any, size: str, scheme: str) -> None:
    reader = show(eventful)
    watched = visit(reader.dashboard.link, size, scheme)
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    # Nothing hangs out of the page, or is cut off at its edge.
    assert page.evaluate(
        "[...document.querySelectorAll('main *')].every(e => e.getBoundingClientRect().right <= innerWidth)"
    )
    assert page.evaluate(
        "[...document.querySelectorAll('svg text')].every(e => e.getBoundingClientRect().left >= "
        "e.ownerSVGElement.getBoundingClientRect().left)"
    )
    ink, paper = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    assert (brightness(ink) < brightness(paper)) == (scheme == "light")
    assert abs(brightness(ink) - brightness(paper)) > 180
    assert {url.removeprefix(f"http://127.0.0.1:{reader.port}/") for _, url in watched.requests} == {
        "", "dashboard.css", "dashboard.js", "events",
    }  # fmt: skip
    assert {method for method, _ in watched.requests} == {"GET"}
    assert watched.complaints == []


def brightness(colour: str) -> float:
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(", "))) / 3


def test_hostile_words_stay_words(show: Any, eventful: Any, visit: Any) -> None:
    reader = show(eventful)
    watched = visit(reader.dashboard.link)
    hostile = "</h2><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    reader.dashboard.take(now("server", SessionEnded(code="LOCAL", detail=hostile)))
    expect(watched.page.locator("#now h2").last).to_have_text(f"Ended: {hostile}", timeout=PATIENCE)
    assert watched.page.title() == "clinics – Tacit"  # noqa: RUF001
    assert watched.page.locator("img").count() == 0
    assert watched.complaints == []


def test_it_is_live_and_says_when_it_is_not(show: Any, script: Any, visit: Any) -> None:
    run = script()
    run.session()
    reader = show(run)
    watched = visit(reader.dashboard.link)
    page = watched.page
    assert page.inner_text("#now h2") == "Between rounds"
    reader.dashboard.take(now("server", RoundStarted(round=1, cohort=run.clients)))
    expect(page.locator("#now h2")).to_contain_text("Round 1 of 3", timeout=PATIENCE)
    reader.dashboard.take(now("server", WaitingChanged(on=["client-2"])))
    expect(page.locator("#now")).to_contain_text("Waits for client-2", timeout=PATIENCE)
    # Durations count on although nothing is sent.
    expect(page.locator("#now .since").first).to_have_text(re.compile(r"([2-9]|\d\d) s"), timeout=PATIENCE)
    assert watched.complaints == []
    reader.dashboard.close()
    page.wait_for_selector("#connection.lost")
    assert page.inner_text("#connection").startswith("no connection: the run is over, or out of reach; as of ")
    assert "Waits for client-2" in page.inner_text("#now")


def test_a_run_that_is_over_is_no_lost_connection(show: Any, script: Any, visit: Any) -> None:
    run = script()
    run.session()
    reader = show(run)
    page = visit(reader.dashboard.link).page
    reader.dashboard.take(now("server", SessionEnded(code=None, detail="all rounds are done")))
    expect(page.locator("#now h2")).to_contain_text("Ended", timeout=PATIENCE)
    reader.dashboard.close()
    expect(page.locator("#connection")).to_have_text("the run is over", timeout=PATIENCE)
    assert page.locator("#connection.lost").count() == 0


def test_the_link_with_the_token_leads_to_the_page_and_leaves_no_trace(show: Any, eventful: Any, visit: Any) -> None:
    reader = show(eventful, "0.0.0.0:0")
    token = reader.dashboard.link.partition("#")[2]
    watched = visit(reader.dashboard.link.replace("0.0.0.0", "127.0.0.1"), "telephone")
    assert watched.page.url == f"http://127.0.0.1:{reader.port}/"
    assert "Round 3 was stopped" in watched.page.inner_text("#now")
    assert not [url for _, url in watched.requests[1:] if token in url]
    assert watched.page.evaluate("document.cookie") == ""
    assert watched.complaints == []
    watched.page.go_back(wait_until="commit")
    assert token not in watched.page.url


def test_a_link_of_another_run_leads_nowhere(show: Any, eventful: Any, browser: Browser) -> None:
    reader = show(eventful, "0.0.0.0:0")
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{reader.port}/enter#{'x' * 43}")
    page.wait_for_selector("text=This link is not valid any more")
    page.close()
