"""Parties on hosts with a model, data and training of their own: each in a thread, with its own links and files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.parties import Client, FederationError, Server
from tacit.parties.hosting.client import own_images, run_client
from tacit.parties.hosting.folder import open_party
from tacit.parties.hosting.party_file import ClientFile, OwnImagesConfiguration
from tacit.parties.links.keys import generate, save
from tacit.parties.links.roster import write_roster
from tacit.parties.session.events import UpdateComputed
from tacit.protocol.core.events import Event
from tacit.protocol.core.roster import Roster
from tests.cli.hosts import free_port
from tests.world.own_functions import net, share, step, wider

HERE = "tests.world.own_functions"
NAMES = ("server", "client-1", "client-2", "client-3")
FUNCTIONS: dict[str, Any] = {"model": net, "data": share, "train": step}
PATIENCE = 120
DEADLINES = {"join": 60.0, "grace": 1.0}

Host = Callable[..., Path]


@pytest.fixture
def hosts(tmp_path: Path) -> Host:
    """hosts(name, more) writes the file of a party, and is its path."""
    keys = {name: generate(name) for name in NAMES}
    roster = Roster(tuple(own.member("server" if name == "server" else "client") for name, own in keys.items()))
    address = f"tcp://127.0.0.1:{free_port()}"
    for name, own in keys.items():
        (tmp_path / name).mkdir()
        save(own, tmp_path / name, role="server" if name == "server" else "client")
        write_roster(roster, tmp_path / name / "roster.toml")

    def write(name: str, more: str = "") -> Path:
        role, key = ("server", "bind") if name == "server" else ("client", "connect")
        path = tmp_path / name / "party.toml"
        grace = "" if name == "server" else "grace = 1\npatience = 60\n"
        path.write_text(f'role = "{role}"\nkey = "{name}.key"\n{key} = "{address}"\n{grace}{more}')
        return path

    return write


def ended(runs: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(len(runs)) as pool:
            futures: dict[str, Future[Any]] = {name: pool.submit(run) for name, run in runs.items()}
            return {name: future.exception(PATIENCE) or future.result() for name, future in futures.items()}
    finally:
        torch.set_num_threads(before)


def server(hosts: Host) -> Callable[[], Any]:
    return Server(hosts("server"), **FUNCTIONS, clients=3, rounds=2, deadlines=DEADLINES).run


def test_parties_take_the_same_objects_as_a_simulation(hosts: Host) -> None:
    named = hosts("client-3", f'[data]\nfactory = "{HERE}:share"\n[policy]\nfactories = ["{HERE}:*"]\n')
    told: list[Event] = []

    def take_part() -> Any:
        """As `tacit client` does, which imports what the server names."""
        opened = open_party(ClientFile, named)
        return asyncio.run(run_client(opened, show=lambda event: None)).ended

    found = ended(
        {
            "server": server(hosts),
            "client-1": lambda: Client(hosts("client-1"), **FUNCTIONS).run(told.append),
            # Other functions than those that the server names; what they train is the same.
            "client-2": lambda: Client(
                hosts("client-2"),
                model=lambda: net(),
                data=lambda client, clients: share(client, clients),
                train=lambda model, data: step(model, data),
            ).run(),
            "client-3": take_part,
        }
    )
    result = found["server"]
    assert result.completed == 2, found
    assert result.summary is not None
    assert [one.samples for one in result.summary.rounds] == [10 + 15 + 20] * 2
    assert [one.survivors for one in result.summary.rounds] == [list(NAMES[1:])] * 2
    assert found["client-1"] == found["client-2"] == "the federation is finished"
    assert found["client-3"].code is None
    assert sum(isinstance(event, UpdateComputed) for event in told) == 2
    x, y = share(7, 8)
    assert result.model(x).shape == (len(y), 2)


def test_a_client_with_another_model_says_so(hosts: Host) -> None:
    others = {name: Client(hosts(name), **{**FUNCTIONS, "model": wider}).run for name in NAMES[1:]}
    found = ended({"server": server(hosts), **others})
    assert isinstance(found["server"], FederationError)
    assert str(found["server"]).startswith("0 of 2 rounds were completed")
    said = [str(found[name]) for name in others]
    assert any(f"the model of {HERE}:net has other tensors here than at the server's" in one for one in said), said


@pytest.mark.parametrize(
    ("own", "named", "message"),
    [
        (
            {"train": None},
            {},
            'task has training.factory = ".*:step", and this client has nothing for it',
        ),
        ({}, {"train": None}, r"this client has .*:step for training.factory, which the server's task does not have"),
    ],
)
def test_a_client_trains_as_its_owner_has_said_or_not_at_all(
    hosts: Host, own: dict[str, Any], named: dict[str, Any], message: str
) -> None:
    chosen = Server(hosts("server"), **{**FUNCTIONS, **named}, clients=3, rounds=1, deadlines=DEADLINES)
    others = {name: Client(hosts(name), **{**FUNCTIONS, **own}).run for name in NAMES[1:]}
    found = ended({"server": chosen.run, **others})
    with pytest.raises(FederationError, match=message):
        raise next(found[name] for name in others if "factory" in str(found[name]))


def test_wrong_files_are_refused_at_once(hosts: Host, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.toml"):
        Client(tmp_path / "nothing.toml", **FUNCTIONS)
    with pytest.raises(ValueError, match='role = "client": expected "server"'):
        Server(hosts("client-1"), **FUNCTIONS, clients=3, rounds=1)
    (tmp_path / "client-1" / "roster.toml").unlink()
    with pytest.raises(FederationError, match=r"roster\.toml"):
        Client(hosts("client-1"), **FUNCTIONS)
    with pytest.raises(ValueError, match=r"Server: model = .*<lambda>: other processes cannot find it"):
        Server(hosts("server"), **{**FUNCTIONS, "model": lambda: None}, clients=3, rounds=1)


def client(**data: Any) -> ClientFile:
    return ClientFile(key="a.key", connect="tcp://127.0.0.1:7007", data=OwnImagesConfiguration(**data))


def test_indices_choose_training_images_in_their_order(tmp_path: Path) -> None:
    everything = own_images(client())
    np.save(tmp_path / "mine.npy", np.array([7, 3, 1436]))
    mine = own_images(client(indices=str(tmp_path / "mine.npy")))
    assert mine.train.labels.tolist() == everything.train.labels[[7, 3, 1436]].tolist()
    assert len(mine.train.images) == 3
    assert len(mine.test.images) == len(everything.test.images)


def test_indices_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npy"
    for indices, complaint in (
        (np.array([0, 1437]), "names images that 'digits' lacks: it has 1437"),
        (np.array([-1]), "names images that 'digits' lacks"),
        (np.array([], np.int64), "is no list of int64"),
        (np.array([[1]]), "is no list of int64"),
        (np.array([0.5]), "is no list of int64"),
        (np.array([None]), "allow_pickle"),
    ):
        np.save(path, indices)
        with pytest.raises(ValueError, match=complaint):
            own_images(client(indices=str(path)))
    np.savez(tmp_path / "several.npz", indices=np.array([1]))
    for content in (b"nothing", b"", b"PK\x03\x04 a damaged archive", (tmp_path / "several.npz").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"mine\.npy"):
            own_images(client(indices=str(path)))
    with pytest.raises(OSError, match=r"absent\.npy"):
        own_images(client(indices=str(tmp_path / "absent.npy")))
