"""Says in plain words what a field of a configuration accepts, and what is wrong with a value that was refused.

Both come from the annotations of the msgspec structs. msgspec reports a refusal as a reason and a path such as
`$.aggregation.clip`; here it becomes `aggregation.clip = -1: expected a number above 0 and at most 1000`. Refusals by
the rules of a struct itself (ValueError from its __post_init__) are complete sentences already and stay as they are.

A section may be one of several, each with keys of its own, of which one key says which it is: of an adapter msgspec
knows them all, and a protection is read by its catalogue (`read_section`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import msgspec
import msgspec.inspect

from tacit.parties.protections.catalogue import chosen, protection_hook, registered
from tacit.parties.protections.protection import name_of

_PLACE = re.compile(r" - at `\$\.(?P<path>[^`]*)`\Z")
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")
_LONGEST_VALUE = 80
_REMOVED = {
    "protection.enforce": 'leave it out; instead of "clients" take protection.scheme = "coordinated-binary-weights"',
    "protection.skip_masked_layers": "leave it out",
}
"""Keys of release 0.2.0, which stand in its run directories too, and what to do about them."""


@dataclass(frozen=True)
class Key:
    """One documented key: its dotted path, its type, its default (a section has none) and its description."""

    path: str
    type: msgspec.inspect.Type
    default: Any
    description: str
    choice: str = ""
    """Which of several sections has this key, where there are several: the scheme of a protection, the kind of an
    adapter."""

    @property
    def is_section(self) -> bool:
        """Whether it is a table that holds other keys."""
        if isinstance(self.type, msgspec.inspect.UnionType):
            return all(isinstance(one, msgspec.inspect.StructType) for one in self.type.types)
        return isinstance(self.type, msgspec.inspect.StructType | msgspec.inspect.CustomType)

    @property
    def chooses(self) -> bool:
        """Whether it says which of several sections this is."""
        return isinstance(self.type, msgspec.inspect.LiteralType) and self.type.values == (self.choice,)


def keys(root: type[msgspec.Struct]) -> Iterator[Key]:
    """All keys of a struct type in their order, the keys of a section after the section."""
    yield from _keys(msgspec.inspect.type_info(root), "")


def holds(root: msgspec.Struct, key: Key) -> bool:
    """Whether a value of the documented type has this key: its section may be absent, or another one."""
    section: Any = root
    for name in key.path.split(".")[:-1]:
        section = section and getattr(section, name)
    if section is None or key.is_section:
        return section is not None and getattr(section, key.path.rpartition(".")[2]) is not None
    return not key.choice or str(type(section).__struct_config__.tag) == key.choice


def read_section(kind: type, value: Any) -> Any:
    """msgspec's hook for [protection]; ValueError says in words what is refused."""
    if not isinstance(value, Mapping):
        raise ValueError(f"protection = {literal(value)}: expected a section with keys of its own")
    protection = chosen(value)
    settings = {name: given for name, given in value.items() if name != "scheme"}
    for name, given in settings.items():
        owners = [other for other, one in registered().items() if name in one.__struct_fields__]
        if owners and name_of(protection) not in owners:
            raise ValueError(_of_another(f"protection.{name}", given, owners, "protection.scheme", name_of(protection)))
    try:
        return protection_hook(kind, value)
    except msgspec.ValidationError as error:
        raise ValueError(refusal(error, settings, protection, "protection")) from None


def refusal(error: msgspec.ValidationError, data: Mapping[str, Any], root: type[msgspec.Struct], path: str = "") -> str:
    """What msgspec refused in `data` when it converted it to `root`: key, value, and what would be accepted.

    path: of the section that `data` is, in the whole file.
    """
    if error.__cause__ is not None:
        return str(error.__cause__)
    known: dict[str, Key] = {}
    choices: dict[str, list[str]] = {}
    for key in _keys(msgspec.inspect.type_info(root), path):
        if key.choice:
            choices.setdefault(key.path, []).append(key.choice)
        if key.chooses and key.path in known:
            key = replace(key, type=msgspec.inspect.LiteralType(tuple(choices[key.path])))
        known[key.path] = key
    prefix = f"{path}." if path else ""
    for section, name, stray in _unknown(data, known, prefix):
        return f"{section}{name} = {literal(stray)}: there is no such key; {_suggestion(section, name, known)}"
    for told in _misplaced(data, known, choices):
        return told
    if (missing := _MISSING.match(str(error))) is not None:
        within = _PLACE.search(str(error))
        name = ".".join(filter(None, [path, within["path"] if within else "", missing["name"]]))
        return f"{name} is missing: {known[name].description}"
    place = _PLACE.search(str(error))
    if place is None:
        raise TypeError(f"msgspec names no place in {str(error)!r}") from error
    value: Any = data
    whole = path
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place["path"]):
        value = value[int(index) if index else name]
        whole = ".".join(filter(None, [whole, name]))
    kind = known[whole].type
    if isinstance(kind, msgspec.inspect.VarTupleType) and place["path"].endswith("]"):
        kind = kind.item_type
    return f"{prefix}{place['path']} = {literal(value)}: expected {accepted(kind)}"


def accepted(kind: msgspec.inspect.Type) -> str:
    """The values that a type accepts, as a phrase: "an integer from 2 to 1000"."""
    match kind:
        case msgspec.inspect.Metadata():
            return accepted(kind.type)
        case msgspec.inspect.UnionType():
            words = {
                "leave the key out" if isinstance(one, msgspec.inspect.NoneType) else accepted(one): None
                for one in sorted(kind.types, key=lambda one: isinstance(one, msgspec.inspect.NoneType))
            }
            return ", or ".join(words)
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType():
            return f"an integer{_range(kind)}"
        case msgspec.inspect.FloatType():
            return f"a number{_range(kind)}"
        case msgspec.inspect.StrType():
            return f"a text{_lengths(kind.min_length, kind.max_length, 'character')}"
        case msgspec.inspect.LiteralType():
            return " or ".join(literal(value) for value in kind.values)
        case msgspec.inspect.VarTupleType():
            return f"a list{_lengths(kind.min_length, kind.max_length, 'entry')}, each {accepted(kind.item_type)}"
        case msgspec.inspect.DictType():
            return f"a table whose values are each {accepted(kind.value_type)}"
        case msgspec.inspect.StructType() | msgspec.inspect.CustomType():
            return "a section with keys of its own"
    raise TypeError(f"no words for the type {kind}; configurations hold no such fields")


def literal(value: object, longest: int | None = _LONGEST_VALUE) -> str:
    """A value as TOML writes it, cut short if it is longer than `longest`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{_bare(key)} = {literal(entry, longest)}" for key, entry in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(literal(entry, longest) for entry in value) + "]"
    elif isinstance(value, str):
        text = msgspec.json.encode(value).decode()
    else:
        text = str(value)
    return text if longest is None or len(text) <= longest else text[:longest] + "..."


def _misplaced(data: Mapping[str, Any], known: Mapping[str, Key], choices: Mapping[str, list[str]]) -> Iterator[str]:
    """Keys of a section that is one of several, which another one of them has; choices: which have it, by path."""
    for key in known.values():
        choosing = msgspec.inspect.LiteralType(tuple(choices.get(key.path, ())))
        section, _, chooser = key.path.rpartition(".")
        given = data.get(section)
        if key.type != choosing or not isinstance(given, Mapping) or given.get(chooser) not in choosing.values:
            continue
        for name, value in given.items():
            owners = choices[f"{section}.{name}"]
            if given[chooser] not in owners:
                yield _of_another(f"{section}.{name}", value, owners, key.path, given[chooser])


def _of_another(path: str, value: object, owners: Iterable[str], chooser: str, chosen_one: object) -> str:
    """What is said of a key that other choices of a section have."""
    names = " and ".join(map(literal, owners))
    return f"{path} = {literal(value)}: it is a key of {names} only; {chooser} is {literal(chosen_one)}"


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else literal(key)


def _keys(kind: msgspec.inspect.Type, path: str) -> Iterator[Key]:
    if isinstance(kind, msgspec.inspect.CustomType):
        for scheme, protection in registered().items():
            of_scheme = msgspec.inspect.LiteralType((scheme,))
            yield Key(f"{path}.scheme", of_scheme, scheme, protection.about, scheme)
            for key in _keys(msgspec.inspect.type_info(protection), path):
                yield replace(key, choice=scheme)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            assert isinstance(one, msgspec.inspect.StructType)
            tag, about = str(one.tag), (one.cls.__doc__ or "").partition(": ")[2].partition("\n")[0].capitalize()
            yield Key(f"{path}.{one.tag_field}", msgspec.inspect.LiteralType((tag,)), tag, about, tag)
            for key in _keys(one, path):
                yield replace(key, choice=tag)
    elif isinstance(kind, msgspec.inspect.StructType):
        sections = []
        for field in kind.fields:
            inner = field.type
            schema = (inner.extra_json_schema or {}) if isinstance(inner, msgspec.inspect.Metadata) else {}
            inner = inner.type if isinstance(inner, msgspec.inspect.Metadata) else inner
            if isinstance(inner, msgspec.inspect.UnionType):
                structs = [one for one in inner.types if isinstance(one, msgspec.inspect.StructType)]
                # One of several sections, or one that may be left out.
                inner = inner if len(structs) != 1 else structs[0]
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            name = f"{path}.{field.name}" if path else field.name
            key = Key(path=name, type=inner, default=default, description=schema.get("description", ""))
            if key.is_section:
                sections.append(key)
            else:
                yield key
        # Last, because in TOML what follows a section is in it.
        for key in sections:
            yield key
            yield from _keys(key.type, key.path)


def _unknown(data: Mapping[str, Any], known: Mapping[str, Key], section: str = "") -> Iterator[tuple[str, str, Any]]:
    """Keys that the schema does not have: the section with a dot (or nothing), the name, the value."""
    for name, value in data.items():
        key = known.get(section + name)
        if key is None or "." in name:
            yield section, name, value
        elif key.is_section and isinstance(value, Mapping):
            yield from _unknown(value, known, f"{name}.")


def _suggestion(section: str, name: str, known: Mapping[str, Key]) -> str:
    """Keys of a similar name in the same section, else in whatever section, else all keys of the section."""
    if (remedy := _REMOVED.get(f"{section}{name}")) is not None:
        return f"it was removed after release 0.2.0: {remedy}"
    if not section and name == "distillation":
        return "it is a section of `tacit distill` alone; leave it out for others"
    siblings = [path for path in known if path.rpartition(".")[0] == section.rstrip(".")]
    for candidates in (siblings, known):
        leaves = [path.rpartition(".")[2] for path in candidates]
        for similar in get_close_matches(name.rpartition(".")[2], leaves, n=1):
            return f"did you mean {' or '.join(path for path in candidates if path.rpartition('.')[2] == similar)}?"
    return f"accepted: {', '.join(siblings)}"


def _range(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {_plain(kind.ge)} to {_plain(kind.le)}"
    bounds = {"above": kind.gt, "at least": kind.ge, "below": kind.lt, "at most": kind.le}
    return " " + " and ".join(f"{words} {_plain(bound)}" for words, bound in bounds.items() if bound is not None)


def _plain(bound: float) -> str:
    return str(int(bound) if bound == int(bound) else bound)


def _lengths(least: int | None, most: int | None, unit: str) -> str:
    units = {"character": "characters", "entry": "entries"}[unit]
    if least and most:
        return f" of {least} to {most} {units}"
    if least:
        return f" of at least {least} {unit if least == 1 else units}"
    return f" of at most {most} {units}" if most else ""
