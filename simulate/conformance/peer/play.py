"""The whole run: read the directory, take the other side, and play the cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from tacit.simulate.conformance.peer.against_client import AgainstClient
from tacit.simulate.conformance.peer.against_server import AgainstServer
from tacit.simulate.conformance.peer.cast import Cast
from tacit.simulate.conformance.peer.inference_cases import DATA_OWNER_CASES, DEALER_CASES, MODEL_OWNER_CASES
from tacit.simulate.conformance.peer.keyring import ROSTER_FILE, live_client, needed, offer, proposal, read_keyring
from tacit.simulate.conformance.peer.script import FEWEST_CLIENTS, Case, PeerError, PeerVerdict
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES, SERVER_CASES

Side = Literal["client", "server", "model-owner", "data-owner", "owners"]
"""Which one we are. In private inference we are our dealer as well, unless we are both owners."""

CASES: Final[dict[Side, tuple[Case, ...]]] = {
    "server": CLIENT_CASES,
    "client": SERVER_CASES,
    "model-owner": DATA_OWNER_CASES,
    "data-owner": MODEL_OWNER_CASES,
    "owners": DEALER_CASES,
}
_WITH_DEALER: Final = ("model-owner", "data-owner")


async def play(
    address: str,
    side: Side,
    directory: Path,
    *,
    dealer_address: str | None = None,
    names: Sequence[str] = (),
    wait: float,
    tell: Callable[[str], None],
) -> list[PeerVerdict]:
    """Play the cases of these names, by default all, against the live party at the address; the first is always played.

    dealer_address: where our dealer listens, if we play one; wait: seconds for any sign of the party; tell: receives
    what its operator must do. Raises PeerError, KeyFileError, RosterFileError or EndpointError.
    """
    cases = _chosen(side, names)
    if (side in _WITH_DEALER) != (dealer_address is not None):
        remedy = "no dealer: leave its address out" if dealer_address else "the dealer too: give its address as well"
        raise PeerError(f"as {side} it plays {remedy}")
    cast = _cast(directory, address, side, dealer_address or "", wait=wait, tell=tell)
    try:
        return [await cast.play(case) for case in cases]
    finally:
        await cast.close()


def _cast(
    directory: Path, address: str, side: Side, dealer_address: str, *, wait: float, tell: Callable[[str], None]
) -> Cast:
    keyring = read_keyring(directory, fewest=FEWEST_CLIENTS if side in ("client", "server") else 1)
    server = keyring.roster.server.name
    if side == "server":
        needed(keyring, server)
        return AgainstClient(keyring, live_client(keyring), proposal(keyring), address, wait=wait, tell=tell)
    if side == "client":
        needed(keyring, clients=FEWEST_CLIENTS)
        return AgainstServer(keyring, address, wait=wait, tell=tell)
    try:
        dealer = keyring.roster.dealer.name
    except ValueError as error:
        raise PeerError(f"{directory / ROSTER_FILE}: {error}") from None
    # Only now, because what an order says is a matter of the arithmetic, which needs torch.
    from tacit.simulate.conformance.peer.inference_sides import AgainstDataOwner, AgainstDealer, AgainstModelOwner

    if side == "model-owner":
        needed(keyring, server, dealer)
        terms, live = offer(keyring), live_client(keyring)
        return AgainstDataOwner(keyring, live, terms, address, dealer_address, wait=wait, tell=tell)
    if side == "data-owner":
        needed(keyring, dealer, clients=1)
        return AgainstModelOwner(keyring, keyring.ours[0], address, dealer_address, wait=wait)
    needed(keyring, server, clients=1)
    return AgainstDealer(keyring, keyring.ours[0], address, wait=wait)


def _chosen(side: Side, names: Sequence[str]) -> list[Case]:
    known = {case.name: case for case in CASES[side]}
    for name in names:
        if name not in known:
            raise PeerError(f"there is no case {name!r} as {side}; the cases are {', '.join(known)}")
    first, *others = CASES[side]
    return [first, *(case for case in others if not names or case.name in names)]
