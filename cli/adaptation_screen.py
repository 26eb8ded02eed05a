"""The display of `tacit adapt`: a line for each evaluation and warning, and the progress of a round."""

from __future__ import annotations

from rich.console import Console

from tacit.cli import output
from tacit.cli.progress import Progress
from tacit.parties.adaptation.events import (
    AdaptersEvaluated,
    BatchEnded,
    ImagesKept,
    LearningRoundLost,
    PreparationStarted,
)
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.state import RunState
from tacit.protocol.core.events import Event
from tacit.simulate.federation.party_files import DEALER


class AdaptationScreen:
    def __init__(self, console: Console, experiment: AdaptationExperiment) -> None:
        self.begun = False
        """Whether a party has reported anything."""
        self.progress = Progress(console)
        self._console = console
        self._rounds = experiment.federation.rounds
        self._most_batches = experiment.adaptation.batches * experiment.clients
        self._state = RunState(server=DEALER)

    def show(self, event: Event) -> None:
        again = isinstance(event, LearningRoundLost) and event.round in self._state.unlearned
        line = self._state.take(event)
        self.begun = self.begun or bool(event.party)
        if isinstance(event, PreparationStarted):
            self.progress.update(line.text)
        elif isinstance(event, ImagesKept) and not event.peer:
            self.progress.update(self._passing())
        elif isinstance(event, BatchEnded) and not event.peer:
            self.progress.update(self._progress(event.round))
        elif isinstance(event, AdaptersEvaluated):
            learned = self._state.learned.get(event.round)
            output.say(self._console, f"{line.text}; {learned.summary}" if learned else line.text)
        elif line.level == "warning" and not again:
            output.say(self._console, f"{line.party}: {line.text}" if line.party else line.text, "yellow")

    def _passing(self) -> str:
        last = [party.kept[-1] for party in self._state.parties.values() if party.kept]
        own = [kept for kept in last if not kept.peer]
        return f"{sum(kept.images for kept in own)} of {sum(kept.of for kept in own)} images have passed the blocks"

    def _progress(self, round: int) -> str:
        last = [party.batches[-1] for party in self._state.parties.values() if party.batches]
        done = sum(batch.number for batch in last if batch.round == round and not batch.peer)
        return f"round {round} of {self._rounds}: {done} of {self._most_batches} batches"
