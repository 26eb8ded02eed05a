"""Amounts as people read them, in the report and on the live page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

NOTHING: Final = "\N{EN DASH}"
BYTE_UNITS: Final = ((1.0, "bytes"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))


def seconds(value: float | None) -> str:
    """A duration for people: "8.3 ms", "2.41 s", "3 min 20 s", "5 h 3 min"; a dash for none."""
    if not value:
        return NOTHING
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    if value < 99.5:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def byte_count(value: float | None) -> str:
    """An amount of bytes for people: "281 bytes", "4.16 MB"."""
    if value is None:
        return NOTHING
    scale, unit = next((unit for unit in reversed(BYTE_UNITS) if value >= unit[0]), BYTE_UNITS[0])
    shown = value / scale
    return f"{shown:.0f} {unit}" if scale == 1 or shown >= 100 else f"{shown:.3g} {unit}"


def decimal(value: float | None) -> str:
    """Three digits after the point."""
    return NOTHING if value is None else f"{value:.3f}"


FILTERS: Final[dict[str, Callable[..., Any]]] = {"seconds": seconds, "bytes": byte_count, "decimal": decimal}
"""As templates call them."""
