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
            "# State-space exploration",
            "",
            "Tests explore every reachable state of these small worlds, and check the rules below in each.",
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
`make exhaustive` repeats the exploration and compares it with this table; `python -m tests.exploration.page docs`
writes the page again. The state machines are the real ones (`protocol/sum/client.py`, `protocol/sum/server.py`,
`protocol/group_key/holder.py`, `protocol/group_key/keeper.py`, `protocol/session/client.py`; for a conversation its
ends, `protocol/core/link.py`, `protocol/session/client_session.py`, `protocol/session/server_session.py`), and every
message is encoded and parsed. Only the primitives are symbolic: keys, shares, ciphertexts, signatures and masks are
readable tagged byte strings of the right lengths.

Depth is the longest shortest run to a state. Ends are the states without a successor, with their number. Seconds are
processor time of one core. `tests/exploration/test_mutants.py` shows that the search can fail: it catches state
machines that lack one check each.

## Network faults

The server follows the protocol. Every message may be delayed, overtaken, lost, or arrive twice; every client may start
late or never; every deadline, of clients and server, may pass at any moment while it is set; every link may be lost at
either end. Real links allow less: their sequence numbers refuse repeated or reordered messages.

A loss is an arrival that never comes, since deadlines do not wait for messages in transit. Clients never communicate
with each other: for a fixed past of the server, the states of all clients and links are a product of one set per
client. A state of this world is the server's state with these sets and stands for all their combinations. The rules are
checked on every combination; transitions and depth count events at the server. A test compares these sets with an
unfolded search on small worlds.

Rules, in every state:

- a published sum is that of its survivors, and every client that opened anything opened the sum over exactly these;
- survivors are at least the threshold; with groups they are whole groups, of at least two clients;
- a server that gives up holds less than the threshold of shares of any one secret;
- the shares that ever left clients do not reach the threshold in both kinds for any client;
- a client opens once, only what it signed (in active mode), and sends nothing after giving up;
- the server excludes no client for breaking a rule, since none does;
- every waiting party has a deadline, and every finished party has one result.

## Malicious server

Real clients run against a server that may send anything that it can assemble from the clients' messages to any client:
lists of any members' keys, packets of any that shared, any set of survivors, signatures of any signers or junk instead,
in any order and any number of times. It cannot forge a signature or open a packet. In active mode all clients that open
anything must open the sum over the same survivors; semi-honest mode does not promise that. The rules for clients are
those above. In addition, no client accepts a set of survivors that is smaller than the threshold, has members that
never shared, or lacks the client itself; with groups, one that is smaller than two or splits a group.

## Complaints

In the worlds with a complaint one client encrypts for another a share that cannot be opened, signs it, and answers the
complaint with the committed share, on the same network. The rules are those above: nobody is excluded for it, whichever
parties leave or are late, and the shares in its answer count as having left their holder in both kinds. In a bounded
search (four clients whose keys and shares are passed on unchanged), a malicious server also has complaints that the
last client signs about all others, and unsigned ones: no client answers more of them than holders may be malicious.

## Conversations

A client sends hello, and both ends send at any moment, over connections that break at any moment. Any prefix of the
data in transit arrives in either direction, the client's queue continues over the next connection, an older connection
may be read late, but not after a newer one, and either end may notice a break late.

- Nobody refuses anything, and every end receives every message of the conversation once and in order.
- A conversation in which anything was received is not given up, unless its ends keep fewer messages than they declare.
- Every message is eventually received.

## Group key

These worlds run the holder and the keeper of a session's keys, with the session's actions between the rounds: a client
that ends an attempt is out, the others begin the next epoch, and a round begins when all members report that they hold
the key. On the network three clients agree, any of them fails at any moment, and the others agree again or are too few.
A malicious server may start and cancel any epoch with any members, start a round with any members, and forward any
client's messages to any client.

- No two clients hold different keys of one epoch, and none holds a key that another member has not confirmed.
- No client takes part in an epoch twice, or in an earlier one; the server begins none twice.
- No round begins under a cancelled key, or one that its client does not hold; with an honest server, under one that any
  of its members does not hold, or under another than the latest.
- The server accuses nobody of breaking a rule, since none does; every waiting party has a deadline; a party whose
  session is over sends nothing more and holds no secrets.

## Sessions

One client of three and its host run over the sessions and rounds in the table, against a malicious server. It begins
sessions, again and in any order, as if it had restarted; starts any round any number of times, with three clients or
without the third; and ends, cancels or abandons anything. The client's link breaks and returns, its deadlines pass, and
its process is killed once at any moment: after any part of its pending writes and messages. It restarts with its
journal as it is on disk. In the sums themselves all share with each other, and the server asks this client to open over
all of them or without the third; the other two follow the rules, and draw the same keys if the server lets them be in
the same sum twice.

- A client takes part in a round of a session once, whatever restarts.
- Its journal has the round before the first message of the sum leaves.
- It never gives shares of both kinds under the same keys of any client, over all sums and processes. (The other worlds
  check that sums have keys of their own, and that the shares of all holders of one sum do not reach the threshold in
  both kinds.)
- From every state outside of a round, an honest server can run a round with it, to its end; and every round can be
  ended.
- Every party that waits for its server has a deadline.

## Not explored

Regular graphs, vectors of several chunks, models under a group key; malicious clients, except for a bad ciphertext and
false complaints; several clients over several rounds, and the server's side of a session: other tests cover them.
Messages whose type a client's table refuses unread represent each other. In single sums a client that gives up is of no
use to a malicious server, so such states are skipped.

Two owners in a session of private inference are explored too, in seconds, over a network that also replays a former
session ([bounds](../tests/exploration/test_inference.py)), and two that adapt a model, in rounds of which one is lost
([test](../tests/exploration/test_adaptation.py)).
"""


if __name__ == "__main__":
    # Fresh processes: names are replaced in modules while one explores.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        seen = dict(zip(WORLDS, pool.map(explore_world, WORLDS), strict=True))
    for name, exploration in seen.items():
        sys.stderr.write(f"{row(name, exploration)} {exploration.seconds:.1f} s\n")
    Path(sys.argv[1], "exploration.md").write_text(page(seen), encoding="utf-8")
