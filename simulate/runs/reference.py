"""The documentation of the experiment file, generated from its structs: commented files, and a reference page.

Nothing here is written by hand twice: descriptions, accepted values and defaults all come from the annotations.
"""

import textwrap
from collections.abc import Iterator
from operator import attrgetter

from tacit.simulate.runs.experiment import Experiment
from tacit.simulate.runs.explain import Key, accepted, keys, literal

_WIDTH = 100


def experiment_toml(experiment: Experiment) -> str:
    """An experiment as TOML, every key explained in comments; parses back to the same experiment."""
    return "\n".join(_toml_lines(experiment)) + "\n"


def reference_markdown() -> str:
    """The reference page of the experiment file (docs/configuration.md): a table for each section."""
    return "\n".join(_markdown_lines()) + "\n"


def _toml_lines(experiment: Experiment) -> Iterator[str]:
    for key in keys(Experiment):
        if key.is_section:
            yield from ["", f"# {key.description}", f"[{key.path}]"]
            continue
        text = f"{key.description} Accepted: {accepted(key.type)}."
        yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
        value = attrgetter(key.path)(experiment)
        yield f"# {_name(key)} = 0" if value is None else f"{_name(key)} = {literal(value, longest=None)}"


def _markdown_lines() -> Iterator[str]:
    head = ["", "| key | default | accepted | meaning |", "|---|---|---|---|"]
    yield from [
        "# The experiment file",
        "",
        "An experiment is one TOML file. Every key has a default, so that a file needs only what differs. An unknown",
        "key, a value out of range or keys that contradict each other are refused before anything starts.",
        *head,
    ]
    for key in keys(Experiment):
        if key.is_section:
            yield from ["", f"## [{key.path}]", "", key.description, *head]
        else:
            default = "none" if key.default is None else f"`{literal(key.default)}`"
            cells = [f"`{_name(key)}`", default, accepted(key.type), key.description]
            yield f"| {' | '.join(cells)} |"


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]
