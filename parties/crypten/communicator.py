"""CrypTen's communicator on our links: the same collective calls as its DistributedCommunicator, which uses gloo.

Gloo sends in plain text to whoever connects, unpickles what comes, and waits for ever. Here every call becomes one
message per peer on a PeerLink, which encrypts, authenticates, checks and has a deadline. The parties of a computation
are numbered by their rank; every two of them have a link. The dealer is none of them.

CrypTen asks `crypten.communicator.DistributedCommunicator` for its communicator: computation.py puts this class in its
place. Calls have the names, arguments and results of CrypTen's.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import torch
from torch.distributed import ReduceOp

from tacit.parties.crypten import objects
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import PeerLink

Tensors = Sequence[torch.Tensor]

_COMBINE: Final[Mapping[Any, Callable[..., torch.Tensor]]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.BXOR: torch.bitwise_xor,
}
"""The reductions of additive and of binary shares."""


@dataclass(frozen=True)
class OperationCost:
    """What one named operation has cost this party."""

    rounds: int
    """Collective calls; in each the party waits for the others at most once."""
    bytes_sent: int
    bytes_received: int
    seconds: float
    """Spent in sending and waiting."""


class LinkCommunicator(crypten.communicator.Communicator):  # type: ignore[misc]
    """The calls of one computing party.

    parties: names of all computing parties by rank, two or three; links: to each of the others. Every call raises
    MpcError as its link does.
    """

    prepared: ClassVar["LinkCommunicator | None"] = None
    """What initialize() takes: CrypTen creates its communicator itself."""
    instance: ClassVar["LinkCommunicator | None"] = None

    def __init__(self, *, own: str, parties: Sequence[str], links: Mapping[str, PeerLink]) -> None:
        if not 2 <= len(parties) <= 3 or own not in parties:
            raise ValueError(f"computing parties {', '.join(parties)}: two or three, {own!r} among them")
        if missing := set(parties) - {own} - set(links):
            raise ValueError(f"no link to {', '.join(sorted(missing))}")
        self.rank = parties.index(own)
        self.world_size = len(parties)
        self._peers = {rank: links[party] for rank, party in enumerate(parties) if party != own}
        self._name = own
        self._scope: tuple[str, ...] = ()
        self._rounds: Counter[str] = Counter()

    @classmethod
    def is_initialized(cls) -> bool:
        return cls.instance is not None

    @classmethod
    def get(cls) -> "LinkCommunicator | None":
        return cls.instance

    @classmethod
    def initialize(cls, rank: int, world_size: int, init_ttp: bool = False) -> None:
        """Called by crypten.init()."""
        if init_ttp or cls.prepared is None:
            raise ValueError(
                "CrypTen's trusted third party is not supported: start through tacit.parties.crypten.computation"
            )
        cls.instance, cls.prepared = cls.prepared, None

    @classmethod
    def shutdown(cls) -> None:
        """Called by crypten.uninit(); the links belong to whoever opened them."""
        cls.instance = cls.prepared = None

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Names what happens within: in messages, errors and costs. Nested names are joined by a slash. All parties
        must use the same names."""
        outer, self._scope = self._scope, (*self._scope, name)
        try:
            yield
        finally:
            self._scope = outer

    def costs(self) -> dict[str, OperationCost]:
        """Costs by operation: its scope and the collective call, such as "attention/all_reduce"."""
        links = self._peers.values()
        return {
            operation: OperationCost(
                rounds=rounds,
                bytes_sent=sum(link.counters[operation].bytes_sent for link in links),
                bytes_received=sum(link.counters[operation].bytes_received for link in links),
                seconds=sum(link.counters[operation].seconds for link in links),
            )
            for operation, rounds in self._rounds.items()
        }

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self._link(dst).send(self._begin("send"), [tensor.reshape(-1)])

    def recv(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        # Flat, because CrypTen receives the scalar seed of a neighbour into a vector of one. Both ends call it a send.
        return self._receive(self._begin("send"), src, [tensor.reshape(-1)])[0].reshape(tensor.shape)

    def isend(self, tensor: torch.Tensor, dst: int) -> SimpleNamespace:
        self.send(tensor, dst)
        return SimpleNamespace(wait=lambda: None)

    def irecv(self, tensor: torch.Tensor, src: int) -> SimpleNamespace:
        return SimpleNamespace(wait=lambda: tensor.data.copy_(self.recv(tensor, src)))

    def scatter(
        self,
        scatter_list: Tensors,
        src: int,
        size: Sequence[int] | None = None,
        device: torch.device | None = None,
    ) -> torch.Tensor:
        operation = self._begin("scatter")
        if src == self.rank:
            for rank, link in self._peers.items():
                link.send(operation, [scatter_list[rank]])
            return scatter_list[self.rank]
        like = torch.empty(size if size is not None else scatter_list[self.rank].shape, dtype=torch.long, device="meta")
        return self._receive(operation, src, [like])[0].to(device)

    def reduce(self, input: Any, dst: int, op: Any = ReduceOp.SUM, batched: bool = False) -> Any:
        operation = self._begin("reduce")
        tensors = input if batched else [input]
        if dst != self.rank:
            self._link(dst).send(operation, tensors)
            return None
        return self._reduced(self._received(operation, tensors), op, batched)

    def all_reduce(self, input: Any, op: Any = ReduceOp.SUM, batched: bool = False) -> Any:
        tensors = input if batched else [input]
        return self._reduced(self._exchanged("all_reduce", tensors), op, batched)

    def gather(self, tensor: torch.Tensor, dst: int) -> list[torch.Tensor] | list[None]:
        operation = self._begin("gather")
        if dst != self.rank:
            self._link(dst).send(operation, [tensor])
            return [None]
        return [part for (part,) in self._received(operation, [tensor])]

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [part for (part,) in self._exchanged("all_gather", [tensor])]

    def broadcast(self, input: Any, src: int, group: None = None, batched: bool = False) -> Any:
        operation = self._begin("broadcast")
        tensors = input if batched else [input]
        if src == self.rank:
            self._send_to_all(operation, tensors)
        else:
            for tensor, received in zip(tensors, self._receive(operation, src, tensors), strict=True):
                tensor.data.copy_(received)
        return input

    def barrier(self) -> None:
        self._exchanged("barrier", [])

    def send_obj(self, obj: Any, dst: int, group: None = None) -> None:
        self._send_object(self._begin("object"), obj, [self._link(dst)])

    def recv_obj(self, src: int, group: None = None) -> Any:
        return self._receive_object(self._begin("object"), src)

    def broadcast_obj(self, obj: Any, src: int, group: None = None) -> Any:
        operation = self._begin("broadcast_object")
        if src != self.rank:
            return self._receive_object(operation, src)
        self._send_object(operation, obj, list(self._peers.values()))
        return obj

    def get_world_size(self) -> int:
        return self.world_size

    def get_rank(self) -> int:
        return self.rank

    def set_name(self, name: str) -> None:
        self._name = name

    def get_name(self) -> str:
        return self._name

    def reset_communication_stats(self) -> None:
        self._rounds.clear()
        for link in self._peers.values():
            link.counters.clear()

    def get_communication_stats(self) -> dict[str, float]:
        costs = self.costs().values()
        return {
            "rounds": sum(cost.rounds for cost in costs),
            "bytes": sum(cost.bytes_sent + cost.bytes_received for cost in costs),
            "time": sum(cost.seconds for cost in costs),
        }

    def print_communication_stats(self) -> None:
        for name, value in self.get_communication_stats().items():
            crypten.log(f"{name}: {value}")

    def _begin(self, call: str) -> str:
        """Counts a call; its full name."""
        operation = "/".join((*self._scope, call))
        self._rounds[operation] += 1
        return operation

    def _link(self, rank: int) -> PeerLink:
        if rank not in self._peers:
            raise ValueError(
                f"rank {rank} is not another computing party; those are {', '.join(map(str, self._peers))}"
            )
        return self._peers[rank]

    def _receive(self, operation: str, rank: int, like: Tensors) -> list[torch.Tensor]:
        """The rank's tensors, of the dtypes and shapes of these."""
        arrays = self._link(rank).receive(operation, [(tensor.dtype, tensor.shape) for tensor in like])
        return [
            torch.from_numpy(array)
            if tensor.device.type in ("cpu", "meta")
            else torch.from_numpy(array).to(tensor.device)
            for array, tensor in zip(arrays, like, strict=True)
        ]

    def _received(self, operation: str, own: Tensors) -> list[Tensors]:
        """Everybody's tensors, by rank."""
        return [own if rank == self.rank else self._receive(operation, rank, own) for rank in range(self.world_size)]

    def _exchanged(self, call: str, own: Tensors) -> list[Tensors]:
        operation = self._begin(call)
        self._send_to_all(operation, own)
        return self._received(operation, own)

    def _send_to_all(self, operation: str, tensors: Tensors) -> None:
        for link in self._peers.values():
            link.send(operation, tensors)

    def _reduced(self, parts: Sequence[Tensors], op: Any, batched: bool) -> Any:
        """The reduction of everybody's tensors, in the memory of one that was received."""
        if op not in _COMBINE:
            raise ValueError(f"reduction {op}: shares are combined by SUM or BXOR")
        combine = _COMBINE[op]
        results = []
        for first, second, *others in zip(*parts, strict=True):
            total = combine(first, second, out=second if self.rank == 0 else first)
            for other in others:
                combine(total, other, out=total)
            results.append(total)
        return results if batched else results[0]

    def _send_object(self, operation: str, obj: Any, links: Sequence[PeerLink]) -> None:
        tree, tensors = objects.encode(obj)
        for link in links:
            link.send_fields(operation, tree)
            if tensors:
                link.send(operation, tensors)

    def _receive_object(self, operation: str, src: int) -> Any:
        link = self._link(src)
        tree = link.receive_fields(operation, objects.Tree)
        try:
            expected = objects.expected(tree)
        except ValueError as error:
            raise MpcError(link.peer, operation, str(error)) from None
        return objects.decode(tree, link.receive(operation, expected) if expected else [])
