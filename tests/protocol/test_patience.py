"""How long every state of every machine waits, with ten seconds for a phase and a hundred for training.

A server gives its members one phase. A member gives the server two: one for the slowest of the others, one for itself.
"""

from collections.abc import Callable, Collection
from typing import Any

from tacit.protocol.core.machine import Machine
from tacit.protocol.session.states import TrainingState
from tacit.simulate.world.federation import JOIN_SECONDS, PATIENCE, MemoryFederation, small_configuration
from tests.cases import cases
from tests.world.group_keys import memory_group_key
from tests.world.sums import memory_sum

Seconds = dict[tuple[str, str], float]


def patience(one: Any, machines: Callable[[], Collection[Machine[Any]]]) -> Seconds:
    """Run it, at time zero; returns the deadlines of all states that anybody was in and that have one."""
    seen: Seconds = {}

    def hook(item: Any) -> list[Any]:
        for machine in machines():
            for part in (machine, *machine.inside):
                if part.deadline is not None:
                    seen.setdefault((type(part).__name__, part.state.name), part.deadline)
        return [item]

    one.hook = hook
    one.run()
    assert one.now == 0.0
    return seen


SUM: Seconds = {
    ("AggregationServer", "ADVERTISE_KEYS"): 10.0,
    ("AggregationClient", "AWAIT_PEER_KEYS"): 20.0,
    ("AggregationServer", "SHARE_KEYS"): 10.0,
    ("AggregationClient", "AWAIT_PEER_SHARES"): 20.0,
    ("AggregationServer", "MASKED_INPUT"): 110.0,
    ("AggregationClient", "AWAIT_SURVIVORS"): 130.0,
    ("AggregationServer", "CONSISTENCY_CHECK"): 10.0,
    ("AggregationClient", "AWAIT_UNMASK_REQUEST"): 20.0,
    ("AggregationServer", "UNMASK"): 10.0,
}
AGREEMENT: Seconds = {
    ("GroupKeyRelay", "KEY_COMMIT"): 10.0,
    ("GroupKeyMember", "AWAIT_PEER_COMMITS"): 20.0,
    ("GroupKeyRelay", "KEY_CONTRIBUTE"): 10.0,
    ("GroupKeyMember", "AWAIT_PEER_CONTRIBUTIONS"): 20.0,
    ("GroupKeyRelay", "KEY_CONFIRM"): 10.0,
    ("GroupKeyMember", "AWAIT_PEER_CONFIRMATIONS"): 20.0,
    ("GroupKeyRelay", "KEY_ACCEPT"): 10.0,
}
SESSION: Seconds = {
    ("TrainingServer", "GATHERING"): JOIN_SECONDS,
    ("TrainingClient", "AWAIT_WELCOME"): PATIENCE,
    ("TrainingClient", "AWAIT_ROUND"): PATIENCE,
    ("TrainingClient", "FETCHING_MODEL"): 20.0,
    ("GroupKeyKeeper", "AWAIT_MODEL"): 100.0,
    ("GroupKeyKeeper", "FETCHING_MODEL"): 100.0,
    ("GroupKeyKeeper", "DISTRIBUTING"): 100.0,
    ("GroupKeyHolder", "FETCHING_MODEL"): 20.0,
    ("GroupKeyHolder", "PROVIDING"): 20.0,
    ("GroupKeyHolder", "FETCHING_LAST"): 20.0,
}
# Vectors of five clients, in two chunks: in two turns, each may take ten phases.
LONG: dict[str, Any] = {"length": 400_000}


@cases(
    ("settings", "expected"),
    [
        ({"active": True}, SUM),  # secure
        ({"active": True, **LONG}, SUM | {("AggregationClient", "AWAIT_SURVIVORS"): 320.0}),  # secure, long vectors
        ({"active": False, "secure": False}, {("PlainSumServer", "MASKED_INPUT"): 110.0}),  # plain
        (
            {"active": False, "secure": False, **LONG},
            {("PlainSumServer", "MASKED_INPUT"): 110.0, ("PlainSumClient", "AWAIT_SURVIVORS"): 310.0},
        ),  # plain, long vectors
    ],
)
def test_sums(settings: dict[str, Any], expected: Seconds) -> None:
    one = memory_sum(5, **settings)
    assert patience(one, lambda: one.parties.values()) == expected


def test_agreements_on_a_group_key() -> None:
    one = memory_group_key(3)
    assert patience(one, lambda: one.parties.values()) == AGREEMENT


def test_who_sent_a_vector_without_masks_waits_for_the_others_training_too() -> None:
    one = MemoryFederation(small_configuration(4, mode="none"), 4, rounds=2)
    waits = set[float | None]()

    def hook(item: Any) -> list[Any]:
        waits.update(client.deadline for client in one.clients.values() if client.state is TrainingState.AWAIT_ROUND)
        return [item]

    one.hook = hook
    one.run()
    # A hundred seconds of training, ten for the vectors.
    assert waits == {PATIENCE, 110.0 + PATIENCE}


def test_who_is_asked_to_agree_on_a_key_has_heard_of_the_server() -> None:
    one = MemoryFederation(small_configuration(4, group_key=True), 4)
    one.start("client-0", "client-1", "client-2")
    one.settle(until=5.0)
    assert one.clients["client-0"].deadline == PATIENCE
    one.hook = lambda parcel: [parcel] if parcel.kind in ("hello", "welcome", "start-key") else []
    one.start("client-3")
    assert one.clients["client-0"].deadline == 5.0 + PATIENCE


def test_sessions() -> None:
    settings: dict[str, Any] = {"encrypted": True, "group_key": True, "initial_model": "server"}
    one = MemoryFederation(small_configuration(4, **settings), 4)

    def machines() -> list[Machine[Any]]:
        clients = one.clients.values()
        holders = [client.holder for client in clients if client.holder is not None]
        return [one.server, *one.server.inside, *clients, *holders]

    assert patience(one, machines) == SESSION | AGREEMENT | SUM
