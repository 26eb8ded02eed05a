"""`tacit preflight`: every finding, by calls of its functions; and the command, beside real parties."""

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import zmq
from click.testing import Result
from msgspec.structs import replace

from tacit.models.configuration import ImagesConfiguration
from tacit.parties.hosting import preflight as module
from tacit.parties.hosting.data_owner import AnsweredBy, AnsweredPass, own_answers, own_images
from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.party_file import (
    ClientFile,
    DataOwnerFile,
    DealerFile,
    InferenceSection,
    LearningSection,
    LogConfiguration,
    ModelOwnerFile,
    OwnImagesConfiguration,
    ServerFile,
)
from tacit.parties.hosting.preflight import check_data_owner_memory, check_pixels, check_terms, preflight
from tacit.parties.hosting.probe import (
    DEALER,
    MODEL_OWNER,
    SERVER,
    SUMS,
    NotReady,
    Peer,
    check_version,
    probe,
    why_no_link,
)
from tacit.parties.hosting.server import choose_run
from tacit.parties.inference.events import PassEnded, SessionOpened, TermsAgreed
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError, UnreachableError, WrongServerError
from tacit.parties.links.endpoint import EndpointError, Received
from tacit.parties.links.keys import PartyKeys, generate, save
from tacit.parties.links.roster import write_roster
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.runs.experiment import Experiment, load
from tacit.parties.runs.served import read_served
from tacit.parties.session.event_log import read
from tacit.parties.session.events import HandshakeRefused, LinkOpened
from tacit.protocol.core.codec import Envelope, decode, encode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.machine import Transmit
from tacit.protocol.core.messages import Abort, Kinds, Message, Resume
from tacit.protocol.core.roster import Role, Roster
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, INFERENCE_VERSION, InferenceHello
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.session.events import ClientJoined, ClientLeft, RoundStarted
from tacit.protocol.session.messages import MESSAGES
from tests.cli.command import Invoke
from tests.cli.hosts import CLASSES, EXPERIMENT, running_hosts
from tests.cli.hosts import images as write_images
from tests.cli.inference_house import House
from tests.cli.outputs import check_output

ANYWHERE = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"
ALONE = "[policy]\nuncoordinated_weights = true\n"
BEFORE = ("key", "roster", "folder", "clock")
TO_SERVER = ("name", "tcp", "curve", "version")
TO_DEALER, TO_SUMS, TO_OWNER = (tuple(f"{peer}-{line}" for line in TO_SERVER) for peer in ("dealer", "sums", "owner"))
LINES = {
    "server": (*BEFORE, "images", "experiment", "classes", "memory", "disk", "address"),
    "client": (
        *BEFORE, "journal", "images", "experiment", "classes", "policy", "memory", "disk", "training", *TO_SERVER,
    ),
    "dealer": (*BEFORE, "device", "disk", "address"),
    "owner": (*BEFORE, "model", "memory", "disk", "address", *TO_DEALER),
    "alice": (*BEFORE, "images", "answers", "disk", *TO_DEALER, *TO_OWNER, "terms", "memory", "pixels"),
    "learner": (*BEFORE, "images", "disk", *TO_DEALER, *TO_SUMS, *TO_OWNER),
    "predictor": (*BEFORE, "images", "learned", "answers", "disk", *TO_DEALER, *TO_OWNER),
}  # fmt: skip


ROLES = {
    "server": "server", "dealer": "dealer", "owner": "model-owner", "alice": "data-owner",
    **{f"client-{number}": "client" for number in range(1, 5)},
}  # fmt: skip
ENROLLED: dict[str, Role] = {
    name: "server" if role == "model-owner" else "client" if role == "data-owner" else cast(Role, role)
    for name, role in ROLES.items()
}


@dataclass
class Office:
    """A folder for each party of a federation, and of private inference, with the file that each would read."""

    path: Path
    student: Path
    """Of the model owner."""
    keys: dict[str, PartyKeys] = field(default_factory=lambda: {name: generate(name) for name in ROLES})
    files: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, own in self.keys.items():
            (self.path / name).mkdir()
            save(own, self.path / name, role=ENROLLED[name])
        self.enrol("server", "client-1", "client-2", "client-3", "client-4")
        self.enrol("dealer", "owner", "alice")
        write_images(self.path / "client-1" / "own.npz", train=[0, 1, 2] * 8)
        write_images(self.path / "server" / "own.npz", test=[0, 1, 2] * 4)
        images = OwnImagesConfiguration(source=self.at("client-1", "own.npz"), classes=CLASSES)
        tests = ImagesConfiguration(source=self.at("server", "own.npz"))
        asked: dict[str, Any] = {"images": self.at("server", "own.npz"), "model_owner": NOBODY, "dealer": NOBODY}
        learning = LearningSection(sums="tcp://127.0.0.1:10")
        predicting = replace(learning, purpose="prediction")
        self.files = {
            "server": ServerFile(**self.own("server"), bind=ANYWHERE, data=tests),
            "client": ClientFile(**self.own("client-1"), connect=NOBODY, data=images),
            "dealer": DealerFile(**self.own("dealer"), bind=ANYWHERE),
            "owner": ModelOwnerFile(**self.own("owner"), bind=ANYWHERE, dealer=NOBODY, model=str(self.student)),
            "alice": DataOwnerFile(**self.own("alice"), **asked),
            "learner": DataOwnerFile(**self.own("alice"), **asked, adaptation=learning, data=images),
            "predictor": DataOwnerFile(**self.own("alice"), **asked, adaptation=predicting),
        }

    def at(self, name: str, file: str) -> str:
        return str(self.path / name / file)

    def own(self, name: str) -> dict[str, Any]:
        files = {"key": f"{name}.key", "roster": "roster.toml", "directory": "state"}
        return {key: self.at(name, file) for key, file in files.items()}

    def roster(self, *names: str) -> Roster:
        return Roster(tuple(self.keys[name].member(ENROLLED[name]) for name in names))

    def enrol(self, *names: str, of: tuple[str, ...] = ()) -> None:
        """Make a roster of these, and give it to them, or to those."""
        for name in of or names:
            write_roster(self.roster(*names), self.path / name / "roster.toml", replace=True)

    def look(self, party: str, check: str, experiment: Experiment | None = None, **changes: Any) -> tuple[str, str]:
        """State and detail of a finding; nothing before it is wrong."""
        for finding in preflight(replace(self.files[party], **changes), experiment):
            if finding.check == check:
                return finding.state, finding.detail
            assert finding.state != "wrong", finding
        raise AssertionError(check)


@pytest.fixture
def office(tmp_path: Path, student: Path) -> Office:
    return Office(tmp_path, student)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is synchronised, on whatever machine; and nobody is waited for."""
    monkeypatch.setattr(module, "clock_is_synchronised", lambda: True)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.1)


def changed(path: Path, more: str = "", **changes: str) -> Experiment:
    """The small experiment but for these: each is the value of a key, or None to leave the key out."""
    text = EXPERIMENT.format(clients=3, rounds=2, epochs=1, max_weight=100) + more
    for key, value in changes.items():
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}" if value else "", text, flags=re.M)
        assert count == 1
    path.joinpath("changed.toml").write_text(text)
    return load(path / "changed.toml")


def test_every_role_before_its_peers_are_there(office: Office, tmp_path: Path) -> None:
    """Nothing is wrong, and nothing is left behind."""
    for party, lines in LINES.items():
        experiment = changed(tmp_path) if party in ("server", "client") else None
        found = {one.check: one for one in preflight(office.files[party], experiment)}
        assert tuple(found) == lines, party
        absent = [line for line in lines if line.endswith("tcp")]
        odd = [name for name, one in found.items() if one.state != "ok" and "-" not in name]
        assert [one.check for one in found.values() if one.state == "absent"] == absent, party
        expected = {
            "client": ["tcp", "curve", "version"], "alice": ["terms", "memory", "pixels"],
            "predictor": ["learned", "answers"],
        }.get(party, [])  # fmt: skip
        assert odd == expected, party
    assert found["learned"].state == "wrong"
    assert found["answers"].detail == "waits for learned"
    assert found["dealer-version"].detail == "waits for dealer-curve"
    assert not any((office.path / name / "state").exists() for name in ROLES)


def spoilt(path: Path, text: bytes = b"nonsense\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)


def copied_key(office: Office, *, mode: int = 0o600, ahead: float = 0.0) -> str:
    key = office.path / "client-1" / "other.key"
    key.write_bytes((office.path / "client-1" / "client-1.key").read_bytes())
    key.chmod(mode)
    os.utime(key, (time.time() + ahead,) * 2)
    return str(key)


def test_what_a_client_lacks(office: Office, tmp_path: Path) -> None:
    images = office.files["client"].data
    office.enrol("server", "client-2", of=("client-3",))
    spoilt(tmp_path / "taken")
    PartyFolder(tmp_path / "spoilt").make()
    spoilt(tmp_path / "spoilt" / "journal" / "client-1.jsonl")
    PartyFolder(tmp_path / "ran").make()
    spoilt(tmp_path / "ran" / "events" / "client-1.jsonl")
    table: list[tuple[dict[str, Any], Experiment | None, str, str, str]] = [
        ({"key": copied_key(office, mode=0o640)}, None, "key", "wrong", "others than its owner may .*chmod 600"),
        (
            {"roster": office.at("client-3", "roster.toml")}, None, "roster", "wrong",
            r"'client-1' is not in the roster; .*ask its operator to add client-1\.card",
        ),
        ({"directory": str(tmp_path / "taken")}, None, "folder", "wrong", "taken is no folder: move it away"),
        (
            {"directory": str(tmp_path / "spoilt")}, None, "journal", "wrong",
            r"client-1\.jsonl cannot be read .*restore it, or start with new keys",
        ),
        (
            {"directory": str(tmp_path / "ran")}, None, "journal", "warning",
            "there is none, and this client ran before: restore it",
        ),
        (
            {"policy": ClientPolicy(largest_epsilon=1.0)}, None, "journal", "warning",
            "its owner states it at the first start: tacit client --spent EPSILON",
        ),
        ({"data": replace(images, source="none.npz")}, None, "images", "wrong", r"none\.npz"),
        (
            {"data": replace(images, classes=(*CLASSES, "3"))}, changed(tmp_path), "classes", "wrong",
            r"this party's list has more: 3: set data\.classes to the list of the experiment",
        ),
        (
            {}, changed(tmp_path, classes='["0", "1", "3", "4"]'), "classes", "wrong",
            "this party's list lacks 3, 4 and has more: 2: set",
        ),
        (
            {"data": replace(images, classes=CLASSES[::-1])}, changed(tmp_path), "classes", "wrong",
            "this party's list has another order: set",
        ),
        (
            {"policy": ClientPolicy(largest_clip=0.1)}, changed(tmp_path), "policy", "wrong",
            r"the server proposes clip = 0\.25; this client's policy accepts at most 0\.1",
        ),
        (
            {"log": LogConfiguration(megabytes=10000, files=1000)}, changed(tmp_path), "disk", "wrong",
            r"MB free, 10,010,0\d\d MB needed for logs \(log\.megabytes, log\.files\) and models: make room",
        ),
        (
            {}, changed(tmp_path, max_weight="5"), "training", "ok",
            r"24 images .* 19 of them do not count: aggregation\.max_weight = 5",
        ),
        (
            {"connect": "tcp://server.invalid:7007"}, None, "name", "wrong",
            r"the name 'server\.invalid' of tcp://server\.invalid:7007 is not known here",
        ),
        (
            {}, changed(tmp_path, mean="", std=""), "experiment", "untested",
            r"leaves data\.classes, data\.channels, data\.mean or data\.std to",
        ),
        (
            {}, changed(tmp_path, f'[protection]\nscheme = "fedrsm"\n{ALONE}'), "experiment", "untested",
            r'protection\.scheme = "fedrsm" shows images that the server has',
        ),
        ({}, None, "experiment", "untested", "no experiment was named; name its file"),
        ({}, None, "training", "untested", "waits for experiment, memory"),
    ]  # fmt: skip
    for changes, experiment, check, state, pattern in table:
        found, detail = office.look("client", check, experiment, **changes)
        assert (found, bool(re.search(pattern, detail))) == (state, True), (check, found, detail)


def test_what_a_server_lacks(office: Office, tmp_path: Path) -> None:
    training = ImagesConfiguration(source=office.at("client-1", "own.npz"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        table: list[tuple[dict[str, Any], Experiment, str, str, str]] = [
            (
                {"bind": taken}, changed(tmp_path), "address", "wrong",
                "cannot listen at .*: Address already in use; use an address of this host",
            ),
            (
                {"advertise": (NOBODY,)}, changed(tmp_path), "address", "warning",
                r"advertise = 'tcp://127\.0\.0\.1:9' does not lead back here: nothing listens at",
            ),
            ({"data": training}, changed(tmp_path), "images", "wrong", "holds no test images"),
            ({}, changed(tmp_path, clients="9"), "experiment", "wrong", r"federation\.clients = 9: the roster has 4"),
            ({}, changed(tmp_path, classes='["0", "1"]'), "images", "wrong", "classes"),
        ]  # fmt: skip
        for changes, experiment, check, state, pattern in table:
            found, detail = office.look("server", check, experiment, **changes)
            assert (found, bool(re.search(pattern, detail))) == (state, True), (check, found, detail)


def test_an_address_that_leads_back(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"tcp://127.0.0.1:{found.getsockname()[1]}"
    expected = ("ok", f"can listen at {address}, reached at {address}")
    assert office.look("server", "address", bind=address, advertise=(address,)) == expected


def test_classes_are_compared_by_their_digest(office: Office, tmp_path: Path) -> None:
    """A client may not know the experiment, and a server goes by the one that it has begun."""
    experiment = changed(tmp_path)
    _, of_client = office.look("client", "classes")
    folder = PartyFolder(tmp_path / "server" / "state")
    folder.make()
    begun = choose_run(folder, experiment)
    _, of_server = office.look("server", "classes")
    assert of_client == f"{of_server}; compare the digest with the server's"
    _, described = office.look("server", "experiment")
    assert described.endswith(f"827 parameters, clients: 3, rounds: 2; goes on after round 0, in {begun.run.path}")


def test_a_clock_that_is_not_synchronised(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        True: ("ok", "UTC, synchronised"),
        False: ("warning", "nothing synchronises it: switch NTP on"),
        None: ("untested", "does not say whether"),
    }
    for synchronised, (state, part) in expected.items():
        monkeypatch.setattr(module, "clock_is_synchronised", lambda synchronised=synchronised: synchronised)
        found, detail = office.look("client", "clock")
        assert (found, part in detail) == (state, True)
    found, detail = office.look("client", "clock", key=copied_key(office, ahead=86_400))
    assert found == "wrong"
    assert re.search(r"it is 14[34]\d min behind the file .*other\.key: set it right", detail)


def test_memory(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own takes hundreds of megabytes, before any model."""
    for party, what in (
        ("client", "model, vectors and images"),
        ("server", "model, vectors and images"),
        ("owner", "weights, images, and the longest round of a pass"),
    ):
        experiment = None if party == "owner" else changed(tmp_path)
        for available, state, end in (
            (None, "untested", "; this system does not say what is available"),
            (1000, "wrong", ", 0 MB available: take a host with more memory, raise its limit, or choose a smaller"),
        ):
            monkeypatch.setattr(module, "available_memory", lambda available=available: available)
            found, detail = office.look(party, "memory", experiment)
            said = bool(re.match(rf"about [\d,]+ MB needed, \d+ of them for {what}{end}", detail))
            assert (found, said) == (state, True), detail


def test_a_batch_takes_memory(office: Office, tmp_path: Path) -> None:
    """The client has 24 images: more are in no batch."""
    megabytes = []
    for batch in (1, 24, 100):
        experiment = changed(tmp_path, image_size="64", batch_size=str(batch))
        megabytes.append(int(re.findall(r"(\d+) of them", office.look("client", "memory", experiment)[1])[0]))
    assert 5 * megabytes[0] < megabytes[1] == megabytes[2]


def test_the_fixed_part_of_a_model(office: Office, tmp_path: Path) -> None:
    # 19.6 of the 19.7 MB of a resnet10t are fixed: once as sent, once in tensors.
    named = '32\nname = "resnet10t"\ntrain = ["fc.*"]'
    fixed = changed(tmp_path, image_size=named, patch_size="", width="", depth="", heads="")
    for party in ("client", "server"):
        assert int(re.findall(r"(\d+) of them", office.look(party, "memory", fixed)[1])[0]) >= 39
    pinned = replace(office.files["client"].policy, fixed_part="ab" * 32)
    assert office.look("client", "policy", fixed, policy=pinned)[0] == "ok"
    assert office.look("client", "policy", changed(tmp_path), policy=pinned)[0] == "wrong"


def test_a_party_that_runs_is_left_alone(office: Office) -> None:
    """A second link of the same party would take the place of its own."""
    for party, line, said in (
        ("client", "tcp", "has its link to the server now: `tacit status` says how it stands"),
        ("client", "journal", "has it now"),
        ("server", "address", f"listens at {ANYWHERE} now: `tacit status` says how it stands"),
        ("owner", "dealer-tcp", "has its link to the dealer now: `tacit status` says how it stands"),
        ("alice", "answers", "writes them now"),
    ):
        folder = PartyFolder(Path(office.files[party].directory))
        folder.make()
        with folder.held():
            assert office.look(party, "folder") == ("ok", f"{folder.path}; a process of this party has it now")
            state, detail = office.look(party, line)
        assert state == "untested"
        assert re.fullmatch("a process of this party (listens|has|writes).*", detail)
        assert detail.endswith(said)


def test_what_the_parties_of_private_inference_lack(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    office.enrol("owner", "alice", of=("client-1",))
    office.enrol("dealer", "owner", of=("client-2",))
    images = own_images(office.files["alice"].images)
    PartyFolder(tmp_path / "answered").make()
    spoilt(tmp_path / "answered" / "answers" / f"{images.digest}.jsonl")
    PartyFolder(tmp_path / "salted").make()
    spoilt(tmp_path / "salted" / "salt", b"short")
    spoilt(tmp_path / "pictures" / "cut.png", b"\x89PNG\r\n\x1a\n")
    table: list[tuple[str, dict[str, Any], str, str]] = [
        ("alice", {"roster": office.at("client-1", "roster.toml")}, "roster", "a dealer is needed, and exactly one"),
        ("alice", {"roster": office.at("client-2", "roster.toml")}, "roster", "'alice' is not in the roster"),
        ("alice", {"images": "nowhere"}, "images", "images = '.*nowhere': no such file or fold"),
        ("alice", {"images": str(tmp_path / "pictures")}, "images", r"cut\.png"),
        (
            "alice", {"directory": str(tmp_path / "answered")}, "answers",
            r"\.jsonl cannot be read \(.*\): remove it to ask about all images again",
        ),
        ("alice", {"dealer": "tcp://dealer.invalid:7008"}, "dealer-name", "'dealer.invalid' of .* is not known here"),
        ("owner", {"model": "nowhere"}, "model", r"holds neither distillation\.json nor experiment\.toml; name a dir"),
        ("owner", {"directory": str(tmp_path / "salted")}, "model", "salt holds no salt: remove it; data owners are"),
        ("owner", {"device": "cuda"}, "model", "no CUDA device here"),
        ("dealer", {"key": office.at("owner", "owner.key")}, "roster", "'owner' has the role 'server'"),
    ]  # fmt: skip
    for party, changes, check, pattern in table:
        state, detail = office.look(party, check, **changes)
        assert (state, bool(re.search(pattern, detail))) == ("wrong", True), (check, state, detail)


def frames(message: Message, kinds: Kinds, *, sender: str, session: bytes = NO_SESSION) -> list[bytes]:
    """The first message of a conversation."""
    envelope = Envelope(
        version=kinds.version, type=message.TYPE, sender=sender, round=0, sequence=0, link=0, session=session
    )
    return [bytes(frame) for frame in encode(message, envelope)]


def offer(office: Office, roster: Roster, **changes: Any) -> list[bytes]:
    """The answer of a model owner to a hello."""
    terms: dict[str, Any] = {"most_images": 65536, "most_batch": 64, **changes}
    owner = InferenceModelOwner(
        "alice",
        roster,
        terms=read_served(office.student).prepared(salt=bytes(32)).terms(**terms),
        entropy=os.urandom,
        patience=60.0,
        quota=Quota(),
        spent=Spent(),
    )
    hello = frames(InferenceHello(roster=roster.hash), INFERENCE_MESSAGES, sender="alice")
    (answer,) = [one.frames for one in owner.feed(hello, 0.0) if isinstance(one, Transmit)]
    return [bytes(frame) for frame in answer]


def test_a_data_owner_tries_what_is_offered(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its policy, its former answers, and its images as the model takes them."""
    file, roster = office.files["alice"], office.roster("dealer", "owner", "alice")
    images, keys = own_images(file.images), office.keys["alice"]
    PartyFolder(tmp_path).make()
    answers = own_answers(PartyFolder(tmp_path), images, None)

    def tried(offered: list[bytes], file: DataOwnerFile = file, roster: Roster = roster) -> Any:
        return check_terms(file, keys, roster, images, answers, offered)

    def policy(**accepted: Any) -> DataOwnerFile:
        return cast(DataOwnerFile, replace(file, policy=InferenceSection(**accepted)))

    found = tried(offer(office, roster), replace(file, batch=5))
    weights = found.value.terms.weights.hex()
    assert found.finding.detail == f"model {weights}, 3 classes; it takes images of 1 x 8 x 8"
    assert check_data_owner_memory(found).finding.state == "ok"
    fit = check_pixels(file, images, answers, found).finding
    assert (fit.state, fit.detail) == ("ok", "12 images fit the model, 5 at a time, on cpu")
    monkeypatch.setattr(module, "available_memory", lambda: 1000)
    assert "0 MB available" in check_data_owner_memory(found).finding.detail
    few, other = offer(office, roster, most_images=11), office.roster("dealer", "owner", "alice", "client-1")
    for result, pattern in (
        (tried(offer(office, other)), "it holds another roster: give all parties the same file"),
        (tried(offer(office, roster), policy(logits_bits=16)), "logits"),
        (tried(offer(office, roster), policy(weights="0" * 64)), "it offers another model than the policy here names"),
        (tried(few), "it computes at most 11 images, 64 at a time; here 12 are wanted"),
    ):
        assert (result.finding.state, bool(re.search(pattern, result.finding.detail))) == ("wrong", True), result
    answers.write(AnsweredBy(weights=weights, classes=CLASSES))
    costs: dict[str, Any] = {"online_seconds": 1.0, "offline_seconds": 0.0, "sent": 1, "received": 1}
    answers.write(AnsweredPass(logits=((0.0, 0.0, 1.0),) * 12, **costs))
    finding = tried(offer(office, roster)).finding
    assert (finding.state, finding.detail) == ("untested", "all 12 images are answered: nobody will be asked")


async def probed(
    peer: Peer, address: str, keys: PartyKeys, roster: Roster, *, seconds: float = 60.0
) -> list[tuple[str, str]]:
    """State and detail of what was found, until something is missing."""
    found = []
    try:
        async for detail, _ in probe(peer, address, keys, roster, seconds=seconds):
            found.append(("ok", detail))
    except NotReady as error:
        found.append((error.state, str(error)))
    except NotAdmittedError as error:
        found.append(("wrong", str(error)))
    return found


@contextmanager
def full() -> Iterator[str]:
    """Takes no connection any more, as behind a firewall that drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(listening.getsockname())
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()


@contextmanager
def web_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as foreign:

        def answer() -> None:
            with suppress(OSError):
                connection, _ = foreign.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(64)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{foreign.getsockname()[1]}"
        with suppress(OSError):
            foreign.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def zeromq(keys: PartyKeys | None = None) -> Iterator[str]:
    with zmq.Context() as context, context.socket(zmq.REP) as foreign:
        foreign.linger = 0
        if keys is not None:
            foreign.curve_server, foreign.curve_secretkey = True, keys.curve_secret
        yield f"tcp://127.0.0.1:{foreign.bind_to_random_port('tcp://127.0.0.1')}"


def test_what_is_at_an_address_without_a_link(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, roster = office.keys, office.roster("server", "client-1")

    failure: type[EndpointError] = UnreachableError

    async def no_link(address: str, **settings: Any) -> ClientEndpoint:
        raise failure(address)

    monkeypatch.setattr(ClientEndpoint, "connect", no_link)
    # No handshake has failed, nor was one answered.
    with zeromq(keys["server"]) as address:
        found = asyncio.run(probed(SERVER, address, keys["client-1"], roster, seconds=60.0))
    assert found[-1][0] == "untested"
    assert "has not answered in 60 s: the server is busy, or starts; try again" in found[-1][1]
    failure = WrongServerError
    for where, seconds, state, pattern in (
        (nullcontext(NOBODY), 60.0, "absent", r"nothing listens at .*:9 \(Connection refused\): start the server, or"),
        (full(), 0.1, "absent", r"no answer from .* in 0\.1 s: a firewall drops packets, or the host is off"),
        (web_server(), 60.0, "wrong", r"no tacit server \(it says 'HTTP/1\.1 400 Bad Request'\): correct the address"),
        (zeromq(), 60.0, "wrong", "is another service of ZeroMQ, without CURVE: correct the address"),
        (
            zeromq(keys["owner"]), 60.0, "wrong",
            "has another key than server in the roster: compare fingerprints .*, and get the server's own;",
        ),
    ):  # fmt: skip
        with where as address:
            found = asyncio.run(probed(SERVER, address, keys["client-1"], roster, seconds=seconds))
        assert [one for one, _ in found[:-1]] == ["ok"] * (1 if state == "absent" else 2)
        assert (found[-1][0], bool(re.search(pattern, found[-1][1]))) == (state, True), found
    silent = why_no_link(MODEL_OWNER, NOBODY, roster.server, b"")
    assert silent.endswith("says nothing: it is no tacit model owner, or one that is stopped or overloaded")


@pytest.mark.asyncio
async def test_a_peer_that_answers_and_one_that_refuses_the_key(office: Office) -> None:
    keys, roster = office.keys, office.roster("server", "client-1")
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as endpoint:

        async def answer() -> None:
            while True:
                event = await endpoint.receive()
                if isinstance(event, Received):
                    assert decode(event.frames, MESSAGES).kind is Resume
                    refusal = Abort(code=Code.SESSION, detail="no such session", culprit="")
                    await endpoint.send("client-1", frames(refusal, MESSAGES, sender="server"))

        answering = asyncio.create_task(answer())
        assert await probed(SERVER, endpoint.address, keys["client-1"], roster) == [
            ("ok", "127.0.0.1 is 127.0.0.1"),
            ("ok", f"{endpoint.address} accepts connections"),
            ("ok", "it has the key of server, and knows this party's"),
            ("ok", "5 of the protocol, as the server's"),
        ]
        *_, refused = await probed(SERVER, endpoint.address, keys["client-2"], roster)
        assert refused[0] == "wrong"
        assert re.search("does not know this key .*; ask its operator .* to add 'client-2' with this key", refused[1])
        answering.cancel()


def test_versions() -> None:
    """Whether the answer is in the peer's protocol, or in that of a party that it may be mistaken for."""
    other = Kinds(protocol="another", version=9, types=MESSAGES)
    abort = Abort(code=Code.VERSION, detail="protocol version 9, here 3", culprit="")
    refusal = Abort(code=Code.SESSION, detail="no such session", culprit="")
    check_version(SERVER, NOBODY, frames(refusal, MESSAGES, sender="server"))
    for peer, message, kinds, expected in (
        (SERVER, abort, MESSAGES, "protocol version 9, here 3"),
        (SERVER, refusal, other, "protocol version 9, here 5 of a federation: install the same release"),
        (
            SERVER,
            refusal,
            INFERENCE_MESSAGES,
            f"what listens at {NOBODY} is a model owner of private inference: correct",
        ),
        (MODEL_OWNER, refusal, MESSAGES, f"{NOBODY} is the server of a federation: correct the address"),
        (DEALER, refusal, other, f"protocol version 9, here {INFERENCE_VERSION} of private inference: install"),
        (SUMS, refusal, INFERENCE_MESSAGES, f"{NOBODY} is where the dealer deals, and not where it sums"),
    ):
        with pytest.raises((NotReady, RemoteProtocolError), match=expected):
            check_version(peer, NOBODY, frames(message, kinds, sender="server"))
    with pytest.raises(NotReady, match="it is busy, or bars this party; its log says why") as silent:
        check_version(SERVER, NOBODY, ())
    assert silent.value.state == "untested"


def looked(result: Result) -> dict[str, tuple[str, str]]:
    """State and detail of every line on the screen."""
    lines = (
        re.fullmatch(r"([a-z-]+) +(ok|warning|untested|absent|wrong) +(.*)", one) for one in result.stdout.splitlines()
    )
    return {line[1]: (line[2], line[3]) for line in lines if line is not None}


def test_exit_status_and_the_file_for_programs(office: Office, tacit: Invoke, tmp_path: Path) -> None:
    def written(name: str, text: str) -> Path:
        path = office.path / name / "party.toml"
        path.write_text(f'role = "{ROLES[name]}"\nkey = "{name}.key"\n{text}\n')
        return path

    copy = tmp_path / "found.json"
    dealer = written("dealer", f'bind = "{ANYWHERE}"')
    ready = tacit("preflight", dealer, "--json", copy)
    assert (ready.exit_code, ready.stderr) == (0, "")
    assert tuple(looked(ready)) == LINES["dealer"]
    kept = check_output(copy, "preflight")
    assert kept["role"] == "dealer"
    assert {one["check"]: (one["state"], one["detail"]) for one in kept["findings"]} == looked(ready)
    client = written("client-1", f'connect = "{NOBODY}"\n[data]\nsource = "own.npz"')
    absent = tacit("preflight", client)
    assert (absent.exit_code, absent.stderr) == (4, "tacit: ready, but the server was not reached\n")
    owner = written("owner", f'bind = "{ANYWHERE}"\ndealer = "{NOBODY}"\nmodel = "{office.student}"')
    absent = tacit("preflight", owner)
    assert (absent.exit_code, absent.stderr) == (4, "tacit: ready, but one of the others was not reached\n")
    client.write_text(client.read_text().replace("own.npz", "none.npz"))
    wrong = tacit("preflight", client)
    assert (wrong.exit_code, wrong.stderr) == (1, "tacit: not ready: see the lines above that are wrong\n")
    changed(tmp_path)
    refused = tacit("preflight", dealer, tmp_path / "changed.toml")
    expected = 'tacit: role = "dealer": private inference has no experiment: leave the file out\n'
    assert (refused.exit_code, refused.stderr) == (2, expected)
    refused = tacit("preflight", written("client-1", 'connect = "tcp://fd00::5:7007"'))
    assert (refused.exit_code, looked(refused)) == (2, {})
    assert "brackets: tcp://[fd00::5]:7007" in refused.stderr


@pytest.mark.end_to_end
def test_a_client_beside_its_server(tmp_path: Path, tacit: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that tests itself does not join, and the server does not begin, or wait for it."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
    with running_hosts(tmp_path, clients=3) as hosts:
        experiment = hosts.experiment()
        server = hosts.start("server", "server", "party.toml", "experiment.toml")
        server.until("listens at")
        result = tacit("preflight", hosts.client("client-1"), experiment)
        assert (result.exit_code, result.stderr) == (0, "")
        found = looked(result)
        assert tuple(found) == LINES["client"]
        assert {state for state, _ in found.values()} == {"ok"}
        of_server = looked(tacit("preflight", hosts.path / "server" / "party.toml"))
        assert of_server["roster"] == found["roster"]
        assert of_server["address"][0] == "untested"
        log = hosts.path / "server" / "state" / "runs" / "0001-small" / "events" / "server.jsonl"
        kinds = {type(event) for event in read(log)}
        assert LinkOpened in kinds
        assert kinds.isdisjoint({ClientJoined, ClientLeft, MessageRefused, HandshakeRefused, RoundStarted})


@pytest.mark.end_to_end
def test_a_data_owner_beside_dealer_and_model_owner(
    tmp_path: Path, tacit: Invoke, student: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session begins; then it asks, and there is nothing left to ask."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
    house = House(tmp_path, tacit, student, images)
    try:
        serving = {name: house.start(name) for name in ("dealer", "owner")}
        for process in serving.values():
            process.until("listens at")
        result = tacit("preflight", house.alice(batch=5))
        found = looked(result)
        assert (result.exit_code, result.stderr, tuple(found)) == (0, "", LINES["alice"])
        assert {state for state, _ in found.values()} == {"ok"}
        for name in serving:
            assert not house.events(name, TermsAgreed)
            assert not house.events(name, PassEnded)
        assert house.events("dealer", SessionOpened) == []
        (refused,) = house.events("dealer", MessageRefused)
        assert (refused.member, refused.code) == ("alice", "MALFORMED")
        alice = house.start("alice")
        assert alice.end() == 0, alice.everything
        found = looked(tacit("preflight", house.path / "alice" / "party.toml"))
        assert found["answers"][1].startswith("12 of 12 images are answered, by the model ")
        assert found["terms"] == ("untested", "all 12 images are answered: nobody will be asked")
    finally:
        house.stop()
