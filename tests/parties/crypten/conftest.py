"""Members with fresh keys, links between them within this process, and whole computations with a dealer in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from tacit.parties.crypten.dealer import Dealer
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import Listener, PeerLink, connect, listen
from tacit.parties.links.keys import PartyKeys, generate
from tacit.protocol.core.roster import Roster

LOOPBACK = "tcp://127.0.0.1:*"
SESSION = b"this computation"

OpenPair = Callable[..., tuple[PeerLink, PeerLink]]
"""open_pair(patience=...): links of the owner to alice, and of alice to the owner."""


@pytest.fixture(scope="session")
def keys() -> dict[str, PartyKeys]:
    """Keys of the members, and of a stranger who is none."""
    return {name: generate(name) for name in ("owner", "alice", "bob", "stranger")}


@pytest.fixture(scope="session")
def roster(keys: dict[str, PartyKeys]) -> Roster:
    return Roster(
        (keys["owner"].member("server"), keys["alice"].member("client"), keys["bob"].member("client")),
    )


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes at the end of the test what was opened in it."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def owner_listens(keys: dict[str, PartyKeys], roster: Roster, opened: ExitStack) -> Callable[..., Listener]:
    """owner_listens(*peers, patience=...)"""

    def owner_listens(*peers: str, session: bytes = SESSION, patience: float = 30.0, **options: Any) -> Listener:
        return opened.enter_context(
            listen(
                LOOPBACK, keys=keys["owner"], roster=roster, peers=peers, session=session, patience=patience, **options
            )
        )

    return owner_listens


@pytest.fixture
def dial(keys: dict[str, PartyKeys], roster: Roster, opened: ExitStack) -> Callable[..., PeerLink]:
    """dial(name, address, ...): the link of a member to the owner."""

    def dial(
        name: str, address: str, *, session: bytes = SESSION, patience: float = 30.0, roster: Roster = roster
    ) -> PeerLink:
        return opened.enter_context(
            connect(address, keys=keys[name], roster=roster, server="owner", session=session, patience=patience)
        )

    return dial


@pytest.fixture
def hurry() -> Callable[[PeerLink, float], None]:
    """hurry(link, seconds): wait no longer on a link that is open; on a busy machine it takes longer to open one."""

    def hurry(link: PeerLink, seconds: float) -> None:
        link._end._limits = replace(link._end._limits, send_seconds=seconds)
        link._end._messages.setsockopt(zmq.SNDTIMEO, int(seconds * 1000))

    return hurry


@pytest.fixture
def open_pair(
    owner_listens: Callable[..., Listener], dial: Callable[..., PeerLink], hurry: Callable[[PeerLink, float], None]
) -> OpenPair:
    def open_pair(*, patience: float = 30.0) -> tuple[PeerLink, PeerLink]:
        listener = owner_listens("alice")
        with ThreadPoolExecutor(1) as pool:
            alice = pool.submit(dial, "alice", listener.address)
            links = listener.accept()["alice"], alice.result()
        for link in links:
            hurry(link, patience)
        return links

    return open_pair


@pytest.fixture
def pair(open_pair: OpenPair) -> tuple[PeerLink, PeerLink]:
    return open_pair()


DEALER = "dealer"


@dataclass(frozen=True)
class Seat:
    """What the thread of a computing party has: its rank and its links."""

    name: str
    rank: int
    parties: tuple[str, ...]
    links: dict[int, PeerLink]
    dealer: PeerLink | None


def deal_to(listener: Listener, parties: Sequence[str]) -> int:
    """The dealer's own program; how many requests it met."""
    dealer = Dealer(listener, parties)
    dealer.serve()
    return dealer.dealt


@pytest.fixture
def serve() -> Callable[[Listener, Sequence[str]], int]:
    return deal_to


@pytest.fixture(scope="session")
def dealt_keys() -> dict[str, PartyKeys]:
    return {name: generate(name) for name in (DEALER, "model", "data", "third")}


@pytest.fixture(scope="session")
def dealt_roster(dealt_keys: dict[str, PartyKeys]) -> Roster:
    members = [keys.member("client") for name, keys in dealt_keys.items() if name != DEALER]
    return Roster((dealt_keys[DEALER].member("server"), *members))


@pytest.fixture
def play(tmp_path: Path, dealt_keys: dict[str, PartyKeys], dealt_roster: Roster) -> Callable[..., dict[str, Any]]:
    """play(parties, act, dealer=deal_to): act(seat) for every party, dealer(listener, parties) for the dealer, each in
    a thread of its own named after it; what each of them returned, or the MpcError that it raised."""

    def play(
        parties: tuple[str, ...],
        act: Callable[[Seat], object],
        *,
        dealer: Callable[[Listener, Sequence[str]], object] | None = deal_to,
        patience: float = 20.0,
    ) -> dict[str, Any]:
        common: dict[str, Any] = {"roster": dealt_roster, "session": SESSION, "patience": patience}
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        directory.mkdir()

        def deal() -> object:
            peers = {"keys": dealt_keys[DEALER], "peers": parties}
            with listen(f"ipc://{directory}/{DEALER}", **peers, **common) as listener:
                return dealer(listener, parties) if dealer else None

        def compute(name: str) -> object:
            rank = parties.index(name)
            own = {"keys": dealt_keys[name], **common}
            with ExitStack() as stack:
                links: dict[int, PeerLink] = {}
                listener = None
                if later := parties[rank + 1 :]:
                    listener = stack.enter_context(listen(f"ipc://{directory}/{name}", peers=later, **own))
                for peer, server in enumerate(parties[:rank]):
                    links[peer] = stack.enter_context(connect(f"ipc://{directory}/{server}", server=server, **own))
                if listener:
                    links |= {parties.index(peer): link for peer, link in listener.accept().items()}
                link = None
                if dealer:
                    link = stack.enter_context(connect(f"ipc://{directory}/{DEALER}", server=DEALER, **own))
                return act(Seat(name, rank, parties, links, link))

        def guarded(name: str, program: Callable[[], object]) -> object:
            threading.current_thread().name = name
            try:
                return program()
            except MpcError as error:
                return error

        programs: dict[str, Callable[[], object]] = {name: lambda name=name: compute(name) for name in parties}
        if dealer:
            programs[DEALER] = deal
        with ThreadPoolExecutor(len(programs)) as pool:
            futures = {name: pool.submit(guarded, name, program) for name, program in programs.items()}
        return {name: future.result() for name, future in futures.items()}

    return play
