"""What the page says, from recorded logs: the same whenever it is opened."""

from __future__ import annotations

from typing import Any

from tacit.parties.runs.experiment import load
from tacit.parties.runs.reading import recorded
from tacit.parties.session.events import LinkLost, PhaseEnded, SessionEnded, WaitingChanged
from tacit.protocol.core.errors import Code
from tacit.protocol.session.events import ClientJoined, RoundStarted
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase
from tacit.simulate.dashboard.view import MOST_ROWS, MOST_TIMELINES, MOST_WARNINGS, Live, page, sections
from tacit.simulate.report.reasons import REASONS
from tests.simulate.conftest import at
from tests.simulate.pages import Page


def live_of(run: Any, **options: Any) -> Live:
    return Live(load(run.run.experiment), recorded(run.run.path / "events"), **options)


def text_of(live: Live) -> str:
    return Page(page(live)).text


def test_an_open_round_says_where_it_is_and_who_is_waited_for(script: Any) -> None:
    run = script()
    run.session()
    live = live_of(run)
    live.take(at(run.now, "server", RoundStarted(round=1, cohort=run.clients)))
    trained = PhaseEnded(round=1, phase=Phase.TRAIN, seconds=1.0, next=Phase.MASKED_INPUT)
    live.take(at(run.now + 1, "server", trained))
    live.take(at(run.now + 2, "server", WaitingChanged(on=["client-1", "client-3"])))
    text = text_of(live)
    assert "Round 1 of 3" in text
    assert "advertise keys share keys train masked input consistency check unmask" in text
    assert "Waits for client-1, client-3" in text
    assert "client-1 waited for" in text
    now = sections(live)["now"]
    assert now.count('class="past"') == 3
    assert f'<li class="present">masked input<span class="since" data-since="{run.now + 1:.3f}">' in now
    dropped = ClientDropped(member="client-3", phase=Phase.MASKED_INPUT, code="TIMEOUT", detail="late")
    live.take(at(run.now + 3, "server", dropped))
    assert "client-3 lost in masked input" in text_of(live)
    live.take(at(run.now + 4, "server", SessionEnded(code=None, detail="all rounds are done")))
    assert "Ended: all rounds are done" in text_of(live)
    assert "Waits for" not in text_of(live)


def test_what_comes_from_the_network_is_text(eventful: Any) -> None:
    html = page(live_of(eventful))
    found = Page(html)
    assert "</li><script>document.title='taken'</script>" in found.text
    assert found.tags.count("script") == 1
    assert "img" not in found.tags


def test_it_loads_only_its_own_files_and_has_nothing_inline(eventful: Any) -> None:
    found = Page(page(live_of(eventful)))
    assert found.references == ["data:,", "dashboard.css", "dashboard.js"]
    assert found.inline == []
    assert "style" not in found.tags


def test_opened_late_it_is_the_same(eventful: Any) -> None:
    early = live_of(eventful)
    late = Live(early.experiment)
    for event in recorded(eventful.run.path / "events"):
        late.take(event)
    assert sections(late) == sections(early)
    html = page(early)
    for text in sections(early).values():
        assert text.strip() in html


def test_a_long_run_takes_bounded_room(script: Any) -> None:
    run = script()
    run.session()
    for number in range(1, MOST_ROWS + 6):
        run.round(number)
    live = live_of(run)
    assert [bool(round.spans) for round in live.state.rounds] == [False] * (MOST_ROWS + 5 - MOST_TIMELINES) + [
        True
    ] * MOST_TIMELINES
    live.take(at(run.now, "server", ClientJoined(member="client-1")))
    for number in range(MOST_WARNINGS + 7):
        live.take(at(run.now + number, "server", LinkLost(peer="client-1")))
    assert (len(live.state.warnings), live.forgotten) == (MOST_WARNINGS, 7)
    shown = sections(live)
    assert shown["rounds"].count("<tr>") == 1 + MOST_ROWS
    assert "5 more are in the event logs." in shown["rounds"]
    assert f"{MOST_WARNINGS + 7 - MOST_ROWS} more are in the event logs." in shown["trouble"]


def test_every_code_has_words() -> None:
    assert set(REASONS) == set(Code)
