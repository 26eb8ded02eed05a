"""The documentation of the experiment file, generated from its structs: commented files, and a reference page.

Nothing here is written by hand twice: descriptions, accepted values and defaults all come from the annotations.
"""

import textwrap
from collections.abc import Iterator
from operator import attrgetter

from tacit.simulate.runs.experiment import Experiment
from tacit.simulate.runs.explain import Key, accepted, holds, keys, literal

_WIDTH = 100


def experiment_toml(experiment: Experiment) -> str:
    """An experiment as TOML, every key explained in comments; parses back to the same experiment."""
    return "\n".join(_toml_lines(experiment)) + "\n"


def reference_markdown() -> str:
    """The reference page of the experiment file (docs/configuration.md): a table for each section."""
    return "\n".join(_markdown_lines()) + "\n"


def _toml_lines(experiment: Experiment) -> Iterator[str]:
    """What the experiment does not have, a section or the keys of other protections, stands there as a comment."""
    for key in keys(Experiment):
        name, absent = _name(key), not holds(experiment, key)
        mark = "# " if absent else ""
        if key.is_section:
            yield from ["", *_comment(key.description), f"{mark}[{key.path}]"]
        elif name == "scheme":
            yield from ["", *_comment(key.description), f"{mark}scheme = {literal(key.default)}"]
        else:
            yield from _comment(f"{key.description} Accepted: {accepted(key.type)}.")
            value = key.default if absent else attrgetter(key.path)(experiment)
            yield f"# {name} = 0" if value is None else f"{mark}{name} = {literal(value, longest=None)}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _markdown_lines() -> Iterator[str]:
    head = ["", "| key | default | accepted | meaning |", "|---|---|---|---|"]
    yield from [
        "# The experiment file",
        "",
        "An experiment is one TOML file. Every key has a default, so that a file needs only what differs. An unknown",
        "key, a value out of range or keys that contradict each other are refused before anything starts. The section",
        "`[protection]` has the keys of its scheme and no others.",
        *head,
    ]
    for key in keys(Experiment):
        if key.is_section:
            yield from ["", f"## [{key.path}]", "", key.description]
            if key.path != "protection":
                yield from head
            continue
        if _name(key) == "scheme":
            yield from ["", f"### scheme = {literal(key.default)}", "", key.description, *head]
        default = "none" if key.default is None else f"`{literal(key.default)}`"
        cells = [f"`{_name(key)}`", default, accepted(key.type), key.description]
        yield f"| {' | '.join(cells)} |"


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]
