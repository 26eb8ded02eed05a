"""A client whose vector is no update: the sum opens and is useless. The round is lost for all, and the run goes on."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tacit.parties.session.events import ClientRoundEnded, RoundEnded
from tacit.parties.session.journal import JournalFile
from tacit.protocol.core.machine import Ended

CHEAT = "client-2"


def sending_random_words(party: Any) -> Any:
    """This client, whose shell hands its machine random words in the first round."""
    contribute: Callable[..., Any] = party._machine.contribute
    generator = np.random.default_rng(7)

    def lie(round: int, vector: Any, now: float) -> Any:
        if round == 1:
            vector = generator.integers(0, np.iinfo(vector.dtype).max, vector.shape, vector.dtype, endpoint=True)
        return contribute(round, vector, now)

    party._machine.contribute = lie
    return party


@pytest.mark.asyncio
@pytest.mark.threat("client/random-words")
async def test_random_words_cost_their_round_and_no_more(federation: Any) -> None:
    """Real parties: the second round starts from the model of the first."""
    model = federation.keeper.bytes
    server = await federation.serve(rounds=2)
    clients = [federation.join(name) for name in federation.clients if name != CHEAT]
    lying = asyncio.create_task(sending_random_words(federation.client_party(CHEAT)).run())
    ended = await federation.all_of(server, lying, *clients)
    assert ended == [Ended(None, "all rounds are done"), *[Ended(None, "the federation is finished")] * 4]
    (first, spoiled), (second, total) = federation.rounds
    assert first.survivors == second.survivors == federation.clients
    assert (spoiled, total is None) == (None, False)
    one, other = federation.events("server", RoundEnded)
    assert (one.status, one.code, other.status) == ("aborted", "VECTOR", "completed")
    assert one.detail.startswith("the sum is not one of honest contributions: ")
    assert federation.keeper.bytes != model
    for name in federation.clients:
        overs = [(fields.code, bool(fields.detail)) for fields in federation.events(name, ClientRoundEnded)]
        assert overs == [("VECTOR", True), (None, False)]
        entries = JournalFile(federation.journal(name)).read()
        assert [entry.round for entry in entries] == [1, 2]
