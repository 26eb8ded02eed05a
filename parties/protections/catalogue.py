"""Registry of all protections by their names, and how one is read from a file or a message.

A protection is known once it is registered; the lines below register the built-in ones. A program with its own calls
`register(TopK)` in every process that reads it: docs/adding-a-protection.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tacit.parties.protections.binary_weights import BinaryWeights, CoordinatedBinaryWeights, LockedBinaryWeights
from tacit.parties.protections.fedcg import FedCG
from tacit.parties.protections.fedrsm import FedRSM
from tacit.parties.protections.fedsplit import FedSplit
from tacit.parties.protections.fixed_position import FixedPosition
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection, Scheme, name_of

_REGISTERED: dict[str, type[Scheme]] = {}


def register(protection: type[Scheme]) -> type[Scheme]:
    """Register a protection; also a decorator. ValueError if another one has its name."""
    name = name_of(protection)
    if _REGISTERED.setdefault(name, protection) is not protection:
        raise ValueError(f'there is a protection "{name}" already')
    return protection


register(NoProtection)
register(FixedPosition)
register(BinaryWeights)
register(LockedBinaryWeights)
register(CoordinatedBinaryWeights)
register(FedRSM)
register(FedSplit)
register(FedCG)
register(GaussianNoise)


def registered() -> dict[str, type[Scheme]]:
    """All protections by their names, in the order of registration."""
    return dict(_REGISTERED)


def pinnable() -> list[str]:
    """The keys for which a policy may set a least value."""
    return sorted({key for protection in _REGISTERED.values() for key in protection().strengths()})


def chosen(settings: Mapping[str, Any]) -> type[Scheme]:
    """The protection class of these settings. ValueError for an unknown one."""
    scheme = settings.get("scheme", "none")
    if not isinstance(scheme, str) or scheme not in _REGISTERED:
        known = " or ".join(f'"{name}"' for name in _REGISTERED)
        raise ValueError(f"protection.scheme = {msgspec.json.encode(scheme).decode()}: expected {known}")
    return _REGISTERED[scheme]


def read_protection(settings: Mapping[str, Any]) -> Protection:
    """A protection from its settings, which include `scheme`. ValueError as in `chosen`; msgspec.ValidationError."""
    return msgspec.convert(dict(settings), chosen(settings))


def protection_hook(kind: type, value: Any) -> Any:
    """Decode a Protection for msgspec: its `dec_hook`."""
    if kind is not Protection:
        raise NotImplementedError(f"{kind.__name__} is not read here")
    if isinstance(value, Protection):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("protection: expected a section with keys of its own")
    return read_protection(value)
