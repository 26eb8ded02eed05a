"""Where the time of the protocol goes: seconds by kind of work, of everything that runs in this process.

The protocol itself has no clock. A Stopwatch therefore replaces the functions that do the work, in every module of ours
that uses them, by ones that are timed; nested work counts for the innermost kind. It costs about a microsecond a call.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from tacit.protocol.core import codec, primitives
from tacit.protocol.sum import sharing, unmasking, vector_sum
from tacit.secagg import keystream, ring, shamir

KINDS: Final[dict[str, tuple[tuple[Any, str], ...]]] = {
    "key agreement": (
        (primitives.AgreementKey, "__init__"),
        (primitives.AgreementKey, "agree"),
        (primitives, "derive"),
    ),
    "signatures": ((primitives.SigningKey, "sign"), (primitives, "verify")),
    "sharing": (
        (shamir, "share"),
        (primitives, "seal"),
        (primitives, "open_sealed"),
        (sharing, "commit_share"),
        (sharing, "check_share"),
    ),
    "masking": ((keystream, "apply_masks"),),
    "reconstruction": ((unmasking, "open_secrets"),),
    "summing": ((vector_sum.VectorSum, "add"), (ring.Ring, "add_into")),
    "serialisation": (
        (codec, "encode"),
        (codec, "decode"),
        (codec.Packet, "parse"),
        (ring.Ring, "pack"),
        (ring.Ring, "unpack"),
    ),
}
"""The kinds of work, and the functions and methods that do them."""


class Stopwatch:
    """Times the protocol between `install` and `remove`. All threads count."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._nested = threading.local()
        self._replaced: list[tuple[Any, str, Any]] = []

    def install(self) -> Stopwatch:
        """Replace the functions by timed ones."""
        for kind, places in KINDS.items():
            for owner, name in places:
                original = getattr(owner, name)
                timed = self._timed(kind, original)
                users = [owner] if isinstance(owner, type) else _users(name, original)
                for user in users:
                    self._replaced.append((user, name, original))
                    setattr(user, name, timed)
        return self

    def remove(self) -> None:
        """Put the functions back."""
        while self._replaced:
            user, name, original = self._replaced.pop()
            setattr(user, name, original)

    def _timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            outer, self._nested.seconds = getattr(self._nested, "seconds", 0.0), 0.0
            began = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                elapsed = time.perf_counter() - began
                self.seconds[kind] += elapsed - self._nested.seconds
                self._nested.seconds = outer + elapsed

        return timed


def _users(name: str, function: Any) -> list[Any]:
    """Every module of ours that has this function under this name."""
    ours = [module for key, module in list(sys.modules.items()) if key.startswith("tacit.")]
    return [module for module in ours if getattr(module, name, None) is function]
