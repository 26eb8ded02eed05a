"""PARTY.toml: what is accepted, every refusal, and the example and the page that are made from the schema."""

from pathlib import Path

import pytest

from tacit.models.adapters.configuration import LinearProbeConfiguration
from tacit.models.configuration import ImagesConfiguration
from tacit.parties.hosting.party_file import (
    ROLES,
    ClientFile,
    DataOwnerFile,
    LogConfiguration,
    ModelOwnerFile,
    OwnImagesConfiguration,
    PartyFileError,
    ServerFile,
    party_toml,
    read_any,
    read_party,
)
from tacit.parties.learning.policy import ClientPolicy

CLIENT = 'role = "client"\nkey = "a.key"\nconnect = "tcp://server:7007"\n'
MODEL_OWNER = (
    'role = "model-owner"\nkey = "m.key"\nbind = "tcp://0.0.0.0:7009"\ndealer = "tcp://d:7008"\nmodel = "student"\n'
)
DATA_OWNER = (
    'role = "data-owner"\nkey = "o.key"\nmodel_owner = "tcp://m:7009"\ndealer = "tcp://d:7008"\nimages = "images"\n'
)
DEALER = 'role = "dealer"\nkey = "d.key"\nbind = "tcp://0.0.0.0:7008"\n'
SERVER = 'role = "server"\nkey = "s.key"\nbind = "tcp://0.0.0.0:7007"\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "party.toml"
    path.write_text(text)
    return path


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(PartyFileError) as caught:
        read_any(written(tmp_path, text))
    return str(caught.value).removeprefix(f"{tmp_path}/")


@pytest.mark.parametrize("role", ROLES)
def test_the_example_is_a_party_and_explains_every_key(tmp_path: Path, role: str) -> None:
    text = party_toml(role)
    party = read_any(written(tmp_path, text))
    assert party.role == role
    assert isinstance(party, ROLES[role])
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith("#") and not line.startswith("role"):
            assert lines[number - 1].startswith("#"), line
            assert "Accepted: " in "".join(lines[max(0, number - 8) : number]), line
    assert "seed" not in text


def test_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    text = (
        'roster = "/etc/r.toml"\n[data]\nsource = "own.npz"\nindices = "mine.npy"\n[log]\nlevel = "debug"\n'
        "[policy]\nsmallest_cohort = 5\n"
    )
    party = read_party(ClientFile, written(tmp_path, CLIENT + text))
    assert party.key == str(tmp_path / "a.key")
    assert party.roster == "/etc/r.toml"
    assert party.directory == str(tmp_path / "state")
    assert party.data == OwnImagesConfiguration(source=str(tmp_path / "own.npz"), indices=str(tmp_path / "mine.npy"))
    assert party.log == LogConfiguration(level="debug")
    assert party.policy == ClientPolicy(smallest_cohort=5)
    folder = '[data]\nsource = "folder"\ndirectory = "images"\n'
    data = read_party(ClientFile, written(tmp_path, CLIENT + folder)).data
    assert data == OwnImagesConfiguration(source="folder", directory=str(tmp_path / "images"))


def test_a_server_has_images_or_none(tmp_path: Path) -> None:
    assert read_party(ServerFile, written(tmp_path, SERVER)).data is None
    party = read_party(ServerFile, written(tmp_path, SERVER + 'advertise = ["tcp://[fd00::5]:7007"]\n[data]\n'))
    assert party.data == ImagesConfiguration()
    assert party.advertise == ("tcp://[fd00::5]:7007",)


def test_paths_of_private_inference(tmp_path: Path) -> None:
    assert read_party(ModelOwnerFile, written(tmp_path, MODEL_OWNER)).model == str(tmp_path / "student")
    assert read_party(DataOwnerFile, written(tmp_path, DATA_OWNER)).images == str(tmp_path / "images")
    digits = DATA_OWNER.replace('"images"', '"digits"')
    assert read_party(DataOwnerFile, written(tmp_path, digits)).images == "digits"


def test_who_adapts_a_model(tmp_path: Path) -> None:
    section = '[adaptation]\nclasses = ["a", "b"]\n[adaptation.adapter]\nkind = "linear-probe"\n'
    teaching = read_party(ModelOwnerFile, written(tmp_path, MODEL_OWNER + section)).adaptation
    assert teaching is not None
    assert (teaching.classes, teaching.adapter) == (("a", "b"), LinearProbeConfiguration())
    section = '[adaptation]\nsums = "tcp://d:7010"\n[data]\nsource = "own.npz"\n'
    party = read_party(DataOwnerFile, written(tmp_path, DATA_OWNER + section))
    assert party.adaptation is not None
    assert party.data == ImagesConfiguration(source=str(tmp_path / "own.npz"))


def test_what_the_roster_calls_them() -> None:
    found = {role: kind.enrolled for role, kind in ROLES.items()}
    assert found == {
        "server": "server",
        "client": "client",
        "dealer": "dealer",
        "model-owner": "server",
        "data-owner": "client",
    }


def test_a_file_of_another_role(tmp_path: Path) -> None:
    path = written(tmp_path, SERVER)
    with pytest.raises(PartyFileError) as caught:
        read_party(ClientFile, path)
    assert str(caught.value) == (
        f'{path}: role = "server": expected "client"; run `tacit server {path}`, or set the role'
    )


REFUSED: dict[str, tuple[str, str]] = {
    "no role": ('key = "a"\n', 'party.toml: role is missing: expected "server" or "client" or "dealer"'),
    "unknown role": ('role = "boss"\n', 'party.toml: role = "boss": expected "server" or "client" or "dealer"'),
    "no key": ('role = "client"\nconnect = "tcp://a:1"\n', "party.toml: key is missing: The party's own key file"),
    "no address": ('role = "client"\nkey = "a"\n', "party.toml: connect is missing: Address of the server"),
    "a seed": (CLIENT + "seed = 7\n", "party.toml: seed = 7: there is no such key; accepted: key, roster"),
    "a key of the other role": (
        CLIENT + 'bind = "tcp://a:1"\n',
        'party.toml: bind = "tcp://a:1": there is no such key',
    ),
    "IPv6 without brackets": (
        CLIENT.replace("server:7007", "fd00::5:7007"),
        "party.toml: connect = \"tcp://fd00::5:7007\": 'tcp://fd00::5:7007' is not an address; write an IPv6",
    ),
    "all addresses to connect to": (
        CLIENT.replace("server:7007", "*:7007"),
        'party.toml: connect = "tcp://*:7007": one listens at all addresses, and connects to one',
    ),
    "a quota below a pass": (
        MODEL_OWNER + "most_batch = 9\n[policy]\nrefused_a_day = 8\n",
        "party.toml: policy.refused_a_day = 8: no pass of most_batch = 9 images could begin; set most_batch to at most",
    ),
    "no TOML": (CLIENT + "]", "party.toml: is not TOML: "),
    "a folder without a place": (CLIENT + '[data]\nsource = "folder"\n', 'party.toml: data.source "folder" needs'),
    "nothing to ask about": (
        DATA_OWNER.replace('images = "images"\n', ""),
        "party.toml: images is missing: what to ask",
    ),
    "learning without images": (
        DATA_OWNER + '[adaptation]\nsums = "tcp://d:1"\n',
        "party.toml: [data] is missing: who learns has both, [adaptation] and [data]",
    ),
    "images to learn from alone": (DATA_OWNER + "[data]\n", "party.toml: [adaptation] is missing: who learns has both"),
    "no address of the sums": (DATA_OWNER + "[adaptation]\n[data]\n", "party.toml: adaptation.sums is missing"),
    "shares that are seen": (
        DEALER + '[adaptation]\nwords = 5\n[adaptation.aggregation]\nmode = "none"\n',
        'party.toml: adaptation.aggregation.mode = "none": the shares of single data owners would be seen',
    ),
    "a class twice": (
        MODEL_OWNER + '[adaptation]\nclasses = ["a", "a"]\n',
        'party.toml: adaptation.classes = ["a", "a"]: two classes at least are learned, each once',
    ),
    "predictions about nothing": (
        DATA_OWNER.replace('images = "images"\n', "") + '[adaptation]\npurpose = "prediction"\n',
        "party.toml: images is missing: what to ask",
    ),
    "a session that is too long": (
        MODEL_OWNER + '[adaptation]\nclasses = ["a", "b"]\nbatch = 1024\nrounds = 1025\n',
        "party.toml: adaptation.rounds = 1025: with 1 batches of 1024 a data owner goes through 1049600 images",
    ),
    "no pass in the quota": (
        MODEL_OWNER + '[policy]\nrefused_a_day = 8\n[adaptation]\nclasses = ["a", "b"]\nbatch = 9\n',
        "party.toml: policy.refused_a_day = 8: no pass of adaptation.batch = 9 images could begin; set",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_refused(tmp_path: Path, wrong: str) -> None:
    text, beginning = REFUSED[wrong]
    said = refused(tmp_path, text)
    assert said.startswith(beginning)
    assert "\n" not in said


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(PartyFileError, match=r"x\.toml: cannot be read: No such file or directory"):
        read_any(tmp_path / "x.toml")
    (tmp_path / "y.toml").write_bytes(b"\xff")
    with pytest.raises(PartyFileError, match=r"y\.toml: is not UTF-8 text at byte 0"):
        read_any(tmp_path / "y.toml")
