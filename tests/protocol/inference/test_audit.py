"""The audit of the dealer: which requests a coin picks, that none is used and revealed, and who is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.inference.audit import AuditPicked, RequestKeys, audited_of, picked
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest
from tacit.protocol.inference.material import request_key
from tacit.simulate.world.inference import MODEL_OWNER, MemoryInference, data_owner_names, small_terms

(DATA_OWNER,) = data_owner_names(1)
HALF = audited_of(0.5)
KEY = bytes(range(32))
OTHER = b"\xff" * 32


def world(seed: bytes = b"picks some") -> MemoryInference:
    request = InferenceRequest(images=1, batch=1, channels=1, side=4)
    policies = {DATA_OWNER: InferencePolicy(audited=HALF)}
    requests = ((24, 0), (0, 16), (8, 8), (8, 8))
    return MemoryInference(
        {DATA_OWNER: request}, terms=small_terms(audited=HALF), policies=policies, requests=requests, seed=seed
    )


def coins(run: MemoryInference, owner: str) -> list[tuple[int, ...]]:
    return [each.numbers for each in run.outcome(AuditPicked, owner)]


def test_both_owners_see_one_coin_until_it_picks_nothing() -> None:
    """What is picked is ordered again, and audited under a number of its own."""
    for seed in range(8):
        run = world(b"%d" % seed).run()
        assert run.verdicts() == {(None, "")}
        found = coins(run, DATA_OWNER)
        assert found == coins(run, MODEL_OWNER)
        assert found[-1] == ()
        assert all(found[:-1])
        numbers = [number for each in found for number in each]
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5])
def test_a_coin_picks_the_fraction(fraction: float) -> None:
    """A wrong request that is as good as any other is picked with this probability; k of them all escape with its
    complement to the k."""
    session, count = bytes(32), 20_000
    found = picked(range(count), audited=audited_of(fraction), session=session, model_owner=KEY, data_owner=KEY[::-1])
    deviation = (fraction * (1 - fraction) / count) ** 0.5
    assert abs(len(found) / count - fraction) <= 4 * deviation
    escapes = sum(not set(range(start, start + 3)) & set(found) for start in range(0, count - 2, 3)) / (count // 3)
    assert abs(escapes - (1 - fraction) ** 3) <= 0.02


def test_either_contribution_decides() -> None:
    own = {"audited": HALF, "session": bytes(32), "model_owner": KEY, "data_owner": KEY}
    first = picked(range(64), **own)
    for name in ("session", "model_owner", "data_owner"):
        assert picked(range(64), **{**own, name: OTHER}) != first


@given(
    openable=st.lists(st.booleans(), min_size=1, max_size=20),
    calls=st.lists(st.tuples(st.sampled_from(["use", "reveal"]), st.integers(0, 21)), max_size=40),
)
def test_a_request_is_used_or_revealed_once_and_no_mask_of_weights_is_revealed(
    openable: list[bool], calls: list[tuple[str, int]]
) -> None:
    keys, taken = RequestKeys(KEY), set()
    assert keys.order(openable) == 0
    for call, number in calls:
        ordered = number < len(openable)
        if ordered and number not in taken and (call == "use" or openable[number]):
            assert getattr(keys, call)(number) == request_key(KEY, number)
            taken.add(number)
        else:
            with pytest.raises(LocalProtocolError):
                getattr(keys, call)(number)
    assert keys.order([True]) == len(openable)


def test_a_fraction_beyond_a_half_is_refused() -> None:
    for fraction in (-0.1, 0.51):
        with pytest.raises(ValueError, match="audit_fraction"):
            audited_of(fraction)
