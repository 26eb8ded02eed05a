"""The protocols between the parties: messages, codec, state machines, and refusals; no I/O.

Public names are those of `__all__`, loaded on first access; everything else may change.
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

_HOMES = {
    name: f"tacit.protocol.{module}"
    for module, names in {
        "core.roster": ("Member", "PartyKeys", "Roster", "new_keys"),
        "session.one_sum": ("SumClient", "SumResult", "SumServer", "SumSettings", "make_roster"),
        "sum.exchange": ("ClientAborted", "Contributed", "ServerAborted"),
        "sum.policy": ("Policy",),
    }.items()
    for name in names
}
__all__ = [*_HOMES]
__version__ = version("tacit")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
