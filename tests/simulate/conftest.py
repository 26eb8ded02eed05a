"""Runs that never took place: event logs written by hand, with known times and bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.text import Text

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import parse
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.summary import RoundMetrics, Summary
from tacit.parties.session.events import (
    ConfigurationProposed,
    Dropout,
    HeldOut,
    LinkOpened,
    ListeningStarted,
    PhaseEnded,
    RoundEnded,
    SessionEnded,
    TrafficCounted,
)
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase
from tacit.simulate.report import figures, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BEGAN = 1_800_000_000.0
PHASE_ENDS = {
    Phase.ADVERTISE_KEYS: 0.5,
    Phase.SHARE_KEYS: 1.0,
    Phase.TRAIN: 2.0,
    Phase.MASKED_INPUT: 2.5,
    Phase.ANSWER_COMPLAINTS: 2.5,
    Phase.CONSISTENCY_CHECK: 2.625,
    Phase.UNMASK: 2.75,
    Phase.SESSION: 3.0,
}
"""Seconds after a round began; all are exact in binary, so that sums of differences are too."""
ROUND_SECONDS = PHASE_ENDS[Phase.SESSION]


def at(time: float, party: str, event: Event) -> Event:
    return msgspec.structs.replace(event, time=time, party=party)


def now(party: str, event: Event) -> Event:
    return at(time.time(), party, event)


def configured(clients: int = 4, **more: Any) -> ConfigurationProposed:
    """A configuration for so many clients; more: fields that are others."""
    fields: dict[str, Any] = {
        "parameters": 1000,
        "ring_bits": 24,
        "vector_bytes": 3021,
        "step": 0.001,
        "max_weight": 100,
        "colluders": 1,
        "cohort": clients,
        "threshold": clients - 1,
        "neighbours": clients - 1,
        "configuration_hash": "ab" * 32,
        "clients": clients,
        "evaluates": "images",
    }
    return ConfigurationProposed(**{**fields, **more})


def ended(number: int, cohort: Sequence[str], **more: Any) -> RoundEnded:
    """A completed round of these clients; more: fields that are others."""
    fields: dict[str, Any] = {
        "round": number,
        "status": "completed",
        "code": None,
        "detail": "",
        "culprit": None,
        "cohort": list(cohort),
        "absent": {},
        "repeated": False,
        "survivors": list(cohort),
        "dropped": [],
        "seconds": ROUND_SECONDS,
    }
    return RoundEnded(**{**fields, **more})


def summed_up(**more: Any) -> Summary:
    """The summary of a run with no round yet, of two; more: fields that are others."""
    fields: dict[str, Any] = {
        **dict.fromkeys(Summary.__struct_fields__),
        "name": "digits",
        "wall_seconds": 3.25,
        "configuration": {"federation": {"rounds": 2}, "deadlines": {"join": 60.0}},
        "ended": "all rounds are done",
        **{key: [] for key in ("rounds", "incidents", "sessions", "verified")},
        "parties": {},
    }
    return Summary(**{**fields, **more})


def metrics_of(over: RoundEnded, **more: Any) -> RoundMetrics:
    """A round of a summary; more: what it has beside the event."""
    fields = {key: value for key, value in msgspec.structs.asdict(over).items() if key not in ("time", "party")}
    return RoundMetrics(**fields, **more)


class ScriptedRun:
    """Writes the run directory of a federation, event by event. `now` is the time of the next session or round."""

    def __init__(self, path: Path, *, clients: int, toml: str) -> None:
        self.run = RunDirectory.create(path)
        experiment = parse(f"{toml}\n[federation]\nclients = {clients}\nrounds = 3\n", "script")
        self.run.experiment.write_text(experiment_toml(experiment))
        self.clients = [f"client-{number + 1}" for number in range(clients)]
        self.now = BEGAN
        self.gone: set[str] = set()
        """Clients that were killed in this session."""

    def log(self, party: str, event: Event, *, after: float = 0.0) -> None:
        """An event, `after` seconds from now."""
        with self.run.events(party).open("ab") as file:
            file.write(msgspec.json.encode(at(self.now + after, party, event)) + b"\n")

    def log_line(self, party: str, tag: str, **fields: Any) -> None:
        with self.run.events(party).open("a") as file:
            file.write(json.dumps({"event": tag, "time": self.now, "party": party, **fields}) + "\n")

    def session(self, **proposed: Any) -> None:
        """The server is there, and the clients join. proposed: fields of the configuration that are others."""
        self.log("server", configured(len(self.clients), **proposed))
        self.log("server", ListeningStarted(address="tcp://127.0.0.1:5555"))
        for name in self.clients:
            self.log(name, LinkOpened(peer="server"), after=0.25)
        self.gone.clear()
        self.now += 0.5

    def round(
        self,
        number: int,
        *,
        status: str | None = "completed",
        dropped: dict[str, bool] | None = None,
        killed: Collection[str] = (),
        clipped: int = 0,
        held_out: float | None = None,
        judged: bool = True,
    ) -> None:
        """One round. status None: no result. dropped: in MASKED_INPUT, with whether the sum has its update.
        killed: clients whose logs end in MASKED_INPUT. held_out: accuracy of the model before it.
        judged: whether anybody evaluates the model."""
        dropped = dropped or {}
        cohort = [name for name in self.clients if name not in self.gone]
        self.gone |= set(killed)
        self.log("server", RoundStarted(round=number, cohort=cohort))
        for party in ("server", *cohort):
            began = 0.0
            for phase, end in PHASE_ENDS.items():
                if party in killed and phase is Phase.MASKED_INPUT:
                    break
                following = (
                    Phase.ADVERTISE_KEYS if phase is Phase.SESSION else [*PHASE_ENDS][[*PHASE_ENDS].index(phase) + 1]
                )
                passed = PhaseEnded(round=number, phase=phase, seconds=end - began, next=following)
                self.log(party, passed, after=end)
                self.log(party, TrafficCounted(round=number, phase=phase, sent=100, received=1000), after=end)
                began = end
        late = {"phase": Phase.MASKED_INPUT, "code": "TIMEOUT", "detail": "it did not answer in time"}
        for name in dropped:
            self.log("server", ClientDropped(member=name, **late), after=2.4375)
        if status is not None:
            done = status == "completed"
            self.log(
                "server",
                ended(
                    number,
                    cohort,
                    status=status,
                    code=None if done else "THRESHOLD",
                    detail="" if done else "only 1 clients sent a vector; 2 are needed",
                    survivors=[name for name in cohort if done and dropped.get(name, True)],
                    dropped=[Dropout(party=name, included_in_sum=dropped[name], **late) for name in dropped],
                    samples=300 if done else 0,
                    train_accuracy=0.5 if done and judged else None,
                    train_loss=1.5 if done and judged else None,
                    clipped=clipped if done else None,
                    accuracy=0.125 * number if judged else None,
                    balanced_accuracy=0.0625 * number if judged else None,
                    loss=2.0 / number if judged else None,
                    held_out=None
                    if held_out is None
                    else HeldOut(round=number - 1, images=40, accuracy=held_out, loss=0.5),
                ),
                after=ROUND_SECONDS,
            )
        self.now += ROUND_SECONDS

    def end(self) -> None:
        for party in ("server", *self.clients):
            if party not in self.gone:
                self.log(party, SessionEnded(code=None, detail="all rounds are done"))
        self.now += 1.0


Script = Callable[..., ScriptedRun]


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """script(clients=, toml=) begins a run in a directory of its own."""
    return lambda clients=4, toml="": ScriptedRun(
        tmp_path_factory.mktemp("scripted") / "run", clients=clients, toml=toml
    )


def words_of(figure: Figure, name: str) -> Markup:
    words = (text.get_text() for text in figure.findobj(Text))
    return Markup("<svg>%s</svg>") % Markup().join(Markup("<text>%s</text>") % word for word in words if word)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a report are their words, and bars their title: to draw them takes longer than the rest of a page."""
    monkeypatch.setattr(figures, "_svg", words_of)
    for bars in ("party_bars", "timeline"):
        monkeypatch.setattr(page, bars, lambda *shown, title, **more: Markup("<svg><text>%s</text></svg>") % title)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser that finds no host but this one: whatever a page asks of others fails, and is seen."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=chromium, args=options, timeout=120_000)
        yield browser
        browser.close()
