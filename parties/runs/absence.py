"""Who was not in a round, in words."""

from __future__ import annotations

from collections.abc import Mapping


def without(absent: Mapping[str, str], most: int | None = None) -> str:
    """ "client-2 and client-3 (why), client-4 (why)"; most: how many are named of those with one reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in absent.items():
        reasons.setdefault(reason, []).append(name)
    return ", ".join(f"{_named(names, most or len(names))} ({reason})" for reason, names in reasons.items())


def _named(names: list[str], most: int) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
