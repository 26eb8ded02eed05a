"""Mermaid state diagrams, drawn from the transition tables.

An arrow is labelled with its cause: the type of a received message in lower case, an internal one in capitals, or what
a machine inside came to, by its name. What no arrow shows is refused, or is for a machine inside.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from typing import Any, Final

from tacit.protocol.adaptation.data_owner import LEARNING_DATA_OWNER_TABLE
from tacit.protocol.adaptation.model_owner import LEARNING_MODEL_OWNER_TABLE
from tacit.protocol.core.machine import Cause, Input, Inside, Row, Table
from tacit.protocol.core.messages import Message
from tacit.protocol.group_key.holder import HOLDER_TABLE, MEMBER_TABLE
from tacit.protocol.group_key.keeper import KEEPER_TABLE, RELAY_TABLE
from tacit.protocol.inference.data_owner import DATA_OWNER_TABLE
from tacit.protocol.inference.dealer import DEALER_TABLE
from tacit.protocol.inference.material import MATERIAL_TABLE
from tacit.protocol.inference.model_owner import MODEL_OWNER_TABLE
from tacit.protocol.session.client import TRAINING_CLIENT_TABLE
from tacit.protocol.session.server import TRAINING_SERVER_TABLE
from tacit.protocol.sum.client import CLIENT_TABLES
from tacit.protocol.sum.plain import PLAIN_CLIENT_TABLE, PLAIN_SERVER_TABLE
from tacit.protocol.sum.server import SERVER_TABLES

MACHINES: Final[dict[str, Table[Any]]] = {
    "Training client": TRAINING_CLIENT_TABLE,
    "Training server": TRAINING_SERVER_TABLE,
    "Aggregation client, active mode": CLIENT_TABLES["active"],
    "Aggregation client, semi-honest mode": CLIENT_TABLES["semi-honest"],
    "Aggregation server, active mode": SERVER_TABLES["active"],
    "Aggregation server, semi-honest mode": SERVER_TABLES["semi-honest"],
    "Sum without secure aggregation, client": PLAIN_CLIENT_TABLE,
    "Sum without secure aggregation, server": PLAIN_SERVER_TABLE,
    "Group key, member": MEMBER_TABLE,
    "Group key, relay": RELAY_TABLE,
    "Group keys in a session, client": HOLDER_TABLE,
    "Group keys in a session, server": KEEPER_TABLE,
    "Private inference, data owner": DATA_OWNER_TABLE,
    "Private inference, model owner": MODEL_OWNER_TABLE,
    "Private inference, an owner towards the dealer": MATERIAL_TABLE,
    "Private inference, dealer": DEALER_TABLE,
    "Double-blind adaptation, data owner": LEARNING_DATA_OWNER_TABLE,
    "Double-blind adaptation, model owner": LEARNING_MODEL_OWNER_TABLE,
}
"""Every machine of the protocol, by its title."""


def name_of(cause: Cause) -> str:
    """A cause as people are told of it."""
    if isinstance(cause, Input):
        return cause.name
    return cause.TYPE if issubclass(cause, Message) else cause.__name__


def draw(table: Table[Any]) -> str:
    """One Mermaid diagram. Arrows between the same two states share a label; ignored messages are left out."""
    arrows: dict[tuple[Enum, Enum], list[str]] = defaultdict(list)
    for (state, cause), cell in table.items():
        row = cell.otherwise if isinstance(cell, Inside) else cell
        if isinstance(row, Row):
            for target in row.to:
                arrows[state, target].append(name_of(cause))
    states = list(dict.fromkeys(state for arrow in arrows for state in arrow))
    leaving = {source for source, target in arrows if source is not target}
    lines = ["stateDiagram-v2", f"    [*] --> {states[0].name}"]
    lines += [
        f"    {source.name} --> {target.name}: {', '.join(causes)}" for (source, target), causes in arrows.items()
    ]
    lines += [f"    {state.name} --> [*]" for state in states if state not in leaving]
    return "\n".join(lines)


def page() -> str:
    """The page docs/state-machines.md."""
    parts = [
        "# State machines",
        "",
        "Drawn from the transition tables in `protocol/` by `make docs`; a test fails when page and tables differ. A",
        "lower-case label is a received message, a capital one an internal event: START, DROP (somebody is gone),",
        "COMPLETE (nobody is waited for), EXPIRE (the deadline passed), CONTRIBUTE (the trained update is there),",
        "NEXT_ROUND and FINISH; for group keys AGREE (the members are named), PROVIDE (the model is encrypted) and",
        "DISTRIBUTE (the last model is handed out); for private inference ASK (the data owner wants a pass), PROVIDE",
        "(a layer is masked), BEGIN (the material of the pass is there), GIVE (what is to be opened in a round is",
        "computed), ORDER (material is wanted) and DELIVER (corrections are computed); for adaptation also",
        "BEGIN_ROUND (a round of learning begins), KEEP_ROUND (its batches are over), ASK_SUM (its sum is wanted) and",
        "PROVIDE (the sum is there, or there is none). A label in mixed letters is",
        "what a machine inside has come to: a session contains the secure sum of the round and what a party does",
        "about group keys, and that contains the attempt at a key. Messages for a machine inside are in its own",
        "diagram. What no arrow shows is refused: a client then aborts the round with a code, a server excludes the",
        "sender, a party of private inference ends the session. Repeated and late messages are ignored.",
    ]
    for title, table in MACHINES.items():
        parts += ["", f"## {title}", "", "```mermaid", draw(table), "```"]
    return "\n".join(parts) + "\n"
