"""docs/spec/vectors.md: notation of the vector files, the computations of every protocol, and its transcripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import getdoc, isclass
from inspect import signature as signature_of
from typing import Any, Final, get_args, get_origin, get_type_hints

import numpy.typing as npt
from msgspec import NODEFAULT, inspect, to_builtins

from tacit.protocol.adaptation.kept import KeptRecord
from tacit.protocol.adaptation.sums import RoundSums
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.inference.results import Agreed
from tacit.simulate.conformance.computations import COMPUTATIONS, parameters_of
from tacit.simulate.conformance.notation import to_hex
from tacit.simulate.conformance.transcripts import EVENTS, PLAYED, REPORTS, PlayedRole, reported

INTRODUCTION: Final = """\
# Test vectors

*This page is generated: `make vectors` writes it and the files.*

The files `tests/vectors/*.json`, installed as the package `tacit.vectors`, hold what this protocol computes, byte by
byte, from fixed randomness. `tacit conformance vectors [DIRECTORY]` checks the installation against them. There are two
kinds: *computations*, each with its inputs and its result, and *transcripts* of the machines in runs of a protocol. A
file of computations named `WHAT_bad_CORRUPTION.json` shows that a corruption is refused. `schema.json` is the JSON
schema of them all.

## Notation

- Byte strings are lower-case hex. A long one of zeros is `00*LENGTH`. A result or a sent frame of more than 4,096 bytes
  that are not all zero is `sha256(HASH)`.
- Labels are their text, as in [constants.md](constants.md). Sets of members are lists of their places in the cohort.
- In computations, ring words are packed as on the wire. In the `body` of a message and in a configuration, which have
  text as well, a byte string is `{"hex": ...}`, and codes are their numbers.
- Numbers of an encrypted model are rounded to five decimals: machines differ in the last bits of the matrix.

## Computations

| key | meaning |
|---|---|
| `protocol` | one of the headings below |
| `about` | purpose of the file |
| `computations` | the computations, one after the other |

A computation has `do`, its name; `with`, its inputs; and either `expect`, its result, or `refused`, the name of the
[code](errors.md) with which it is refused. The code `INVALID` is for what an implementation must not accept from its
own caller and which never has a code on the wire. An optional input that is absent has the default of the tables.
"""


TRANSCRIPTS: Final = """\
## Transcripts

A file `transcript_*.json` records runs of a protocol, one after the other: the inputs and outputs of every machine. To
check an implementation, create the machine of one role, give it the inputs of its steps in order, and compare the
outcomes. Machines do not depend on each other, because the file has all messages. A run begins with a step that has an
`about`; it may be of one machine alone, up to a message that this machine refuses. A machine takes the place of one
that was created under its name before.

| key | meaning |
|---|---|
| `protocol`, `version` | what is played, and the version of the wire |
| `about` | purpose of the file |
| `common` | settings of all machines that have a setting of that name, unless they are created with another |
| `messages` | every message of the runs: `sender`, `receiver`, and its `frames` in hexadecimal |
| `steps` | the steps, one after the other |

A step has these keys; one that is absent is empty, 0 or null.

| key | meaning |
|---|---|
| `about` | purpose of the run that begins here, where the file has several |
| `machine` | who acts: its party, followed by a slash and the peer where a party has a machine for each peer |
| `do` | `create`, `receive`, or one of the calls below |
| `role`, `given` | what is created, and its settings; or the arguments of the call |
| `message` | what is received: its place among the messages |
| `now` | seconds since the beginning of the run |
| `entropy` | the random bytes that the machine draws in this step, in hexadecimal |
| `sends` | places of the messages that it sends, in order |
| `events` | what it reports to the party around it, in any order; a refusal has its `code` |
| `state` | its state afterwards, as in [states.md](states.md) |
| `deadline` | when `expire` must be called; null if never |

In settings, arguments and events a byte string is `{"hex": ...}`; ring words are integers, and many zeros
`{"zeros": NUMBER}`. Two messages are equal if they differ only in `detail`, which explains something to people. A
message that no step sends was made up, or changed on its way. Nothing is computed with models: masked weights, openings
and corrections are inputs. Before what a `journal` or `journal group` says is on disk, nothing that follows may be
sent. These events are recorded:
"""


def page() -> str:
    lines = [INTRODUCTION]
    structures: dict[str, inspect.StructType | inspect.DataclassType] = {}
    for protocol, computations in COMPUTATIONS.items():
        lines += [f"### Computations: {protocol}\n", "| computation | inputs | result |", "|---|---|---|"]
        for name, computation in computations.items():
            fields = inspect.type_info(parameters_of(computation))
            given: tuple[inspect.Field, ...] = getattr(fields, "fields", ())
            inputs = ", ".join(f"`{field.encode_name}`: {_field(field, structures)}" for field in given)
            lines.append(f"| `{name}` | {inputs} | {_about(computation)} |")
        lines.append("")
    lines += [TRANSCRIPTS, *_transcripts(structures)]
    lines.append("## Structures in the inputs\n")
    described: set[str] = set()
    while rest := [name for name in structures if name not in described]:
        described.add(rest[0])
        lines += [f"### {rest[0]}\n", f"{_about(structures[rest[0]].cls)}\n", "| field | type |", "|---|---|"]
        lines += [f"| `{field.encode_name}` | {_field(field, structures)} |" for field in structures[rest[0]].fields]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _transcripts(structures: dict[str, inspect.StructType | inspect.DataclassType]) -> Iterator[str]:
    """The events, and what the machines of every protocol are made of and are called with."""
    fields: dict[str, set[str]] = {}
    for name, *paths in EVENTS.values():
        fields.setdefault(name, set()).update(f"`{path.split('.')[0]}`" for path in paths)
    fields |= {str(kind.__struct_config__.tag): {f"`{name}`" for name in reported(kind)} for kind in REPORTS}
    yield from ("| event | fields |", "|---|---|")
    yield from (f"| `{name}` | {', '.join(sorted(fields[name]))} |" for name in sorted(fields))
    yield ""
    described: dict[PlayedRole, str] = {}
    for protocol, played in PLAYED.items():
        for role, found in played.roles.items():
            first = described.setdefault(found, protocol)
            if first != protocol:
                yield from (f"### {protocol}, {role}\n", f"As in {first}.\n")
                continue
            yield from (f"### {protocol}, {role}\n", "| do | given | what it is |", "|---|---|---|")
            yield f"| `create` | {_given(found.make, structures)} | {_about(found.make)} |"
            for call in found.calls:
                act = getattr(found.made, call)
                yield f"| `{call}` | {_given(act, structures)} | {_about(act)} |"
            yield ""


def _given(act: Callable[..., Any], structures: dict[str, inspect.StructType | inspect.DataclassType]) -> str:
    hints = get_type_hints(act.__init__ if isclass(act) else act)
    named = [name for name in signature_of(act).parameters if name in hints]
    kept = [name for name in named if name != "now" and hints[name] != Entropy]
    return ", ".join(f"`{name}`: {_hint(hints[name], structures)}" for name in kept)


def _hint(kind: Any, structures: dict[str, inspect.StructType | inspect.DataclassType]) -> str:
    if kind in _READ:
        return _READ[kind]
    if get_origin(kind) is Iterable:
        return f"list of ({_hint(get_args(kind)[0], structures)})"
    return " or ".join(_kinds(inspect.type_info(kind), structures))


_READ: Final[Mapping[Any, str]] = {
    SigningKey: "bytes (the private key)",
    npt.NDArray[Any]: "list of integers (ring words)",
    Frame: "bytes",
    Frame | None: "bytes or null",
    Agreed: "object with `peer`, `session` and `terms` (their digest)",
    RoundSums: "text (the name of a machine)",
    KeptRecord | None: "text (the name of a machine)",
    RemoteProtocolError: "object with `code` and `culprit`",
}


def _about(documented: Callable[..., Any] | type[Any]) -> str:
    return " ".join((getdoc(documented) or "").split()).replace("|", "\\|")


def _field(field: inspect.Field, structures: dict[str, inspect.StructType | inspect.DataclassType]) -> str:
    kind = " or ".join(_kinds(field.type, structures))
    if field.required:
        return kind
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return f"{kind} (default `{json.dumps(to_hex(to_builtins(default, builtin_types=(bytes,))))}`)"


def _kinds(kind: inspect.Type, structures: dict[str, inspect.StructType | inspect.DataclassType]) -> Iterator[str]:
    match kind:
        case inspect.Metadata(type=bare):
            yield from _kinds(bare, structures)
        case inspect.CustomType() | inspect.BytesType():
            yield "bytes"
        case inspect.TupleType(item_types=items):
            yield "list of " + " and ".join(" or ".join(_kinds(item, structures)) for item in items)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) | inspect.SetType(item_type=item):
            kinds = list(_kinds(item, structures))
            yield f"list of {kinds[0] if len(kinds) == 1 else '(' + ' or '.join(kinds) + ')'}"
        case inspect.StructType(cls=cls) | inspect.DataclassType(cls=cls):
            structures[cls.__name__] = kind
            yield f"[{cls.__name__}](#{cls.__name__.lower()})"
        case inspect.UnionType(types=types):
            for one in types:
                yield from _kinds(one, structures)
        case inspect.LiteralType(values=values):
            yield from (f"`{value}`" for value in values)
        case inspect.EnumType(cls=choices):
            yield from (f"`{choice.value}`" for choice in choices)
        case _:
            yield _PLAIN[type(kind)]


_PLAIN: Final[dict[type[Any], str]] = {
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.DictType: "object",
}
