"""The experiment file with every key explained, from the annotations of its structs."""

import textwrap
from collections.abc import Collection
from functools import cache
from operator import attrgetter
from typing import Final

import msgspec

from tacit.parties.runs.experiment import Experiment, Key, accepted, holds, keys, literal

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
    """An experiment as TOML, every key explained in comments; parses back to the same experiment. only: the keys to
    include, if not all."""
    return commented_toml(experiment, type(experiment), only=only)


def commented_toml(value: msgspec.Struct, kind: type[msgspec.Struct], *, only: Collection[str] = ()) -> str:
    """A configuration of this kind as TOML, every key explained in comments; parses back to the same.

    Missing sections, and the keys of other protections, are included as comments."""
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


@cache
def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]
