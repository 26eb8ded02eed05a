"""A model of which only the head is trained, between server and clients on loopback sockets."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tacit.models.layout import Layout
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.sides import TaskError
from tacit.parties.session.events import TrafficCounted
from tacit.protocol.core.machine import Ended
from tacit.secagg.ring import Ring

FINISHED = Ended(None, "the federation is finished")


def traffic(federation: Any, name: str) -> dict[int, int]:
    """Bytes that went over the link of this client, both ways, by round."""
    found: dict[int, int] = {}
    for fields in federation.events(name, TrafficCounted):
        found[fields.round] = found.get(fields.round, 0) + fields.sent + fields.received
    return found


@pytest.mark.asyncio
async def test_the_backbone_is_sent_once_and_never_changes(protected: Callable[..., Any]) -> None:
    federation = protected(width=128, train=("head.*",))
    model = federation.keeper.model
    layout, whole = federation.keeper.layout, Layout.of(model)
    before = whole.split(whole.flatten(model))
    assert [entry.name for entry in layout.entries] == ["head.weight", "head.bias"]
    assert federation.configuration.fixed.size == 4 * (whole.size - layout.size) > 100 * layout.size
    seen: list[bytes] = []

    def make(configuration: Any) -> Any:
        learner = federation.learner(configuration)
        original = learner.learn

        def learn(*given: Any, **named: Any) -> Any:
            draft = original(*given, **named)
            seen.append(layout.fixed_bytes(learner._model))
            return draft

        learner.learn = learn
        return learner

    serving = await federation.serve(rounds=3)
    ended = await asyncio.gather(*(federation.join(name, make=make) for name in federation.clients))
    assert (await serving, ended) == (Ended(None, "all rounds are done"), [FINISHED] * 4)
    assert set(seen) == {federation.keeper.fixed}
    after = whole.split(whole.flatten(model))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    # A vector and a model of the head, and messages of less than 6 kB.
    update = Ring(federation.configuration.ring_bits).wire_bytes * (layout.size + 1)
    for name in federation.clients:
        spent = traffic(federation, name)
        assert federation.configuration.fixed.size < spent[1]
        assert max(spent[2], spent[3]) < update + 4 * layout.size + 6_000


@pytest.mark.asyncio
async def test_another_session_finds_it_in_the_folder_of_the_client(protected: Callable[..., Any]) -> None:
    federation = protected(width=128, train=("head.*",))
    for rounds in (1, 2):
        federation.news.clear()
        serving = await federation.serve(rounds=1, completed=rounds - 1)
        ended = await asyncio.gather(*(federation.join(name) for name in federation.clients))
        assert (await serving, ended) == (Ended(None, "all rounds are done"), [FINISHED] * 4)
    for name in federation.clients:
        spent = traffic(federation, name)
        assert spent[2] < federation.configuration.fixed.size < spent[1]


def test_a_model_whose_backbone_has_not_come_is_not_trained(protected: Callable[..., Any]) -> None:
    federation = protected(train=("head.*",))
    learner = federation.learner(federation.configuration)
    with pytest.raises(TaskError, match="has not come"):
        learner.learn(1, federation.keeper.bytes)
    with pytest.raises(TaskError, match="the fixed part has 3 bytes"):
        learner.take_fixed(b"abc")
    learner.take_fixed(federation.keeper.fixed)
    assert learner.learn(1, federation.keeper.bytes).failure == ""


def test_a_backbone_that_is_not_finite_is_refused_and_changes_nothing(protected: Callable[..., Any]) -> None:
    federation = protected(train=("head.*",))
    learner = federation.learner(federation.configuration)
    before = learner.layout.fixed_bytes(learner._model)
    broken = np.frombuffer(federation.keeper.fixed, "<f4").copy()
    broken[-1] = np.nan
    with pytest.raises(TaskError, match=re.escape(f"tensor '{learner.layout.fixed[-1].name}'")):
        learner.take_fixed(broken.tobytes())
    assert learner.layout.fixed_bytes(learner._model) == before
    with pytest.raises(TaskError, match="has not come"):
        learner.learn(1, federation.keeper.bytes)


def test_patterns_that_train_nothing_are_refused(protected: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r'model.train: "heads.\*" matches no parameter of this model'):
        protected(train=("heads.*",))


def test_a_frozen_embedding_cannot_be_encrypted(protected: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"patch_embed.proj.weight"):
        protected(train=("head.*",), encryption=Encryption())
