"""Words of shares as a session of sums carries them: any words of any number of data owners add up modulo 2^64, and
what is no such sum, or no such session, is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tacit.parties.adaptation.rounds import (
    RoundsKeeper,
    RoundsTask,
    SharesSum,
    configure_rounds,
    contribution,
    read_rounds_task,
    read_sum,
)
from tacit.parties.protections.sides import TaskError
from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.sum.configuration import Configuration, Proposal
from tacit.secagg.ring import Words

MOST_OWNERS = 12
TASK = RoundsTask(words=3, rounds=2)
WORD = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from((-1, 0, -(2**63), 2**63 - 1)))
SHARE = st.lists(WORD, min_size=TASK.words, max_size=TASK.words)


TERMS = Proposal(
    mode="active", graph="auto", colluders=0, dropout=0.33, threshold=0, clients=MOST_OWNERS, clip=1.0, value_bits=20,
    max_weight=1, train_seconds=10.0, phase_seconds=10.0,
)  # fmt: skip


def configured(**changes: Any) -> Configuration:
    """Of sums of up to MOST_OWNERS data owners; changes: fields that do not follow from the task."""
    return structs.replace(configure_rounds(TERMS, TASK), **changes)


def summed(configuration: Configuration, shares: list[list[int]]) -> Words:
    given_words = [contribution(configuration, torch.tensor(share, dtype=torch.int64)) for share in shares]
    packing = configuration.packing()
    total = np.zeros(packing.length, packing.ring.word)
    for words in given_words:
        packing.ring.add_into(total, words)
    return total


def told(keeper: RoundsKeeper) -> SharesSum:
    found = read_sum(keeper.bytes)
    assert found is not None
    return found


@settings(max_examples=60, deadline=None)
@given(shares=st.lists(SHARE, min_size=1, max_size=MOST_OWNERS), number=st.integers(1, TASK.rounds))
def test_any_words_add_up(shares: list[list[int]], number: int) -> None:
    configuration = configured()
    keeper = RoundsKeeper(configuration)
    assert read_sum(keeper.bytes) is None
    keeper.apply(keeper.decode(summed(configuration, shares), len(shares)), round=number)
    found = told(keeper)
    assert (found.round, found.owners) == (number, len(shares))
    words = [sum(column) % 2**64 for column in zip(*shares, strict=True)]
    assert [word % 2**64 for word in found.words.tolist()] == words


def test_a_kept_sum_is_told_after_a_restart() -> None:
    configuration = configured()
    keeper = RoundsKeeper(configuration)
    keeper.apply(keeper.decode(summed(configuration, [[1, 2, 3], [4, 5, -6]]), 2), round=1)
    again = told(RoundsKeeper(configuration, last=keeper.bytes))
    assert (again.round, again.owners, again.words.tolist()) == (1, 2, [5, 7, -3])


def test_the_round_behind_the_last_keeps_the_former_sum() -> None:
    configuration = configured()
    keeper = RoundsKeeper(configuration)
    keeper.apply(keeper.decode(summed(configuration, [[1, 2, 3]]), 1), round=TASK.rounds)
    before = keeper.bytes
    keeper.apply(keeper.decode(summed(configuration, [[7, 8, 9]]), 1), round=TASK.rounds + 1)
    assert keeper.bytes == before


def test_the_task_is_read() -> None:
    assert read_rounds_task(configured()) == TASK


@pytest.mark.parametrize(
    ("name", "value"),
    [("tensor_sizes", (18,)), ("ring_bits", 32), ("form", "scalar"), ("scheme", "fedavg"),
     ("state", StateLayout(type="float32", count=10)), ("layout", bytes(31) + b"1"),
     ("metrics", ("loss",)), ("max_weight", 2)],
)  # fmt: skip
def test_a_configuration_that_contradicts_its_task_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TaskError, match=f"configuration has {name} = .*contradicts itself"):
        read_rounds_task(configured(**{name: value}))


@pytest.mark.parametrize("task", [b"", b"\x80", b"\x81\xa4type\xa8training"])
def test_another_task_is_refused(task: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_rounds_task(configured(task=task))


@pytest.mark.parametrize("words", [0, TASK.words - 1, TASK.words + 1])
def test_another_number_of_words_is_refused(words: int) -> None:
    with pytest.raises(TaskError, match=f"a share of {words} words, where the dealer sums {TASK.words}"):
        contribution(configured(), torch.zeros(words, dtype=torch.int64))


def test_a_sum_that_says_other_contributors_is_refused() -> None:
    configuration = configured()
    keeper, words = RoundsKeeper(configuration), summed(configuration, [[1, 2, 3], [4, 5, 6]])
    with pytest.raises(ValueError, match="over 2 data owners, not 3"):
        keeper.decode(words, 3)


@pytest.mark.parametrize(("number", "owners"), [(1, 0), (1, 10_001), (2**31 + 1, 1)])
def test_a_head_that_no_sum_has_is_refused(number: int, owners: int) -> None:
    state = np.array([number, owners, *[0] * TASK.words], "<u8").tobytes()
    with pytest.raises(TaskError, match=f"the dealer's sum is of round {number}, over {owners} data owners"):
        read_sum(state)


@pytest.mark.parametrize("size", [0, 8 * (2 + TASK.words) - 4, 8 * (2 + TASK.words) + 8])
def test_a_kept_sum_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a sum of {size} bytes is kept, and one of 40 bytes is summed"):
        RoundsKeeper(configured(), last=bytes(size))
