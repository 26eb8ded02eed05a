"""A client's budget of privacy: charged before a vector leaves, in aborted rounds too, and never overdrawn."""

import math
from typing import Any

import pytest
from dp_accounting import get_epsilon_gaussian

from tacit.models.configuration import Architecture, TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy, ProposedTask
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.gaussian_noise import GaussianNoise, affordable, cost_of
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Noise
from tacit.parties.session.events import ClientRoundEnded, RoundEnded, SpendingLearned
from tacit.parties.session.journal import JournalFile
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.session.rounds import JournalEntry, RoundDone, RoundOver, SpendingEntry, Train
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import MaskedInput
from tacit.protocol.sum.policy import Policy, below_policy
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel

DELTA = 1e-5


@pytest.mark.parametrize("delta", [1e-2, DELTA, 1e-9])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("updates", [1, 2, 10, 1000])
def test_what_a_budget_affords_is_what_an_independent_account_says(
    multiplier: float, updates: int, delta: float
) -> None:
    spent = updates * cost_of(Noise(multiplier, norm=1.0, delta=delta))
    epsilon = float(get_epsilon_gaussian(multiplier / 2 / math.sqrt(updates), delta))
    if epsilon <= 100:
        assert affordable(spent, epsilon=epsilon * 1.0001, delta=delta)
        assert not affordable(spent, epsilon=epsilon * 0.9999, delta=delta)
    else:
        assert not affordable(spent, epsilon=100.0, delta=delta)


def test_noise_that_bounds_nothing_is_not_affordable() -> None:
    assert affordable(0.0, epsilon=0.0, delta=DELTA)
    for noise in (None, Noise(1e6, norm=0.0, delta=DELTA)):
        assert cost_of(noise) == math.inf


@pytest.mark.parametrize(
    ("protection", "accepted"), [(GaussianNoise(), True), (GaussianNoise(dp_clip=0.0), False), (NoProtection(), False)]
)
def test_a_client_with_a_budget_wants_noise_that_counts(protection: Any, accepted: bool) -> None:
    work = Task(model=Architecture(), training=TrainingConfiguration(), classes=3, channels=1, protection=protection)
    proposed = ProposedTask(small_configuration(5), 5, wanted=work)
    complaints = [field for field, _, _ in ClientPolicy(largest_epsilon=8.0).task_complaints(proposed)]
    assert complaints == ([] if accepted else ["protection.scheme"])
    assert list(ClientPolicy().task_complaints(proposed)) == []
    assert configure(small_configuration(5), work, work.build()).spending is accepted


class Three(Policy, frozen=True):
    def cost(self, configuration: Configuration) -> float:
        return 1.0

    def check_budget(self, spent: float) -> None:
        if spent > 3.0:
            raise below_policy("spent", spent, "3")


CLIENT = "client-0"


def federation(rounds: int) -> MemoryFederation:
    one = MemoryFederation(small_configuration(5, spending=True), 5, rounds=rounds, policies={CLIENT: Three()})
    one.stated = {CLIENT: 0.0}
    return one


def check_spent(one: MemoryFederation) -> None:
    """Three vectors were charged, each before it left, and no round was begun beyond them."""
    assert [line.cost for line in one.journals[CLIENT] if isinstance(line, JournalEntry)] == [1.0] * 3
    sent = [parcel for parcel in one.log if parcel.sender == CLIENT and parcel.packet.kind is MaskedInput]
    assert len(sent) <= 3
    assert len(one.outcome(Train, CLIENT)) == 3
    last = one.outcome(RoundOver, CLIENT)[-1]
    assert (last.code, last.detail) == (Code.POLICY, "the server proposes spent = 4.0; this client's policy accepts 3")


def test_a_round_beyond_the_budget_is_refused_and_the_others_go_on() -> None:
    one = federation(5)
    one.run()
    check_spent(one)
    assert [CLIENT in done.survivors for done in one.outcome(RoundDone)] == [True, True, True, False, False]
    assert all(set(one.roster.clients[1:]) <= set(done.survivors) for done in one.outcome(RoundDone))


def test_aborted_rounds_are_charged() -> None:
    """Two of five never send their vectors, so that no sum is opened."""
    one = federation(5)
    one.hook = lambda parcel: [] if silent(parcel) else [parcel]

    def silent(parcel: Parcel) -> bool:
        return parcel.sender in ("client-3", "client-4") and parcel.packet.envelope.round in (1, 2)

    one.run()
    assert [done.total is None for done in one.outcome(RoundDone)][:2] == [True, True]
    check_spent(one)


def test_a_restart_remembers_what_was_spent() -> None:
    one = federation(2)
    one.run()
    one.rounds_left = 3
    one.start_server()
    one.run()
    check_spent(one)
    assert [CLIENT in done.survivors for done in one.outcome(RoundDone)] == [True, True, True, False, False]


def test_what_was_charged_counts_whatever_became_of_the_vector() -> None:
    one = federation(1)
    for round in range(3):
        one.journal(CLIENT).write(JournalEntry(session=bytes(32), round=round, cost=1.0))
    one.run()
    check = one.outcome(RoundOver, CLIENT)
    assert [over.code for over in check] == [Code.POLICY]
    assert one.outcome(Train, CLIENT) == []


@pytest.mark.asyncio
async def test_real_clients_keep_to_their_budgets(protected: Any) -> None:
    federation = protected(scheme="dp-gaussian", dp_noise=2.0)
    each = cost_of(federation.protection.noise())
    epsilon = float(get_epsilon_gaussian(1 / math.sqrt(2.5 * each), DELTA))
    server = await federation.serve(rounds=4)
    own = {"client-4": {"policy": ClientPolicy(largest_epsilon=epsilon), "spent": 0.0}}
    clients = [federation.join(name, **own.get(name, {})) for name in federation.clients]
    assert [end.code for end in await federation.all_of(server, *clients)] == [*[None] * 4, Code.POLICY]
    rounds = federation.events("server", RoundEnded)
    assert [("client-4" in done.survivors, done.status) for done in rounds] == [
        (True, "completed"), (True, "completed"), (False, "completed"), (False, "completed"),
    ]  # fmt: skip
    entries = JournalFile(federation.journal("client-4")).read()
    assert [entry.cost for entry in entries if isinstance(entry, JournalEntry)] == [each] * 2
    over = [fields.detail for fields in federation.events("client-4", ClientRoundEnded) if fields.code]
    assert over == [f"with another update this client would be beyond its budget of largest_epsilon = {epsilon} "
                    f"for delta = {DELTA}"]  # fmt: skip
    # Restored from before all rounds, it learns from the others that nothing is left.
    federation.journal("client-4").unlink()
    federation.news.clear()
    server = await federation.serve(rounds=1, completed=4)
    own["client-4"].pop("spent")
    clients = [federation.join(name, **own.get(name, {})) for name in federation.clients]
    assert [end.code for end in await federation.all_of(server, *clients)] == [*[None] * 4, Code.POLICY]
    assert [event.by_owner for event in federation.events("client-4", SpendingLearned)] == [True, False]
    assert JournalFile(federation.journal("client-4")).read() == [SpendingEntry(spent=2 * each)]


def test_a_budget_is_refused_by_name() -> None:
    policy = ClientPolicy(largest_epsilon=1.0, delta=DELTA)
    policy.check_budget(0.0)
    with pytest.raises(RemoteProtocolError, match=r"beyond its budget of largest_epsilon = 1\.0 for delta = 1e-05"):
        policy.check_budget(4.0)
    ClientPolicy().check_budget(math.inf)
