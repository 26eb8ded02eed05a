"""Every field of every message of a round changed, one at a time: refused with its code, or without harm.

The messages of private inference, between the same owners, are changed in tests/protocol/inference/test_corruption.py.
"""

from dataclasses import replace
from typing import Any

import msgpack

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.adaptation.states import RoundAnswered, RoundAsked, RoundKept, SumTold
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.inference.results import InferenceEnded
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.inference import data_owner_names
from tacit.simulate.world.world import Parcel
from tests.cases import cases

FIRST, SECOND = NAMES = data_owner_names(2)
KINDS = sorted(set(ADAPTATION_MESSAGES) - set(INFERENCE_MESSAGES))
CODES: dict[tuple[str, str], set[Code | None]] = {
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
    ("begin-round", "number"): {Code.SESSION},
    ("begin-round", "based"): {Code.SESSION},
    ("begin-round", "done"): {Code.SESSION},
    ("begin-round", "count"): {Code.SESSION},
    ("round-begun", "done"): {Code.SESSION},
    ("compare-kept", "images"): {Code.SESSION},
    ("compare-kept", "chain"): {Code.SESSION},
    ("compare-kept", "uses"): {None},
    ("compare-kept", "steps"): {None},
    ("kept-compared", "images"): {Code.SESSION},
    ("kept-compared", "chain"): {Code.SESSION},
    ("kept-compared", "uses"): {Code.SESSION},
    ("choose-images", "images"): {Code.SESSION},
    ("keep-round", "number"): {Code.SESSION},
    ("keep-round", "secret"): {None},
    ("ask-sum", "number"): {Code.SESSION},
    ("ask-sum", "survivors"): {Code.MEMBERS},
    ("own-sum", "number"): {Code.UNEXPECTED},
    ("own-sum", "chunk"): {Code.UNEXPECTED},
    ("sum-lost", "number"): {Code.SESSION},
    ("sum-lost", "detail"): {None},
    ("payload", "length"): {Code.VECTOR},
    ("payload", "absence"): {Code.VECTOR},
    ("payload", "content"): {None},
}
"""What a change leads to; None: to other words, or another reason, which nobody can notice."""


def world() -> MemoryAdaptation:
    plan = (*round_plan(1, NAMES), ("ask_sum", (2, ())))
    return MemoryAdaptation(dict.fromkeys(NAMES, plan), brought=True)


TRANSCRIPT = tuple(world().run().log)


def changed(name: str, value: Any) -> Any:
    match value:
        case bool() | None:
            raise NotImplementedError(name)
        case int():
            return value + 1
        case bytes():
            return value[:-1] + bytes([value[-1] ^ 1])
        case list():
            return [each + 1 if isinstance(each, int) else each for each in value[::-1]] if value else ["x"]
        case str():
            return value[:-1] + ("x" if value[-1:] != "x" else "y")
    raise NotImplementedError(f"no other value of {value!r}")


def corruptions(parcel: Parcel) -> list[tuple[str, str, Parcel]]:
    found = []
    for place, part in enumerate(("envelope", "body")):
        plain = msgpack.unpackb(parcel.frames[place])
        for name, value in [*plain.items(), ("unknown", 0)]:
            other = "opening" if name == "type" else changed(name, value)
            frames = list(parcel.frames)
            frames[place] = msgpack.packb(plain | {name: other}, use_bin_type=True)
            found.append((part, name, replace(parcel, frames=tuple(frames))))
    if len(parcel.frames) == 3:
        payload = bytes(parcel.frames[2])
        for name, rest in (("content", (changed("", payload),)), ("length", (payload + b"\0",)), ("absence", ())):
            found.append(("payload", name, replace(parcel, frames=(*parcel.frames[:2], *rest))))
    return found


def known(run: MemoryAdaptation) -> list[Any]:
    kinds = (RoundAsked, RoundAnswered, RoundKept, SumTold)
    return [(each.party, vars(each.output)) for each in run.told if isinstance(each.output, kinds)]


def test_every_kind_is_in_the_transcript() -> None:
    assert set(KINDS) <= {parcel.kind for parcel in TRANSCRIPT}
    assert KINDS == [
        "ask-sum", "begin-round", "choose-images", "compare-kept", "keep-round", "kept-compared", "own-sum",
        "round-begun", "sum-lost",
    ]  # fmt: skip


@cases("kind", KINDS)
def test_every_field_of_every_message(kind: str) -> None:
    index = next(index for index, parcel in enumerate(TRANSCRIPT) if parcel.kind == kind)
    for part, name, corrupted in corruptions(TRANSCRIPT[index]):
        run, seen = world(), 0

        def hook(parcel: Parcel, corrupted: Parcel = corrupted) -> list[Parcel]:
            nonlocal seen
            seen += 1
            return [corrupted if seen == index + 1 else parcel]

        run.hook = hook
        run.run()
        codes = {ended.code for ended in run.outcome(InferenceEnded)}
        expected = CODES.get((kind, name)) if part == "body" and name != "unknown" else CODES[part, name]
        assert expected is not None, (kind, name)
        broken = codes - {None}
        assert broken <= expected, (kind, part, name, codes)
        assert broken or None in expected, (kind, part, name)
        for _, machine in run.living():
            assert machine.deadline is None
        if not broken:
            same = [now == before for now, before in zip(known(run), KNOWN, strict=True)]
            # One use or step more may be so; it is of no round.
            assert same.count(False) == (kind != "compare-kept"), (kind, part, name)


KNOWN = known(world().run())
