"""CrypTen within a pass: its shared tensors compute, and their openings are rounds of the session.

CrypTen blocks in the middle of an operation, and finds its communicator and its provider of correlated randomness in
global variables. A pass is a generator that yields its rounds (parties/inference/operations.py). So CrypTen's code runs
in its own thread, whose `Computation` hands every round to the generator and waits for the answer. Sessions with
several data owners have a thread each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import torch

from tacit.parties.correlated.material import Product, Request, Square
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.truncation import truncated
from tacit.parties.inference.material import AnyBlockRequest, Matrix
from tacit.parties.inference.operations import MODEL, Communication, Party, Program
from tacit.parties.inference.ring import WORD_BITS, byte_width
from tacit.protocol.inference.schedule import Round

T = TypeVar("T")

_PROVIDER: Final = "TACIT"
META: Final = torch.device("meta")


class Computation:
    """One use of CrypTen's code by a party. exchange: sends the message, waits, and returns the answer."""

    def __init__(self, party: Party, exchange: Callable[[Communication], list[torch.Tensor]]) -> None:
        self.party = party
        self.operation = ""
        """Name of the current operation, for cost reports."""
        self._exchange = exchange

    def run(self, program: Program[T]) -> T:
        received: list[torch.Tensor] | None = None
        while True:
            try:
                # A generator begins with None.
                received = self._exchange(next(program) if received is None else program.send(received))
            except StopIteration as stop:
                found: T = stop.value
                return found

    def opened(self, shares: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.run(self.party.open(self.operation, *((share, WORD_BITS) for share in shares)))

    def truncated(self, share: torch.Tensor, divisor: int) -> torch.Tensor:
        """This party's share of the quotient by a divisor of at least 2, from its share."""
        return self.run(truncated(self.party, share, divisor))


_running = threading.local()


def current() -> Computation:
    found: Computation = _running.computation
    return found


def as_program(party: Party, compute: Callable[[Computation], T]) -> Program[T]:
    """Run blocking code in a thread, and yield its rounds."""
    asked: SimpleQueue[Communication | BaseException | tuple[T]] = SimpleQueue()
    answers: SimpleQueue[list[torch.Tensor] | None] = SimpleQueue()

    def exchange(communication: Communication) -> list[torch.Tensor]:
        asked.put(communication)
        if (answer := answers.get()) is None:
            raise _AbandonedError
        return answer

    def run() -> None:
        torch.set_num_threads(1)
        try:
            asked.put((computed(Computation(party, exchange), compute),))
        except BaseException as error:
            asked.put(error)

    thread = threading.Thread(target=run, name="CrypTen", daemon=True)
    thread.start()
    try:
        while not isinstance(found := asked.get(), tuple):
            if isinstance(found, BaseException):
                raise found
            answers.put((yield found))
        return found[0]
    finally:
        # An aborted pass leaves no thread behind.
        answers.put(None)
        thread.join()


class _AbandonedError(Exception):
    """The caller no longer waits for the result."""


def computed(computation: Computation, compute: Callable[[Computation], T]) -> T:
    install()
    _running.computation = computation
    try:
        return compute(computation)
    finally:
        del _running.computation


@dataclass(frozen=True)
class Traced:
    """The code's requests to the dealer, and its rounds."""

    requests: tuple[AnyBlockRequest, ...]
    rounds: tuple[Round, ...]


def traced(prepare: Callable[[Party], Callable[[Computation], object]]) -> Traced:
    """Run code without values. Requests and rounds depend on shapes alone, since no value is known."""
    requests: list[Any] = []
    rounds: list[Round] = []

    def take(request: Request) -> list[torch.Tensor]:
        requests.append(request)
        return [_nothing(draw.shape) for draw in (*request.free(MODEL), *request.dependent())]

    def exchange(communication: Communication) -> list[torch.Tensor]:
        sent = sum(words.numel() * byte_width(bits) for words, bits in communication.sent)
        due = sum(prod(shape) * byte_width(bits) for shape, bits in communication.expected)
        rounds.append(Round(communication.operation, sent, due))
        return [_nothing(shape) for shape, _ in communication.expected]

    party = Party(MODEL, take, META)
    computed(Computation(party, exchange), prepare(party))
    return Traced(tuple(requests), tuple(rounds))


def _nothing(shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=torch.int64, device=META)


Arithmetic: Final = crypten.mpc.primitives.ArithmeticSharedTensor


def shared(share: torch.Tensor) -> Any:
    """CrypTen's tensor of this party's share, of numbers with CrypTen's fractional bits."""
    return crypten.mpc.MPCTensor.from_shares(share)


@cache
def install() -> None:
    """Make CrypTen in this process compute by `current()` from now on."""
    vars(crypten.mpc)["__SUPPORTED_PROVIDERS"][_PROVIDER] = _DealtTuples()
    crypten.cfg.mpc.provider = _PROVIDER
    crypten.communicator.DistributedCommunicator = _PassCommunicator
    crypten.CrypTensor.set_grad_enabled(False)
    Arithmetic.div_ = _divide
    Arithmetic.__init__ = _initialise


class _PassCommunicator:
    """The part of CrypTen's communicator that its arithmetic uses. Other accesses are a bug."""

    @classmethod
    def is_initialized(cls) -> bool:
        return True

    @classmethod
    def get(cls) -> _PassCommunicator:
        return cls()

    def get_rank(self) -> int:
        return current().party.rank

    def all_reduce(self, input: Any, batched: bool = False) -> Any:
        found = current().opened(input if batched else [input])
        return found if batched else found[0]


class _DealtTuples:
    def generate_additive_triple(
        self, left: Sequence[int], right: Sequence[int], operation: Any, device: Any = None
    ) -> tuple[Any, ...]:
        kind = Matrix if operation == "matmul" else Product
        return self._taken(kind(operation, tuple(left), tuple(right)), operation)

    def square(self, size: Sequence[int], device: Any = None) -> tuple[Any, ...]:
        return self._taken(Square(tuple(size)), "square")

    def _taken(self, request: AnyBlockRequest, operation: str) -> tuple[Any, ...]:
        computation = current()
        computation.operation = operation
        return tuple(Arithmetic.from_shares(words, precision=0) for words in computation.party.take(request))


def _initialise(self: Any, tensor: Any = None, *_: Any, **__: Any) -> None:
    """`shared` makes shares. CrypTen itself makes only empty placeholders; for others it would draw zero sharings from
    a Mersenne Twister."""
    if tensor is not None and len(tensor):
        raise TypeError("a shared tensor is made of this party's share")


def _divide(self: Any, divisor: Any) -> Any:
    """Replaces ArithmeticSharedTensor.div_, in place; no operation of a vision transformer divides by another
    number."""
    if not isinstance(divisor, int) or divisor < 1:
        raise TypeError(f"a shared tensor is divided by {divisor!r}: only positive whole numbers are public divisors")
    if divisor > 1:
        self.share = current().truncated(self.share, divisor)
    return self
