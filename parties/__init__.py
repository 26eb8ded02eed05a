"""Asyncio and ZeroMQ: the parties as processes, their keys, links and logs.

Public names are those of `__all__`, loaded on first access; everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.parties.hosting.own_party import Client as Client
    from tacit.parties.hosting.own_party import Server as Server
    from tacit.parties.runs.own_functions import FederationError as FederationError
    from tacit.parties.runs.own_functions import FederationResult as FederationResult

_HOMES = {
    "Client": "tacit.parties.hosting.own_party",
    "FederationError": "tacit.parties.runs.own_functions",
    "FederationResult": "tacit.parties.runs.own_functions",
    "Server": "tacit.parties.hosting.own_party",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
