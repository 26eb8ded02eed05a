"""The reference pages of the files of experiments, adaptations and parties, from the annotations of their structs."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.inspect import StructType

from tacit.parties.hosting.party_file import ROLES, ClientFile
from tacit.parties.learning.policy import ClientPolicy, rules
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import Experiment, accepted, keys, literal
from tacit.parties.runs.reveals import PROTECTS


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
        name = key.path.rpartition(".")[2]
        if key.chooses:
            lines += ["", f"{level}# {name} = {literal(key.default)}", "", key.description, *head]
        default = "none" if key.default is None else f"`{literal(key.default)}`"
        if key.default is msgspec.NODEFAULT:
            default = "must be given"
        lines.append(f"| `{name}` | {default} | {accepted(key.type)} | {key.description} |")
    return lines


def party_markdown() -> str:
    """The reference page of the file (docs/party-file.md)."""
    lines = [
        "# The party file",
        "",
        "A party on a host of its own is told everything by one TOML file, PARTY.toml ([how](hosts.md)). Its key",
        "`role` says which of the tables below has its other keys; `tacit config --party ROLE` prints an example.",
        "Paths are taken from the folder of the file. There is no seed: on hosts all randomness comes from the",
        "operating system.",
    ]
    for role, kind in ROLES.items():
        lines += ["", f'## role = "{role}"', *tables(kind, level="###")]
        if kind is ClientFile:
            lines += _judged_table()
    return "\n".join([*lines, ""])


def _judged_table() -> list[str]:
    policy = ClientPolicy()
    lines = [
        "",
        "### What a client accepts",
        "",
        "A client judges every field of a server's proposal, which is a configuration and the task inside it, and",
        "refuses one that is not accepted with this code. The keys are those of `[policy]`, each with its default.",
        "",
        "| field | key of the experiment | accepted | keys of `[policy]` | code |",
        "|---|---|---|---|---|",
    ]
    for field, rule in rules():
        names = (name for name in rule.policy if name != "protections")
        keys = [f"`{name} = {literal(getattr(policy, name))}`" for name in names]
        if "protections" in rule.policy:
            keys.insert(0, "`protections`: all")
        lines.append(f"| `{field}` | `{rule.key}` | {rule.accepts} | {', '.join(keys)} | {rule.code.name} |")
    return lines
