"""One secure sum by itself: bytes in, bytes out."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code
from tacit.protocol.core.roster import new_keys
from tacit.protocol.session.one_sum import SumClient, SumResult, SumServer, SumSettings, make_roster
from tacit.protocol.sum.exchange import ClientAborted, Contributed, ServerAborted
from tacit.protocol.sum.policy import Policy
from tacit.simulate.world.secure_sum import SumError, secure_sum

NAMES = ("ann", "bob", "cid", "dan")
SETTINGS = SumSettings(length=5, clip=2.0)
KEYS = {name: new_keys(name, entropy=os.urandom) for name in ("server", *NAMES)}
ROSTER = make_roster(KEYS["server"].member("server"), *(KEYS[name].member("client") for name in NAMES))


def client(name: str, settings: SumSettings = SETTINGS, *, smallest_cohort: int = 3) -> SumClient:
    return SumClient(settings, ROSTER, KEYS[name], entropy=os.urandom, smallest_cohort=smallest_cohort)


def test_settings_are_judged_by_a_policy() -> None:
    policy = Policy(largest_clip=2.0)
    SETTINGS.check(ROSTER, policy)
    for changes, why in (
        ({"clip": 2.5}, "clip = 2.5"),
        ({"mode": "semi-honest"}, "mode = semi-honest"),
        ({"corrupt": 0.2}, "colluders = 0"),
        ({"clients": NAMES[:2]}, "2 clients"),
        ({"dropout": float("inf")}, "finite"),
    ):
        with pytest.raises(ValueError, match=why):
            replace(SETTINGS, **changes).check(ROSTER, policy)
    with pytest.raises(ValueError, match="clients = 4"):
        SETTINGS.check(ROSTER, Policy(largest_clip=2.0, smallest_cohort=5))
    assert SETTINGS.identity(ROSTER) != replace(SETTINGS, title="another").identity(ROSTER)


class Noise(SumClient):
    def contribute(self, vector: npt.ArrayLike, now: float, *, weight: int = 1) -> list[bytes]:
        ring, length = self._packing.ring, self._packing.length
        words = np.random.default_rng().integers(0, 1 << ring.bits, length, np.uint64).astype(ring.word)
        return self._messages(self._machine.contribute(words, now))


def hold(server: SumServer, clients: Mapping[str, SumClient], vector: list[float]) -> None:
    said = [(name, one) for name, own in clients.items() for one in [*own.start(0.0), *own.contribute(vector, 0.0)]]
    for name, message in said:
        for receiver, answer in server.receive(name, message, 0.0):
            if receiver in clients:
                said += [(receiver, one) for one in clients[receiver].receive(answer, 0.0)]


@settings(max_examples=25)
@given(st.integers(3, 9), st.integers(1, 60), st.sampled_from(["active", "semi-honest"]), st.integers(0, 2**32))
def test_it_is_the_plain_sum(clients: int, length: int, mode: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    vectors = {f"c{number}": generator.normal(size=length) for number in range(clients)}
    found = secure_sum(vectors, mode=mode)
    assert found.contributors == tuple(vectors)
    # error_bound is what quantisation can do to as many values; the sum of integers is exact.
    assert np.abs(found.values - sum(vectors.values())).max() <= found.error_bound
    assert np.allclose(found.mean * clients, found.values)


def test_who_is_lost_is_not_in_it() -> None:
    vectors = {f"c{number}": np.full(3, float(number)) for number in range(5)}
    found = secure_sum(vectors, lost=["c2"])
    assert np.abs(found.values - (0 + 1 + 3 + 4)).max() <= found.error_bound
    assert found.dropped == {"c2": "its connection is gone"}
    with pytest.raises(SumError, match="only 3 clients sent a vector and are still there; 4 are needed"):
        secure_sum(vectors, lost=["c2", "c0"])
    with pytest.raises(ValueError, match="'c9' cannot be lost"):
        secure_sum(vectors, lost=["c9"])

    found = secure_sum([[1.0, 2.0], [3.0, 4.0], [5.0, -6.0]])
    assert found.contributors == ("client-1", "client-2", "client-3")
    assert np.abs(found.values - [9.0, 0.0]).max() <= found.error_bound


def test_what_is_no_vector_of_a_sum_is_refused_by_the_name_of_its_client() -> None:
    for value in [np.nan, np.inf]:
        with pytest.raises(ValueError, match="finite"):
            secure_sum([[1.0], [value], [2.0]], clip=3.0)
        with pytest.raises(ValueError, match="finite"):
            secure_sum([[1.0], [value], [2.0]])

    with pytest.raises(ValueError, match="a sum of 2 clients tells each the other's vector: take 3 or more"):
        secure_sum({"ann": [1.0], "bob": [2.0]})

    with pytest.raises(ValueError, match=r"the vector of 'bob' has shape \(1,\), that of 'ann' \(2,\): all are alike"):
        secure_sum({"ann": [1.0, 2.0], "bob": [2.0], "cid": [1.0, 1.0]})

    for strange in (["x"], [[1.0], [2.0, 3.0]], [[1.0]], 1.0, []):
        with pytest.raises(ValueError, match="the vector of 'bob' is no list of numbers"):
            secure_sum({"ann": [1.0], "bob": strange, "cid": [1.0]})

    with pytest.raises(ValueError, match="mode = 'none': choose 'active' or 'semi-honest'"):
        secure_sum([[1.0]] * 3, mode="none")


def test_parties_with_other_settings_get_no_sum() -> None:
    server = SumServer(SETTINGS, ROSTER, now=0.0)
    clients = {name: client(name) for name in NAMES} | {"bob": client("bob", SumSettings(length=5, clip=2.5))}
    hold(server, clients, [1.0] * 5)
    assert isinstance(server.outcome, SumResult)
    assert server.outcome.contributors == ("ann", "cid", "dan")
    assert "bob" in server.outcome.dropped


def test_what_is_no_message_costs_its_sender_its_part() -> None:
    server = SumServer(SETTINGS, ROSTER, now=0.0)
    (((receiver, answer)),) = server.receive("bob", b"\xff", 0.0)
    assert receiver == "bob"
    own = client("bob")
    own.start(0.0)
    own.receive(answer, 0.0)
    assert isinstance(own.outcome, ClientAborted)
    assert (own.outcome.code, own.outcome.culprit) == (Code.MALFORMED, "bob")
    clients = {name: client(name) for name in NAMES if name != "bob"}
    hold(server, clients, [1.0] * 5)
    assert isinstance(server.outcome, SumResult)
    assert server.outcome.dropped == {"bob": "a message that is no list of frames"}
    assert all(isinstance(one.outcome, Contributed) for one in clients.values())


def test_a_sum_that_no_honest_clients_make_is_none() -> None:
    server, clients = SumServer(SETTINGS, ROSTER, now=0.0), {name: client(name) for name in NAMES}
    hold(server, clients | {"dan": Noise(SETTINGS, ROSTER, KEYS["dan"], entropy=os.urandom)}, [1.0] * 5)
    assert isinstance(server.outcome, ServerAborted)
    assert (server.outcome.code, server.outcome.culprit) == (Code.VECTOR, "")
    assert "the sum is not one of honest contributions" in server.outcome.detail
    assert server.deadline is None


def test_who_hears_nothing_or_no_message_gives_up() -> None:
    own = client("ann")
    own.start(0.0)
    assert own.receive(b"", 0.0)
    assert isinstance(own.outcome, ClientAborted)

    own = client("ann")
    own.start(0.0)
    assert own.deadline is not None
    own.expire(own.deadline)
    assert isinstance(own.outcome, ClientAborted)
    assert own.outcome.code is Code.TIMEOUT

    server = SumServer(SETTINGS, ROSTER, now=0.0)
    assert server.deadline is not None
    server.expire(server.deadline)
    assert isinstance(server.outcome, ServerAborted)


def test_who_is_not_heard_of_in_time_is_left_out() -> None:
    server = SumServer(SETTINGS, ROSTER, now=0.0)
    clients = {name: client(name) for name in NAMES[1:]}
    hold(server, clients, [0.5] * 5)
    assert server.outcome is None
    assert server.deadline is not None
    said = list(server.expire(server.deadline))
    while said:
        receiver, answer = said.pop(0)
        for message in clients[receiver].receive(answer, server.deadline or 0.0) if receiver in clients else []:
            said += server.receive(receiver, message, server.deadline or 0.0)
    assert isinstance(server.outcome, SumResult)
    assert server.outcome.contributors == NAMES[1:]
    assert np.abs(server.outcome.values - 1.5).max() <= server.outcome.error_bound


def test_keys_are_those_of_the_roster_and_are_not_shown() -> None:
    other = new_keys("ann", entropy=os.urandom)
    with pytest.raises(ValueError, match="the roster has no client 'ann' with these keys"):
        SumClient(SETTINGS, ROSTER, other, entropy=os.urandom)
    assert other.signing_secret.hex() not in repr(other)
    assert repr(other.signing_secret) not in repr(other)


def test_weights_are_summed_along_and_cost_no_range() -> None:
    settings = SumSettings(length=2, clip=1.0, value_bits=24, max_weight=1000)
    server, weights = SumServer(settings, ROSTER, now=0.0), dict(zip(NAMES, (1, 10, 1000, 500), strict=True))
    clients = {name: client(name, settings) for name in NAMES}
    said = [
        (name, one)
        for name, own in clients.items()
        # The second value is beyond the clip, whatever its weight.
        for one in [*own.start(0.0), *own.contribute([0.001 * weights[name], 7.0], 0.0, weight=weights[name])]
    ]
    for name, message in said:
        for receiver, answer in server.receive(name, message, 0.0):
            said += [(receiver, one) for one in clients[receiver].receive(answer, 0.0)]
    assert isinstance(server.outcome, SumResult)
    total = sum(weights.values())
    assert server.outcome.weight == total
    expected = [sum(0.001 * weight * weight for weight in weights.values()), total]
    assert np.abs(server.outcome.values - expected).max() <= server.outcome.error_bound
    assert np.allclose(server.outcome.mean, server.outcome.values / total)

    for weight in [0, -1, 6]:
        own = client("ann", SumSettings(length=1, clip=1.0, max_weight=5))
        own.start(0.0)
        with pytest.raises(ValueError, match="weight"):
            own.contribute([0.5], 0.0, weight=weight)


def test_a_sum_is_of_a_part_of_the_roster_and_of_whole_groups() -> None:
    settings = SumSettings(length=5, clip=2.0, clients=NAMES[:3])
    server, clients = SumServer(settings, ROSTER, now=0.0), {name: client(name, settings) for name in NAMES[:3]}
    hold(server, clients, [1.0] * 5)
    assert isinstance(server.outcome, SumResult)
    assert server.outcome.contributors == NAMES[:3]
    with pytest.raises(ValueError, match="'dan' is not among the clients of this sum"):
        client("dan", settings)

    for clients in [("bob", "ann", "cid"), ("ann", "ann", "bob"), ("ann", "bob", "eve"), ("server", *NAMES)]:
        with pytest.raises(ValueError, match="each once and in this order"):
            SumServer(SumSettings(length=1, clip=1.0, clients=clients), ROSTER, now=0.0)

    groups = dict(zip(NAMES, (1, 1, 1, 0), strict=True))
    members = (KEYS[name].member("client", group) for name, group in groups.items())
    roster = make_roster(KEYS["server"].member("server"), *members)
    assert SumSettings(length=1, clip=1.0).cohort(roster) == NAMES[:3]
    for clients in (NAMES, NAMES[1:]):
        with pytest.raises(ValueError, match="some clients of a group"):
            SumSettings(length=1, clip=1.0, clients=clients).cohort(roster)


@settings(max_examples=30, deadline=None)
@given(
    small=st.floats(1e-12, 1e-1),
    values=st.sampled_from([np.float64, np.float32, np.float16, "bfloat16", "gradient", "list"]),
)
def test_a_sum_has_its_resolution_or_is_refused(small: float, values: Any) -> None:
    """No coordinate silently becomes zero, or loses its imaginary part."""
    vector: Any = np.array([1.0, small])
    if values == "bfloat16":
        vector = torch.tensor([1.0, small], dtype=torch.bfloat16)
    elif values == "gradient":
        vector = torch.tensor([1.0, small], requires_grad=True)
    else:
        vector = vector.tolist() if values == "list" else vector.astype(values)
    given_small = float(vector[1].detach() if isinstance(vector, torch.Tensor) else vector[1])
    step = SumSettings(length=2, clip=1.0).packing(3).step
    if 0 < given_small < step:
        with pytest.raises(ValueError, match=r"1 of 2 coordinates are lost: the resolution is .*; raise value_bits"):
            secure_sum([vector] * 3)
        return
    found = secure_sum([vector] * 3).values
    assert np.abs(found - 3 * np.array([1.0, given_small])).max() <= 3 * step
    with pytest.raises(ValueError, match="'client-1' is complex; sum real and imaginary parts"):
        secure_sum([np.array([1j, small])] * 3)
