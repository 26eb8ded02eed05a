"""The documentation of the experiment file, generated from its structs: commented files, and a reference page.

Nothing here is written by hand twice: descriptions, accepted values and defaults all come from the annotations.
"""

import textwrap
from collections.abc import Collection
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.inspect import StructType

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import Experiment, Key, accepted, holds, keys, literal
from tacit.parties.runs.reveals import PROTECTS

_WIDTH = 100


SHORT: Final = (
    "name",
    "federation.clients",
    "federation.rounds",
    "federation.seed",
    "data.source",
    "data.partition",
    "data.alpha",
    "model.name",
    "model.image_size",
    "training.optimizer",
    "training.learning_rate",
    "training.epochs",
    "training.batch_size",
    "aggregation.mode",
    "protection.scheme",
)
"""Keys that most simulations change."""


def experiment_toml(experiment: Experiment, *, only: Collection[str] = ()) -> str:
    """An experiment as TOML, every key explained in comments; parses back to the same experiment. only: the keys, if
    not all are wanted."""
    return commented_toml(experiment, type(experiment), only=only)


def commented_toml(value: msgspec.Struct, kind: type[msgspec.Struct], *, only: Collection[str] = ()) -> str:
    """A configuration of this kind as TOML, every key explained in comments; parses back to the same.

    What it does not have, a section or the keys of other protections, stands there as a comment.
    """
    lines: list[str] = []
    for key in keys(kind):
        if only and not any(one == key.path or (key.is_section and one.startswith(f"{key.path}.")) for one in only):
            continue
        name, absent = _name(key), not holds(value, key)
        mark = "# " if absent else ""
        if key.is_section:
            lines += ["", *_comment(key.description), f"{mark}[{key.path}]"]
        elif key.chooses:
            lines += ["", *_comment(key.description), f"{mark}{name} = {literal(key.default)}"]
        else:
            given = key.default if absent else attrgetter(key.path)(value)
            lines += _comment(f"{key.description} Accepted: {accepted(key.type)}.")
            lines.append(f"# {name} = 0" if given is None else f"{mark}{name} = {literal(given, longest=None)}")
    return "\n".join([*lines, ""])


def reference_markdown() -> str:
    """The reference page of the experiment file (docs/configuration.md): a table for each section."""
    lines = [
        "# The experiment file",
        "",
        "An experiment is one TOML file. Every key has a default, so that a file needs only what differs. An unknown",
        "key, a value out of range or keys that contradict each other are refused before anything starts. The section",
        "`[protection]` has the keys of its scheme and no others.",
        *tables(Experiment),
    ]
    return "\n".join([*lines, ""])


def adaptation_markdown() -> str:
    """The reference page of what an experiment of `tacit adapt` has beside others (docs/adaptation-file.md)."""
    sentences: dict[str, list[str]] = {}
    for told, protects in PROTECTS.items():
        sentences.setdefault(protects, []).append(f"`{literal(told)}`")
    lines = [
        "# The experiment file of an adaptation",
        "",
        "`tacit adapt` takes an [experiment file](configuration.md) with two sections more, and without `[protection]`",
        "and `[encryption]`; `tacit config --adaptation` prints one with every key. `[model]` and `[training]` are of",
        "the model owner's model, where that is trained first. [What all this is](adaptation.md).",
        *tables(AdaptationExperiment, only=("adapter", "adaptation")),
        "",
        "## What reveal protects",
        "",
        *(f"- {' and '.join(told)}: {protects}." for protects, told in sentences.items()),
    ]
    return "\n".join([*lines, ""])


def tables(kind: type[msgspec.Struct], *, level: str = "##", only: Collection[str] = ()) -> list[str]:
    """The keys of a configuration: a table for each section. level: of the headings of sections, in Markdown; only: the
    sections, if not all are wanted."""
    head = ["", "| key | default | accepted | meaning |", "|---|---|---|---|"]
    lines = [] if only else [*head]
    for key in keys(kind):
        if only and key.path.partition(".")[0] not in only:
            continue
        if key.is_section:
            lines += [
                "",
                f"{level} [{key.path}]",
                "",
                key.description,
                *(head if isinstance(key.type, StructType) else ()),
            ]
            continue
        name = _name(key)
        if key.chooses:
            lines += ["", f"{level}# {name} = {literal(key.default)}", "", key.description, *head]
        default = "none" if key.default is None else f"`{literal(key.default)}`"
        if key.default is msgspec.NODEFAULT:
            default = "must be given"
        lines.append(f"| `{name}` | {default} | {accepted(key.type)} | {key.description} |")
    return lines


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]
