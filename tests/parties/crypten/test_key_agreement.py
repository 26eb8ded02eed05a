"""Keys of streams that no two sessions share, over real links."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tacit.parties.crypten import supply
from tacit.parties.crypten.supply import ComputationStreams, LinkContribution, agree_on_streams

KEY = bytes(range(32))
PARTIES = ("model", "data", "third")


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

    fresh = supply.os.urandom

    def snapshot(size: int) -> bytes:
        if threading.current_thread().name != "model":
            return fresh(size)
        replayed.append(b"\x07" * size)
        return replayed[-1]

    monkeypatch.setattr(supply.os, "urandom", snapshot)
    sessions = [play(PARTIES[:2], agree, dealer=None)["model"] for _ in range(2)]
    assert replayed
    for purpose in ("previous", "following", "common"):
        first, second = (getattr(session, purpose).draw((4,)).tolist() for session in sessions)
        assert first != second
    assert sessions[0].computation != sessions[1].computation


def test_links_that_differ_give_other_keys_whatever_their_ends_contribute(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "os", SimpleNamespace(urandom=bytes))
    first, second = (agreed(play, PARTIES[:2])[0] for _ in range(2))
    assert first.computation == second.computation  # The contributions are the same,
    for purpose in ("previous", "following"):  # the links are not.
        assert not torch.equal(getattr(first, purpose).draw((4,)), getattr(second, purpose).draw((4,)))


def test_secrets_are_not_shown() -> None:
    contribution = LinkContribution(pair=KEY, common=KEY)
    assert repr(KEY) not in repr(contribution)
    assert repr(KEY)[2:-1] not in str(contribution)
