"""Every field of every message of a session changed, one at a time: it is refused with its code, or without harm.

The table at the top says what a change of a field must lead to; what is not in it must end the session.
"""

from typing import Any

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.results import (
    KeysDealt,
    MaskedLayer,
    MaterialArrived,
    MaterialKey,
    Opened,
    PassBegun,
)
from tacit.protocol.inference.schedule import RANGE
from tacit.simulate.world.inference import MemoryInference, data_owner_names
from tacit.simulate.world.world import Parcel
from tests.cases import cases
from tests.protocol.corruption import COMMON, Codes, corrupted_runs

(DATA_OWNER,) = data_owner_names(1)


def world() -> MemoryInference:
    return MemoryInference({DATA_OWNER: InferenceRequest(images=1, batch=1, channels=1, side=4)})


TRANSCRIPT = tuple(world().run().log)
FIELDS: Codes = {
    **COMMON,
    ("body", "roster"): {Code.ROSTER},
    ("body", "terms"): {Code.POLICY, Code.MALFORMED},
    ("body", "images"): {Code.POLICY},
    ("body", "batch"): {Code.POLICY},
    ("body", "weights"): {Code.MODEL},
    ("body", "layer"): {Code.UNEXPECTED},
    ("body", "step"): {Code.UNEXPECTED},
    ("body", "number"): {Code.UNEXPECTED},
    ("body", "chunk"): {Code.UNEXPECTED},
    ("body", "peer"): {Code.MEMBERS},
    ("body", "contribution"): {None},
    ("body", "first"): {Code.SEQUENCE},
    ("body", "count"): {Code.POLICY},
    ("body", "requests"): {Code.POLICY},
}
"""What a change leads to; None: to another number or another key, which nobody can notice."""
DEALERS = "dealer-hello", "dealer-welcome", "order-randomness", "randomness", "dealing-over"
UNREADABLE = "version", "type", "session", "unknown"
EXCEPTIONS: Codes = {
    # More images than there are: the model owner would compute more.
    ("agree-terms", "images"): {None},
    # No hello, and of no session.
    ("inference-hello", "type"): {Code.TIMEOUT},
    # The data owner that cannot read it has no session to put into its answer.
    **{("inference-terms", name): {Code.SESSION, *FIELDS["envelope", name]} for name in UNREADABLE},
    # Not the first message of a session: of a former one.
    ("inference-terms", "sequence"): {Code.TIMEOUT},
    # The dealer and the owners ignore what is of another session; then something is missing.
    **{(kind, "session"): {Code.SESSION, Code.SEQUENCE, Code.TIMEOUT, None} for kind in DEALERS},
    # The dealer cannot tell whose session an unreadable hello is of.
    **{("dealer-hello", name): {Code.TIMEOUT, *FIELDS["envelope", name]} for name in UNREADABLE},
}
RANGE_STEP = [each.operation for each in world().run().outcome(PassBegun)[0].rounds].index(RANGE)
TYPES = {"inference-hello": "dealer-hello", "opening": "randomness"}
"""What a type is changed into: one of the same form where there is one."""


def known(run: MemoryInference) -> list[tuple[str, Any]]:
    """What the parties were told that depends on the content of messages."""
    kinds = (MaskedLayer, MaterialArrived, Opened, MaterialKey, KeysDealt)
    return [(told.party, vars(told.output)) for told in run.told if isinstance(told.output, kinds)]


KNOWN = known(world().run())


@cases("kind", sorted({parcel.kind for parcel in TRANSCRIPT}))
def test_every_field_of_every_message(kind: str) -> None:
    for index, original in enumerate(TRANSCRIPT):
        if original.kind != kind:
            continue

        def expected(part: str, name: str, original: Parcel = original) -> set[Code | None]:
            if name == "content" and getattr(original.message, "step", None) == RANGE_STEP:
                # The two come to different verdicts: one goes on, or waits, where the other is done with the pass.
                return {Code.UNEXPECTED, Code.TIMEOUT}
            return EXCEPTIONS.get((kind, name), FIELDS[part, name])

        for part, name, run, broken in corrupted_runs(world, TRANSCRIPT, index, expected, TYPES):
            if not broken:
                # Of content, one party is told something else; of a contribution, one derives another key.
                same = [now == before for now, before in zip(known(run), KNOWN, strict=True)]
                assert same.count(False) == (FIELDS[part, name] == {None}), (index, kind, part, name)
