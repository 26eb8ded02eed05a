"""The parts of docs/spec/ that follow from the code: messages, states, error codes, labels and limits.

Nothing here is written by hand twice: names, types and bounds come from the structures, tables and constants of the
protocol, and what they mean from the docstrings in its sources.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from docs.generate import one_sum
from docs.generate.diagrams import MACHINES, name_of
from tacit.parties.learning.task import TaskLabel
from tacit.parties.links.keys import KeysLabel
from tacit.parties.protections.binary_weights import WeightsLabel
from tacit.parties.protections.encryption import EncryptionLabel
from tacit.protocol.adaptation import messages as adaptation_messages
from tacit.protocol.adaptation.states import AdaptationLabel
from tacit.protocol.core import blob, codec, errors, messages, rate_limit
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ignore, Inside, Row, Table
from tacit.protocol.core.primitives import Label
from tacit.protocol.core.roster import RosterLabel
from tacit.protocol.group_key.states import HolderState, KeeperState, KeyLabel, MemberState
from tacit.protocol.inference import dealer as inference_dealer
from tacit.protocol.inference import messages as inference_messages
from tacit.protocol.inference import schedule as inference_schedule
from tacit.protocol.inference.states import DealerState, InferenceLabel, InferenceState, MaterialState
from tacit.protocol.session import messages as session_messages
from tacit.protocol.session.states import SessionState, TrainingState
from tacit.protocol.sum import agreement
from tacit.protocol.sum import states as sum_states
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import ClientState, ServerState, SumLabel
from tacit.secagg import shamir
from tacit.secagg.keystream import Usage
from tacit.secagg.packing import METRIC_BITS

_GENERATED: Final = "Generated from the code by `make docs`; a test fails when page and code differ."

_LIMITS: Final[tuple[tuple[str, int, str], ...]] = (
    ("VERSION", sum_states.VERSION, "version of session, secure sum and group key, in their envelopes: open"),
    ("INFERENCE_VERSION", inference_messages.INFERENCE_VERSION, "version of private inference, in its envelopes: open"),
    (
        "ADAPTATION_VERSION",
        adaptation_messages.ADAPTATION_VERSION,
        "version of double-blind adaptation, in its envelopes: open",
    ),
    ("ENVELOPE_LIMIT", codec.ENVELOPE_LIMIT, "bytes of an encoded envelope"),
    ("BODY_LIMIT", messages.BODY_LIMIT, "bytes of an encoded body"),
    ("CHUNK_BYTES", messages.CHUNK_BYTES, "bytes of a raw frame"),
    ("LARGEST_COHORT", messages.LARGEST_COHORT, "members of a cohort, and clients of a roster that a bitmap can name"),
    ("DETAIL_LIMIT", errors.DETAIL_LIMIT, "characters of an explanation"),
    ("WINDOW", blob.WINDOW, "chunks of a transfer asked for and not yet received"),
    ("UPLOADS", agreement.UPLOADS, "clients that the server fetches long vectors from at the same time"),
    ("HELLOS", rate_limit.HELLOS, "hellos of a member that the server answers at once"),
    ("HELLO_SECONDS", rate_limit.HELLO_SECONDS, "seconds after which a member has one of them back"),
    ("WORDS_ALIGNED", agreement.WORDS_ALIGNED, "words of which a chunk of a vector, but the last, is a multiple"),
    ("TRANSFER_LIMIT", agreement.TRANSFER_LIMIT, "times phase_seconds that the fetching of a long vector may take"),
    ("PRIME", shamir.PRIME, "order of the field of the shares"),
    ("LIMBS", shamir.LIMBS, "field elements of a secret and of a share"),
    ("SHARE_BYTES", shamir.SHARE_BYTES, "bytes of a share"),
    ("PACKET_BYTES", PACKET_BYTES, "bytes of a packet without a statement: two commitments, and the sealed shares"),
    ("METRIC_BITS", METRIC_BITS, "bits of a metric of one client"),
    ("TERMS_LIMIT", inference_messages.TERMS_LIMIT, "bytes of encoded terms"),
    ("ORDER_LIMIT", inference_messages.ORDER_LIMIT, "bytes of the encoded requests of an order"),
    ("MOST_IMAGES", inference_messages.MOST_IMAGES, "images of a session of private inference"),
    ("MOST_ORDERS", inference_dealer.MOST_ORDERS, "orders that one owner may be ahead of the other"),
    ("LARGEST_PIXELS", inference_schedule.LARGEST_PIXELS, "words in the row of a patch"),
    ("LARGEST_TOKENS", inference_schedule.LARGEST_TOKENS, "tokens of an image"),
    ("LARGEST_SCORES", inference_schedule.LARGEST_SCORES, "attention scores of an image, all heads"),
    ("LARGEST_WEIGHTS", inference_schedule.LARGEST_WEIGHTS, "weights of all layers"),
)


def one_sum_page() -> str:
    """docs/spec/one-sum.md: a whole secure sum as straight code."""
    source = inspect.getsource(one_sum)
    return f"""# A secure sum on one screen

{_GENERATED}
A test compares it with what the state machines say, message by message.

*Informative.* Everybody's part in active mode, without state machines. It is no implementation, for it trusts everybody
and checks nothing. Vectors fit one chunk, and the graph is complete.

`digest`, `derive`, `seal` and the keys are those of [primitives.md](primitives.md), `share` and `reconstruct` those of
[secure-aggregation.md](secure-aggregation.md), the labels those of [constants.md](constants.md), and the messages those
of [messages.md](messages.md).

```python
{source[source.index("def hold_sum") :].rstrip()}
```
"""


def messages_page() -> str:
    """docs/spec/messages.md: every structure on the wire with its fields in their order."""
    nested = (messages.Blob, blob.StateLayout)
    inference = {
        name: kind
        for name, kind in inference_messages.INFERENCE_MESSAGES.items()
        if name not in session_messages.MESSAGES
    }
    adaptation = {
        name: kind
        for name, kind in adaptation_messages.ADAPTATION_MESSAGES.items()
        if name not in inference_messages.INFERENCE_MESSAGES
    }
    parts = [
        "# Messages",
        "",
        _GENERATED,
        "",
        *prose(
            "The fields of every map in the order in which they MUST stand, with the msgpack type and the bounds "
            "of each. How they are encoded is in [encoding.md](encoding.md); what they mean and what a receiver "
            "checks is in [session.md](session.md), [secure-aggregation.md](secure-aggregation.md), "
            "[group-key.md](group-key.md), [inference.md](inference.md) and "
            "[adaptation.md](adaptation.md), whose rules prevail. A character is a Unicode code point."
        ),
        "",
        "## Envelope",
        *_structure(codec.Envelope),
    ]
    parts += _messages(session_messages.MESSAGES)
    for structure in nested:
        parts += ["", f"## {structure.__name__}, an item of an array", *_structure(structure)]
    parts += ["", "## Configuration, within `welcome`", *_structure(Configuration)]
    parts += [
        "",
        "# Messages of private inference",
        "",
        *prose(
            "Links of private inference know these types and `abort`, and no other; the links of a federation do not "
            "know them."
        ),
        *_messages(inference),
        "",
        "## Terms, within `inference-terms`",
        *_structure(inference_messages.Terms),
        "",
        "## Sizes, within Terms",
        *_structure(inference_schedule.Sizes),
        "",
        "## BlockForm, an item of an array within Sizes",
        *_structure(inference_schedule.BlockForm),
        "",
        "# Messages of double-blind adaptation",
        "",
        *prose(
            "Links of double-blind adaptation between a data owner and the model owner know these types, "
            + ", ".join(
                f"`{name}`" for name in adaptation_messages.ADAPTATION_MESSAGES if name not in (*adaptation, "abort")
            )
            + " as above, and `abort`, and no other."
        ),
        *_messages(adaptation),
        "",
        "## AdaptationTerms, within `inference-terms`",
        *_structure(adaptation_messages.AdaptationTerms),
        "",
        "## LearningSizes, within AdaptationTerms",
        *_structure(adaptation_messages.LearningSizes),
    ]
    return "\n".join(parts) + "\n"


def states_page() -> str:
    """docs/spec/states.md: the transition tables of all machines."""
    parts = [
        "# State tables",
        "",
        _GENERATED,
        "The same tables as diagrams: [state-machines.md](../state-machines.md).",
        "",
        *prose(
            "A message type that has no row here for a state MUST be refused there (UNEXPECTED). Names in "
            "capitals are events within a party: START; DROP, somebody is gone; COMPLETE, nobody is waited for "
            "any more; EXPIRE, the deadline passed; CONTRIBUTE, the trained update is there; AGREE, the server "
            "lets the clients agree on a group key; PROVIDE, the model is encrypted; DISTRIBUTE, the last "
            "model is handed out; NEXT_ROUND and FINISH, decisions of the server's owner. In private inference: ASK, "
            "the data owner wants a pass; PROVIDE, a layer is masked; BEGIN, the material of the pass is there; GIVE, "
            "what is to be opened is computed; ORDER, material is wanted; DELIVER, corrections are computed; "
            "FINISH, nothing more is wanted. In double-blind adaptation also: BEGIN_ROUND, a round begins, or goes on "
            "where it stands; KEEP_ROUND, its batches are over; ASK_SUM, its sum is wanted; PROVIDE, the sum is there, "
            "or there is none. *Ignored* means that the message is dropped without being parsed. *Inside* "
            "names the machine that a message is for: the secure sum of the round (sum), what a party does about group "
            "keys (holder, keeper), or an attempt at one (attempt). What such a machine comes to is an event with a "
            "name in mixed letters. The rules that "
            "decide between several successors are in [session.md](session.md), "
            "[secure-aggregation.md](secure-aggregation.md), [group-key.md](group-key.md), "
            "[inference.md](inference.md) and [adaptation.md](adaptation.md)."
        ),
    ]
    for states, title in (
        (TrainingState, "What a training client does in its states"),
        (SessionState, "What a training server does in its states"),
        (ClientState, "What an aggregation client does in its states"),
        (MemberState, "What a member of a group key does in its states"),
        (HolderState, "What a client does about group keys in a session"),
        (KeeperState, "What a server does about group keys in a session"),
        (InferenceState, "What an owner of private inference does towards the other"),
        (MaterialState, "What an owner of private inference does towards the dealer"),
        (DealerState, "What the dealer of private inference does in a session"),
    ):
        parts += ["", f"## {title}", "", *_table(("state", "meaning"), ((s.name, s.value) for s in states))]
    parts += ["", "The states of an aggregation server are the phases:", ""]
    parts += [", ".join(state.name for state in ServerState) + "."]
    for title, table in MACHINES.items():
        parts += ["", f"## {title}", "", *_table(("state", "on", "goes to"), _transitions(table))]
    return "\n".join(parts) + "\n"


def errors_page() -> str:
    """docs/spec/errors.md: the codes of refusals."""
    meanings = _docstrings(Code)
    rows = [(str(code.value), code.name, meanings[code.name]) for code in Code]
    parts = [
        "# Error codes",
        "",
        _GENERATED,
        "",
        *prose(
            "The field `code` of `abort` and `end-round` is one of these integers; any other is MALFORMED. The "
            "name is for people. The numbers are never reused; 10 stood for a rule that is gone. An implementation "
            "MUST use the code that the rule it found broken names ([encoding.md](encoding.md), "
            "[session.md](session.md), [secure-aggregation.md](secure-aggregation.md)); the text in `detail` is free "
            "and MUST NOT be interpreted."
        ),
        "",
        *_table(("code", "name", "meaning"), rows),
        "",
        *prose(
            "TIMEOUT, LEFT and LOCAL break no rule: a server MUST NOT bar a member for one of them. It MUST bar a "
            "member that is out of a sum for any other code, or is the culprit of an aborted sum, until its "
            "session ends."
        ),
    ]
    return "\n".join(parts) + "\n"


_LABELLED: Final = (
    RosterLabel, SumLabel, KeyLabel, EncryptionLabel, WeightsLabel, InferenceLabel, AdaptationLabel, TaskLabel,
    KeysLabel,
)  # fmt: skip
LABELS: Final = {name: label for kind in _LABELLED for name, label in vars(kind).items() if isinstance(label, Label)}
"""All labels of hashes, derived keys and signatures, by their names."""


def constants_page() -> str:
    """docs/spec/constants.md: labels and limits."""
    labels = [(name, f"`{label.decode()}`", str(len(label)), label.hex()) for name, label in LABELS.items()]
    usages = [(usage.name, f"`{usage.value.decode()}`", str(len(usage.value)), usage.value.hex()) for usage in Usage]
    head = ("name", "ASCII", "bytes", "hex")
    parts = [
        "# Labels and limits",
        "",
        _GENERATED,
        "",
        "## Labels of hashes, derived keys and signatures",
        "",
        "Used in framed form ([primitives.md](primitives.md)), without a terminating zero.",
        "",
        *_table(head, labels),
        "",
        "## Labels of keystreams",
        "",
        *_table(head, usages),
        "",
        "## Limits",
        "",
        *_table(("name", "value", "of what"), ((name, str(value), text) for name, value, text in _LIMITS)),
    ]
    return "\n".join(parts) + "\n"


def prose(text: str) -> list[str]:
    """A paragraph in lines of at most 120 characters."""
    return textwrap.wrap(" ".join(text.split()), 120, break_on_hyphens=False)


def _messages(kinds: Mapping[str, type[messages.Message]]) -> Iterator[str]:
    for name, kind in kinds.items():
        payload = "A raw frame may follow the body." if kind.PAYLOAD else "No raw frame."
        yield from ("", f"## `{name}`", *_structure(kind, f"Traffic of {kind.PHASE!s}. {payload}"))


def _structure(kind: type[msgspec.Struct], *more: str) -> Iterator[str]:
    yield ""
    yield from prose(" ".join([inspect.getdoc(kind) or "", *more]))
    fields = types.type_info(kind).fields  # type: ignore[attr-defined]
    meanings = _docstrings(kind)
    if fields:
        yield ""
        rows = ((f"`{field.name}`", _type(field.type), meanings.get(field.name, "")) for field in fields)
        yield from _table(("field", "type", "meaning"), rows)


def _type(kind: types.Type) -> str:
    match kind:
        case types.IntType():
            return f"int{_range(kind)}"
        case types.FloatType():
            return f"float64{_range(kind)}"
        case types.BoolType():
            return "bool"
        case types.BytesType(min_length=least, max_length=most):
            return f"bin, {most} bytes" if least == most else f"bin, at most {most} bytes"
        case types.StrType(max_length=most):
            return f"str, at most {most} characters"
        case types.LiteralType(values=values):
            return "str, " + " or ".join(f"`{value}`" for value in values)
        case types.EnumType(cls=cls) if cls is Code:
            return "int, an [error code](errors.md)"
        case types.EnumType(cls=cls):
            return "str, " + " or ".join(f"`{member.value}`" for member in cls)
        case types.UnionType(types=alternatives):
            return ", or ".join(map(_type, alternatives))
        case types.NoneType():
            return "nil"
        case types.VarTupleType(item_type=item, max_length=most):
            length = "" if most is None else f" of at most {most}"
            return f"array{length}: {_type(item)}"
        case types.StructType(cls=cls):
            name = getattr(cls, "TYPE", None)
            return f"map, the body of `{name}`" if name else f"map, {cls.__name__}"
    raise TypeError(f"no words for {kind}")


def _range(kind: types.IntType | types.FloatType) -> str:
    bounds = ((kind.ge, "from"), (kind.gt, "above"), (kind.le, "to"), (kind.lt, "below"))
    # typing takes float bounds of equal value for the same, so 0 may come out as 0.0.
    return "".join(
        f" {word} {bound:g}" if isinstance(bound, float) else f" {word} {bound}"
        for bound, word in bounds
        if bound is not None
    )


def _transitions(table: Table[Any]) -> Iterator[tuple[str, str, str]]:
    reached: dict[Enum, dict[str, list[str]]] = {}
    for (state, cause), row in table.items():
        message = isinstance(cause, type) and issubclass(cause, messages.Message)
        name = f"`{name_of(cause)}`" if message else name_of(cause)
        reached.setdefault(state, {}).setdefault(_target(row), []).append(name)
    for state, rows in reached.items():
        for targets, causes in rows.items():
            yield state.name, ", ".join(causes), targets


def _target(cell: Row[Any] | Ignore | Inside[Any] | None) -> str:
    if isinstance(cell, Inside):
        otherwise = "" if cell.otherwise is None else f", else {_target(cell.otherwise)}"
        return f"*inside*: {cell.machine}{otherwise}"
    return ", ".join(target.name for target in cell.to) if isinstance(cell, Row) else "*ignored*"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def _docstrings(kind: type) -> Mapping[str, str]:
    """What stands below each field or member in the source of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    found: dict[str, str] = {}
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    for statement, following in pairwise(body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]  # type: ignore[assignment]
        if isinstance(target, ast.Name) and isinstance(following, ast.Expr):
            found[target.id] = " ".join(ast.literal_eval(following.value).split())
    return found
