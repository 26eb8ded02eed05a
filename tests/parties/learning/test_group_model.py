"""What members of a group key make of it: the key of the model, the first model, and models encrypted anew."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec.structs import replace

from tacit.models import checkpoint, model_encryption
from tacit.models.configuration import Architecture, TrainingConfiguration
from tacit.models.layout import Flat, Layout
from tacit.models.model_encryption import PATCH_EMBEDDING, POSITION_EMBEDDING
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.encryption import Encryption, EncryptionLabel, GroupModel
from tacit.protocol.core.primitives import framed
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.simulate.world.federation import small_configuration
from tests.world.group_keys import memory_group_key

EMBEDDINGS = (PATCH_EMBEDDING, POSITION_EMBEDDING)
TASK = Task(
    model=Architecture(image_size=16, patch_size=4, width=16, depth=1, heads=2),
    training=TrainingConfiguration(),
    classes=3,
    channels=1,
)
LAYOUT = Layout.of(TASK.build())


def member(first: Any = None, **settings: Any) -> GroupModel:
    return GroupModel(LAYOUT, Encryption(**settings), first or (lambda seed: LAYOUT.flatten(TASK.build(seed))))


def agreed(epoch: int = 0) -> list[GroupKey]:
    keys: list[GroupKey] = memory_group_key(3, epoch=epoch).run().outcome(GroupKey)
    assert len(keys) == 3
    return keys


def other_tensors(flat: Flat) -> bytes:
    return b"".join(part.tobytes() for name, part in LAYOUT.split(flat).items() if name not in EMBEDDINGS)


def test_all_members_make_the_same_first_model_and_other_keys_others() -> None:
    made = [member().initial(key) for key in agreed()]
    assert len({flat.tobytes() for flat in made}) == 1
    encrypted = [member().reencrypt(Reencrypt("clients", key, None, b"")) for key in agreed()]
    assert len(set(encrypted)) == 1
    assert encrypted[0] != made[0].tobytes()
    other = member().initial(agreed(1)[0])
    before, after = LAYOUT.split(made[0]), LAYOUT.split(other)
    for name in EMBEDDINGS:
        assert not (before[name] == after[name]).any()
    assert other_tensors(made[0]) != other_tensors(other)


def test_the_embeddings_come_from_the_keystream_alone() -> None:
    """What the server sees, and from it all of torch's numbers, says nothing about them."""
    key = agreed()[0]
    seeds: list[int] = []

    def constant(seed: int) -> Flat:
        seeds.append(seed)
        return np.full(LAYOUT.size, 7.0, np.float32)

    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn, bare = LAYOUT.split(member().initial(key)), LAYOUT.split(member(constant).initial(key))
    for name in drawn:
        if name in EMBEDDINGS:
            assert drawn[name].tobytes() == bare[name].tobytes()
        else:
            assert (bare[name] == 7.0).all()
    # The seed of the rest, which is as good as public, is not that of the embeddings.
    public = HKDF(SHA256(), 32, key.transcript, framed(EncryptionLabel.INITIAL_MODEL, b"public")).derive(key.key)
    assert seeds == [int.from_bytes(public[:8], "little") // 2]
    assert other_tensors(member().initial(key)) == other_tensors(LAYOUT.flatten(TASK.build(seeds[0])))


def test_a_model_is_encrypted_anew_and_read_again() -> None:
    former, key = agreed()[0], agreed(1)[1]
    mine = member(matrix="orthogonal")
    plain = mine.initial(former)
    first = mine.reencrypt(Reencrypt("server", former, None, plain.astype("<f4").tobytes()))
    second = mine.reencrypt(Reencrypt("key", key, former, first))
    for model, under in ((first, former), (second, key)):
        assert other_tensors(np.frombuffer(model, "<f4")) == other_tensors(plain)
        # Each encryption rounds what is below 1 to float32 and an inverse of rows below 4 in sum reads it; twice, and
        # once more for the plaintext.
        assert np.abs(member().plain(model, under) - plain).max() < 2 * 4 * 2.0**-24 + 2.0**-24
    assert len({first, second, plain.tobytes()}) == 3
    assert np.abs(mine.plain(second, former) - plain).max() > 0.01
    assert np.array_equal(mine.plain(second, None), np.frombuffer(second, "<f4"))


def test_a_key_is_drawn_once_for_as_long_as_it_is_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = model_encryption.ModelKey.draw

    def counted(layout: Layout, random: bytes, *, matrix: model_encryption.Matrix) -> model_encryption.ModelKey:
        drawn.append(1)
        return draw(layout, random, matrix=matrix)

    monkeypatch.setattr(model_encryption.ModelKey, "draw", counted)
    mine, keys = member(), [agreed(epoch)[0] for epoch in range(2)]
    made = [mine.key(keys[number]) for number in (0, 0, 1, 1, 0)]
    assert len(drawn) == 3
    assert made[0] is made[1]
    assert made[2] is made[3]


def test_an_ill_conditioned_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key can be chosen so that it happens: the limit is lowered instead."""
    monkeypatch.setattr(model_encryption, "MAX_CONDITION", 1.5)
    with pytest.raises(ValueError, match=r'condition number .* agree on another key, or choose the "orthogonal"'):
        member(matrix="gaussian").reencrypt(Reencrypt("clients", agreed()[0], None, b""))
    member(matrix="orthogonal").reencrypt(Reencrypt("clients", agreed()[0], None, b""))


def test_no_secret_is_shown() -> None:
    key = agreed()[0]
    mine = member()
    mine.key(key)
    text = repr(key) + repr(mine) + repr(mine.key(key)) + repr(Reencrypt("clients", key, None, b"secret"))
    assert "secret" not in text
    assert repr(key.key) not in text


def test_a_former_key_is_forgotten_when_the_next_one_is_drawn() -> None:
    """Also by who encrypts the model anew, and must decrypt it with the former one once more."""
    former, latest = agreed()[0], agreed(1)[0]
    model = member()
    first = model.reencrypt(Reencrypt("clients", former, None, b""))
    drawn = weakref.ref(model.key(former))
    assert drawn() is not None
    anew = model.reencrypt(Reencrypt("key", latest, former, first))
    gc.collect()
    assert drawn() is None
    np.testing.assert_allclose(model.plain(anew, latest), member().plain(first, former), atol=1e-5)


def test_a_client_may_begin_with_weights_of_its_own(tmp_path: Path) -> None:
    """Its embeddings come from the key all the same; a file of another model is refused."""
    task = replace(TASK, encryption=Encryption())
    own = LAYOUT.flatten(TASK.build(77))
    checkpoint.save(tmp_path / "own.safetensors", layout=LAYOUT, flat=own, metadata={})
    configuration = configure(small_configuration(5), task, task.build())
    x, y = torch.zeros(6, 1, 16, 16), torch.zeros(6, dtype=torch.int64)

    def learner(start: str, of: Any = configuration) -> Learner:
        return Learner(of, x, y, seed=1, device=torch.device("cpu"), start=start)

    key = agreed()[0]
    order = Reencrypt("clients", key, None, b"")
    made = np.frombuffer(learner(str(tmp_path / "own.safetensors")).reencrypt(order), "<f4")
    random = np.frombuffer(learner("").reencrypt(order), "<f4")
    assert other_tensors(made) == other_tensors(own) != other_tensors(random)
    for name in EMBEDDINGS:
        assert (LAYOUT.split(made)[name] == LAYOUT.split(random)[name]).all()
    wider = replace(task, model=replace(TASK.model, width=32))
    with pytest.raises(ValueError, match=r"own.safetensors' holds another architecture"):
        learner(str(tmp_path / "own.safetensors"), configure(small_configuration(5), wider, wider.build()))
