"""What crypten_masks.py runs in processes of their own: two products of the data owner's input and the model
owner's weight, first with CrypTen's own trusted third party over gloo, then with our provider and dealer."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.computation import dealt_computation
from tacit.parties.crypten.dealer import Dealer
from tacit.parties.crypten.link import connect, listen
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.roster import Roster
from tacit.simulate.federation.child import Control

PARTIES = ("model", "data", "dealer")


async def compute(control: Control, **arguments: Any) -> None:
    await asyncio.to_thread(_compute, **arguments)


def _compute(
    *, own: str, keys: PartyKeys, roster: Roster, directory: Path, weight: torch.Tensor, inputs: list[torch.Tensor]
) -> None:
    _stock(PARTIES.index(own), directory, weight, inputs)
    common: dict[str, Any] = {"keys": keys, "roster": roster, "session": b"masks", "patience": 60.0}
    with ExitStack() as stack:
        if own == "dealer":
            listener = stack.enter_context(listen(f"ipc://{directory}/dealer", peers=PARTIES[:2], **common))
            Dealer(listener, PARTIES[:2]).serve()
            return
        if own == "model":
            links = stack.enter_context(listen(f"ipc://{directory}/model", peers=["data"], **common)).accept()
        else:
            links = {"model": stack.enter_context(connect(f"ipc://{directory}/model", server="model", **common))}
        dealer = stack.enter_context(connect(f"ipc://{directory}/dealer", server="dealer", **common))
        with dealt_computation(own, parties=PARTIES[:2], links=links, dealer=dealer):
            seen = _multiply(weight, inputs)
    if own == "model":
        torch.save(seen, directory / "ours.pt")


def _stock(rank: int, directory: Path, weight: torch.Tensor, inputs: list[torch.Tensor]) -> None:
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


def _multiply(weight: torch.Tensor, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """What this party sees: its shares of the weight and the inputs, and of every opening its own part and the sum."""
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
        opened = product.get_plain_text()
        if not torch.allclose(opened, values @ weight, atol=1e-2):
            raise ValueError("the products are wrong, so that this shows nothing")
    return {"weight": secret_weight.share, "inputs": shares, "openings": openings}
