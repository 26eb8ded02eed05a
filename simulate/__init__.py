"""Many parties on one machine: experiments described by one file, and the processes that run them.

Public names are those of `__all__`, loaded on first use; everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.parties.runs.own_functions import FederationError as FederationError
    from tacit.parties.runs.own_functions import FederationResult as FederationResult
    from tacit.simulate.federation.own_federation import Federation as Federation
    from tacit.simulate.world.secure_sum import SumError as SumError
    from tacit.simulate.world.secure_sum import secure_sum as secure_sum

_HOMES = {
    "Federation": "tacit.simulate.federation.own_federation",
    "FederationError": "tacit.parties.runs.own_functions",
    "FederationResult": "tacit.parties.runs.own_functions",
    "SumError": "tacit.simulate.world.secure_sum",
    "secure_sum": "tacit.simulate.world.secure_sum",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
