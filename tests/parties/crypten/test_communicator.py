"""Every collective call of the communicator, between two and three parties on real links, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp

from tacit.parties.crypten import objects
from tacit.parties.crypten.communicator import LinkCommunicator
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.computation import computing
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import PeerLink, connect, listen
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.roster import Roster

PARTIES = ("owner", "alice", "bob")


class Cohort:
    """Computing parties as threads of this process, each with its links."""

    def __init__(
        self, size: int, directory: Path, keys: dict[str, PartyKeys], roster: Roster, stack: ExitStack
    ) -> None:
        self.parties = PARTIES[:size]
        self._pool = stack.enter_context(ThreadPoolExecutor(size))

        def open_links(rank: int) -> dict[str, PeerLink]:
            own, links = self.parties[rank], {}
            common: dict[str, Any] = {"keys": keys[own], "roster": roster, "session": b"cohort", "patience": 30.0}
            behind = self.parties[rank + 1 :]
            listener = listen(f"ipc://{directory}/{own}", peers=behind, **common) if behind else None
            for server in self.parties[:rank]:
                links[server] = stack.enter_context(connect(f"ipc://{directory}/{server}", server=server, **common))
            return links | (stack.enter_context(listener).accept() if listener else {})

        self.links = list(self._pool.map(open_links, range(size)))
        self.communicators = [
            LinkCommunicator(own=own, parties=self.parties, links=links)
            for own, links in zip(self.parties, self.links, strict=True)
        ]

    def run(self, call: Callable[[LinkCommunicator, int], Any]) -> list[Any]:
        """What the call returns to each rank."""
        return list(self._pool.map(call, self.communicators, range(len(self.parties))))


@pytest.fixture(scope="module", params=[2, 3])
def cohort(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    keys: dict[str, PartyKeys],
    roster: Roster,
) -> Iterator[Cohort]:
    with ExitStack() as stack:
        yield Cohort(request.param, tmp_path_factory.mktemp("links"), keys, roster, stack)


def values(rank: int) -> torch.Tensor:
    return torch.tensor([[1, 2**63 - 1, -5], [7, 0, 2**40]]) * (rank + 1)


def ranks(cohort: Cohort) -> range:
    return range(len(cohort.parties))


def total(cohort: Cohort) -> torch.Tensor:
    return sum((values(rank) for rank in ranks(cohort)), torch.zeros((), dtype=torch.long))


def same(left: Any, right: Any) -> bool:
    return torch.equal(left, right) and left.dtype == right.dtype and left.shape == right.shape


def test_all_reduce(cohort: Cohort) -> None:
    assert all(same(result, total(cohort)) for result in cohort.run(lambda c, rank: c.all_reduce(values(rank))))
    lists = cohort.run(lambda c, rank: c.all_reduce([values(rank), values(rank)[0]], batched=True))
    assert all(same(full, total(cohort)) and same(row, total(cohort)[0]) for full, row in lists)
    xor = values(0)
    for rank in ranks(cohort)[1:]:
        xor = xor ^ values(rank)
    assert all(same(r, xor) for r in cohort.run(lambda c, rank: c.all_reduce(values(rank), op=ReduceOp.BXOR)))


def test_own_tensors_stay_as_they_are(cohort: Cohort) -> None:
    own = [values(rank) for rank in ranks(cohort)]
    cohort.run(
        lambda c, rank: (c.all_reduce(own[rank]), c.all_reduce([own[rank]], batched=True), c.reduce(own[rank], 0))
    )
    assert all(same(own[rank], values(rank)) for rank in ranks(cohort))


@pytest.mark.parametrize("place", [0, 1])
def test_reduce(cohort: Cohort, place: int) -> None:
    results = cohort.run(lambda c, rank: c.reduce(values(rank), place))
    assert same(results[place], total(cohort))
    assert all(results[rank] is None for rank in ranks(cohort) if rank != place)
    (batched,) = cohort.run(lambda c, rank: c.reduce([values(rank)], place, batched=True))[place]
    assert same(batched, total(cohort))


@pytest.mark.parametrize("place", [0, 1])
def test_gather(cohort: Cohort, place: int) -> None:
    gathered = cohort.run(lambda c, rank: c.gather(values(rank), place))
    assert all(same(part, values(rank)) for rank, part in enumerate(gathered[place]))
    assert all(gathered[rank] == [None] for rank in ranks(cohort) if rank != place)
    everywhere = cohort.run(lambda c, rank: c.all_gather(values(rank)))
    assert all(same(part, values(rank)) for parts in everywhere for rank, part in enumerate(parts))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("size", [None, (2, 3)])
def test_scatter(cohort: Cohort, place: int, size: tuple[int, ...] | None) -> None:
    """Without a size, CrypTen's other parties bring tensors of the right shapes."""
    own = [values(rank) for rank in ranks(cohort)]
    results = cohort.run(lambda c, rank: c.scatter(own if rank == place or size is None else [], place, size=size))
    assert all(same(part, values(rank)) for rank, part in enumerate(results))


@pytest.mark.parametrize("place", [0, 1])
def test_broadcast_fills_the_tensor_that_it_was_given(cohort: Cohort, place: int) -> None:
    own = [values(rank) for rank in ranks(cohort)]
    results = cohort.run(lambda c, rank: c.broadcast(own[rank], place))
    assert all(result is tensor and same(tensor, values(place)) for result, tensor in zip(results, own, strict=True))
    own = [values(rank) for rank in ranks(cohort)]
    cohort.run(lambda c, rank: c.broadcast([own[rank], torch.zeros(1)], place, batched=True))
    assert all(same(tensor, values(place)) for tensor in own)


def test_send_and_receive_around_the_ring(cohort: Cohort) -> None:
    def around(c: LinkCommunicator, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        before, behind = (rank - 1) % c.get_world_size(), (rank + 1) % c.get_world_size()
        c.send(values(rank), behind)
        received = c.recv(torch.zeros(2, 3, dtype=torch.long), before)
        # As CrypTen exchanges its seeds: a scalar, received into a vector of one.
        seed = torch.zeros(1, dtype=torch.long)
        sent, waiting = c.isend(torch.tensor(rank), behind), c.irecv(seed, before)
        sent.wait()
        waiting.wait()
        return received, seed

    for rank, (received, seed) in enumerate(cohort.run(around)):
        before = (rank - 1) % len(cohort.parties)
        assert same(received, values(before))
        assert seed.tolist() == [before]


def test_barrier_waits_for_everybody(cohort: Cohort) -> None:
    arrived: list[int] = []

    def meet(c: LinkCommunicator, rank: int) -> int:
        arrived.append(rank)
        c.barrier()
        return len(arrived)

    assert cohort.run(meet) == [len(cohort.parties)] * len(cohort.parties)


OBJECTS = [
    None,
    True,
    -(2**63),
    0.1,
    "softmax",
    b"\x00\xff",
    torch.Size([197, 384]),
    [1, (2, "three"), {"four": [4.0, None]}],
    torch.arange(6).reshape(2, 3),
    {"weight": torch.ones(3, 0), "more": [torch.tensor(2.5, dtype=torch.float64)]},
]


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return same(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def test_objects(cohort: Cohort) -> None:
    for value in OBJECTS:
        for received in cohort.run(lambda c, rank, value=value: c.broadcast_obj(value if rank == 1 else None, 1)):
            assert equal(received, value)

    def hand_over(c: LinkCommunicator, rank: int) -> Any:
        return c.send_obj(OBJECTS, 1) if rank == 0 else c.recv_obj(0) if rank == 1 else None

    assert equal(cohort.run(hand_over)[1], OBJECTS)


@pytest.mark.parametrize("value", [torch.nn.Linear(2, 2), {1: 2}, {3}, object(), torch.zeros(1, dtype=torch.cfloat)])
def test_objects_that_would_need_pickle_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot go to another party"):
        objects.encode([value])


@pytest.mark.parametrize("value", [2**64, float("nan")])
def test_numbers_beyond_the_wire_are_refused(cohort: Cohort, value: Any) -> None:
    with pytest.raises((ValueError, OverflowError)):
        cohort.communicators[0].send_obj(value, 1)
    cohort.run(lambda c, rank: c.barrier())  # Nothing was sent.


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ([], "not an encoded object"),
        (["module", "os"], "not an encoded object"),
        (["value", [1]], "not an encoded object"),
        (["size", [-1]], "not an encoded object"),
        (["size", [True]], "not an encoded object"),
        (["dict", [["key"]]], "not an encoded object"),
        (["dict", [[1, ["value", 1]]]], "a key that is not a string"),
        (["tensor", ["object", [1]]], "not an encoded object"),
        (["tensor", ["int64", [1.5]]], "not an encoded object"),
        (["list", [["tensor", ["int64", [2**26]]], ["tensor", ["float32", [2**28]]]]], "at most 1073741824"),
    ],
)
def test_objects_that_no_party_writes_are_refused(cohort: Cohort, root: list[Any], reason: str) -> None:
    cohort.links[0]["alice"].send_fields("object", objects.Tree(root))
    with pytest.raises(MpcError, match=f"'owner', object: .*{reason}"):
        cohort.communicators[1].recv_obj(0)


def test_costs_by_named_operation(cohort: Cohort) -> None:
    def work(c: LinkCommunicator, rank: int) -> None:
        c.reset_communication_stats()
        with c.operation("block 1"):
            with c.operation("attention"):
                c.all_reduce(torch.zeros(1000, dtype=torch.long))
                c.all_reduce(torch.zeros(1000, dtype=torch.long))
            c.barrier()
        c.broadcast(torch.zeros(10), 0)

    cohort.run(work)
    peers = len(cohort.parties) - 1
    for rank, communicator in enumerate(cohort.communicators):
        costs = communicator.costs()
        assert list(costs) == ["block 1/attention/all_reduce", "block 1/barrier", "broadcast"]
        attention = costs["block 1/attention/all_reduce"]
        assert attention.rounds == 2
        assert 0 <= attention.bytes_sent - 16_000 * peers < 400 * peers
        assert 0 <= attention.bytes_received - 16_000 * peers < 400 * peers
        assert attention.seconds > 0
        assert costs["block 1/barrier"].bytes_sent < 200 * peers
        assert (costs["broadcast"].bytes_sent == 0) == (rank != 0)
        statistics = communicator.get_communication_stats()
        assert statistics["rounds"] == 4
        assert statistics["bytes"] == sum(cost.bytes_sent + cost.bytes_received for cost in costs.values())
        communicator.reset_communication_stats()
        assert communicator.get_communication_stats() == {"rounds": 0, "bytes": 0, "time": 0}


def test_another_named_operation_is_another_call(
    keys: dict[str, PartyKeys], roster: Roster, tmp_path: Path, opened: ExitStack
) -> None:
    def work(c: LinkCommunicator, rank: int) -> str:
        with c.operation(f"block {rank}"), pytest.raises(MpcError) as caught:
            c.all_reduce(torch.zeros(3))
        return str(caught.value)

    errors = Cohort(2, tmp_path, keys, roster, opened).run(work)
    assert "'alice', block 0/all_reduce: it sent block 1/all_reduce (float32[3]) where block 0/all_reduce" in errors[0]
    assert "'owner', block 1/all_reduce: it sent block 0/all_reduce (float32[3])" in errors[1]


def test_wrong_use_is_refused(cohort: Cohort) -> None:
    own, links = cohort.communicators[0], cohort.links[0]
    with pytest.raises(ValueError, match="rank 7 is not another computing party; those are 1"):
        own.send(torch.zeros(1), 7)
    with pytest.raises(ValueError, match="rank 0 is not another computing party"):
        own.send_obj(1, 0)
    for parties in (["owner"], ["owner", "alice", "bob", "carol"], ["alice", "bob"]):
        with pytest.raises(ValueError, match="two or three, 'owner' among them"):
            LinkCommunicator(own="owner", parties=parties, links=links)
    with pytest.raises(ValueError, match="no link to carol"):
        LinkCommunicator(own="owner", parties=["owner", "carol"], links=links)


def test_other_reductions_are_refused(
    keys: dict[str, PartyKeys], roster: Roster, tmp_path: Path, opened: ExitStack
) -> None:
    def work(c: LinkCommunicator, rank: int) -> None:
        with pytest.raises(ValueError, match="shares are combined by SUM or BXOR"):
            c.all_reduce(torch.zeros(3), op=ReduceOp.MAX)

    Cohort(2, tmp_path, keys, roster, opened).run(work)


def test_crypten_does_not_start_without_links() -> None:
    with pytest.raises(ValueError, match=r"start through tacit\.parties\.crypten\.computation"):
        LinkCommunicator.initialize(0, 2)


def test_a_process_is_one_party(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkCommunicator, "instance", cohort.communicators[0])
    monkeypatch.setattr(crypten.communicator, "DistributedCommunicator", LinkCommunicator)
    block = computing("owner", parties=cohort.parties, links=cohort.links[0], provider=None)
    with pytest.raises(RuntimeError, match="one party per process"), block:
        pass
