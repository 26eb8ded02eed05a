"""Protections between server and clients on loopback sockets: keys, encrypted models, coordinated weights."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tacit.models import model_encryption
from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Flat
from tacit.models.model_encryption import PATCH_EMBEDDING, POSITION_EMBEDDING
from tacit.parties.learning.learner import Draft, Learner
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.sides import Group
from tacit.parties.session.client import CANNOT_TRAIN
from tacit.parties.session.events import RoundEnded
from tacit.parties.session.server import Evaluation
from tacit.protocol.core.machine import Ended
from tacit.protocol.group_key.events import GroupKeyReceived
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total

FINISHED = Ended(None, "the federation is finished")


class Recording(Learner):
    drafts: list[Draft]

    def learn(self, *arguments: Any, **options: Any) -> Draft:
        draft = super().learn(*arguments, **options)
        self.drafts.append(draft)
        return draft


def recorders(federation: Any, drafts: dict[str, list[Draft]]) -> dict[str, Callable[[Configuration], Learner]]:
    """What makes the learner of every client; their drafts go into the lists."""

    def maker(name: str, seed: int) -> Callable[[Configuration], Learner]:
        def make(configuration: Configuration) -> Learner:
            x = torch.randn(federation.samples, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
            y = torch.arange(federation.samples) % 3
            learner = Recording(configuration, x, y, seed=seed, device=torch.device("cpu"))
            learner.drafts = drafts.setdefault(name, [])
            return learner

        return make

    return {name: maker(name, seed) for seed, name in enumerate(federation.clients)}


@pytest.mark.asyncio
async def test_the_server_trains_a_model_that_only_the_clients_can_read(protected: Callable[..., Any]) -> None:
    """Two rounds, each under a key of its own, against the same learners without encryption."""
    # AdamW divides by gradients however small, so that rounding alone moves some coordinates by a whole step.
    sgd = TrainingConfiguration(epochs=1, batch_size=6, optimizer="sgd", learning_rate=0.1)
    federation = protected(encryption=Encryption(rekey_every=1), training=sgd)
    plain = protected(training=sgd)
    read: dict[tuple[int, str], Flat] = {}
    seen: list[Flat] = []

    def on_model(learner: Learner, model: Flat, group: Group, round: int) -> None:
        read[round, group.name] = model.copy()

    def on_round(done: RoundDone, total: Total | None) -> Evaluation:
        seen.append(federation.keeper.flat.copy())
        return Evaluation()

    server = await federation.serve(rounds=2, on_round=on_round)
    makers = recorders(federation, {})
    clients = [federation.join(name, make=makers[name], on_model=on_model) for name in federation.clients]
    ended = await federation.all_of(server, *clients)
    assert ended == [Ended(None, "all rounds are done"), *[FINISHED] * 4]

    names = list(federation.clients)
    assert sorted(read) == [(round, name) for round in range(3) for name in names]
    models = [read[round, names[0]] for round in range(3)]
    for round, name in read:
        assert read[round, name].tobytes() == models[round].tobytes(), "all members read the same"
    for model, bare in zip(seen, models[1:], strict=True):
        values = federation.keeper.layout.split(model)
        for name, part in federation.keeper.layout.split(bare).items():
            if name == POSITION_EMBEDDING:
                # Its rows in another order, which of four patches is the same one in 24.
                assert sorted(row.tobytes() for row in values[name][0]) == sorted(row.tobytes() for row in part[0])
            else:
                assert (np.abs(values[name] - part).max() > 0.01) == (name == PATCH_EMBEDDING)
    assert [fields.members for fields in federation.events("client-1", GroupKeyReceived)] == [names] * 2
    assert [fields.status for fields in federation.events("server", RoundEnded)] == ["completed"] * 2

    plain.keeper.replace(models[0].tobytes())
    packing = plain.configuration.packing()
    learners = [make(plain.configuration) for make in recorders(plain, {}).values()]
    # As test_encrypted_training.py has it; the rows of an orthogonal matrix [16, 16] are below 4 in sum, coordinates
    # below 1.1, and two more encryptions.
    quantisation = packing.error_bound(4) / (4 * federation.samples)
    for round in (1, 2):
        total = np.zeros(packing.length, packing.ring.word)
        for learner in learners:
            packing.ring.add_into(total, learner.update(round, plain.keeper.bytes).words)
        plain.keeper.apply(plain.keeper.decode(total, 4))
        bound = 8 * (round * (4 + 1) * (2 * 2.0**-24 * 1.1 + quantisation) + 2 * 4 * 2.0**-24 * 1.1)
        assert np.abs(plain.keeper.flat - models[round]).max() <= bound
        assert np.abs(models[round] - models[round - 1]).max() > 5 * bound


@pytest.mark.asyncio
async def test_a_key_that_is_ill_conditioned_ends_the_federation(
    protected: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any training. One in a hundred keys is so, and none can be chosen: the limit is lowered instead."""
    monkeypatch.setattr(model_encryption, "MAX_CONDITION", 1.5)
    federation = protected(encryption=Encryption(matrix="gaussian"))
    federation.regather = 0.1
    drafts: dict[str, list[Draft]] = {}
    makers = recorders(federation, drafts)
    server = await federation.serve(rounds=1)
    ended = await federation.all_of(server, *(federation.join(name, make=makers[name]) for name in federation.clients))
    assert not any(drafts.values())
    assert federation.rounds == []
    assert any("condition number" in end.detail and 'choose the "orthogonal" matrix' in end.detail for end in ended)
    assert CANNOT_TRAIN in str(federation.told["server"])
    assert "condition number" not in str(federation.told["server"])


@pytest.mark.asyncio
async def test_coordinated_weights_leave_no_coordinate_to_few(protected: Callable[..., Any]) -> None:
    """A tolerated client is lost after all have drawn their weights under the group key."""
    federation = protected(scheme="coordinated-binary-weights", min_contributors=3)
    before, loop = federation.keeper.flat.copy(), asyncio.get_running_loop()
    drafts: dict[str, list[Draft]] = {}
    makers = recorders(federation, drafts)
    server = await federation.serve(rounds=1)
    *others, last = federation.clients
    stays = [federation.join(name, make=makers[name]) for name in others]
    dies = federation.join(
        last, make=makers[last], on_update=lambda round, update: loop.call_soon_threadsafe(dies.cancel)
    )
    async with asyncio.timeout(federation.seconds):
        with pytest.raises(asyncio.CancelledError):
            await dies
    ended = await federation.all_of(server, *stays)
    assert [end.code for end in ended] == [None] * len(ended)
    ((done, total),) = federation.rounds
    assert list(done.survivors) == others
    drawn = np.array([drafts[name][0].protected.multipliers for name in federation.clients])
    assert set(np.unique(drawn.sum(axis=0))) == {0, 4}
    assert np.array_equal(total.weights, drawn[:3].sum(axis=0))
    assert set(np.unique(total.weights)) == {0, 3}
    assert np.array_equal(federation.keeper.flat[total.weights == 0], before[total.weights == 0])
