"""Keystreams: the cipher, numbered streams, and keys that no two sessions share."""

import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st

from tacit.parties.mpc import streams
from tacit.parties.mpc.streams import ComputationStreams, Contribution, Keystream, Purpose, agree_on_streams, derive

KEY = bytes(range(32))
PARTIES = ("model", "data", "third")


def reference(key: bytes, number: int, words: int) -> list[int]:
    """The stream's definition: AES of every counter block, read as signed little-endian words."""
    blocks = b"".join(number.to_bytes(8, "big") + block.to_bytes(8, "big") for block in range(-(-words // 2)))
    return [int(word) for word in np.frombuffer(Cipher(AES256(key), ECB()).encryptor().update(blocks), "<i8")[:words]]


@given(
    number=st.sampled_from([0, 1, 2**32, 2**64 - 1]),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=4),
)
def test_draws_of_any_shape_continue_the_reference(number: int, shapes: list[tuple[int, ...]]) -> None:
    stream = Keystream(KEY, number)
    drawn = [stream.draw(shape) for shape in shapes]
    assert [tensor.shape for tensor in drawn] == shapes
    total = sum(map(math.prod, shapes))
    assert [word for tensor in drawn for word in tensor.flatten().tolist()] == reference(KEY, number, total)
    assert stream.drawn == total


def test_a_long_draw_is_the_same_as_short_ones() -> None:
    words = 3 * (1 << 14) + 5  # More than two blocks of zeros.
    short = Keystream(KEY)
    pieces = [short.draw((size,)) for size in (1, 1 << 14, words - 1 - (1 << 14))]
    assert torch.equal(Keystream(KEY).draw((words,)), torch.cat(pieces))


@pytest.mark.parametrize("bits", [1, 16, 63])
def test_fewer_bits_are_the_low_ones(bits: int) -> None:
    assert Keystream(KEY).draw((50,), bits).tolist() == [word % (1 << bits) for word in reference(KEY, 0, 50)]


@pytest.mark.parametrize(("key", "number"), [(KEY[:31], 0), (KEY + b"x", 0), (KEY, -1), (KEY, 1 << 64)])
def test_a_key_or_number_out_of_range_is_refused(key: bytes, number: int) -> None:
    with pytest.raises(ValueError, match="32 bytes and a number of 64 bits"):
        Keystream(key, number)


def test_every_purpose_rank_and_salt_has_its_own_key() -> None:
    keys = [
        derive(KEY, purpose, salt=salt, rank=rank) for purpose in Purpose for rank in (0, 1) for salt in (b"", b"x")
    ]
    assert len(set(keys)) == len(keys)


def agreed(play: Any, parties: tuple[str, ...]) -> list[ComputationStreams]:
    results = play(parties, lambda seat: agree_on_streams(seat.rank, seat.links), dealer=None)
    return [results[name] for name in parties]


@pytest.mark.parametrize("parties", [PARTIES[:2], PARTIES])
def test_neighbours_share_their_streams_and_nobody_else_does(play: Any, parties: tuple[str, ...]) -> None:
    first, second = agreed(play, parties), agreed(play, parties)
    views = {
        (session, purpose, rank): tuple(getattr(streams, purpose).draw((4,)).tolist())
        for session, ranks in enumerate((first, second))
        for rank, streams in enumerate(ranks)
        for purpose in ("previous", "following", "common", "local")
    }
    for session in (0, 1):
        for rank in range(len(parties)):
            neighbour = (rank + 1) % len(parties)
            assert views[session, "following", rank] == views[session, "previous", neighbour]
            assert views[session, "common", rank] == views[session, "common", 0]
    # One stream for each ordered pair and for each party alone, and a common one, in each session.
    assert len(set(views.values())) == 2 * (2 * len(parties) + 1)
    assert len({streams.computation for streams in first}) == 1
    assert first[0].computation != second[0].computation


def test_a_party_that_replays_its_contributions_gets_other_keys(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restored snapshot, down to the state of its operating system's generator: the peer's part is new."""
    replayed: list[bytes] = []

    def agree(seat: Any) -> ComputationStreams:
        return agree_on_streams(seat.rank, seat.links)

    fresh = streams.os.urandom

    def snapshot(size: int) -> bytes:
        if threading.current_thread().name != "model":
            return fresh(size)
        replayed.append(b"\x07" * size)
        return replayed[-1]

    monkeypatch.setattr(streams.os, "urandom", snapshot)
    sessions = [play(PARTIES[:2], agree, dealer=None)["model"] for _ in range(2)]
    assert replayed
    for purpose in ("previous", "following", "common"):
        first, second = (getattr(session, purpose).draw((4,)).tolist() for session in sessions)
        assert first != second
    assert sessions[0].computation != sessions[1].computation


def test_links_that_differ_give_other_keys_whatever_their_ends_contribute(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "os", SimpleNamespace(urandom=bytes))
    first, second = (agreed(play, PARTIES[:2])[0] for _ in range(2))
    assert first.computation == second.computation  # The contributions are the same,
    for purpose in ("previous", "following"):  # the links are not.
        assert not torch.equal(getattr(first, purpose).draw((4,)), getattr(second, purpose).draw((4,)))


def test_secrets_are_not_shown() -> None:
    contribution = Contribution(pair=KEY, common=KEY)
    assert repr(KEY) not in repr(contribution)
    assert repr(KEY)[2:-1] not in str(contribution)
