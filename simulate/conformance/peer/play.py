"""The whole run: read the directory, take the other side, play the cases, and describe them for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.simulate.conformance.peer.against_client import AgainstClient
from tacit.simulate.conformance.peer.against_server import AgainstServer
from tacit.simulate.conformance.peer.client_cases import CLIENT_CASES
from tacit.simulate.conformance.peer.data_owner_cases import DATA_OWNER_CASES
from tacit.simulate.conformance.peer.dealer_cases import DEALER_CASES
from tacit.simulate.conformance.peer.keyring import (
    dealer_of_roster,
    keys_of_clients,
    keys_of_data_owner,
    keys_of_server,
    needed,
    offer,
    proposal,
    read_keyring,
)
from tacit.simulate.conformance.peer.model_owner_cases import MODEL_OWNER_CASES
from tacit.simulate.conformance.peer.script import Case, PeerError, PeerVerdict
from tacit.simulate.conformance.peer.server_cases import SERVER_CASES

if TYPE_CHECKING:
    from tacit.simulate.conformance.peer.inference_cast import InferenceCast

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
    cast = await _cast(directory, address, side, dealer_address or "", wait=wait, tell=tell)
    try:
        return [await cast.play(case) for case in cases]
    finally:
        await cast.close()


async def _cast(
    directory: Path, address: str, side: Side, dealer_address: str, *, wait: float, tell: Callable[[str], None]
) -> AgainstClient | AgainstServer | InferenceCast:
    if side in ("client", "server"):
        keyring = read_keyring(directory)
        if side == "server":
            name, configuration = keys_of_server(keyring), proposal(keyring)
            own = keyring.keys[keyring.roster.server.name]
            endpoint = await ServerEndpoint.bind(address, keys=own, roster=keyring.roster)
            return AgainstClient(keyring, name, configuration, endpoint, wait=wait, tell=tell)
        keys_of_clients(keyring)
        return AgainstServer(keyring, address, wait=wait, tell=tell)
    keyring = read_keyring(directory, fewest=1)
    server, dealer = keyring.roster.server.name, dealer_of_roster(keyring)
    # Only now, because what an order says is a matter of the arithmetic, which needs torch.
    from tacit.simulate.conformance.peer.against_dealer import AgainstDealer
    from tacit.simulate.conformance.peer.against_owners import AgainstDataOwner, AgainstModelOwner

    if side == "model-owner":
        needed(keyring, server, dealer)
        live = keys_of_server(keyring)
        return AgainstDataOwner(keyring, live, offer(keyring), address, dealer_address, wait=wait, tell=tell)
    data_owner = keys_of_data_owner(keyring)
    if side == "data-owner":
        needed(keyring, dealer)
        return AgainstModelOwner(keyring, data_owner, address, dealer_address, wait=wait)
    needed(keyring, server)
    return AgainstDealer(keyring, data_owner, address, wait=wait)


def _chosen(side: Side, names: Sequence[str]) -> list[Any]:
    known = {case.name: case for case in CASES[side]}
    for name in names:
        if name not in known:
            raise PeerError(f"there is no case {name!r} as {side}; the cases are {', '.join(known)}")
    first, *others = CASES[side]
    return [first, *(case for case in others if not names or case.name in names)]


def table(side: Side) -> str:
    """The cases in Markdown."""
    rows = [f"| `{case.name}` | {case.does} | {case.expected} |" for case in CASES[side]]
    return "\n".join([f"| case | our {side.replace('-', ' ')} | a conforming party |", "|---|---|---|", *rows]) + "\n"
