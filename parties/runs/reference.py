"""The documentation of the experiment file, generated from its structs: commented files, and a reference page.

Nothing here is written by hand twice: descriptions, accepted values and defaults all come from the annotations.
"""

import textwrap
from operator import attrgetter

from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.explain import Key, accepted, holds, keys, literal

_WIDTH = 100


def experiment_toml(experiment: Experiment) -> str:
    """An experiment as TOML, every key explained in comments; parses back to the same experiment.

    What the experiment does not have, a section or the keys of other protections, stands there as a comment.
    """
    lines: list[str] = []
    for key in keys(Experiment):
        name, absent = _name(key), not holds(experiment, key)
        mark = "# " if absent else ""
        if key.is_section:
            lines += ["", *_comment(key.description), f"{mark}[{key.path}]"]
        elif name == "scheme":
            lines += ["", *_comment(key.description), f"{mark}scheme = {literal(key.default)}"]
        else:
            value = key.default if absent else attrgetter(key.path)(experiment)
            lines += _comment(f"{key.description} Accepted: {accepted(key.type)}.")
            lines.append(f"# {name} = 0" if value is None else f"{mark}{name} = {literal(value, longest=None)}")
    return "\n".join([*lines, ""])


def reference_markdown() -> str:
    """The reference page of the experiment file (docs/configuration.md): a table for each section."""
    head = ["", "| key | default | accepted | meaning |", "|---|---|---|---|"]
    lines = [
        "# The experiment file",
        "",
        "An experiment is one TOML file. Every key has a default, so that a file needs only what differs. An unknown",
        "key, a value out of range or keys that contradict each other are refused before anything starts. The section",
        "`[protection]` has the keys of its scheme and no others.",
        *head,
    ]
    for key in keys(Experiment):
        if key.is_section:
            lines += ["", f"## [{key.path}]", "", key.description, *(head if key.path != "protection" else ())]
            continue
        if _name(key) == "scheme":
            lines += ["", f"### scheme = {literal(key.default)}", "", key.description, *head]
        default = "none" if key.default is None else f"`{literal(key.default)}`"
        lines.append(f"| `{_name(key)}` | {default} | {accepted(key.type)} | {key.description} |")
    return "\n".join([*lines, ""])


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]
