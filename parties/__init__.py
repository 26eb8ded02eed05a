"""Asyncio and ZeroMQ: the parties as processes, their keys, links and logs.

Public names are those of `__all__`, loaded when they are first asked for; everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.parties.hosting.own_party import Client as Client
    from tacit.parties.hosting.own_party import Server as Server
    from tacit.parties.runs.own_functions import FederationError as FederationError
    from tacit.parties.runs.own_functions import FederationResult as FederationResult

_OWN_FUNCTIONS = "tacit.parties.runs.own_functions"
_OWN_PARTY = "tacit.parties.hosting.own_party"
_HOMES = {
    "Client": _OWN_PARTY,
    "FederationError": _OWN_FUNCTIONS,
    "FederationResult": _OWN_FUNCTIONS,
    "Server": _OWN_PARTY,
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
