"""The secure sum in an app of Flower: it is the plain mean of who is in it, and nothing else leaves a client."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from tacit.models.file_system import FILES
from tacit.parties.flower import SecureGrid, secure_sum_mod
from tacit.parties.flower.grid import NobodyThereError
from tacit.parties.flower.records import BEGIN, EXAMPLES, FRAMES, GO_ON, RECORD, STEP, content_digest, ours
from tacit.protocol.session.one_sum import SumSettings
from tests.flower.digits_app import client_app, initial, run, secure_client_app, train
from tests.flower.local_grid import RUN, LocalGrid
from tests.flower.losing import FailsToTrain, Loses, Lost, phase_of

NODES = 6
LOSES = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterable[None]:
    """Sums of floating numbers come out alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Without(LocalGrid):
    def __init__(self, *arguments: Any, without: tuple[int, ...] = ()) -> None:
        super().__init__(*arguments)
        for node in without:
            del self.contexts[node]


def plain(*without: int) -> Any:
    return run(Without(client_app([]), NODES, without=without)).arrays


def assert_close(found: ArrayRecord, expected: ArrayRecord) -> None:
    """Both are the same mean: a step of quantisation for each client, over the sum of weights, and float32 apart."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.abs(found[name].numpy() - array.numpy()).max() < 2e-6, name


def secure(grid: Grid, folders: Path) -> SecureGrid:
    return SecureGrid(grid, folders / "roster.toml")


def test_it_is_the_plain_mean_and_nothing_is_left(folders: Path) -> None:
    grid = LocalGrid(secure_client_app(folders), NODES)
    learned = run(secure(grid, folders)).arrays
    assert_close(learned, plain())
    assert any(np.abs(learned[name].numpy() - array.numpy()).max() > 1e-3 for name, array in initial().items())
    for number in range(NODES):
        name = f"client-{number}"
        left = {path.name for path in (folders / str(number)).iterdir()}
        assert left == {"roster.toml", f"{name}.key", f"{name}.card", f"{name}.journal"}
    assert not any(context.state for context in grid.contexts.values())
    assert all(reply.content.keys() == {RECORD} for reply in grid.replies)


@pytest.mark.parametrize("lost", Lost)
def test_a_client_is_lost(lost: Lost, folders: Path) -> None:
    phases = ((lost,), folders / "counter")
    app = secure_client_app(folders, [Loses(LOSES, *phases)], [FailsToTrain(LOSES, *phases)])
    grid = LocalGrid(app, NODES)
    learned = run(secure(grid, folders)).arrays
    assert_close(learned, plain(*(() if lost.included else (101 + LOSES,))))
    (error,) = (reply.error.reason for reply in grid.replies if reply.has_error())
    assert f"lost: {lost.value[0]}" in error


def test_what_became_of_everybody_is_replied(folders: Path) -> None:
    app = secure_client_app(folders, [Loses(LOSES, (Lost.SHARE_KEYS,), folders / "counter")])
    replies = secure(LocalGrid(app, NODES), folders).send_and_receive([training(101 + number) for number in range(6)])
    first, *errors = replies
    assert first.content["metrics"] == MetricRecord({EXAMPLES: 5 * 250})
    assert [(error.metadata.src_node_id, error.error.reason) for error in errors] == [
        (101 + LOSES, "LinkLostError: lost: share keys")
    ]


def test_too_few_are_no_sum_and_the_model_stays(folders: Path) -> None:
    def only_three(message: Message, context: Any, call_next: Any) -> Message:
        if context.node_config["partition-id"] > 2 and phase_of(message) is Lost.BEFORE_TRAINING:
            raise RuntimeError("gone")
        return call_next(message, context)

    grid = secure(LocalGrid(secure_client_app(folders, [only_three]), NODES), folders)
    assert run(grid).arrays == ArrayRecord()
    replies = grid.send_and_receive([training(101 + number) for number in range(NODES)])
    assert [reply.error.reason for reply in replies[3:]] == ["RuntimeError: gone"] * 3
    why = "only 3 clients sent a vector and are still there; 5 are needed"
    assert all(reply.error.reason.startswith(why) for reply in replies[:3])


def test_a_cohort_is_a_part_of_the_roster(folders: Path) -> None:
    grid = Without(secure_client_app(folders), NODES, without=(102, 105))
    assert_close(run(secure(grid, folders)).arrays, plain(102, 105))


def training(node: int, *records: tuple[str, Any], kind: str = "train") -> Message:
    content = RecordDict({"arrays": initial(), "config": ConfigRecord({"lr": 0.02})})
    return Message(RecordDict({**content, **dict(records)}), node, kind)


@pytest.mark.parametrize("kind", ["train", "train.other"])
def test_a_model_does_not_leave_in_the_clear(kind: str, folders: Path) -> None:
    app = secure_client_app(folders)
    app.train("other")(train)
    reply = LocalGrid(app, NODES).answer(training(101, kind=kind))
    assert "the server asks for a trained model in the clear" in reply.error.reason


class Cheating(LocalGrid):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.said: list[Message] = []

    def answer(self, message: Message) -> Message:
        self.said.append(message)
        return super().answer(message)

    def said_to(self, node: int, phase: Lost) -> Message:
        (found,) = (one for one in self.said if one.metadata.dst_node_id == node and phase_of(one) is phase)
        return found


def test_a_sum_is_entered_once(folders: Path) -> None:
    grid = Cheating(secure_client_app(folders), NODES)
    run(secure(grid, folders))
    assert "this client was in the sum" in grid.answer(grid.said_to(101, Lost.ADVERTISE_KEYS)).error.reason
    assert "is in no secure sum" in grid.answer(grid.said_to(101, Lost.UNMASK)).error.reason


@pytest.mark.parametrize("phase", [Lost.SHARE_KEYS, Lost.BEFORE_TRAINING, Lost.CONSISTENCY_CHECK])
def test_no_message_is_answered_twice(phase: Lost, folders: Path) -> None:
    """Who is asked twice gives the sum up; what it answered at first counts."""
    grid = Cheating(secure_client_app(folders), NODES)
    answers = []

    class Twice(LocalGrid):
        def answer(self, message: Message) -> Message:
            first = grid.answer(message)
            if message.metadata.dst_node_id == 101 and phase_of(message) is phase:
                answers.append(grid.answer(message))
            return first

    learned = run(secure(Twice(client_app([]), NODES), folders)).arrays
    (second,) = answers
    (aborts,) = ours(second.content)[FRAMES]
    assert b"where message" in aborts
    assert_close(learned, plain(*((101,) if phase is Lost.SHARE_KEYS else ())))


def test_two_messages_at_once_are_not_both_worked_on(folders: Path) -> None:
    grid = LocalGrid(secure_client_app(folders), NODES)
    release = FILES.lock(folders / "0" / "client-0.journal")
    record = ConfigRecord({STEP: GO_ON, "title": "any", FRAMES: []})
    assert "is running already" in grid.answer(training(101, (RECORD, record))).error.reason
    release()
    assert "is in no secure sum" in grid.answer(training(101, (RECORD, record))).error.reason


def test_between_messages_the_state_is_the_owners_alone(folders: Path) -> None:
    grid = Cheating(secure_client_app(folders, [Loses(0, (Lost.BEFORE_TRAINING,), folders / "counter")]), NODES)
    run(secure(grid, folders))
    kept = folders / "0" / "client-0.sum"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    again = LocalGrid(secure_client_app(folders), NODES)
    again.contexts = grid.contexts
    assert "not what this client wrote" in again.answer(grid.said_to(101, Lost.BEFORE_TRAINING)).error.reason
    assert not kept.exists()
    assert not grid.contexts[101].state


def test_of_an_unfinished_sum_the_disk_has_nothing_that_can_be_read(folders: Path) -> None:
    """After training the server never comes back: without the node's memory the file is nothing but random bytes."""
    app = secure_client_app(folders, [Loses(0, (Lost.CONSISTENCY_CHECK,), folders / "counter")])
    grid = Cheating(app, NODES)
    run(secure(grid, folders))
    kept = folders / "0" / "client-0.sum"
    # An update of 62,006 values of eight bytes is in it; what is no ciphertext is smaller if it is compressed.
    assert kept.stat().st_size > 8 * 62_006
    assert len(zlib.compress(kept.read_bytes())) >= kept.stat().st_size
    began = grid.said_to(101, Lost.CONSISTENCY_CHECK)
    again = LocalGrid(secure_client_app(folders), NODES)
    assert "its SuperNode started again" in again.answer(began).error.reason
    assert not kept.exists()


def test_what_is_trained_from_is_what_was_announced(folders: Path) -> None:
    grid = LocalGrid(secure_client_app(folders), NODES)

    class Splits(LocalGrid):
        def answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id == 101 and "config" in message.content:
                content = {**message.content, "config": ConfigRecord({"lr": 0.5})}
                message = Message(RecordDict(content), 101, "train")
            return grid.answer(message)

    assert_close(run(secure(Splits(client_app([]), NODES), folders)).arrays, plain(101))


def test_who_was_announced_something_else_is_in_no_sum_with_the_others(folders: Path) -> None:
    """The hash of what is trained from is in the title, and the title in every signature and mask."""
    grid, other = LocalGrid(secure_client_app(folders), NODES), ConfigRecord({"lr": 0.5})
    contents = [{"arrays": initial(), "config": one} for one in (ConfigRecord({"lr": 0.02, "server-round": 1}), other)]
    hashes = [content_digest(RecordDict(content)).hex() for content in contents]

    class Splits(LocalGrid):
        """Says to one client another configuration, and from the start its hash."""

        def answer(self, message: Message) -> Message:
            record = ours(message.content)
            if message.metadata.dst_node_id == 101 and record:
                changed = ConfigRecord(dict(record))
                for key in {"settings", "title"} & record.keys():
                    value = record[key]
                    before, after = (one if key == "title" else one.encode() for one in hashes)
                    changed[key] = value.replace(before, after)
                    assert changed[key] != value
                config = {"config": other} if "config" in message.content else {}
                message = Message(RecordDict({**message.content, RECORD: changed, **config}), 101, "train")
            return grid.answer(message)

    assert_close(run(secure(Splits(client_app([]), NODES), folders)).arrays, plain(101))


def begin(grid: LocalGrid, **changes: Any) -> str:
    """Why client-0 does not enter a sum of settings with these changes; it would enter it without."""
    terms: dict[str, Any] = {"length": 3, "clip": 1.0, "clients": tuple(f"client-{number}" for number in range(NODES))}
    settings = msgspec.msgpack.encode(SumSettings(**(terms | changes)))
    record = ConfigRecord({STEP: BEGIN, "settings": settings})
    reply = grid.answer(Message(RecordDict({RECORD: record}), 101, "train"))
    return reply.error.reason if reply.has_error() else ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clip": 1.5}, "clip = 1.5"),
        ({"clip": float("nan")}, "not nan"),
        ({"clip": -1.0}, "not -1.0"),
        ({"corrupt": 0.16}, "colluders = 0"),
        ({"corrupt": float("nan")}, "'nan'"),
        ({"dropout": float("inf")}, "not finite"),
        ({"mode": "semi-honest"}, "mode = semi-honest"),
        ({"mode": "none"}, "'none'"),
        ({"clients": ("client-0", "client-1")}, "2 clients"),
        ({"clients": ("client-1", "client-0", "client-2")}, "in this order"),
        ({"clients": ("client-1", "client-2", "client-3")}, "not among the clients"),
        ({"clients": ("client-0", "client-1", "stranger")}, "each once"),
        ({"length": 0}, "positive sizes"),
    ],
)
def test_a_client_enters_no_sum_below_its_policy(changes: dict[str, Any], why: str, folders: Path) -> None:
    grid = LocalGrid(secure_client_app(folders), NODES)
    assert why in begin(grid, **changes)
    assert begin(grid) == ""


def test_clients_get_the_same_to_train_from(folders: Path) -> None:
    other = ("config", ConfigRecord({"lr": 0.5}))
    with pytest.raises(ValueError, match="2 different messages to train from"):
        secure(LocalGrid(client_app([]), NODES), folders).send_and_receive([training(101), training(102, other)])


def test_a_node_that_comes_back_under_another_number_is_its_client_again(folders: Path) -> None:
    below = LocalGrid(secure_client_app(folders), NODES)
    grid = secure(below, folders)
    nodes = [101 + number for number in range(NODES)]

    def examples() -> int:
        replies = grid.send_and_receive([training(node) for node in nodes])
        assert not any(reply.has_error() and reply.error.reason != "no reply in time" for reply in replies)
        return replies[0].content["metrics"][EXAMPLES]

    assert examples() == NODES * 250
    back = Context(RUN, 201, below.contexts.pop(101).node_config, RecordDict(), {})
    below.contexts[201] = back
    # Flower knows the former node for a while: both are to train, and the former one does not answer.
    nodes.append(201)
    assert examples() == NODES * 250
    nodes.remove(101)
    assert examples() == NODES * 250


def test_one_name_is_one_node(folders: Path) -> None:
    """Node 102 has the keys of client-0, too: node 101, which was first, is there, and is that client."""
    os.rename(folders / "1", folders / "away")
    os.symlink(folders / "0", folders / "1")
    grid = secure(LocalGrid(secure_client_app(folders), NODES), folders)
    for _ in range(2):
        replies = grid.send_and_receive([training(101 + number) for number in range(NODES)])
        assert replies[0].content["metrics"] == MetricRecord({EXAMPLES: 5 * 250})
        assert [reply.error.reason for reply in replies[1:]] == [
            "node 102 says that it is 'client-0', which is node 101 in this run"
        ]


def test_a_name_is_signed_for(folders: Path) -> None:
    def as_another(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        record = ours(reply.content)
        if record and record.get("name") == "client-1":
            record["name"] = "client-5"
        return reply

    grid = secure(LocalGrid(secure_client_app(folders, [as_another]), NODES), folders)
    replies = grid.send_and_receive([training(101 + number) for number in range(NODES)])
    (error,) = (reply for reply in replies if reply.has_error())
    assert (error.metadata.src_node_id, "signature" in error.error.reason) == (102, True)


def test_apps_without_the_mod_are_named_and_are_no_sum(folders: Path) -> None:
    app = client_app([])
    app.train("echo")(lambda message, context: Message(RecordDict(), reply_to=message))
    with pytest.raises(NobodyThereError, match=r"none of 1 nodes is a client.*its app needs the mod secure_sum_mod"):
        secure(LocalGrid(app, NODES), folders).send_and_receive([training(101, kind="train.echo")])


def test_a_run_without_a_client_fails_and_one_that_loses_them_goes_on(folders: Path, caplog: Any) -> None:
    below = LocalGrid(secure_client_app(folders), NODES)
    nowhere = LocalGrid(client_app([secure_sum_mod(f"{folders}/{{partition-id}}/nowhere")]), NODES)
    with pytest.raises(NobodyThereError, match=r"none of 6 nodes is a client of the roster; the first: .*0 key files"):
        run(secure(nowhere, folders))
    assert len([record for record in caplog.records if "0 key files" in record.message]) == 1
    with pytest.raises(NobodyThereError, match="the node's configuration lacks 'tacit'"):
        run(secure(LocalGrid(client_app([secure_sum_mod("{tacit}")]), NODES), folders))
    grid = secure(below, folders)
    assert run(grid).arrays.keys()
    below.answer = nowhere.answer  # type: ignore[method-assign]
    assert run(grid).arrays == ArrayRecord()


def test_a_sum_that_no_round_can_have_fails_the_run(folders: Path) -> None:
    grid = SecureGrid(LocalGrid(secure_client_app(folders), NODES), folders / "roster.toml", corrupt=0.9)
    with pytest.raises(ValueError, match=r"(smaller|lower) `corrupt`"):
        run(grid)


@pytest.mark.parametrize("frame", [7, b"junk"])
def test_frames_that_are_none_cost_their_sender_its_part(frame: int | bytes, folders: Path) -> None:
    def strange(message: Message, context: Any, call_next: Any) -> Message:
        if context.node_config["partition-id"] == 3 and (ours(message.content) or {}).get(STEP) == BEGIN:
            return Message(RecordDict({RECORD: ConfigRecord({FRAMES: [frame]})}), reply_to=message)
        return call_next(message, context)

    grid = LocalGrid(secure_client_app(folders, [strange]), NODES)
    assert_close(run(secure(grid, folders)).arrays, plain(104))


def test_other_messages_pass(folders: Path) -> None:
    grid = secure(LocalGrid(secure_client_app(folders), NODES), folders)
    (reply,) = grid.send_and_receive([training(101, kind="evaluate")])
    assert 0 <= reply.content["metrics"]["accuracy"] <= 1


def test_neither_command_nor_dashboard_is_loaded() -> None:
    program = "import tacit.parties.flower, sys; print(*(name for name in sys.modules if name.startswith('tacit.')))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {name.split(".")[1] for name in run.stdout.split()} - {"secagg", "protocol", "parties", "models"}


def test_the_rest_of_the_grid_is_as_it_was_and_offers_no_way_around(folders: Path) -> None:
    below = LocalGrid(secure_client_app(folders), NODES)
    grid = secure(below, folders)
    assert grid.get_node_ids() == below.get_node_ids()
    assert list(grid.get_nodes()) == list(below.get_nodes())
    other = Run.create_empty(8)
    grid.set_run(other)
    assert grid.run is below.run is other
    pushed = [grid.create_message(training(101).content, kind, 101, group_id="1") for kind in ("evaluate", "train")]
    judged, refused = grid.pull_messages(grid.push_messages(pushed))
    assert judged.content == below.answer(pushed[0]).content
    assert "the server asks for a trained model in the clear" in refused.error.reason
