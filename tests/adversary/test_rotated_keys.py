"""A server's key that was rotated: who took the new one up has nothing to do with a thief of the old one."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tacit.parties.links.client_endpoint import ClientEndpoint, WrongServerError
from tacit.parties.links.endpoint import Received
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.tokens import TokenFile, Verdict
from tacit.protocol.core.errors import Code
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import NewRoster
from tacit.protocol.session.rounds import RosterChanged
from tacit.protocol.sum.policy import Policy
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Streams, new_members

OPERATOR, VICTIM = SigningKey(b"\x11" * 32), "client-0"
CLIENTS = tuple(f"client-{number}" for number in range(4))
MADE, SIGNING = new_members(
    {SERVER: "server"} | dict.fromkeys(CLIENTS, "client"),  # type: ignore[arg-type]
    Streams(b"rotated keys of a server"),
)
FIRST = Roster.signed(MADE.members, version=1, operator=OPERATOR, lineage=bytes(32))
OTHER = replace(MADE.server, curve_public=b"\x01" * 32, signing_public=b"\x02" * 32, previous=MADE.server.signing_keys)
SECOND = Roster.signed((OTHER, *MADE.members[1:]), version=2, operator=OPERATOR, lineage=bytes(32))


def rotated(policy: Policy | None = None) -> MemoryFederation:
    """After the first round the server has handed the roster with its new keys on. policy: of the victim."""
    policies = {VICTIM: policy} if policy else {}
    one = MemoryFederation(small_configuration(4), 0, rounds=2, members=(FIRST, SIGNING), policies=policies)
    one.paused = True
    one.start()
    one.change_roster(SECOND)
    return one


@pytest.mark.threat("stranger/steals-server-key")
def test_who_took_the_new_key_up_is_not_led_back() -> None:
    one = rotated()
    assert [one.rosters[name] for name in CLIENTS] == [SECOND] * 4
    one.start(VICTIM)
    one.put(one.forge(SERVER, VICTIM, NewRoster(roster=FIRST.encoded, signature=FIRST.signature), round=0))
    one.advance()
    ended = one.ended(VICTIM)
    assert ended is not None
    assert (ended.code, one.rosters[VICTIM]) == (Code.ROSTER, SECOND)


@pytest.mark.threat("stranger/steals-server-key")
def test_a_policy_may_refuse_other_keys_of_the_server() -> None:
    one = rotated(Policy(roster_changes=("add", "remove")))
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is Code.POLICY
    assert len(one.outcome(RosterChanged)) == 3


@pytest.mark.threat("stranger/steals-server-key")
@pytest.mark.asyncio
async def test_a_link_goes_by_the_new_key_alone(keys: dict[str, PartyKeys], roster: Roster, tmp_path: Path) -> None:
    """The tokens by which copies are noticed go on with it."""
    new = generate("server")
    later = replace(new.member("server"), previous=roster.server.signing_keys)
    renewed = Roster(tuple(later if one is roster.server else one for one in roster.members))

    anywhere = "tcp://127.0.0.1:*"

    async def talk(of_server: PartyKeys, known: Roster) -> None:
        tokens = TokenFile(tmp_path / "server"), TokenFile(tmp_path / "alice")
        async with (
            await ServerEndpoint.bind(anywhere, keys=of_server, roster=known, tokens=tokens[0]) as server,
            await ClientEndpoint.connect(
                server.address, keys=keys["alice"], server=known.server, tokens=tokens[1]
            ) as alice,
        ):
            await alice.send([b"hello"])
            while not isinstance(await server.receive(), Received):
                pass
            await server.send("alice", [b"hello"])
            while not isinstance(await alice.receive(), Received):
                pass

    await talk(keys["server"], roster)
    (tmp_path / "copy").write_bytes((tmp_path / "alice").read_bytes())
    await talk(new, renewed)
    copied = TokenFile(tmp_path / "copy").present(later)
    assert TokenFile(tmp_path / "server").judge(roster.member("alice"), copied) is Verdict.COPY
    async with await ServerEndpoint.bind(anywhere, keys=keys["server"], roster=roster) as thief:
        with pytest.raises(WrongServerError):
            await ClientEndpoint.connect(thief.address, keys=keys["alice"], server=later, connect_deadline=2.0)
