"""docs/exploration.md: how much was explored, and what the runs came to.

`python -m tests.exploration.page DIRECTORY` explores everything (minutes, two processes) and writes the page.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from tests.exploration.engine import Exploration, World, explore
from tests.exploration.group_key import KeyCohort
from tests.exploration.group_key_worlds import KeyLyingWorld, KeyNetworkWorld
from tests.exploration.link_world import LinkWorld
from tests.exploration.lying_world import LyingWorld
from tests.exploration.network_world import NetworkWorld
from tests.exploration.secure_sum import Cohort
from tests.exploration.session import Clients
from tests.exploration.session_lying_world import SessionLyingWorld
from tests.exploration.symbols import symbolic_cryptography

PAIRS: Final = ((0, 2), (1, 3))
"""Groups of four clients."""
WORLDS: Final[Mapping[str, Callable[[], World[Any]]]] = {
    "secure sum, active, 4 clients, t = 3, lying server": lambda: LyingWorld(Cohort(4, 3, active=True), whole=True),
    "secure sum, active, 4 clients, t = 3, network": lambda: NetworkWorld(
        Cohort(4, 3, active=True), copies=2, interruptions=None
    ),
    "secure sum with a complaint, active, 4 clients, t = 3, network": lambda: NetworkWorld(
        Cohort(4, 3, active=True, spoiler="c1"), copies=2, interruptions=None
    ),
    "secure sum with a complaint, semi-honest, 3 clients, t = 2, network": lambda: NetworkWorld(
        Cohort(3, 2, active=False, spoiler="c1"), copies=2, interruptions=None
    ),
    "secure sum, semi-honest, 3 clients, t = 2, lying server": lambda: LyingWorld(
        Cohort(3, 2, active=False), whole=True
    ),
    "secure sum, semi-honest, 3 clients, t = 2, network": lambda: NetworkWorld(
        Cohort(3, 2, active=False), copies=2, interruptions=None
    ),
    "secure sum, active, 4 clients in pairs, t = 3, lying server": lambda: LyingWorld(
        Cohort(4, 3, active=True, groups=PAIRS), whole=True
    ),
    "secure sum, active, 4 clients in pairs, t = 3, network": lambda: NetworkWorld(
        Cohort(4, 3, active=True, groups=PAIRS), copies=2, interruptions=None
    ),
    "group key, 3 clients, 1 epoch, lying server": lambda: KeyLyingWorld(KeyCohort(3), epochs=1),
    "group key, 2 clients, 2 epochs, lying server": lambda: KeyLyingWorld(KeyCohort(2), epochs=2),
    "session, 1 of 3 clients, 1 session of 2 rounds, 2 starts, lying server": lambda: SessionLyingWorld(
        Clients(3), sessions=1, rounds=2, starts=2
    ),
    "session, 1 of 3 clients, 2 sessions of 1 round, 2 starts, lying server": lambda: SessionLyingWorld(
        Clients(3), sessions=2, rounds=1, starts=2
    ),
    "conversation, 2 messages each, 2 breaks": lambda: LinkWorld(2, 2),
    "conversation, 1 message each, 3 breaks": lambda: LinkWorld(1, 3),
    "conversation that keeps 1 message, 2 each, 1 break": lambda: LinkWorld(2, 1, kept=1),
    "group key, 3 clients, network": lambda: KeyNetworkWorld(KeyCohort(3), copies=2, interruptions=None),
}
"""What is explored to its end, the longest first. A protocol adds its worlds here."""


def explore_world(name: str) -> Exploration:
    """One of WORLDS, from beginning to end. RuleBroken if a rule is."""
    with symbolic_cryptography():
        return explore(WORLDS[name]())


def row(name: str, seen: Exploration) -> str:
    """A line of the table, without the seconds: the same wherever it is measured."""
    outcomes = ", ".join(f"{outcome} ({count:,})" for outcome, count in sorted(seen.outcomes.items()))
    return f"| {name} | {seen.states:,} | {seen.transitions:,} | {seen.depth} | {outcomes} |"


def page(explorations: Mapping[str, Exploration]) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return "\n".join(
        [
            "# What was explored",
            "",
            f"Explored on {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} cores with {memory:.0f} GiB,",
            f"{platform.machine()}, Python {platform.python_version()}: every reachable state, no bound.",
            "No state breaks a rule.",
            "",
            "| world | states | transitions | depth | ends | seconds |",
            "|---|---|---|---|---|---|",
            *(f"{row(name, explorations[name])} {explorations[name].seconds:.1f} |" for name in sorted(explorations)),
            "",
            EXPLANATION,
        ]
    )


EXPLANATION: Final = """\
The machines are the real ones (`protocol/sum/client.py`, `protocol/sum/server.py`, `protocol/group_key/holder.py`,
`protocol/group_key/keeper.py`, `protocol/session/client.py`; of a conversation its ends, `protocol/core/link.py`,
`protocol/session/client_session.py`, `protocol/session/server_session.py`), and every message is encoded and parsed on
its way.
Only the primitives are symbols: keys, shares, seals, signatures and masks are tagged byte strings of the right lengths
that can be read. Depth is the length of the longest shortest run to a state. Ends are the states in which nothing can
happen any more, with their number. Seconds are processor time of one core.

## Network

The server follows the protocol. Every message may be delayed, overtaken, lost, or arrive twice; every client may start
late or never; every deadline, of clients and server, may pass at any moment while it is set; every link may be lost at
either end. This is more than real links allow, whose sequence numbers refuse whatever is repeated or out of order.

A loss is an arrival that never comes, since deadlines do not wait for what is under way. Clients never speak to each
other: with the server's past fixed, the states of all clients and links are a product of one set per client. A state of
this world is the server's state with these sets, so that it stands for all their combinations, and the rules are
checked on every combination; transitions and depth count what the server notices. A test compares these sets with a
search in which nothing is folded, on worlds that are small enough for it.

Rules, in every state:

- a published sum is that of its survivors, and every client that opened anything opened the sum over just these;
- survivors are at least the threshold; with groups they are whole groups, of two clients or more;
- a server that gives up holds less than the threshold of shares of any one secret;
- the shares that ever left clients do not reach the threshold in both kinds for anybody;
- a client opens once, only what it signed (in active mode), and says nothing after giving up;
- the server excludes no client for breaking a rule, since none does;
- whoever waits has a deadline, and whoever ends has one result.

## Lying server

The clients alone, against a server that may tell anybody anything that it can put together from what clients sent:
lists of any members' keys, packets of any that shared, any set of survivors, signatures of any signers or junk in their
place, in any order and as often as it likes. It cannot forge a signature or open a packet. In active mode all clients
that open anything open the sum over the same survivors; semi-honest mode does not promise that, and it is not demanded
there. The rules for clients are those above, and no set of survivors is accepted that is smaller than the threshold,
has members who never shared, or lacks the client itself; with groups, that is smaller than two or cuts a group in two.

## Complaints

In the worlds with a complaint one client seals for another what that cannot open, signs it, and answers the complaint
with what it committed to, as all else under the same network. The rules are those above: nobody is excluded for it,
whoever goes or is late, and the shares that it answers count as having left their holder in both kinds. Within bounds,
four clients whose keys and shares are passed on as they are, a liar also has complaints that the last client signs of
everybody, and such as nobody signed: no client answers more of them than holders may lie.

## Conversations

A client says hello and both ends speak at any moment, over connections that break at any moment: of what was under way
any beginning arrives in either direction, the client's queue goes on over the next connection, an older connection may
be read late, but not after a newer one, and either end may notice a break late.

- Nobody refuses anything, and everybody hears what was said in the conversation once and in order.
- A conversation in which anything was heard is not given up, unless its ends keep less than they say.
- Whatever happens, all is heard in the end.

## Group key

The holder and the keeper of a session's keys, with what the session does about them between the rounds: who ends an
attempt is out, the others begin the next epoch, and a round begins when all members say that they hold the key. In the
network three clients agree, any of them fails at any moment, and the others agree again or are too few. A lying server
may start and call off any epoch with any members, start a round with any members, and pass on whatever clients said,
to anybody.

- No two clients hold different keys of one epoch, and none holds a key that another member has not confirmed.
- No client takes part in an epoch twice, or in an earlier one; the server begins none twice.
- No round begins under a key that was called off, or that its client does not hold; with an honest server, under one
  that any of its members does not hold, or under another than the latest.
- The server names nobody for breaking a rule, since none does; whoever waits has a deadline; whose session is over says
  nothing more and holds no secrets.

## Sessions

One client of three and its host, over sessions and rounds, as many as the table says, against a server that lies: it
begins sessions, again and in any order, as if it had been restarted; starts any round as often as it likes, with three
clients or without the third; and ends, calls off or leaves alone anything. The client's link breaks and comes back,
its deadlines pass, and its process is killed once at any moment: after any part of what it was about to write and to
say. It starts again with its journal as that is on the disk. In the sums themselves all share with each other, and the
liar asks this client to open over all of them or without the third; the other two keep the rules, and draw the same
keys where the liar lets them be in the same sum twice.

- A client takes part in a round of a session once, whatever is restarted.
- Its journal has the round before the first message of the sum leaves.
- It never gives shares of both kinds under the same keys of anybody, over all sums and processes. (That sums have keys
  of their own, and that the shares of all holders of one sum do not reach the threshold in both kinds, is in the other
  worlds.)
- From every state outside of a round, an honest server has a round with it, to its end; and every round can be ended.
- Whoever waits for its server has a deadline.

## Not explored

Regular graphs, vectors of several chunks, models under a group key; clients that lie, but for a bad seal and false
complaints; several clients over several rounds, and the server's side of a session: the other tests cover them.
Messages whose type a client's table refuses unread stand for one another; in single sums a client that gives up is of
no use to a liar, which is why such states are passed over.

Two owners in a session of private inference are explored as well, where it costs seconds, over a network that also
replays a former session; `tests/exploration/test_inference.py` has the bounds. So are two that adapt a model, in
rounds of which one is lost (`tests/exploration/test_adaptation.py`).

`python -m tests.exploration.page docs` writes this page again, and `make exhaustive` compares it with its figures.
`tests/exploration/test_mutants.py` shows that the search can fail: machines that lack one check each are
caught.
"""


if __name__ == "__main__":
    # Fresh processes: names are replaced in modules while one explores.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        seen = dict(zip(WORLDS, pool.map(explore_world, WORLDS), strict=True))
    for name, exploration in seen.items():
        sys.stderr.write(f"{row(name, exploration)} {exploration.seconds:.1f} s\n")
    Path(sys.argv[1], "exploration.md").write_text(page(seen), encoding="utf-8")
