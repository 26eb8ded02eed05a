"""Material for whole passes, fetched from the dealer before they begin; and the dealer's own program.

What a program asks for depends on nothing but shapes and scales. So it is run once without material (`recorded`), which
gives the plan; both parties order the plan for each pass, the dealer compares their orders, and sends the corrections.
When `fetch` returns, nothing of the pass waits for the dealer. Keys, streams and numbers of requests are those of
tacit.parties.mpc.supply: fresh for every session, every number used once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
import torch
from msgspec import Meta

from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.operations import Party
from tacit.parties.mpc.errors import MpcError
from tacit.parties.mpc.link import Link, Listener
from tacit.parties.mpc.material import Linear, Request, Weight, check, correct, expand
from tacit.parties.mpc.streams import Keystream, Purpose, agree, derive

ORDER: Final = "order material"
MATERIAL: Final = "material"
LARGEST_ORDER: Final = 512
"""Requests in one order."""
_PAUSE_SECONDS: Final = 60.0


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a party wants next. Without requests it is the last one."""

    first: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """Number of the first request."""
    requests: Annotated[tuple[AnyBlockRequest, ...], Meta(max_length=LARGEST_ORDER)]


class BlockSupply:
    """The material of one party in one session."""

    def __init__(self, rank: int, dealer: Link) -> None:
        secret, _ = agree(dealer, first=True)
        self._key = derive(secret, Purpose.MATERIAL, rank=rank)
        self._rank = rank
        self._dealer = dealer
        self._next = 0
        self._waiting: deque[tuple[AnyBlockRequest, list[torch.Tensor]]] = deque()
        self.party = Party(rank, self._take)

    def fetch(self, requests: Sequence[AnyBlockRequest]) -> int:
        """Have the material of these requests here; the number of the first. A call of both parties.

        ValueError for requests that cannot be met.
        """
        for request in requests:
            check(request, 2)
        first = self._next
        for start in range(0, len(requests), LARGEST_ORDER):
            self._fetch(tuple(requests[start : start + LARGEST_ORDER]))
        return first

    def finish(self) -> None:
        """Tell the dealer that this party is done."""
        self._dealer.send_fields(ORDER, Order(first=self._next, requests=()))

    def _fetch(self, requests: tuple[AnyBlockRequest, ...]) -> None:
        self._dealer.send_fields(ORDER, Order(first=self._next, requests=requests))
        for request in requests:
            words = expand(request, self._rank, Keystream(self._key, self._next))
            if request.receiver == self._rank and (missing := request.dependent()):
                arrays = self._dealer.receive(MATERIAL, [(torch.int64, draw.shape) for draw in missing])
                words += map(torch.from_numpy, arrays)
            self._waiting.append((request, words))
            self._next += 1

    def _take(self, request: Request) -> list[torch.Tensor]:
        expected, words = self._waiting.popleft() if self._waiting else (None, [])
        if request != expected:
            raise RuntimeError(f"the program asks for {request}, the material at hand is for {expected}")
        return words


def recorded(run: Callable[[Party], object], *, rank: int) -> list[Any]:
    """The requests that `run` makes of a party, which gets zeros for every one of them."""
    requests: list[Request] = []

    def take(request: Request) -> list[torch.Tensor]:
        requests.append(request)
        draws = request.free(rank) + request.dependent()
        return [torch.zeros(draw.shape, dtype=torch.int64) for draw in draws]

    run(Party(rank, take))
    return requests


def deal(listener: Listener, parties: Sequence[str]) -> int:
    """The dealer's program: meet every order of two parties, named in the order of their ranks, until both are done.

    How many requests it met. MpcError names who is late, gone or out of step; whoever can still be reached reads the
    reason as its next message.
    """
    accepted = listener.accept()
    links = [accepted[name] for name in parties]
    secrets = [agree(link, first=False)[0] for link in links]
    keys = [derive(secret, Purpose.MATERIAL, rank=rank) for rank, secret in enumerate(secrets)]
    weights: dict[int, Weight] = {}
    number = 0
    try:
        while requests := _next_order(listener, links, number):
            for request in requests:
                corrections = _corrected(links, keys, weights, request, number)
                if corrections:
                    links[request.receiver].send(MATERIAL, corrections)
                number += 1
    except MpcError as error:
        for link in links:
            with suppress(MpcError):
                link.send(f"refusal: {error}"[:2000], [])
        raise
    return number


def _next_order(listener: Listener, links: Sequence[Link], number: int) -> tuple[AnyBlockRequest, ...]:
    while not listener.ready(_PAUSE_SECONDS):
        pass
    orders = [link.receive_fields(ORDER, Order) for link in links]
    for link, order in zip(links, orders, strict=True):
        if order.first != number:
            raise MpcError(
                link.peer,
                ORDER,
                f"it orders request {order.first} where {number} is next: material is used once; start all parties "
                "again",
            )
        if order.requests != orders[0].requests:
            raise MpcError(
                link.peer,
                ORDER,
                f"it orders other material than {links[0].peer!r}: give both the same block, bounds and batch",
            )
    return orders[0].requests


def _corrected(
    links: Sequence[Link], keys: Sequence[bytes], weights: dict[int, Weight], request: AnyBlockRequest, number: int
) -> list[torch.Tensor]:
    """The receiver's shares of the dependent words."""
    mask = None
    if isinstance(request, Weight):
        weights[number] = request
    elif isinstance(request, Linear):
        if weights.get(request.weight) != Weight(owner=request.owner, shape=request.weight_shape):
            raise MpcError(links[request.owner].peer, ORDER, f"{request}: there is no mask of such a weight")
        mask = Keystream(keys[request.owner], request.weight).draw(request.weight_shape)
    try:
        check(request, len(links))
        return correct(request, [Keystream(key, number) for key in keys], mask)
    except (ValueError, RuntimeError) as error:
        raise MpcError(links[0].peer, f"request {number}", str(error)) from error
