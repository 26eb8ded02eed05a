"""A server that names functions for its clients to run, or files for them to read."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import torch

from tacit.models.configuration import Architecture, TrainingConfiguration
from tacit.models.workload import FactoryError
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import Task, configure
from tacit.parties.runs.experiment import Experiment, FederationSection
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.configuration import Configuration
from tests.cases import cases

NET = Architecture(image_size=8, patch_size=4, width=8, depth=1, heads=2)
IMPORTED = "raise SystemExit('imported')\n"


def proposed(*, model: str = "", training: str = "") -> Configuration:
    """What a server says that names these; everything else follows from a model of ours."""
    plain = Task(model=NET, training=TrainingConfiguration(), classes=3, channels=1)
    terms = Experiment(federation=FederationSection(clients=3)).terms()
    named = Task(
        model=Architecture(factory=model),
        training=TrainingConfiguration(factory=training),
        classes=3,
        channels=1,
    )
    return msgspec.structs.replace(configure(terms, plain, plain.build()), task=named.encode())


@pytest.mark.threat("server/names-code")
@cases("accepted", [(), ("hers.*",), ("his:nets",)])
@cases("named", [{"model": "his:net"}, {"training": "his:net"}])
def test_what_a_policy_does_not_name_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: tuple[str, ...], named: dict[str, str]
) -> None:
    (tmp_path / "his.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RemoteProtocolError, match=r"policy\.factories") as refused:
        ClientPolicy(factories=accepted).check(proposed(**named), clients=3)
    assert refused.value.code is Code.POLICY
    assert "his" not in sys.modules


@pytest.mark.threat("server/names-code")
@cases("name", ["hers:system", "hers:run", "hers:os"])
def test_what_an_accepted_module_makes_use_of_is_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "hers.py").write_text("import os\nfrom os import system\nfrom subprocess import run\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hers", raising=False)
    configuration = proposed(model=name)
    ClientPolicy(factories=("hers:*",)).check(configuration, clients=3)
    with pytest.raises(FactoryError, match="is not defined in hers"):
        Learner(configuration, torch.zeros(3, 1, 8, 8), torch.arange(3), seed=None, device=torch.device("cpu"))


@pytest.mark.threat("server/names-files")
@cases(["key", "value"], [("checkpoint", "/home/hers/private.safetensors"), ("pretrained", True), ("weights", "x")])
def test_a_task_names_no_file_and_no_download(key: str, value: object) -> None:
    honest = proposed()
    task = msgspec.msgpack.decode(honest.task)
    task["model"][key] = value
    crafted = msgspec.structs.replace(honest, task=msgspec.msgpack.encode(task))
    with pytest.raises(RemoteProtocolError) as refused:
        ClientPolicy().check(crafted, clients=3)
    assert refused.value.code is Code.MALFORMED


@pytest.mark.threat("server/names-code")
@cases("name", ["os:system\x00", "../his:net", "his:net.__init__", "his:__builtins__", "his"])
def test_names_of_another_form_are_no_task(name: str) -> None:
    honest = proposed(model="hers:net")
    task = honest.task.replace(msgspec.msgpack.encode("hers:net"), msgspec.msgpack.encode(name))
    assert task != honest.task
    with pytest.raises(RemoteProtocolError) as refused:
        ClientPolicy(factories=("*",)).check(msgspec.structs.replace(honest, task=task), clients=3)
    assert refused.value.code is Code.MALFORMED
