"""What the parties say to each other, when, and what is refused: messages, codec, state machines; no I/O.

Public names are those of `__all__`, loaded when they are first asked for; everything else may change.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.protocol.core.roster import Member as Member
    from tacit.protocol.core.roster import PartyKeys as PartyKeys
    from tacit.protocol.core.roster import Roster as Roster
    from tacit.protocol.core.roster import new_keys as new_keys
    from tacit.protocol.session.one_sum import SumClient as SumClient
    from tacit.protocol.session.one_sum import SumResult as SumResult
    from tacit.protocol.session.one_sum import SumServer as SumServer
    from tacit.protocol.session.one_sum import SumSettings as SumSettings
    from tacit.protocol.session.one_sum import make_roster as make_roster
    from tacit.protocol.sum.exchange import ClientAborted as ClientAborted
    from tacit.protocol.sum.exchange import Contributed as Contributed
    from tacit.protocol.sum.exchange import ServerAborted as ServerAborted
    from tacit.protocol.sum.policy import Policy as Policy

_ONE_SUM = "tacit.protocol.session.one_sum"
_RESULTS = "tacit.protocol.sum.exchange"
_ROSTER = "tacit.protocol.core.roster"
_HOMES = {
    "ClientAborted": _RESULTS,
    "Contributed": _RESULTS,
    "Member": _ROSTER,
    "PartyKeys": _ROSTER,
    "Policy": "tacit.protocol.sum.policy",
    "Roster": _ROSTER,
    "ServerAborted": _RESULTS,
    "SumClient": _ONE_SUM,
    "SumResult": _ONE_SUM,
    "SumServer": _ONE_SUM,
    "SumSettings": _ONE_SUM,
    "make_roster": _ONE_SUM,
    "new_keys": _ROSTER,
}
__all__ = [*_HOMES]
__version__ = version("tacit")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
