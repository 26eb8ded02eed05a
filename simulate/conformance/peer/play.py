"""A whole run: read the directory, take the other side, and play the cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tacit.simulate.conformance.peer.adaptation_cases import ADAPTED_DATA_OWNER_CASES, ADAPTED_MODEL_OWNER_CASES
from tacit.simulate.conformance.peer.against_client import AgainstClient
from tacit.simulate.conformance.peer.against_server import AgainstServer
from tacit.simulate.conformance.peer.cast import ROSTER_FILE, Cast, live_client, needed, offer, proposal, read_keyring
from tacit.simulate.conformance.peer.inference_cases import DATA_OWNER_CASES, DEALER_CASES, MODEL_OWNER_CASES
from tacit.simulate.conformance.peer.script import FEWEST_CLIENTS, Case, PeerError, PeerVerdicts
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES, SERVER_CASES
from tacit.simulate.world.adaptation import learning_terms
from tacit.simulate.world.inference import small_terms

Side = Literal["client", "server", "model-owner", "data-owner", "owners", "adapting-model-owner", "adapting-data-owner"]
"""Our side. In private inference, and in adaptation, we also play the dealer, unless we are both owners."""

CASES: Final[dict[Side, tuple[Case, ...]]] = {
    "server": CLIENT_CASES,
    "client": SERVER_CASES,
    "model-owner": DATA_OWNER_CASES,
    "data-owner": MODEL_OWNER_CASES,
    "owners": DEALER_CASES,
    "adapting-model-owner": ADAPTED_DATA_OWNER_CASES,
    "adapting-data-owner": ADAPTED_MODEL_OWNER_CASES,
}
_WITH_DEALER: Final = ("model-owner", "data-owner", "adapting-model-owner", "adapting-data-owner")
_WITH_SUMS: Final = ("adapting-model-owner",)


@dataclass(frozen=True)
class Addresses:
    """Address of the live party, or ours for it; and those of our dealer and of its sums, if we play it."""

    peer: str
    dealer: str | None = None
    sums: str | None = None


async def play(
    addresses: Addresses,
    side: Side,
    directory: Path,
    *,
    names: Sequence[str] = (),
    wait: float,
    tell: Callable[[str], None],
) -> PeerVerdicts:
    """Play the cases of these names, by default all, against the live party; the first is always played.

    wait: seconds for any sign of the party; tell: receives instructions for its operator. Raises PeerError,
    KeyFileError, RosterFileError or EndpointError.
    """
    cases = chosen(side, names)
    for part, address, sides in (("dealer", addresses.dealer, _WITH_DEALER), ("sums", addresses.sums, _WITH_SUMS)):
        if (side in sides) != (address is not None):
            there = f"no {part}: leave its address out" if address else f"the {part} too: give its address as well"
            raise PeerError(f"as {side} it plays {there}")
    cast = _cast(directory, addresses, side, wait=wait, tell=tell)
    try:
        return PeerVerdicts(cases=[await cast.play(case) for case in cases])
    finally:
        await cast.close()


def _cast(directory: Path, addresses: Addresses, side: Side, *, wait: float, tell: Callable[[str], None]) -> Cast:
    address, dealer_address = addresses.peer, addresses.dealer or ""
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
    # Imported now, because the content of an order belongs to the arithmetic, which needs torch.
    from tacit.simulate.conformance.peer.inference_cast import AgainstDataOwner, AgainstDealer, AgainstModelOwner

    if side == "model-owner":
        needed(keyring, server, dealer)
        terms, live = offer(keyring, small_terms()), live_client(keyring)
        return AgainstDataOwner(keyring, live, terms, address, dealer_address, wait=wait, tell=tell)
    if side == "data-owner":
        needed(keyring, dealer, clients=1)
        return AgainstModelOwner(keyring, keyring.ours[0], address, dealer_address, wait=wait)
    from tacit.simulate.conformance.peer.adaptation_sides import AgainstLearner, AgainstTeacher

    if side == "adapting-model-owner":
        needed(keyring, server, dealer, clients=2)
        learning, sums = offer(keyring, learning_terms()), addresses.sums or ""
        live = live_client(keyring)
        return AgainstLearner(keyring, live, learning, address, dealer_address, sums, wait=wait, tell=tell)
    if side == "adapting-data-owner":
        needed(keyring, dealer, clients=2)
        return AgainstTeacher(keyring, keyring.ours[:2], address, dealer_address, wait=wait)
    needed(keyring, server, clients=1)
    return AgainstDealer(keyring, keyring.ours[0], address, wait=wait)


def chosen(side: Side, names: Sequence[str]) -> list[Case]:
    """Return the cases of these names, by default all, the honest one first. PeerError for an unknown name."""
    known = {case.name: case for case in CASES[side]}
    for name in names:
        if name not in known:
            raise PeerError(f"there is no case {name!r} as {side}; the cases are {', '.join(known)}")
    first, *others = CASES[side]
    return [first, *(case for case in others if not names or case.name in names)]
