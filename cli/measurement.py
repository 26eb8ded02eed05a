"""`tacit experiment` for what needs no federation: measured in this process, written like the others."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def run_measurement(
    name: str, *, small: bool, seeds: str, data: Path | None, device: str, out: Path | None, json_file: Path | None
) -> int:
    """Measure and write; returns the exit status."""
    from tacit.cli.outcome import FAILED, INTERRUPTED, WRONG_INPUT, complain
    from tacit.simulate.experiments.page import command_line
    from tacit.simulate.experiments.seeds import SeedsError, read_seeds
    from tacit.simulate.experiments.tastan_approximations import MEASUREMENTS, measure, setting
    from tacit.simulate.experiments.tastan_page import write
    from tacit.simulate.private_inference.distillation import ResultsError, claim

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    measurement = MEASUREMENTS[name]
    directory = out or Path("runs") / (f"{name}-small" if small else name)
    begun = False
    try:
        chosen = setting(small=small, data=data)
        numbers = read_seeds(seeds)
        claim(directory)
        with console.status("training the teacher") as status:

            def progress(line: str) -> None:
                nonlocal begun
                begun = True
                console.print(line, markup=False, soft_wrap=True)
                status.update(measurement.shows)

            figures = measure(measurement, chosen, seeds=numbers, device=device, progress=progress)
        command = command_line(name, small=small, seeds=seeds, data=data, device=device)
        verdicts = write(
            measurement, chosen, figures, small=small, command=command, directory=directory, json_file=json_file
        )
    except KeyboardInterrupt:
        return complain(errors, "interrupted; nothing is kept", INTERRUPTED)
    except (SeedsError, ResultsError) as error:
        return complain(errors, error, WRONG_INPUT)
    except (ValueError, OSError, FloatingPointError) as error:
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
        return complain(errors, error, FAILED if begun else WRONG_INPUT)
    for verdict in verdicts:
        word = "holds" if verdict.holds else "DOES NOT HOLD"
        console.print(f"{word}: {verdict.claim} ({verdict.detail})", markup=False, soft_wrap=True)
    console.print(f"table.md, table.json and plot.svg are in {directory}", markup=False, soft_wrap=True)
    return 0
