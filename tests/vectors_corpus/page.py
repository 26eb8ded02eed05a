"""docs/spec/vectors.md: how vector files are read, with the operations of every protocol as PROTOCOLS has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import getdoc, isclass
from inspect import signature as signature_of
from typing import Any, Final, get_args, get_origin, get_type_hints

import numpy.typing as npt
from msgspec import NODEFAULT, inspect, to_builtins

from tacit.protocol.adaptation.sums import RoundSums
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.inference.results import Agreed
from tacit.simulate.conformance.notation import to_hex
from tacit.simulate.conformance.operations import parameters_of
from tacit.simulate.conformance.transcripts import EVENTS, PLAYED, REPORTS, PlayedRole
from tacit.simulate.conformance.vectors import PROTOCOLS

INTRODUCTION: Final = """\
# Test vectors

*This page is generated: `make vectors` writes it and the files.*

The files `tests/vectors/*.json`, installed as the package `tacit.vectors`, hold what this protocol computes, byte by
byte, from fixed randomness. `tacit conformance vectors [DIRECTORY]` checks the installation against them. A file named
`WHAT_bad_CORRUPTION.json` shows that a corruption is refused, or what comes of it; the others show what is right.
`schema.json` is the JSON schema of them all.

## Files

| key | meaning |
|---|---|
| `protocol` | whose operations the file uses: one of the headings below |
| `level` | `primitive`, `message`, `round` (a secure sum, or an attempt at a group key) or `session` |
| `about` | what it shows |
| `operations` | the operations, one after the other |

An operation has `do`, its name; `with`, its inputs; and either `expect`, what it returns, or `refused`, the name of the
[code](errors.md) with which it is refused. The code `INVALID` is for what an implementation must not accept from its
own caller and which never has a code on the wire. An optional input that is absent has the default of the tables.

## Notation

- Byte strings are lower-case hex. An input may also be `shake256(SEED,LENGTH)`: the first LENGTH bytes of SHAKE-256 of
  the seed, which is in hex. A result of more than 4,096 bytes is `sha256(HASH)`.
- Labels are their text, as in [constants.md](constants.md). Sets of members are lists of their places in the cohort.
- Ring words are packed as on the wire.
- In the `body` of a message and in a configuration, which have text as well, a byte string is `{"hex": ...}`, and codes
  are their numbers.

## Machines

`begin sum`, `begin group key`, `begin session`, `begin inference` and `begin adaptation` say which
parties are played; the operations after them feed those. Their randomness (`entropy`) is drawn in the order of
[secure-aggregation.md](secure-aggregation.md) and [group-key.md](group-key.md), one byte after the other. Time is in
seconds from the beginning, and 0 where an operation does not say `now`. What a party does comes as

| key | meaning |
|---|---|
| `sends` | its messages in order, each with the receiver (`to`) and its `frames` |
| `events` | what it tells the party around it, in order: an object with `event` and, where there is one, `code` |
| `state` | its state, as in [states.md](states.md) |
| `deadline` | when it is to be told the time; null if never |

The words of explanations for people are free, so a message that has one (`detail`, in `abort`, `end-round` and
`end-key`) is not given by its frames in `sends`, but by its `type` and its other `fields`.

All messages that played parties send are numbered from 0, over the whole file. A `receive` either names such a
`message`, or has `frames`: of a party that is not played, or changed on their way. Messages that no operation delivers
are lost.

Events of a secure sum: `dropped` (the server counts a client as gone, in that phase and for that reason), `complaint`,
`refused` (without effect, because the sum is over for this party), `sum` (the words, and whose vectors they hold),
`aborted`. Events of a session: `accepted` (a configuration), `train` (from the model of this hash), `journal` (to be on
disk before what follows is sent), `round over`, `ended` (for a client or for the server), `joined`, `left`, `refused`
(a client is barred), `complaint`, `dropped` and `round done` (at the end of a round); with group keys `agreeing`,
`agreed` and `key failed` of the server, `group key` of a client, `encrypt` (this model, under this key; `former` is the
key that it is under), `new model` (the server's is now this one), `last model`, and `without model` (who did not fetch
it). Where a round has a group key, `train` says it, with its transcript. With groups `journal group`: the client's
group is to be on disk before it takes part. Events of an attempt at a group key: `group key` (a member holds it),
`agreed`, `failed` and `aborted`.

In private inference an owner has two exchanges in a session, with the other owner and with the dealer, and the model
owner and the dealer have sessions with several data owners. `state` and `deadline` are those of the exchange that an
operation is about, the last of them where a message is about several; the state is empty where it is about none. An
operation without `data_owner` is about the session with the first client of the roster. A model owner draws the name of
a session when a hello is right, a data owner and the model owner their contribution when they say hello to the dealer,
the dealer that for the model owner and that for the data owner when both have come. Nothing is computed: masked
weights, openings and corrections are inputs. Events: `agreed` (on terms with this digest), `layer` (its masked
weights), `pass asked`, `pass begun` (of so many rounds), `opened` (by the other owner), `material key`, `material` (the
corrections of a request), `keys` (those that the dealer has for both owners), `deal` (both have ordered this) and
`ended`, which has the code null for a regular end.

In double-blind adaptation there is no dealer, and nothing is computed. A data owner draws the secret of its zeros when
it ends a round. The reason in `sum-lost` is an explanation as well. Events, beside those above: `round asked` (of the
model owner, behind so many batches), `round answered`, `round kept` (with this secret), `sum asked`, and `sum told`,
whose `data` is null where there is none.

Numbers of an encrypted model are rounded to five decimals: of the matrix that makes them, machines differ in the last
bits.
"""


TRANSCRIPTS: Final = """\
## Transcripts

A file `transcript_*.json` records one run of a protocol: the inputs and outputs of every machine. To check an
implementation, create the machine of one role, give it the inputs of its steps in order, and compare the outcomes.
Machines do not depend on each other, because the file has all messages.

| key | meaning |
|---|---|
| `protocol`, `version` | what is played, and the version of the wire |
| `about` | what it shows |
| `common` | settings of all machines that have a setting of that name |
| `messages` | every message of the run: `sender`, `receiver`, and its `frames` in hexadecimal |
| `steps` | the steps, one after the other |

A step has these keys; one that is absent is empty, 0 or null.

| key | meaning |
|---|---|
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

In settings, arguments and events a byte string is `{"hex": ...}`. Two messages are equal if they differ only in
`detail`, which explains something to people. A message that no step sends was made up or changed on its way: such files
are named `transcript_WHAT_bad_CORRUPTION.json` and end with the step that refuses it. These events are recorded:
"""


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    structures: dict[str, inspect.StructType | inspect.DataclassType] = {}
    for protocol, make in PROTOCOLS.items():
        lines += [f"## Operations: {protocol}\n", "| operation | inputs | what it does or returns |", "|---|---|---|"]
        for name, operation in make().items():
            fields = inspect.type_info(parameters_of(operation))
            given: tuple[inspect.Field, ...] = getattr(fields, "fields", ())
            inputs = ", ".join(f"`{field.encode_name}`: {_field(field, structures)}" for field in given)
            lines.append(f"| `{name}` | {inputs} | {_about(operation)} |")
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
    yield from ("| event | fields |", "|---|---|")
    yield from (f"| `{name}` | {', '.join(sorted(fields[name]))} |" for name in sorted(fields))
    yield f"| {', '.join(f'`{name}`' for name in sorted(REPORTS))} | those of the report, without `detail` |\n"
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
