"""`tacit preflight` for the parties of private inference: what they lack, and what is wrong on their ways."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from PIL import Image

from tacit.parties.hosting.own_images import own_images
from tacit.parties.hosting.preflight import own, reach, work
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tests.cli.hosts import EXPERIMENT, Process
from tests.cli.inference_house import House

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from test_inference_hosts import student  # noqa: F401
    from test_preflight import expect, looked

pytestmark = pytest.mark.end_to_end

Invoke = Callable[..., Result]
BEFORE = ("key", "roster", "folder", "clock")
TO_DEALER = ("dealer-name", "dealer-tcp", "dealer-curve", "dealer-version")
TO_OWNER = ("owner-name", "owner-tcp", "owner-curve", "owner-version")
NOBODY = "tcp://127.0.0.1:9"
LINES = {
    "dealer": (*BEFORE, "disk", "address"),
    "owner": (*BEFORE, "model", "memory", "disk", "address", *TO_DEALER),
    "alice": (*BEFORE, "images", "answers", "disk", *TO_DEALER, *TO_OWNER, "terms", "memory", "pixels"),
}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that somebody sets right, on whatever machine; and patience with who is there."""
    monkeypatch.setattr(own, "clock_is_synchronised", lambda: True)
    monkeypatch.setattr(reach, "SECONDS", 60.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who waits in vain."""
    monkeypatch.setattr(reach, "SECONDS", 3.0)


@pytest.fixture
def in_vain_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who waits in vain for one of two: the other one may be slow."""
    monkeypatch.setattr(reach, "SECONDS", 15.0)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, tacit: Invoke, student: Path, images: Path) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"), tacit, student, images)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def serving(house: House) -> dict[str, Process]:
    """Dealer and model owner at work."""
    write_files(house)
    started = {name: house.start(name) for name in ("dealer", "owner")}
    for process in started.values():
        process.until("listens at")
    return started


@pytest.fixture(autouse=True)
def as_it_was(house: House) -> None:
    """Every test begins with the same files."""
    write_files(house)


def write_files(house: House) -> None:
    house.roster("dealer", "owner", "alice")
    house.write("dealer", bind=house.at("dealer"))
    house.model_owner()
    house.alice()


def free(house: House, name: str, **keys: Any) -> Path:
    """The file of one who serves, with a folder and a port that nobody has; a second link of a model owner that runs
    would take the place of the first."""
    keys = {"bind": "tcp://127.0.0.1:*", "directory": "idle", **keys}
    return house.write(name, **keys) if name == "dealer" else house.model_owner(**{"dealer": NOBODY, **keys})


@pytest.mark.usefixtures("hasty")
def test_each_before_the_others_are_there(house: House, tacit: Invoke, tmp_path: Path) -> None:
    """A dealer needs nobody; owners are ready, but for whom they connect to. Nothing is left behind."""
    result = tacit("preflight", free(house, "dealer"), "--json", tmp_path / "found.json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert tuple(looked(result)) == LINES["dealer"]
    assert {state for state, _ in looked(result).values()} == {"ok"}
    assert json.loads((tmp_path / "found.json").read_bytes())["role"] == "dealer"
    result = tacit("preflight", free(house, "owner"))
    expect(result, "dealer-tcp", "absent", r"nothing listens at .*: start the dealer, or", missing="one of the others")
    assert tuple(looked(result)) == LINES["owner"]
    assert looked(result)["model"] == (
        "ok",
        "without a commitment before its first start: it takes images of 1 x 8 x 8, 2 blocks, 3 classes, on cpu",
    )
    result = tacit("preflight", house.alice(dealer=NOBODY, model_owner=NOBODY, directory="idle"))
    found = looked(result)
    assert (result.exit_code, tuple(found)) == (4, LINES["alice"])
    assert [name for name, (state, _) in found.items() if state == "absent"] == ["dealer-tcp", "owner-tcp"]
    assert found["images"][1].startswith("12 in ")
    assert found["terms"] == ("untested", "waits for owner-version")
    assert not any((house.path / name / "idle").exists() for name in ("dealer", "owner", "alice"))


def test_a_data_owner_tries_its_images_with_what_is_offered(
    house: House, serving: dict[str, Process], tacit: Invoke
) -> None:
    """No pass is held, no material is dealt; then it asks in earnest, and there is nothing left to ask."""
    result = tacit("preflight", house.alice(batch=5))
    found = looked(result)
    assert (result.exit_code, result.stderr, tuple(found)) == (0, "", LINES["alice"])
    assert {state for state, _ in found.values()} == {"ok"}
    (weights,) = {event["weights"] for event in house.events("owner", "model")}
    assert found["terms"][1] == f"model {weights}, shared input, 3 classes; it takes images of 1 x 8 x 8"
    assert found["pixels"][1] == "12 images fit the model, 5 at a time, on cpu"
    assert found["answers"][1] == "none yet"
    for name in ("dealer", "owner"):
        assert not house.events(name, "agreed") + house.events(name, "pass")
    assert house.events("dealer", "session") == []
    (refused,) = house.events("dealer", "refused")
    assert (refused["member"], refused["code"]) == ("alice", "MALFORMED")
    alice = house.start("alice")
    assert alice.end() == 0, alice.everything
    found = looked(tacit("preflight", house.path / "alice" / "party.toml"))
    assert found["answers"][1] == f"12 of 12 images are answered, by the model {weights}"
    assert found["terms"] == ("untested", "all 12 images are answered: nobody will be asked")
    (house.path / "alice" / "state" / "answers").rename(house.path / "alice" / "state" / "former answers")


@pytest.mark.usefixtures("serving")
def test_a_party_that_runs_is_left_alone(house: House, tacit: Invoke) -> None:
    found = looked(tacit("preflight", house.path / "owner" / "party.toml"))
    assert found["address"][0] == found["dealer-tcp"][0] == "untested"
    assert found["dealer-tcp"][1].startswith("a process of this party has its link to the dealer now: `tacit status`")
    # It has its salt by now.
    (weights,) = {event["weights"] for event in house.events("owner", "model")}
    assert found["model"][1].startswith(f"{weights}: it takes images")
    assert looked(tacit("preflight", house.path / "dealer" / "party.toml"))["address"][0] == "untested"


def test_a_model_owner_and_its_dealer(tmp_path: Path, tacit: Invoke, student: Path, images: Path) -> None:
    alone = House(tmp_path, tacit, student, images)
    try:
        dealer = alone.start("dealer")
        dealer.until("listens at")
        result = tacit("preflight", alone.path / "owner" / "party.toml")
        assert (result.exit_code, result.stderr) == (0, "")
        assert {state for state, _ in looked(result).values()} == {"ok"}
        assert looked(result)["dealer-version"][1] == "3 of the protocol, as the dealer's"
        dealer.until("refused: owner: unknown message type 'resume'")
    finally:
        alone.stop()


def broken_images(house: House) -> Path:
    folder = house.path / "alice" / "pictures"
    folder.mkdir(exist_ok=True)
    (folder / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return house.alice(images="pictures")


def spoilt_answers(house: House) -> Path:
    folder = house.path / "alice" / "spoilt" / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{own_images(str(house.images)).digest}.jsonl").write_text("nonsense\n")
    return house.alice(directory="spoilt")


def stale(house: House) -> Path:
    house.roster("owner", "dealer", of=("alice",))
    return house.alice()


def without_dealer(house: House) -> Path:
    house.roster("owner", "alice", of=("alice",))
    return house.alice()


def another_roster(house: House) -> Path:
    """Alice's has somebody more than that of the others."""
    newcomer(house, "bob")
    house.roster("dealer", "owner", "alice", "bob", of=("alice",))
    return house.alice()


def newcomer(house: House, name: str, role: str = "data-owner") -> None:
    if not (house.path / name).exists():
        (house.path / name).mkdir()
        house.command("keys", "new", name, "--role", role, "--out", house.path / name)


def policy(house: House, line: str) -> Path:
    path = house.alice()
    path.write_text(path.read_text() + f"[policy]\n{line}\n")
    return path


def many_pictures(house: House) -> Path:
    folder = house.path / "alice" / "many"
    folder.mkdir(exist_ok=True)
    for number in range(70):
        Image.new("L", (8, 8), number).save(folder / f"{number}.png")
    return house.alice(images="many", batch=70)


LACKING: dict[str, tuple[Callable[[House], Path], str, str]] = {
    "roster without it": (stale, "roster", r"'alice' is not in the roster; .*to add alice\.card"),
    "roster without a dealer": (without_dealer, "roster", "private inference has exactly one dealer; the roster has"),
    "no images": (lambda house: house.alice(images="nowhere"), "images", "images = '.*nowhere': no such file or fold"),
    "images that are none": (broken_images, "images", r"cut\.png"),
    "answers": (spoilt_answers, "answers", r"\.jsonl cannot be read \(.*\): remove it to ask about all images again"),
    "no name": (
        lambda house: house.alice(dealer="tcp://dealer.invalid:7008"),
        "dealer-name",
        r"the name 'dealer\.invalid' of .* is not known here",
    ),
    "another roster": (another_roster, "terms", "alice: it holds another roster: give all parties the same file"),
    "inputs": (
        lambda house: policy(house, 'inputs = ["known"]'),
        "terms",
        "owner: it offers 'shared' inputs; the policy here accepts known",
    ),
    "weights": (
        lambda house: policy(house, f'weights = "{"0" * 64}"'),
        "terms",
        "owner: it offers another model than the policy here names",
    ),
    "batch": (many_pictures, "terms", "owner: it computes at most 65536 images, 64 at a time; here 70 are wanted"),
}


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("lacking", LACKING)
def test_what_a_data_owner_lacks(house: House, tacit: Invoke, lacking: str) -> None:
    make, check, pattern = LACKING[lacking]
    expect(tacit("preflight", make(house)), check, "wrong", pattern)


def no_model(house: House) -> Path:
    return free(house, "owner", model="nowhere")


def spoilt_salt(house: House) -> Path:
    folder = house.path / "owner" / "salted"
    folder.mkdir(exist_ok=True)
    (folder / "salt").write_bytes(b"short")
    return free(house, "owner", directory="salted")


def misfit_role(house: House) -> Path:
    path = free(house, "dealer")
    path.write_text(path.read_text().replace('"dealer.key"', '"../owner/owner.key"'))
    return path


SERVERS: dict[str, tuple[Callable[[House], Path], str, str]] = {
    "no model": (
        no_model,
        "model",
        r"holds neither distillation\.json nor experiment\.toml; name a directory that `tacit distill",
    ),
    "salt": (spoilt_salt, "model", "salt holds no salt: remove it; data owners are then offered what looks like"),
    "device": (lambda house: free(house, "owner", device="cuda"), "model", "no CUDA device here"),
    "role": (misfit_role, "roster", "'owner' has the role 'server' in it, not 'dealer': use the roster, or the party"),
    "address": (
        lambda house: free(house, "dealer", bind=house.at("dealer")),
        "address",
        "cannot listen at .*: Address already in use; use an address of this host",
    ),
}


@pytest.mark.usefixtures("hasty", "serving")
@pytest.mark.parametrize("lacking", SERVERS)
def test_what_those_lack_who_serve(house: House, tacit: Invoke, lacking: str) -> None:
    make, check, pattern = SERVERS[lacking]
    with pytest.MonkeyPatch.context() as bare:
        bare.setattr(torch.cuda, "is_available", lambda: False)
        result = tacit("preflight", make(house))
    state, said = looked(result)[check]
    assert (result.exit_code, state) == (1, "wrong")
    assert re.search(pattern, said), said


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("name", "seconds"), [("owner", 3.0), ("alice", 60.0)])
def test_memory(house: House, tacit: Invoke, monkeypatch: pytest.MonkeyPatch, name: str, seconds: float) -> None:
    monkeypatch.setattr(reach, "SECONDS", seconds)
    monkeypatch.setattr(work, "available_memory", lambda: 1000)
    state, said = looked(tacit("preflight", free(house, "owner") if name == "owner" else house.alice()))["memory"]
    assert state == "wrong"
    assert re.fullmatch(
        r"at least \d MB needed for weights, images, and the longest round of a pass, 0 MB available: take a host .*",
        said,
    )


WAYS = {"dealer": "the dealer's own", "model_owner": "the model owner's own"}


@pytest.mark.usefixtures("in_vain_for_one", "serving")
@pytest.mark.parametrize("key", WAYS)
def test_who_has_another_key(house: House, tacit: Invoke, key: str) -> None:
    """The addresses of both are mistaken for each other: neither has the key of the other."""
    prefix, other = ("dealer", "owner") if key == "dealer" else ("owner", "dealer")
    result = tacit("preflight", house.alice(**{key: house.at(other)}))
    pattern = f"has another key than {prefix} in the roster: compare fingerprints .*, and get {WAYS[key]};"
    expect(result, f"{prefix}-curve", "wrong", pattern)


@pytest.mark.usefixtures("in_vain_for_one", "serving")
@pytest.mark.parametrize(
    ("key", "prefix", "what"), [("dealer", "dealer", "dealer"), ("model_owner", "owner", "model owner")]
)
def test_what_is_something_else(house: House, tacit: Invoke, key: str, prefix: str, what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = tacit("preflight", house.alice(**{key: f"tcp://127.0.0.1:{silent.getsockname()[1]}"}))
    expect(result, f"{prefix}-curve", "wrong", f"says nothing: it is no tacit {what}, or one that is stopped")


def test_a_key_that_the_others_do_not_know(house: House, serving: dict[str, Process], tacit: Invoke) -> None:
    newcomer(house, "carol")
    house.roster("dealer", "owner", "alice", "carol", of=("carol",))
    keys = {"model_owner": house.at("owner"), "dealer": house.at("dealer"), "images": str(house.images)}
    found = looked(tacit("preflight", house.write("carol", role="data-owner", **keys)))
    for line in ("dealer-curve", "owner-curve"):
        assert found[line][0] == "wrong"
        assert "does not know this key" in found[line][1]
        assert found[line][1].endswith("add 'carol' with this key to it")
    for process in serving.values():
        process.until("stranger: this key is not in the roster")


@pytest.mark.usefixtures("serving")
def test_another_version(house: House, serving: dict[str, Process], tacit: Invoke) -> None:
    """Both say which one is theirs, and hear a party of their own version afterwards."""
    path = house.alice()
    with pytest.MonkeyPatch.context() as other:
        other.setitem(vars(INFERENCE_MESSAGES), "version", 4)
        result = tacit("preflight", path)
    found = looked(result)
    assert result.exit_code == 1
    for line in ("dealer-version", "owner-version"):
        assert found[line] == (
            "wrong",
            "protocol version 3, here 4 of private inference: install the same release on both sides",
        )
    serving["dealer"].until("refused: alice: protocol version 4, here 3 of private inference")
    assert {state for state, _ in looked(tacit("preflight", path)).values()} == {"ok"}


@pytest.mark.usefixtures("serving")
def test_a_client_of_a_federation_at_a_model_owner(house: House, tacit: Invoke) -> None:
    data = '[data]\nsource = "digits"\n'
    path = house.write("alice", role="client", connect=house.at("owner"))
    path.write_text(path.read_text() + data)
    pattern = r"what listens at .* is a model owner of private inference: correct the address"
    expect(tacit("preflight", path), "version", "wrong", pattern)


def test_a_data_owner_at_the_server_of_a_federation(house: House, tacit: Invoke) -> None:
    """It has the same key, and serves something else."""
    clients = ("alice", "bob", "carol")
    for name in clients[1:]:
        newcomer(house, name)
    house.roster("dealer", "owner", *clients)
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"tcp://127.0.0.1:{found.getsockname()[1]}"
    folder = house.path / "owner"
    (folder / "server.toml").write_text(
        f'role = "server"\nkey = "owner.key"\nbind = "{address}"\ndirectory = "federation"\n'
    )
    (folder / "experiment.toml").write_text(EXPERIMENT.format(clients=3, rounds=1, epochs=1, max_weight=100))
    server = house.launch("owner", "server", "server.toml", "experiment.toml")
    server.until("listens at")
    found_lines = looked(tacit("preflight", house.alice(model_owner=address)))
    assert found_lines["owner-version"] == (
        "wrong",
        f"what listens at {address} is the server of a federation: correct the address",
    )


def test_private_inference_has_no_experiment(house: House, tacit: Invoke, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(EXPERIMENT.format(clients=3, rounds=1, epochs=1, max_weight=100))
    result = tacit("preflight", house.alice(), experiment)
    assert (result.exit_code, result.stderr) == (
        2,
        'tacit: role = "data-owner": private inference has no experiment: leave the file out\n',
    )
