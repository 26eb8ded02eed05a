"""Every field of every message of a round changed, one at a time: refused with its code, or without harm.

The messages of private inference, between the same owners, are changed in tests/protocol/inference/test_corruption.py.
"""

from typing import Any

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.adaptation.states import RoundAnswered, RoundAsked, RoundKept, SumTold
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.inference import data_owner_names
from tests.cases import cases
from tests.protocol.corruption import COMMON, Codes, corrupted_runs

FIRST, SECOND = NAMES = data_owner_names(2)
KINDS = sorted(set(ADAPTATION_MESSAGES) - set(INFERENCE_MESSAGES))
CODES: Codes = {
    **COMMON,
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
}
"""What a change leads to; None: to other words, or another reason, which nobody can notice."""


def world() -> MemoryAdaptation:
    plan = (*round_plan(1, NAMES), ("ask_sum", (2, ())))
    return MemoryAdaptation(dict.fromkeys(NAMES, plan), brought=True)


TRANSCRIPT = tuple(world().run().log)


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

    def expected(part: str, name: str) -> set[Code | None]:
        return CODES[kind, name] if part == "body" and name != "unknown" else CODES[part, name]

    for part, name, run, broken in corrupted_runs(world, TRANSCRIPT, index, expected):
        if not broken:
            same = [now == before for now, before in zip(known(run), KNOWN, strict=True)]
            # One use or step more may be so; it is of no round.
            assert same.count(False) == (kind != "compare-kept"), (kind, part, name)


KNOWN = known(world().run())
