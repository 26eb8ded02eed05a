"""PARTY.toml: everything that a party on a host of its own is told, but the experiment; read, and explained.

One schema (party_schema.py), tagged by `role`. Paths are taken from the file's own folder.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tacit.models.configuration import DIRECTORY_SOURCES
from tacit.models.workload import FactoryError, check_installed
from tacit.parties.hosting.party_schema import (
    ClientFile,
    DataOwnerFile,
    DealerFile,
    ModelOwnerFile,
    PartyFile,
    ServerFile,
)
from tacit.parties.runs.explain import literal, read_section, refusal
from tacit.parties.runs.reference import commented_toml, tables


class PartyFileError(ValueError):
    """A party that cannot run; the text names the file, the key, the value and what would be accepted."""


ROLES: Final[dict[str, type[PartyFile]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (ServerFile, ClientFile, DealerFile, ModelOwnerFile, DataOwnerFile)
}
"""The parties that have a file, by role."""

Kind = TypeVar("Kind", bound=PartyFile)


def read_party(kind: type[Kind], path: Path) -> Kind:
    """Read the file of a party of this role. Raises PartyFileError."""
    role, data = _read(path)
    if ROLES[role] is not kind:
        wanted = str(kind.__struct_config__.tag)
        raise PartyFileError(
            f'{path}: role = "{role}": expected "{wanted}"; run `tacit {role} {path}`, or set the role'
        )
    return _converted(kind, data, path)


def check_data(file: ClientFile, path: Path) -> None:
    """Raise PartyFileError if data are to come from a function that is not installed here; it is not imported."""
    try:
        if file.data.factory:
            check_installed("data.factory", file.data.factory)
    except FactoryError as error:
        raise PartyFileError(f"{path}: {error}") from None


def read_any(path: Path) -> PartyFile:
    """Read the file of a party of whatever role. Raises PartyFileError."""
    role, data = _read(path)
    return _converted(ROLES[role], data, path)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """The role, and the other keys as they stand there."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PartyFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PartyFileError(f"{path}: is not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise PartyFileError(f"{path}: is not TOML: {error}") from error
    role = data.pop("role", None)
    if not isinstance(role, str) or role not in ROLES:
        given = "role is missing" if role is None else f"role = {literal(role)}"
        raise PartyFileError(f"{path}: {given}: expected {' or '.join(map(literal, ROLES))}")
    return role, data


def _converted(kind: type[Kind], data: dict[str, Any], path: Path) -> Kind:
    try:
        return msgspec.convert(_at_home(data, path.parent), kind, dec_hook=read_section)
    except msgspec.ValidationError as error:
        raise PartyFileError(f"{path}: {refusal(error, data, kind)}") from None


def party_toml(role: str) -> str:
    """An example of the file of such a party, every key explained. KeyError for no role."""
    kind = ROLES[role]
    title = "# What a party on a host of its own is told. Paths are taken from the folder of this file."
    return f'{title}\nrole = "{role}"\n{commented_toml(kind(**kind.example), kind)}'


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
    return "\n".join([*lines, ""])


def _at_home(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same with paths that begin at this folder."""

    def placed(section: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        found = {name: section[name] for name in names if isinstance(section.get(name), str) and section[name]}
        return {**section, **{name: str(folder / path) for name, path in found.items()}}

    defaults = {"roster": "roster.toml", "directory": "state"}
    home = placed({**defaults, **data}, ("key", "roster", "directory", "model"))
    if data.get("images") != "digits":
        home = placed(home, ("images",))
    if isinstance(images := data.get("data"), Mapping):
        known = images.get("source") in (None, "digits", *DIRECTORY_SOURCES)
        home["data"] = placed(images, ("directory",) if known else ("source", "directory"))
    return home
