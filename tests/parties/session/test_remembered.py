"""What clients remember outlives their processes: from a file, and on sockets after everybody was gone."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.layout import Flat
from tacit.models.stimuli import Stimuli
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.remembered import Belonging, MemoryFile, Remembered, SetBackError
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.catalogue import read_protection
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.sides import Group, TaskError
from tacit.parties.runs.experiment import Aggregation, Experiment
from tacit.parties.session.events import StateRestored
from tacit.parties.session.server import Evaluation
from tacit.protocol.core.machine import Ended
from tacit.protocol.group_key.events import ModelRecovered
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total

CPU = torch.device("cpu")
LENET = ModelConfiguration(name="lenet", image_size=8)
TRAINING = TrainingConfiguration(epochs=1, batch_size=4, learning_rate=1e-2)
SCHEMES = ("fedrsm", "fedsplit", "fedcg")
OWNER = Belonging(client="client-1", run=b"run", layout=b"layout")
SESSION_OVER = Ended(None, "all rounds are done")


def proposal(scheme: str) -> tuple[Configuration, bytes]:
    mode: Any = "none" if scheme == "fedcg" else "active"
    experiment = Experiment(
        model=LENET,
        training=TRAINING,
        protection=read_protection({"scheme": scheme}),
        aggregation=Aggregation(mode=mode, clip=0.5, max_weight=20),
        policy=ClientPolicy(modes=(mode,), largest_clip=0.5, uncoordinated_weights=True),
    )
    stimuli = Stimuli.of(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    task = Task(
        model=LENET.architecture,
        training=TRAINING,
        protection=experiment.protection,
        classes=3,
        channels=1,
        stimuli=stimuli if scheme == "fedrsm" else None,
    )
    model = task.build(seed=3)
    configuration = configure(experiment.terms(), task, model)
    return configuration, Keeper(configuration, model).bytes


def learner(configuration: Configuration) -> Learner:
    x = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Learner(configuration, x, torch.arange(12) % 3, seed=5, device=CPU)


def model_after(round: int, first: bytes) -> bytes:
    return (np.frombuffer(first, "<f4") * np.float32(1 + round / 100)).astype("<f4").tobytes()


@pytest.fixture(params=SCHEMES)
def lived(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Configuration, bytes, list[bytes], MemoryFile]:
    """A configuration, its first model, the words of three rounds, and the file as it was after the second."""
    configuration, first = proposal(request.param)
    client, file, words = learner(configuration), MemoryFile(tmp_path / "memory" / "client-1.safetensors"), []
    assert client.remembers
    for round in (1, 2, 3):
        words.append(client.update(round, model_after(round - 1, first)).words.tobytes())
        if round == 2:
            file.write(OWNER, client.remembered)
    return configuration, first, words, file


def awake(configuration: Configuration, file: MemoryFile) -> Learner:
    client, remembered = learner(configuration), file.read(OWNER)
    assert remembered is not None
    client.take_up(remembered)
    return client


Lived = tuple[Configuration, bytes, list[bytes], MemoryFile]


def test_a_client_goes_on_from_its_file(lived: Lived) -> None:
    configuration, first, words, file = lived
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert awake(configuration, file).update(3, model_after(2, first)).words.tobytes() == words[2]
    forgetful = learner(configuration).update(3, model_after(2, first))
    assert forgetful.words.tobytes() != words[2], "or there is nothing to remember"


def test_a_round_that_was_lost_is_repeated_from_what_was_known_before(lived: Lived) -> None:
    """Whatever number it bears then, and however often; afterwards all is as if it had been held once."""
    configuration, first, words, file = lived
    client = awake(configuration, file)
    for _ in range(2):
        assert client.update(2, model_after(1, first)).words.tobytes() == words[1]
    assert client.update(3, model_after(2, first)).words.tobytes() == words[2]


def test_a_server_that_was_set_back_is_refused(lived: Lived) -> None:
    configuration, first, _, file = lived
    with pytest.raises(SetBackError, match="this client remembers round 2, and the server begins round 1 with another"):
        awake(configuration, file).learn(1, first)


def test_a_file_of_another_protection_is_refused(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path / "memory")
    configurations = {scheme: proposal(scheme) for scheme in SCHEMES}
    for scheme, (configuration, first) in configurations.items():
        client = learner(configuration)
        client.update(1, first)
        file.write(OWNER, client.remembered)
        for other, (foreign, _) in configurations.items():
            if other != scheme:
                with pytest.raises(TaskError, match=r"is not what this protection remembers|it lacks"):
                    awake(foreign, file)


SOME = Remembered({"part": np.zeros(2)}, {"part": np.ones(2)}, 3, b"model", np.zeros(4, np.float32), 2)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path / "memory" / "one")
    assert file.read(OWNER) is None
    file.write(OWNER, SOME)
    read = file.read(OWNER)
    assert read is not None
    assert (read.round, read.model, read.plain_round) == (3, b"model", 2)
    assert (read.before["part"].tolist(), read.after["part"].tolist()) == ([0, 0], [1, 1])
    assert read.plain is not None
    assert read.plain.tolist() == [0] * 4
    file.remove()
    assert file.read(OWNER) is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"client": "client-2"},
            "is what client-1 remembers, and this is client-2: give every client a folder of its own",
        ),
        ({"run": b"next"}, "is of another experiment: delete it if that one is over, or move it away until it goes on"),
        ({"layout": b"other"}, "is of another model: restore the experiment as it was, or delete it, and this client"),
    ],
)
def test_a_foreign_file_is_refused_and_left(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    file = MemoryFile(tmp_path / "one")
    file.write(OWNER, SOME)
    with pytest.raises(TaskError, match=re.escape(f"{file.path} {complaint}")):
        file.read(msgspec.structs.replace(OWNER, **change))
    assert file.path.exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content.replace(b"version", b"renamed"),
        lambda content: content.replace(b"before/part", b"beyond/part"),
        lambda content: content.replace(b'"F64"', b'"U64"'),
        lambda content: b"\x80\x04" + content,
    ],
)
def test_a_damaged_file_is_refused_with_the_remedy(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    file = MemoryFile(tmp_path / "one")
    file.write(OWNER, SOME)
    before = file.path.read_bytes()
    assert spoil(before) != before
    file.path.write_bytes(spoil(before))
    with pytest.raises(TaskError, match=r"is damaged, or not what a client remembers .*: restore it, or delete it"):
        file.read(OWNER)


@pytest.mark.parametrize(
    ("memory", "complaint"),
    [
        ({"part": np.zeros(3)}, "it holds 'part', which is not what this protection remembers"),
        ({"part": np.zeros(2, np.float32)}, "it holds 'part'"),
        ({"part": np.array([0, np.nan])}, "it holds 'part'"),
        ({"whole": np.zeros(2)}, "it holds 'whole'"),
        ({}, "it lacks 'part'"),
    ],
)
def test_arrays_of_another_form_are_refused(memory: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        Remembered({}, memory, 1).check_form({"part": np.zeros(2)}, None)
    with pytest.raises(TaskError, match="a model that is not one of this experiment"):
        Remembered({}, {}, plain=np.zeros(3, np.float32)).check_form({}, np.zeros(4, np.float32))


class _PowerFailure(OSError):
    """The server is gone."""


async def hold(
    federation: Any, *, completed: int, rounds: int, dies_after: int = 0
) -> tuple[list[Ended | BaseException], list[Flat], dict[tuple[int, str], Flat]]:
    """A session; dies_after: the round whose sum the server applies, and dies.

    How all ended, what the server had after every round, and what the clients read, by round and name.
    """
    flats: list[Flat] = []
    read: dict[tuple[int, str], Flat] = {}

    def on_round(done: RoundDone, total: Total | None) -> Evaluation:
        flats.append(federation.keeper.flat.copy())
        if done.round == dies_after:
            raise _PowerFailure
        return Evaluation()

    def on_model(client: Learner, model: Flat, group: Group | None, round: int) -> None:
        if group is not None:
            read[round, group.name] = model.copy()

    def make(seed: int) -> Callable[[Configuration], Learner]:
        x = torch.randn(federation.samples, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        return lambda configuration: Learner(
            configuration, x, torch.arange(federation.samples) % 3, seed=seed, device=CPU
        )

    server = await federation.serve(rounds=rounds, completed=completed, on_round=on_round)
    clients = [
        federation.join(name, make=make(seed), on_model=on_model) for seed, name in enumerate(federation.clients)
    ]
    ended: list[Ended | BaseException] = []
    for task in (server, *clients):
        try:
            ended.append(await task)
        except _PowerFailure as failure:
            ended.append(failure)
    federation.news.clear()
    return ended, flats, read


@pytest.mark.asyncio
async def test_a_split_model_after_everybody_was_gone(protected: Callable[..., Any]) -> None:
    """The server dies with the sum of round 3: the round is repeated to the same model, bit for bit."""
    federation = protected(scheme="fedsplit")
    _, first, _ = await hold(federation, completed=0, rounds=4, dies_after=3)
    federation.keeper.replace(first[1].tobytes())
    assert all(federation.memory(name).exists() for name in federation.clients)
    ended, second, _ = await hold(federation, completed=2, rounds=2)
    assert ended[0] == SESSION_OVER
    assert second[0].tobytes() == first[2].tobytes()
    assert [fields.round for fields in federation.events("client-1", StateRestored)] == [3]
    assert not any(federation.memory(name).exists() for name in federation.clients)


@pytest.mark.asyncio
async def test_an_encrypted_model_after_everybody_was_gone(protected: Callable[..., Any]) -> None:
    """The key is gone with them. What the server did of round 3 nobody received, although it says that it did it."""
    completed, remembered = 3, 2
    federation = protected(encryption=Encryption(initial_model="clients"))
    _, _, first = await hold(federation, completed=0, rounds=5, dies_after=3)
    assert max(round for round, _ in first) == 2
    ended, flats, second = await hold(federation, completed=completed, rounds=4 - completed)
    assert ended[0] == SESSION_OVER
    said = federation.events("server", ModelRecovered)
    assert [(event.member, event.round) for event in said] == [("client-1", remembered)]
    assert len(flats) == 4 - remembered, "the round that was lost is held again"
    for name in federation.clients:
        # Decrypted under one key, encrypted and decrypted under another: the rows of a matrix are below 4 in sum.
        assert np.abs(first[2, name] - second[2, name]).max() <= 8 * 2 * 4 * 2.0**-24 * 1.1
        assert np.abs(second[4, name] - second[2, name]).max() > 1e-3
    assert not any(federation.memory(name).exists() for name in federation.clients)


@pytest.mark.asyncio
async def test_no_key_is_on_the_disk(protected: Callable[..., Any]) -> None:
    """The file has the model in the clear, and nothing else of its size or of the size of a key."""
    federation = protected(encryption=Encryption(initial_model="clients"))
    await hold(federation, completed=0, rounds=2, dies_after=1)

    for name in federation.clients:
        arrays = load_file(federation.memory(name))
        assert {key: array.size for key, array in arrays.items()} == {"plain": federation.keeper.layout.size}
