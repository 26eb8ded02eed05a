"""What a lying server learns of one client from many sums: its update, or where there are groups that of its group."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import encode_members
from tacit.protocol.session import server as session_server
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train, agree
from tacit.protocol.sum.agreement import survivors_signed
from tacit.protocol.sum.messages import ConfirmSurvivors, MaskedInput, Survivors, UnmaskRequest, UnmaskShares
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.graph import complete_parameters
from tacit.secagg.packing import WeightForm
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

VICTIM = "client-0"
PAIRS, NO_GROUPS = (1, 1, 2, 2, 3, 3), (0,) * 6
FEATURES: Final = 20
SAMPLES: Final = range(30, 90, 10)
Floats = npt.NDArray[np.float64]


class Regression(MemoryFederation):
    """Six clients that fit a logistic regression, each to data of its own; their server lies about the second round.

    It is to be left out of that in one of WAYS. The model moves by one unit in the last place of one parameter.
    """

    def __init__(self, scheme: Any, groups: Sequence[int]) -> None:
        configuration = small_configuration(
            6, parameters=FEATURES, scheme=scheme, colluders=0, dropout=0.34 if any(groups) else 0.33, value_bits=20,
            clip=1.0, max_weight=1 if scheme == "fedsgd" else 100,
        )  # fmt: skip
        model = np.linspace(-1, 1, FEATURES).astype("<f4").tobytes()
        super().__init__(configuration, 6, rounds=2, model=model, groups=groups)
        generator = np.random.default_rng(5)
        self.data = {
            name: (generator.normal(place / 9, 1, (count, FEATURES)), generator.integers(0, 2, count))
            for place, (name, count) in enumerate(zip(self.roster.clients, SAMPLES, strict=True))
        }
        self.honest = False

    def gradient(self, name: str, model: Floats) -> Floats:
        features, labels = self.data[name]
        found: Floats = features.T @ (1 / (1 + np.exp(-features @ model)) - labels) / len(labels)
        return found

    def update(self, name: str, model: Floats) -> tuple[Floats, int]:
        if self.configuration.scheme == "fedsgd":
            return self.gradient(name, model), 1
        trained = model.copy()
        for _ in range(5):
            trained -= 0.5 * self.gradient(name, trained)
        weight = len(self.data[name][1])
        return weight * (trained - model), weight

    def draw(self, name: str, round: int) -> npt.NDArray[Any]:
        model = np.frombuffer(self.outcome(Train, name)[-1].model, "<f4").astype(np.float64)
        values, weight = self.update(name, model)
        packing = self.configuration.packing()
        words = packing.encode(values, weight, {}, np.random.default_rng(round)).words
        self.vectors[name, round] = words
        return words

    def apply(self, done: RoundDone) -> str:
        model = np.frombuffer(self.model, "<f4").copy()
        model[0] = np.nextafter(model[0], np.float32(1))
        self.model = model.tobytes()
        return ""

    def leave_out(self, way: str) -> None:
        """What the server does to be rid of the victim in round 2."""
        gathered = self.server._gathered

        def chosen(there: Iterable[str]) -> tuple[str, ...]:
            if self.server.round == 0 or self.honest:
                return gathered(tuple(there))
            out = self.roster.group_of(VICTIM) if way == "its group" else (VICTIM,)
            return tuple(name for name in there if name not in out or way == "its vector")

        def hook(parcel: Parcel) -> list[Parcel]:
            kept_back = (parcel.sender, parcel.packet.kind) == (VICTIM, MaskedInput) and self.server.round == 2
            if kept_back and way == "its vector":
                self.kill(VICTIM)
                self.server.link_lost(VICTIM, self.now)
                return []
            return [parcel]

        self.server._gathered = chosen  # type: ignore[method-assign, assignment]
        self.hook = hook

    def difference(self) -> tuple[Floats, int]:
        first, second = self.outcome(RoundDone)[:2]
        packing = self.configuration.packing()
        words = first.total.copy()
        packing.ring.subtract_into(words, second.total)
        found = packing.decode(words, contributors=6)
        return found.values, int(found.weights)

    def check_honest_round(self) -> None:
        """The operator starts everything again; the next round has everybody, and its sum is exact."""
        self.honest, self.hook, self.rounds_left = True, lambda parcel: [parcel], 1
        self.start_server()
        self.start()
        self.settle()
        done = self.outcome(RoundDone)[-1]
        assert done.survivors == self.roster.clients
        np.testing.assert_array_equal(done.total, self.plain_sum(done))


@pytest.fixture(autouse=True)
def server_without_groups(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The server of a sum takes no heed of groups, where a test has a server that lies about them."""
    if "regression" in request.fixturenames:
        monkeypatch.setattr(session_server, "agree", lambda **given: replace(agree(**given), groups=()))


@pytest.fixture
def regression() -> Callable[[Any, Sequence[int], str], Regression]:
    """Two rounds, in the second of which the server leaves its victim out."""

    def play(scheme: Any, groups: Sequence[int], way: str) -> Regression:
        one = Regression(scheme, groups)
        one.leave_out(way)
        return one.run()

    return play


Play = Callable[[Any, Sequence[int], str], Regression]


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.threat("server/subtraction")
@cases("way", ["the cohort", "its vector"])
@cases("scheme", ["fedsgd", "fedavg"])
def test_without_groups_a_model_moved_by_one_ulp_gives_the_victim_away(regression: Play, scheme: str, way: str) -> None:
    one = regression(scheme, NO_GROUPS, way)
    assert [len(done.survivors) for done in one.outcome(RoundDone)] == [6, 5]
    first, second = one.outcome(Train, VICTIM)[0], one.outcome(Train, "client-1")[-1]
    assert first.model != second.model
    values, weight = one.difference()
    model = np.linspace(-1, 1, FEATURES).astype("<f4").astype(np.float64)
    update, samples = one.update(VICTIM, model)
    assert cosine(values, update) > 0.999
    assert weight == samples == (1 if scheme == "fedsgd" else 30)
    one.check_honest_round()


@pytest.mark.threat("server/groups")
@cases("way", ["the cohort", "its vector"])
@cases("scheme", ["fedsgd", "fedavg"])
def test_with_groups_there_is_no_sum_without_the_victim_alone(regression: Play, scheme: str, way: str) -> None:
    """Every other client refuses the round: the cohort, or the survivors before it signs them."""
    one = regression(scheme, PAIRS, way)
    assert [None if done.total is None else len(done.survivors) for done in one.outcome(RoundDone)][:2] == [6, None]
    for name in one.roster.clients[1:]:
        over = one.outcome(RoundOver, name)[1]
        assert (over.code, "of a group without the others" in over.detail) == (Code.MEMBERS, True)
    assert not [
        parcel
        for parcel in one.log
        if parcel.packet.envelope.round == 2 and parcel.packet.kind in (ConfirmSurvivors, UnmaskShares)
    ]
    one.check_honest_round()


@pytest.mark.threat("server/groups")
@cases("scheme", ["fedsgd", "fedavg"])
def test_with_groups_a_difference_is_the_sum_of_a_group(regression: Play, scheme: str) -> None:
    one = regression(scheme, PAIRS, "its group")
    values, weight = one.difference()
    model = np.linspace(-1, 1, FEATURES).astype("<f4").astype(np.float64)
    mine, others = one.update(VICTIM, model), one.update("client-1", model)
    assert cosine(values, mine[0] + others[0]) > 0.999
    assert weight == mine[1] + others[1]
    assert cosine(values, mine[0]) < 0.98
    one.check_honest_round()


@pytest.mark.threat("server/groups")
def test_groups_promise_nothing_for_a_coordinate_to_which_one_client_contributes() -> None:
    """With weights of coordinates: the difference of two sums is that of a group, where the victim may stand alone."""
    configuration = small_configuration(
        6, colluders=0, dropout=0.34, form=WeightForm.COORDINATE, max_weight=1, value_bits=12, min_contributors=1
    )
    one = MemoryFederation(configuration, 6, rounds=2, groups=PAIRS)
    packing, values = configuration.packing(), np.linspace(-0.9, 0.9, 10)

    def draw(name: str, round: int) -> npt.NDArray[Any]:
        mine = np.arange(10) % 2 == (name != VICTIM)
        words = packing.encode(values, mine, {}, np.random.default_rng(0)).words
        one.vectors[name, round] = words
        return words

    gathered = one.server._gathered
    one.draw = draw  # type: ignore[method-assign]
    one.server._gathered = (  # type: ignore[method-assign]
        lambda there: (
            gathered(there) if not one.server.round else tuple(n for n in there if n not in one.roster.groups[0])
        )
    )
    one.run()
    first, second = one.outcome(RoundDone)
    assert [len(first.survivors), len(second.survivors)] == [6, 4]
    words = first.total.copy()
    packing.ring.subtract_into(words, second.total)
    found = packing.decode(words, contributors=2)
    np.testing.assert_allclose(found.values[::2], values[::2], atol=2 * packing.quantiser.step)
    assert found.weights.tolist() == [1] * 10
    assert one.ended(SERVER) == Ended(None, "all rounds are done")


def opened_sums(
    clients: int, groups: tuple[tuple[int, ...], ...], corrupt: Sequence[int], sums: Any
) -> Iterator[frozenset[int]]:
    """The sets of members whose sum a server can compute that tells everybody any survivors it likes, run by run.

    All honest clients are told the same, whatever it is, or one of them something else. The corrupt ones sign whatever
    is asked for, and give away all shares of both kinds.
    """
    everybody = range(clients)
    told_sets = [encode_members(chosen, clients) for size in everybody for chosen in combinations(everybody, size + 1)]
    honest = [member for member in everybody if member not in corrupt]
    whole = encode_members(everybody, clients)
    tellings = [dict.fromkeys(honest, told) for told in told_sets]
    tellings += [dict.fromkeys(honest, whole) | {odd: told} for odd in honest for told in told_sets[:-1:7]]
    for number, telling in enumerate(tellings):
        made = memory_sum(clients, active=True, seed=b"opened sums", groups=groups, fewest_survivors=3, round=number)
        parameters = complete_parameters(clients, active=True, colluders=len(corrupt))
        agreement = replace(made.agreement, parameters=parameters)
        run = MemorySum(agreement, made.signing, made.vectors, made.streams)
        liar = sums.Server(run)
        cohort = agreement.cohort
        signatures: dict[tuple[bytes, int], bytes] = {}
        for member in corrupt:
            held, data = sorted(run.clients[cohort[member]].data.held.items()), run.clients[cohort[member]].data
            for kind in ("seed", "key"):
                shares = b"".join(getattr(share, kind) for _, share in held)
                owners = encode_members([owner for owner, _ in held], clients)
                run.log.append(Delivery(cohort[member], "server", UnmaskShares(owners=owners, shares=shares), None))
            for bitmap in {*telling.values()}:
                parts = survivors_signed(data.sharing, member, bitmap)
                signatures[bitmap, member] = run.signing[cohort[member]].sign(SumLabel.SIGN_SURVIVORS, *parts)
        for member, bitmap in telling.items():
            for answer in liar.say(cohort[member], Survivors(survivors=bitmap)):
                if isinstance(answer, ConfirmSurvivors):
                    signatures[bitmap, member] = answer.signature
        for member, bitmap in telling.items():
            signers = sorted(signer for told, signer in signatures if told == bitmap)
            request = UnmaskRequest(
                survivors=bitmap,
                signers=encode_members(signers, clients),
                signatures=b"".join(signatures[bitmap, signer] for signer in signers),
                answered=encode_members((), clients),
                answers=b"",
            )
            liar.say(cohort[member], request)
        yield from (frozenset(map(cohort.index, names)) for names in sums.revealed(run))


def tellings_apart(sums: Iterable[frozenset[int]], honest: frozenset[int]) -> Iterator[dict[int, int]]:
    """The factor of every honest member in combinations of every pair and triple of sums, with factors from -2 to 2."""
    for count in (1, 2, 3):
        for chosen in combinations(sorted(sums, key=sorted), count):
            for factors in product((-2, -1, 1, 2), repeat=count):
                yield {
                    member: sum(factor for factor, found in zip(factors, chosen, strict=True) if member in found)
                    for member in honest
                }


def check_combinations(clients: int, size: int, corrupt: tuple[int, ...], sums: Any) -> None:
    groups = tuple(tuple(range(first, first + size)) for first in range(0, clients, size))
    honest = frozenset(range(clients)) - {*corrupt}
    found = {*opened_sums(clients, groups, corrupt, sums)}
    # What the server knows of corrupt members it subtracts: only the honest part of a set matters.
    largest = {frozenset(group) & honest for group in groups if size >= 3} | {honest}
    assert {members & honest for members in found} - {frozenset()} == largest
    combined = list(tellings_apart(found, honest))
    assert combined
    for factors in combined:
        for group in groups:
            assert len({factors[member] for member in group if member in honest}) == 1
    assert all(len(honest.intersection(group)) >= 2 for group in groups)


@pytest.mark.threat("server/groups")
@pytest.mark.parametrize(
    ("clients", "size", "corrupt"),
    [
        (4, 2, ()),
        pytest.param(6, 3, (0,), marks=pytest.mark.exhaustive),
        pytest.param(6, 3, (5,), marks=pytest.mark.exhaustive),
        pytest.param(8, 4, (1, 4), marks=pytest.mark.exhaustive),
    ],
)
def test_every_combination_of_opened_sums_is_over_whole_groups(
    clients: int, size: int, corrupt: tuple[int, ...], sums: Any
) -> None:
    """As many are corrupt as leave two honest ones in every group."""
    check_combinations(clients, size, corrupt, sums)


@pytest.mark.threat("server/subtraction")
def test_without_groups_two_sums_tell_every_honest_client_apart(sums: Any) -> None:
    honest = frozenset(range(4))
    found = {*opened_sums(4, (), (), sums)}
    alone = {
        member
        for factors in tellings_apart(found, honest)
        for member in honest
        if [other for other, factor in factors.items() if factor] == [member]
    }
    assert alone == honest
