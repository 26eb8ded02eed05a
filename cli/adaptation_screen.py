"""The display of `tacit adapt`: a line for each evaluation and warning, the progress of a round, and final figures."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tacit.cli import output
from tacit.parties.adaptation.events import AdaptersEvaluated, BatchEnded, LearningRoundLost, PreparationStarted
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.state import RunState
from tacit.protocol.core.events import Event
from tacit.simulate.adaptation.plan import DEALER
from tacit.simulate.report.outputs import AdaptationFigures


class AdaptationScreen:
    """A line for each evaluation and warning, and the progress of the present round."""

    def __init__(self, console: Console, experiment: AdaptationExperiment) -> None:
        self.begun = False
        """Whether a party has reported anything."""
        self.status = console.status("starting")
        self._console = console
        self._rounds = experiment.federation.rounds
        self._most_batches = experiment.adaptation.batches * experiment.clients
        self._state = RunState(server=DEALER)

    def show(self, event: Event) -> None:
        """Take an event of a party, or of this process."""
        again = isinstance(event, LearningRoundLost) and event.round in self._state.unlearned
        line = self._state.take(event)
        self.begun = self.begun or bool(event.party)
        if isinstance(event, PreparationStarted):
            self.status.update(line.text)
        elif isinstance(event, BatchEnded) and not event.peer:
            self.status.update(self._progress(event.round))
        elif isinstance(event, AdaptersEvaluated):
            learned = self._state.learned.get(event.round)
            output.say(self._console, f"{line.text}; {learned.summary}" if learned else line.text)
        elif line.level == "warning" and not again:
            output.say(self._console, f"{line.party}: {line.text}" if line.party else line.text, "yellow")

    def _progress(self, round: int) -> str:
        """Batches of this round at all data owners."""
        last = [party.batches[-1] for party in self._state.parties.values() if party.batches]
        done = sum(batch.number for batch in last if batch.round == round and not batch.peer)
        return f"round {round} of {self._rounds}: {done} of {self._most_batches} batches"

    def finish(self, summary: AdaptationFigures, path: Path) -> None:
        """Print the final metrics."""
        batches, accuracy = summary["batches"], summary["final_balanced_accuracy"]
        result = "nothing was learned" if accuracy is None else f"balanced test accuracy {accuracy:.3f}"
        refused = f", {batches['refused']} of them out of range" if batches["refused"] else ""
        output.say(
            self._console,
            f"{result}; {batches['count']} batches{refused}, {batches['seconds'] or 0:.2f} s each and "
            f"{batches['waited_seconds'] or 0:.2f} s of waiting for correlated randomness, of which the dealer sent "
            f"{sum(summary['dealer_bytes'].values()) / 1e6:.1f} MB; {summary['wall_seconds']:.0f} s in all",
        )
        if summary["noise"] is not None:
            from tacit.simulate.adaptation.page import noise_told

            output.say(self._console, noise_told(summary["noise"]))
        output.say(self._console, f"everything is in {path}; ask what was learned: tacit predict {path}")
