"""What crypten_masks.py runs: two products of the data owner's input and the model owner's weight. With CrypTen's own
trusted third party over gloo there is a process for each party; with our dealer's correlated randomness both parties
are in one, since what the model owner sees is the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tacit.parties.correlated.material import Request, correct, expand, request_stream
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.computation import Computation, as_program, shared
from tacit.parties.inference.operations import DATA, MODEL, Communication, Party
from tacit.simulate.federation.child import Control

PARTIES = ("model", "data", "dealer")
Seen = dict[str, Any]
"""By the model owner: its shares of the weight and the inputs, and of every opening its own part and the sum."""


async def compute(control: Control, **arguments: Any) -> None:
    await asyncio.to_thread(_stock, **arguments)


def ours(weight: torch.Tensor, inputs: list[torch.Tensor]) -> Seen:
    """What the model owner sees with keystreams that only its owner and the dealer know."""
    nothing = [torch.zeros_like(values) for values in (weight, *inputs)]
    owned = {MODEL: [weight, *nothing[1:]], DATA: [nothing[0], *inputs]}
    shares = {rank: [(values.double() * (1 << 16)).round().long() for values in own] for rank, own in owned.items()}
    keys = [os.urandom(32) for _ in shares]

    def taker(rank: int) -> Callable[[Request], list[torch.Tensor]]:
        numbers = iter(range(1 << 20))

        def take(request: Request) -> list[torch.Tensor]:
            number = next(numbers)
            words = expand(request, rank, request_stream(keys[rank], number))
            if rank in request.receivers:
                words += correct(request, [request_stream(key, number) for key in keys])
            return words

        return take

    def products(rank: int, computation: Computation) -> list[torch.Tensor]:
        factor, *rows = map(shared, shares[rank])
        return [row.matmul(factor).share for row in rows]

    programs = [as_program(Party(rank, taker(rank)), partial(products, rank)) for rank in shares]
    openings, found, answers = [], [], [None, None]
    while not found:
        said: list[Communication] = []
        for program, answer in zip(programs, answers, strict=True):
            try:
                said.append(program.send(answer))
            except StopIteration as stop:
                found.append(stop.value)
        answers = [[words for words, _ in other.sent] for other in reversed(said)]
        if said and said[0].operation == "matmul":
            own, others = ([words for words, _ in each.sent] for each in said)
            openings.append((own, [one + other for one, other in zip(own, others, strict=True)]))
    for one, other, values in zip(*found, inputs, strict=True):
        _check((one + other).double() / (1 << 16), values, weight)
    return {"weight": shares[MODEL][0], "inputs": shares[MODEL][1:], "openings": openings}


def _stock(*, own: str, directory: Path, weight: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    rank = PARTIES.index(own)
    os.environ |= {
        "DISTRIBUTED_BACKEND": "gloo",
        "RENDEZVOUS": f"file://{directory}/gloo",
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with crypten.cfg.temp_override({"mpc.provider": "TTP"}):
        if rank == 2:
            crypten.mpc.provider.TTPServer()
        else:
            crypten.init()
            seen = _multiply(weight, inputs)
            if rank == 0:
                torch.save(seen, directory / "stock.pt")
        crypten.uninit()


def _multiply(weight: torch.Tensor, inputs: list[torch.Tensor]) -> Seen:
    communicator = crypten.communicator.get()
    openings: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    all_reduce = communicator.all_reduce

    def observed(shares: Any, *arguments: Any, batched: bool = False, **options: Any) -> Any:
        own = [share.clone() for share in shares] if batched else []
        result = all_reduce(shares, *arguments, batched=batched, **options)
        if batched:
            openings.append((own, [total.clone() for total in result]))
        return result

    communicator.all_reduce = observed
    secret_weight = crypten.cryptensor(weight, src=0)
    secret_inputs = [crypten.cryptensor(values, src=1) for values in inputs]
    shares = [secret.share.clone() for secret in secret_inputs]
    products = [secret.matmul(secret_weight) for secret in secret_inputs]
    del communicator.all_reduce
    for product, values in zip(products, inputs, strict=True):
        _check(product.get_plain_text(), values, weight)
    return {"weight": secret_weight.share, "inputs": shares, "openings": openings}


def _check(product: torch.Tensor, values: torch.Tensor, weight: torch.Tensor) -> None:
    if not torch.allclose(product.double(), (values @ weight).double(), atol=1e-2):
        raise ValueError("the products are wrong, so that this shows nothing")
