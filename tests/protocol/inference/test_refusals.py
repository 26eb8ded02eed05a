"""Passes that are out of range: over for both owners before anything of their result is told."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import Opening
from tacit.protocol.inference.results import Opened, PassRefused
from tacit.protocol.inference.schedule import RANGE, Round, pass_rounds
from tacit.protocol.inference.session import PassRounds
from tacit.simulate.world.inference import MODEL_OWNER, MemoryInference, content, data_owner_names
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
OWNERS = (DATA_OWNER, MODEL_OWNER)
ONE = (Round("head", 0, 8), Round(RANGE, 8, 8), Round("result", 6, 0))


def world(*refused: int) -> MemoryInference:
    """Three images in two passes, of which these are out of range."""
    run = MemoryInference({DATA_OWNER: InferenceRequest(images=3, batch=2, channels=1, side=4)})
    run.out_of_range = {(DATA_OWNER, number) for number in refused}
    return run


@cases("refused", [(1,), (2,), (1, 2)])
def test_a_refused_pass_ends_before_its_result_and_the_session_goes_on(refused: tuple[int, ...]) -> None:
    run = world(*refused).run()
    assert run.verdicts() == {(None, "")}
    last = len(pass_rounds(run.terms.sizes, 2)) - 1
    said = {
        (parcel.packet.envelope.round, parcel.message.step) for parcel in run.log if isinstance(parcel.message, Opening)
    }
    for owner in OWNERS:
        assert [each.number for each in run.outcome(PassRefused, owner)] == list(refused)
    for number in (1, 2):
        assert (number, last - 1) in said
        assert ((number, last) in said) == (number not in refused)
    results = [opened for opened in run.outcome(Opened, DATA_OWNER) if opened.step == last]
    assert len(results) == 2 - len(refused)


def saying(word: int) -> Callable[[Parcel], list[Parcel]]:
    return lambda parcel: [altered(parcel, payload=word.to_bytes(8, "little"))]


@cases("owner", OWNERS)
def test_who_changes_its_word_ends_the_session(owner: str) -> None:
    """The two come to different verdicts: whoever goes on is out of turn for the other, or waited for in vain."""
    run = world()
    step = len(pass_rounds(run.terms.sizes, 2)) - 2
    place = [
        parcel.message.step == step
        for parcel in world().run().log
        if isinstance(parcel.message, Opening) and parcel.sender == owner
    ].index(True)
    run.say_instead("opening", owner, saying(1), at=place)
    assert {code for code, _ in run.run().verdicts()} < {Code.UNEXPECTED, Code.SESSION, Code.TIMEOUT}


def test_a_result_after_a_refusal_is_not_taken_and_not_given() -> None:
    run = world(2)
    run.start()
    assert run.advance(lambda: bool(run.outcome(PassRefused, MODEL_OWNER)))
    served, step = run.served[DATA_OWNER].machine, len(pass_rounds(run.terms.sizes, 1)) - 1
    result = content(6, "result")
    with pytest.raises(LocalProtocolError, match="cannot open shares in state IDLE"):
        served.give(step, result, run.now)
    run.say_instead(
        "inference-closed",
        MODEL_OWNER,
        lambda parcel: [altered(parcel, message=Opening(step=step, chunk=0), payload=result, round=2)],
    )
    assert (Code.UNEXPECTED, MODEL_OWNER) in run.settle().verdicts()
    assert all(opened.step < step or len(opened.data) > len(result) for opened in run.outcome(Opened, DATA_OWNER))


words = st.integers(0, 2**64 - 1)


@given(own=words, peer=st.one_of(words, st.none()), first=st.booleans())
def test_a_pass_is_in_range_where_the_words_sum_to_0(own: int, peer: int | None, first: bool) -> None:
    other = -own % 2**64 if peer is None else peer
    rounds = PassRounds(ONE, model_owner=True)
    earlier, later = (each.to_bytes(8, "little") for each in ((own, other) if first else (other, own)))
    assert rounds.verdict(1, earlier) is None
    rounds.note(1, earlier)
    assert rounds.verdict(0, later) is None
    assert rounds.verdict(1, later) == ((own + other) % 2**64 == 0)
