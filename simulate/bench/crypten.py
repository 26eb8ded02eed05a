"""CrypTen over three transports, side by side: its own (gloo), our links, and our links with their encryption off.

Two processes compute the same rows over loopback TCP, with CrypTen's own provider, so that nothing but the transport
differs; the transports take turns within every repetition. Links without CURVE exist in this file alone, to tell what
the encryption costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tacit.parties.crypten.communicator import LinkCommunicator
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.ends import DialledEnd, ListeningEnd
from tacit.parties.crypten.link import PeerLink, connect, listen
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.links.zap import ZapHandler
from tacit.protocol.core.roster import Member, Roster
from tacit.simulate.bench.relayed_gloo import prepare
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.in_turn import Program, results

TRANSPORTS = ("gloo", "plain", "curve")
PARTIES = ("owner", "alice")
_LOOPBACK = "tcp://127.0.0.1:*"
TOKENS, WIDTH, HEADS = 197, 384, 6
"""ViT-S on an image of 224 x 224 in patches of 16 x 16."""


class _PlainDialledEnd(DialledEnd):
    def _protect(self, keys: PartyKeys, server: Member) -> None:
        return


class _PlainListeningEnd(ListeningEnd):
    def _guard(self, names: Mapping[bytes, str]) -> ZapHandler:
        return _Anybody(self._context, names, lambda key, address: None)

    def _protect(self, keys: PartyKeys) -> None:
        return


class _Anybody(ZapHandler):
    """Takes whoever comes for the one party that is expected."""

    def _answer(self, request: Sequence[bytes]) -> list[bytes]:
        (name,) = self._names.values()
        return [b"1.0", request[1], b"200", b"OK", name.encode("ascii"), b""]


def measure(progress: Callable[[str], object], *, repeats: int) -> dict[str, Any]:
    """Medians by row and transport, in milliseconds, and their ratios to gloo; what one party sends, and its rounds.

    ProcessError when a party ends early.
    """
    keys = {name: generate(name) for name in PARTIES}
    roster = Roster((keys["owner"].member("server"), keys["alice"].member("client")))
    progress("starting")
    with TemporaryDirectory() as meeting:
        programs: dict[str, Program] = {}
        for rank, name in enumerate(PARTIES):
            party = _CryptenParty(rank, keys[name], roster, meeting, repeats, TOKENS, WIDTH)
            programs[name] = _compute, {"party": party}
        found = asyncio.run(results(programs, lambda name, message: progress(message["row"])))
    return {"repeats": repeats, "tokens": TOKENS, "width": WIDTH, "heads": HEADS, "rows": found["owner"]}


async def _compute(control: Control, *, addresses: dict[str, str], party: _CryptenParty) -> dict[str, Any]:
    return await asyncio.to_thread(party.run, control)


@dataclass(frozen=True)
class _CryptenParty:
    rank: int
    keys: PartyKeys
    roster: Roster
    meeting: str
    repeats: int
    tokens: int
    width: int

    def run(self, control: Control) -> dict[str, Any]:
        """The life of one process."""
        prepare(Path(self.meeting) / "gloo", self.rank)
        crypten.init()
        stock = crypten.communicator.DistributedCommunicator
        gloo = crypten.communicator.get()
        links = {name: self._link(gloo, encrypted=name == "curve") for name in TRANSPORTS[1:]}
        peer = PARTIES[1 - self.rank]
        ours = {
            name: LinkCommunicator(own=self.keys.name, parties=PARTIES, links={peer: link})
            for name, link in links.items()
        }

        def use(transport: str) -> None:
            crypten.communicator.DistributedCommunicator = stock if transport == "gloo" else LinkCommunicator
            LinkCommunicator.instance = ours.get(transport)

        rows = {}
        with crypten.no_grad(), crypten.cfg.temp_override({"functions.reciprocal_all_pos": True}):
            for name, compute in _rows(self.tokens, self.width).items():
                if self.rank == 0:
                    control.send({"row": name})
                rows[name] = self._row(compute, use, ours)
        # The other party must not find its links lost, nor gloo its peer gone, before it is through.
        gloo.barrier()
        for link in links.values():
            link.close()
        return rows

    def _link(self, gloo: Any, *, encrypted: bool) -> PeerLink:
        common: dict[str, Any] = {"keys": self.keys, "roster": self.roster, "session": b"benchmark"}
        if self.rank == 1:
            end = DialledEnd if encrypted else _PlainDialledEnd
            return connect(gloo.broadcast_obj(None, 0), server=PARTIES[0], end=end, **common)
        listener = listen(_LOOPBACK, peers=PARTIES[1:], end=ListeningEnd if encrypted else _PlainListeningEnd, **common)
        gloo.broadcast_obj(listener.address, 0)
        return listener.accept()[PARTIES[1]]

    def _row(
        self, compute: Callable[[], object], use: Callable[[str], None], ours: Mapping[str, LinkCommunicator]
    ) -> dict[str, float]:
        seconds: dict[str, list[float]] = {transport: [] for transport in TRANSPORTS}
        # The first repetition warms up.
        for repetition in range(self.repeats + 1):
            for place in range(len(TRANSPORTS)):
                transport = TRANSPORTS[(repetition + place) % len(TRANSPORTS)]
                ours["curve"].barrier()
                use(transport)
                ours["curve"].reset_communication_stats()
                begin = time.perf_counter()
                compute()
                elapsed = time.perf_counter() - begin
                if repetition:
                    seconds[transport].append(elapsed)
                if transport == "curve":
                    costs = ours["curve"].costs().values()
        milliseconds = {transport: median(values) * 1000 for transport, values in seconds.items()}
        return {
            **{f"{transport}_ms": value for transport, value in milliseconds.items()},
            **{f"{name}_to_gloo": milliseconds[name] / milliseconds["gloo"] for name in TRANSPORTS[1:]},
            "rounds": sum(cost.rounds for cost in costs),
            "megabytes_sent": sum(cost.bytes_sent for cost in costs) / 1e6,
        }


def _rows(tokens: int, width: int) -> dict[str, Callable[[], object]]:
    """What is measured: operations on a layer's activations, then a whole block. Inputs are shared beforehand."""

    def shared(*shape: int, low: float = -1.0, high: float = 1.0) -> Any:
        return crypten.cryptensor(torch.empty(shape).uniform_(low, high), src=0)

    x, y = shared(tokens, width), shared(tokens, width)
    positive = shared(tokens, 1, low=0.5, high=2.0)
    scores = shared(HEADS, tokens, tokens)
    weight = shared(width, width)
    image, kernel = shared(1, 3, 64, 64), shared(32, 3, 16, 16)
    word = shared(1)
    block = _Block(shared, width)
    communicator = crypten.communicator.get
    return {
        "one round": lambda: word.reveal(),
        "barrier": lambda: communicator().barrier(),
        "open": lambda: x.get_plain_text(),
        "multiply": lambda: x * y,
        "square": lambda: x.square(),
        "matmul": lambda: x.matmul(weight),
        "attention scores": lambda: scores.matmul(scores),
        "conv2d": lambda: image.conv2d(kernel, stride=16),
        "compare": lambda: x < y,
        "relu": lambda: x.relu(),
        "max": lambda: x.max(1),
        "exp": lambda: scores.exp(),
        "reciprocal": lambda: positive.reciprocal(),
        "inverse root": lambda: positive.inv_sqrt(),
        "sigmoid": lambda: x.sigmoid(),
        "softmax": lambda: softmax(scores),
        "layer norm": lambda: layer_norm(x),
        "vit-s block": lambda: block(x),
    }


def softmax(scores: Any) -> Any:
    """Over the last axis, without CrypTen's search for the maximum, which would be most of a block."""
    powers = scores.exp()
    return powers * powers.sum(-1, keepdim=True).reciprocal()


def layer_norm(x: Any) -> Any:
    """Over the last axis, without scale and shift."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * centred.square().mean(-1, keepdim=True).inv_sqrt()


class _Block:
    """A transformer block on shares [T, D] of activations, with shared weights."""

    def __init__(self, shared: Callable[..., Any], width: int) -> None:
        self.qkv = shared(width, 3 * width, low=-0.05, high=0.05)
        self.projection = shared(width, width, low=-0.05, high=0.05)
        self.grow = shared(width, 4 * width, low=-0.05, high=0.05)
        self.shrink = shared(4 * width, width, low=-0.05, high=0.05)

    def __call__(self, x: Any) -> Any:
        tokens, width = x.size()
        joint = layer_norm(x).matmul(self.qkv)
        # [T, 3D] -> [3, heads, T, D / heads]
        query, key, value = joint.reshape(tokens, 3, HEADS, width // HEADS).permute(1, 2, 0, 3).unbind(0)
        attention = softmax(query.matmul(key.transpose(1, 2)) * (width // HEADS) ** -0.5)
        x = x + attention.matmul(value).permute(1, 0, 2).reshape(tokens, width).matmul(self.projection)
        hidden = layer_norm(x).matmul(self.grow)
        hidden = hidden.square() * 0.125 + hidden * 0.25 + 0.5
        return x + hidden.matmul(self.shrink)
