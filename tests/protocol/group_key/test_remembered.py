"""Sessions that go on after an earlier one, whose group keys are gone: a client that remembers the model gives it."""

import numpy as np

from tacit.protocol.core.blob import NO_BLOB
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import Abort
from tacit.protocol.group_key.events import KeyAgreementFailed, ModelRecovered
from tacit.protocol.group_key.holder import Reencrypt
from tacit.protocol.group_key.messages import KeyedModel, ReencryptModel
from tacit.protocol.session.rounds import NewModel, RoundDone, Train
from tacit.simulate.world.federation import SERVER, MemoryFederation, shift, small_configuration
from tests.cases import cases

SETTINGS = {"encrypted": True, "group_key": True, "mode": "semi-honest"}
LOST = np.full(10, 99, "<f4").tobytes()
"""What the server has: a model under a key that nobody holds any more."""


class Remembering(MemoryFederation):
    """After three rounds. remembers: after which round each client has a model in the clear; it is that number."""

    def __init__(self, remembers: dict[str, int], *, initial_model: str = "clients", rounds: int = 1) -> None:
        configuration = small_configuration(4, **SETTINGS, initial_model=initial_model)
        super().__init__(configuration, 4, rounds=rounds, model=LOST)
        self.remembers = remembers
        self.asked: list[tuple[str, int]] = []
        self.start_server(completed=3)

    def act(self, party: str, output: object) -> None:
        if isinstance(output, Reencrypt) and output.source == "remembered":
            self.asked.append((party, output.round))
        super().act(party, output)  # type: ignore[arg-type]

    def encrypt(self, order: Reencrypt) -> bytes:
        if order.source != "remembered":
            return super().encrypt(order)
        round = self.remembers.get(self.asked[-1][0], -1)
        return np.full(10, round + shift(order.key), "<f4").tobytes() if round >= order.round else b""


@cases("initial_model", ["clients", "server"])
@cases(
    ("remembers", "asked", "after"),
    [
        ({"client-0": 3}, ["client-0"], 3),
        # An aborted round has a number and no model of its own.
        ({"client-0": 4}, ["client-0"], 3),
        ({"client-0": 2, "client-2": 3}, ["client-0", "client-1", "client-2"], 3),
        ({"client-0": 1, "client-1": 2}, ["client-0", "client-1", "client-2", "client-3", "client-0", "client-1"], 2),
    ],
)
def test_the_newest_model_that_somebody_remembers(
    initial_model: str, remembers: dict[str, int], asked: list[str], after: int
) -> None:
    one = Remembering(remembers, initial_model=initial_model, rounds=2).run()
    assert [name for name, _ in one.asked] == asked
    assert [round for _, round in one.asked] == [3] * min(4, len(asked)) + [2] * (len(asked) - 4)
    assert [done.round for done in one.outcome(RoundDone)] == [after + 1, after + 2]
    assert one.outcome(NewModel)[0].round == after
    for job in one.outcome(Train):
        if job.round == after + 1:
            model = np.frombuffer(job.model, "<f4") - np.float32(shift(job.key))  # type: ignore[arg-type]
            assert model.tolist() == [remembers[asked[-1]]] * 10
    assert one.outcome(ModelRecovered, SERVER) == [ModelRecovered(member=asked[-1], round=after)]
    assert one.ended(SERVER) == Ended(None, "all rounds are done")


@cases("remembers", [{}, {"client-1": 1}])
def test_where_nobody_remembers_it_the_session_ends(remembers: dict[str, int]) -> None:
    """Nothing is made up in its place, and nobody is thrown out for it."""
    one = Remembering(remembers).run()
    ended = one.ended(SERVER)
    assert ended == Ended(
        Code.KEYS, "no client that is here remembers the model after round 3 or 2: start again when others are there"
    )
    assert len(one.asked) == 8
    assert not one.outcome(RoundDone)
    assert {one.ended(name).code for name in one.roster.clients} == {Code.KEYS}


def test_who_leaves_instead_of_answering_is_not_waited_for() -> None:
    one = Remembering({"client-0": 3, "client-1": 3})
    one.idle = {"client-0"}
    one.start()
    one.put(one.forge("client-0", SERVER, Abort(code=Code.LOCAL, detail="no", culprit=""), round=0))
    assert [done.round for done in one.settle().outcome(RoundDone)] == [4]
    assert one.outcome(NewModel)[-1].round == 3


def test_a_fresh_session_asks_nobody_to_remember() -> None:
    one = MemoryFederation(small_configuration(4, **SETTINGS, initial_model="clients"), 4).run()
    orders = [parcel.message for parcel in one.log if parcel.packet.kind is ReencryptModel]
    assert [(order.source, order.round) for order in orders] == [("clients", 0)]


def test_nothing_in_the_place_of_a_model_that_was_to_be_made_is_refused() -> None:
    one = MemoryFederation(small_configuration(4, **SETTINGS, initial_model="clients"), 4)
    one.idle = {"client-0"}
    one.start()
    one.put(one.forge("client-0", SERVER, KeyedModel(epoch=0, model=NO_BLOB), round=0))
    assert [(failed.by, failed.code) for failed in one.outcome(KeyAgreementFailed, SERVER)] == [(["client-0"], "MODEL")]
