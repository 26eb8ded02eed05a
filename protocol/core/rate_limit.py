"""Rate limit of a peer's costly requests: a hello, a resumption, an unreadable message.

A few requests are answered at once, and one more from time to time. An excess request is no offence: it waits for its
turn, and only the last one does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

HELLOS: Final = 5
"""Hellos and resumptions of a member that are answered at once."""
HELLO_SECONDS: Final = 10
"""Seconds after which a member regains one of them."""

KeyT = TypeVar("KeyT", bound=Hashable)
RequestT = TypeVar("RequestT")


class RateLimit(Generic[KeyT, RequestT]):
    """State by peer (a name that the transport authenticated, or a pair of names), and waiting requests."""

    def __init__(self) -> None:
        self._full: dict[KeyT, float] = {}
        """Time at which the peer has regained all its answers."""
        self._waiting: dict[KeyT, tuple[float, RequestT]] = {}

    def turn(self, peer: KeyT, now: float) -> float:
        """Time at which a request of this peer may be answered."""
        return max(now, self._full.get(peer, now) - (HELLOS - 1) * HELLO_SECONDS)

    def spend(self, peer: KeyT, now: float) -> None:
        self._waiting.pop(peer, None)
        self._full[peer] = max(now, self._full.get(peer, now)) + HELLO_SECONDS

    def give_back(self, peer: KeyT) -> None:
        if peer in self._full:
            self._full[peer] -= HELLO_SECONDS

    def wait(self, peer: KeyT, until: float, request: RequestT) -> None:
        self._waiting[peer] = until, request

    def withdraw(self, peer: KeyT) -> None:
        self._waiting.pop(peer, None)

    def clear(self) -> None:
        self._waiting.clear()

    def waited(self, now: float) -> list[tuple[KeyT, RequestT]]:
        return [(peer, request) for peer, (until, request) in self._waiting.items() if now >= until]

    def deadlines(self) -> Iterable[float]:
        return (until for until, _ in self._waiting.values())
