"""`tacit adapt`: data owners learn beside a model that they do not get, on images that nobody else gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from tacit.cli import output
from tacit.cli.interruption import interruptible
from tacit.parties.runs.reveals import GIVES_AWAY

if TYPE_CHECKING:  # What it imports takes a moment to load.
    from tacit.simulate.report.outputs import AdaptationFigures


def adapt(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; `tacit config --adaptation` prints one."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of data owners.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of learning.")] = None,
    reveal: Annotated[
        Literal["none", "sampled", "all"] | None,
        typer.Option(
            help="Data owners receive nothing of what blocks leave (none). INSECURE, for comparison with the paper: "
            "they receive outputs of sampled blocks or of all, which gives the model away."
        ),
    ] = None,
    adapter: Annotated[
        Literal["parallel", "linear-probe"] | None,
        typer.Option(help="What is learned: adapters beside all blocks and a head, or the head alone."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Fixes model, division, batches and first adapters.")
    ] = None,
    device: Annotated[str, output.device_option("Where owners compute blocks: cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder; default runs/<time>-<name>.")] = None,
    json_file: Annotated[Path | None, output.json_option("Write summary.json here too.", metavar="FILE")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Adapt a model that nobody may see to images that nobody may see.

    A model owner has a vision transformer, data owners have images of other classes, and a dealer helps; each is a
    process of this machine. Adapters beside the model, and a head, are trained on secret shares between the model owner
    and each data owner, and every round the sums over the data owners are opened to them. Without arguments four data
    owners learn five digits beside a model that knows the others.

    Exit status: 0 all rounds completed; 1 the run failed; 2 wrong input; 3 a round was lost; 130 Ctrl-C.
    """
    from tacit.parties.runs.adaptation import AdaptationExperiment
    from tacit.parties.runs.directory import RunDirectoryError
    from tacit.parties.runs.experiment import load_as, with_overrides
    from tacit.simulate.federation.processes import ProcessError, warm_up
    from tacit.simulate.federation.run import default_directory

    with output.complaining(((ValueError, RunDirectoryError, FileNotFoundError), output.WRONG_INPUT)):
        base = AdaptationExperiment() if experiment is None else load_as(AdaptationExperiment, experiment)
        more = {"adaptation": {"reveal": reveal}}
        if adapter is not None and adapter != base.kind:
            base = base.with_adapter(adapter)
        chosen = with_overrides(base, clients=clients, rounds=rounds, seed=seed, more=more, where="command line")
        chosen.check_place()
    console = Console(highlight=False, quiet=quiet)
    if chosen.adaptation.reveal != "none":
        output.warn(f'reveal = "{chosen.adaptation.reveal}": {GIVES_AWAY}')
    with output.complaining(((RunDirectoryError,), output.WRONG_INPUT), (OSError, output.FAILED)):
        warm_up()
        with console.status("loading torch"):
            # Imported here, after all that can be judged without it, and while the fork server loads the same.
            from tacit.simulate.adaptation.plan import Folder
            from tacit.simulate.adaptation.run import adapt as run
            from tacit.simulate.adaptation.run import make_folder
        folder = Folder(out or default_directory(chosen.name))
        make_folder(chosen, folder)
    screen = _Screen(console, chosen)
    try:
        with screen.status:
            summary = asyncio.run(interruptible(run(chosen, folder, device=device, show=screen.show)))
    except KeyboardInterrupt:
        raise output.failure(f"interrupted; what was learned is in {folder.path}", output.INTERRUPTED) from None
    except (ProcessError, FloatingPointError) as error:
        raise output.failure(error, output.FAILED) from None
    except (ValueError, OSError) as error:
        if screen.begun:
            raise output.failure(error, output.FAILED) from None
        folder.run.discard()
        raise output.failure(error, output.WRONG_INPUT) from None
    output.keep_json(json_file, "adaptation", summary)
    screen.finish(summary, folder.path)
    raise _outcome(summary)


class _Screen:
    """A line for each round, as it is judged."""

    def __init__(self, console: Console, experiment: Any) -> None:
        self.begun = False
        """Whether a party has said something."""
        self.status = console.status("starting")
        self._console = console
        self._rounds = experiment.federation.rounds
        self._owners = experiment.clients
        self._batches = experiment.adaptation.batches
        self._done: dict[str, int] = {}
        self._learned: dict[int, dict[str, Any]] = {}

    def show(self, party: str, event: str, fields: dict[str, Any]) -> None:
        """What a party tells."""
        self.begun = self.begun or bool(party)
        if event == "preparing":
            self.status.update(f"preparing {fields['what']}")
        elif event == "narrow":
            output.warn(
                f"adaptation.margin: bounds with more room than {fields['margin']:g} do not fit the rings; batches may "
                "be refused"
            )
        elif event == "batch" and "waited_seconds" in fields:
            self._done[party] = fields["number"]
            done, number = sum(self._done.values()), fields["round"]
            self.status.update(f"round {number} of {self._rounds}: {done} of {self._batches * self._owners} batches")
        elif event == "round":
            self._done = {}
        elif event == "learned":
            self._learned[fields["round"]] = fields
        elif event == "round-lost" and fields["round"] not in self._learned:
            self._learned[fields["round"]] = {}
            output.say(self._console, f"round {fields['round']:>3} is lost: {fields['detail']}", "yellow")
        elif event == "session-lost":
            output.say(self._console, f"{party}: its session is lost: {fields['detail']}", "yellow")
        elif event == "lost":
            output.say(self._console, f"{party} is lost: {fields['detail']}", "yellow")
        elif event == "judged":
            self._tell(fields)

    def _tell(self, judged: dict[str, Any]) -> None:
        number = judged["round"]
        line = f"test accuracy {judged['accuracy']:.3f}, balanced {judged['balanced_accuracy']:.3f}"
        if not number:
            output.say(self._console, f"before learning: {line}")
            return
        words = output.learned_words(self._learned[number])
        output.say(self._console, f"round {number:>3} of {self._rounds}  {line}; {words}")

    def finish(self, summary: AdaptationFigures, path: Path) -> None:
        """What came of it."""
        batches, accuracy = summary["batches"], summary["final_balanced_accuracy"]
        told = "nothing was learned" if accuracy is None else f"balanced test accuracy {accuracy:.3f}"
        refused = f", {batches['refused']} of them out of range" if batches["refused"] else ""
        output.say(
            self._console,
            f"{told}; {batches['count']} batches{refused}, {batches['seconds'] or 0:.2f} s each and "
            f"{batches['waited_seconds'] or 0:.2f} s of waiting for material, of which the dealer sent "
            f"{sum(summary['dealer_bytes'].values()) / 1e6:.1f} MB; {summary['wall_seconds']:.0f} s in all",
        )
        if summary["noise"] is not None:
            from tacit.simulate.adaptation.page import noise_told

            output.say(self._console, noise_told(summary["noise"]))
        output.say(self._console, f"everything is in {path}; ask what was learned: tacit predict {path}")


def _outcome(summary: AdaptationFigures) -> typer.Exit:
    """0 if every round was learned."""
    planned = summary["configuration"]["federation"]["rounds"]
    completed = sum(entry["status"] == "completed" for entry in summary["rounds"])
    if completed == planned:
        return typer.Exit()
    lost = next((entry for entry in summary["rounds"] if entry["status"] != "completed"), None)
    reason = summary["ended"] if lost is None else f"round {lost['round']}: {lost['detail']}"
    return output.failure(f"{completed} of {planned} rounds were completed; {reason}", output.ABORTED)
