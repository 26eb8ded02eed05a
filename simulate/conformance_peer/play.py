"""The whole run: read the directory, take the other side, play the cases, and describe them for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from tacit.parties.server_endpoint import ServerEndpoint
from tacit.simulate.conformance_peer.against_client import AgainstClient
from tacit.simulate.conformance_peer.against_server import AgainstServer
from tacit.simulate.conformance_peer.client_cases import CLIENT_CASES
from tacit.simulate.conformance_peer.keyring import keys_of_clients, keys_of_server, proposal, read_keyring
from tacit.simulate.conformance_peer.script import Case, PeerError, Verdict
from tacit.simulate.conformance_peer.server_cases import SERVER_CASES

Side = Literal["client", "server"]
"""Which one we are."""

CASES: Final[dict[Side, tuple[Case, ...]]] = {"server": CLIENT_CASES, "client": SERVER_CASES}


async def play(
    address: str,
    side: Side,
    directory: Path,
    *,
    names: Sequence[str] = (),
    wait: float,
    tell: Callable[[str], None],
) -> list[Verdict]:
    """Play the cases of these names, by default all, against the live party at the address; the first is always played.

    wait: seconds for any sign of the party; tell: receives what its operator must do. Raises PeerError,
    KeyFileError, RosterFileError or EndpointError.
    """
    cases = _chosen(side, names)
    keyring = read_keyring(directory)
    verdicts = []
    if side == "server":
        name, configuration = keys_of_server(keyring), proposal(keyring)
        own = keyring.keys[keyring.roster.server.name]
        async with await ServerEndpoint.bind(address, keys=own, roster=keyring.roster) as endpoint:
            against_client = AgainstClient(keyring, name, configuration, endpoint, wait=wait, tell=tell)
            for case in cases:
                verdicts.append(await against_client.play(case))
            await against_client.close()
        return verdicts
    keys_of_clients(keyring)
    against_server = AgainstServer(keyring, address, wait=wait, tell=tell)
    try:
        await against_server.connect()
        for case in cases:
            verdicts.append(await against_server.play(case))
    finally:
        await against_server.close()
    return verdicts


def _chosen(side: Side, names: Sequence[str]) -> list[Case]:
    known = {case.name: case for case in CASES[side]}
    for name in names:
        if name not in known:
            raise PeerError(f"there is no case {name!r} as {side}; the cases are {', '.join(known)}")
    first, *others = CASES[side]
    return [first, *(case for case in others if not names or case.name in names)]


def table(side: Side) -> str:
    """The cases in Markdown."""
    rows = [f"| `{case.name}` | {case.does} | {case.expected} |" for case in CASES[side]]
    return "\n".join([f"| case | our {side} | a conforming party |", "|---|---|---|", *rows]) + "\n"
