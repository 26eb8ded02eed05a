"""A crafted model from the operator's own file: what clients of a simulation and on hosts say, and the way out."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tacit.models.checkpoint import save
from tacit.models.configuration import ModelConfiguration
from tacit.models.layout import Layout
from tacit.models.networks import build
from tests.adversary.crafted import fishing

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import running_hosts

pytestmark = [pytest.mark.end_to_end, pytest.mark.threat("server/crafted-model")]

REFUSED = (
    r"the server's model of round 1 has patterns of known attacks on images \(head\.weight: silent rows \(0\.67\)\): "
    r"ask its operator where it comes from; if it is honest, as a pruned one may be, set policy\.tripwire = false"
)
CRAFTED = "its tripwire refuses the model; its own log says why"


def fish(experiment: Path) -> Path:
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2)
    crafted = fishing(build(sizes, classes=3, channels=1, seed=1), 1)
    path, layout = experiment.with_name("crafted.safetensors"), Layout.of(crafted)
    save(path, layout=layout, flat=layout.flatten(crafted), metadata={})
    experiment.write_text(experiment.read_text().replace("[model]", f'[model]\ncheckpoint = "{path}"'))
    return experiment


def test_a_simulation_of_a_crafted_model(
    tmp_path: Path, tacit: Callable[..., Result], write_experiment: Callable[..., Path]
) -> None:
    experiment = fish(write_experiment(tmp_path / "fishing.toml", rounds=1))
    done = tacit("simulate", experiment, "--out", tmp_path / "run")
    assert done.exit_code == 3, done.output
    said = " ".join(done.output.split())
    # Two refuse at least: which, is a matter of who was there first when the round was given up.
    assert re.search(rf"client-\d: .*{REFUSED}", said)


def test_hosts_refuse_a_crafted_model_unless_their_own_file_says_otherwise(tmp_path: Path) -> None:
    with running_hosts(tmp_path, clients=4) as hosts:
        fish(hosts.experiment(rounds=1, clients=4))
        for name in hosts.names[2:]:
            hosts.client(name, sections="[policy]\ntripwire = false\n")
        server = hosts.start("server", "server", "party.toml", "experiment.toml")
        clients = [hosts.start(name, "client", "party.toml") for name in hosts.names[1:]]
        assert [client.end() for client in clients] == [1, 0, 0, 0]
        assert re.fullmatch(f"tacit: .*{REFUSED}", "\n".join(clients[0].complained))
        server.until(f"client-1 left: it gave up: {CRAFTED}")
        assert server.end() == 0
