"""Every single change of a message, and what those of its envelope and frames lead to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgpack

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.results import InferenceEnded
from tacit.simulate.world.inference import MemoryInference
from tacit.simulate.world.world import Parcel

Codes = dict[tuple[str, str], set[Code | None]]
COMMON: Codes = {
    ("envelope", "version"): {Code.VERSION},
    ("envelope", "type"): {Code.MALFORMED, Code.UNEXPECTED, Code.SESSION},
    ("envelope", "session"): {Code.SESSION},
    ("envelope", "round"): {Code.SESSION},
    ("envelope", "sender"): {Code.SENDER},
    ("envelope", "sequence"): {Code.SEQUENCE},
    ("envelope", "link"): {Code.SEQUENCE},
    ("envelope", "received"): {Code.SEQUENCE},
    ("envelope", "unknown"): {Code.MALFORMED},
    ("body", "unknown"): {Code.MALFORMED},
    ("payload", "length"): {Code.VECTOR},
    ("payload", "absence"): {Code.VECTOR},
    ("payload", "content"): {None},
}


UNCLEAR = {
    # Of two that differ the dealer, and of two verdicts nobody, knows which was changed.
    ("dealer-hello", "terms"),
    ("order-randomness", "count"),
    ("order-randomness", "requests"),
    ("opening", "content"),
    # The receiver agrees to what it read, or has no session to put into its answer.
    ("inference-terms", "terms"),
    *(("inference-terms", name) for name in ("version", "type", "session", "unknown")),
    # Its own later messages, which tell the same, seem to contradict it.
    ("begin-round", "done"),
    ("ask-sum", "number"),
}
"""Changes after which another than the sender of the message may be named."""


def changed(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool() | None:
            raise ValueError(f"no other value of {value!r}")
        case int():
            return value + 1
        case bytes():
            return value[:-1] + bytes([value[-1] ^ 1]) if value else b"\0"
        case dict():
            return {name: changed(each) for name, each in value.items()}
        case list():
            return [each + 1 if isinstance(each, int) else each for each in value[::-1]] if value else ["x"]
        case str():
            return value[:-1] + ("x" if value[-1:] != "x" else "y")
    raise ValueError(f"no other value of {value!r}")


def corruptions(parcel: Parcel, types: Mapping[str, str]) -> list[tuple[str, str, Parcel]]:
    """Part, field, and the changed message. types: what a type is changed into, "opening" by default."""
    found = []
    for place, part in enumerate(("envelope", "body")):
        plain = msgpack.unpackb(parcel.frames[place])
        for name, value in [*plain.items(), ("unknown", 0)]:
            other = types.get(value, "opening") if name == "type" else changed(value)
            frames = list(parcel.frames)
            frames[place] = msgpack.packb(plain | {name: other}, use_bin_type=True)
            found.append((part, name, replace(parcel, frames=tuple(frames))))
    if len(parcel.frames) == 3:
        payload = bytes(parcel.frames[2])
        for name, rest in (("content", (changed(payload),)), ("length", (payload + b"\0",)), ("absence", ())):
            found.append(("payload", name, replace(parcel, frames=(*parcel.frames[:2], *rest))))
    return found


def corrupted_runs(
    world: Callable[[], MemoryInference],
    transcript: Sequence[Parcel],
    index: int,
    expected: Callable[[str, str], set[Code | None]],
    types: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, str, MemoryInference, bool]]:
    """Change each field of this message in turn. Part, field, run, and whether a session was broken off by it; with
    the expected codes of this part and field, of which None stands for a regular end."""
    for part, name, corrupted in corruptions(transcript[index], types or {}):
        run, seen = world(), 0

        def hook(parcel: Parcel, corrupted: Parcel = corrupted) -> list[Parcel]:
            nonlocal seen
            seen += 1
            return [corrupted if seen == index + 1 else parcel]

        run.hook = hook
        run.run()
        ends = run.outcome(InferenceEnded)
        broken = {ended.code for ended in ends} - {None}
        codes = expected(part, name)
        assert broken <= codes, (index, part, name, broken)
        assert broken or None in codes, (index, part, name)
        if (transcript[index].kind, name) not in UNCLEAR:
            named = {ended.culprit for ended in ends if ended.code not in (None, Code.TIMEOUT)}
            assert named <= {transcript[index].sender}, (index, part, name, named)
        for _, machine in run.living():
            assert machine.deadline is None
        yield part, name, run, bool(broken)
