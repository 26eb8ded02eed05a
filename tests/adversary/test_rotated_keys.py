"""Keys of a server or an operator that were replaced: who took the new one up has nothing to do with a thief of the
old one."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tacit.parties.hosting.folder import PartyFolder
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
from tests.cases import cases

OPERATOR, VICTIM = SigningKey(b"\x11" * 32), "client-0"
CLIENTS = tuple(f"client-{number}" for number in range(4))
MADE, SIGNING = new_members(
    {SERVER: "server"} | dict.fromkeys(CLIENTS, "client"),
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


THIEF, DEPUTY, NEXT = OPERATOR, SigningKey(b"\x21" * 32), SigningKey(b"\x22" * 32)
LAST = 2**31


def signed(operator: SigningKey, version: int, standby: SigningKey | None = None, *, clients: int = 4) -> Roster:
    return Roster.signed(
        MADE.members[: 1 + clients], version=version, operator=operator, lineage=bytes(32),
        standby=standby.public if standby else b"",
    )  # fmt: skip


HELD = signed(THIEF, LAST, DEPUTY)
"""The thief has signed the last version that there can be."""
TAKEN = signed(DEPUTY, 4, NEXT)
LIES = {
    "another standby key": (HELD, signed(THIEF, LAST, NEXT), Code.ROSTER),
    "no standby key": (HELD, signed(THIEF, LAST), Code.ROSTER),
    "a standby key of its own": (HELD, signed(NEXT, 5), Code.SIGNATURE),
    "former key": (TAKEN, signed(THIEF, LAST, DEPUTY), Code.SIGNATURE),
    "former key, without standby": (TAKEN, signed(THIEF, LAST), Code.SIGNATURE),
    "an older one of the new operator": (signed(DEPUTY, 5, NEXT), TAKEN, Code.ROSTER),
}


@cases("lie", LIES)
@pytest.mark.threat("stranger/steals-operator-key")
def test_a_thief_of_the_operators_key_keeps_the_place_from_nobody(lie: str, tmp_path: Path) -> None:
    """In a session, and as a file that somebody gives to an owner."""
    held, offered, code = LIES[lie]
    one = MemoryFederation(small_configuration(4), 0, rounds=2, members=(held, SIGNING))
    one.paused = True
    one.start()
    one.put(one.forge(SERVER, VICTIM, NewRoster(roster=offered.encoded, signature=offered.signature), round=0))
    one.advance()
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is code
    assert not one.outcome(RosterChanged)
    folder = PartyFolder(tmp_path / "state")
    folder.keep_roster(held)
    with pytest.raises(ValueError, match="a roster that cannot be taken up"):
        folder.check_roster(offered)


@pytest.mark.threat("stranger/steals-operator-key")
def test_the_standby_key_is_later_than_all_that_a_thief_signed(tmp_path: Path) -> None:
    one = MemoryFederation(small_configuration(4), 0, rounds=2, members=(HELD, SIGNING))
    one.paused = True
    one.start()
    one.change_roster(TAKEN)
    assert [one.rosters[name] for name in CLIENTS] == [TAKEN] * 4
    folder = PartyFolder(tmp_path / "state")
    folder.keep_roster(HELD)
    folder.check_roster(TAKEN)
