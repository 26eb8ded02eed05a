"""A server that proposes less protection than its clients insist on, or asks for what only a sum may tell."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgpack
import msgspec
import pytest

from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort, Chunk, Message, Resume
from tacit.protocol.core.primitives import SIGNATURE_BYTES, digest
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.group_key.states import TO_HOLDER
from tacit.protocol.session.client import TRAINING_CLIENT_TABLE
from tacit.protocol.session.events import ClientLeft
from tacit.protocol.session.messages import EndRound, Finish, NewRoster, StartRound, Welcome
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train, agree
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.agreement import adverts_digest, record_bytes, split_adverts
from tacit.protocol.sum.client import CLIENT_TABLES
from tacit.protocol.sum.messages import (
    FetchVector,
    MaskedInput,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases

VICTIM = "client-0"
CLIENTS = 5
Deceived = Callable[..., Any]


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


def sent(one: Any, kind: type[Message]) -> set[str]:
    return {parcel.sender for parcel in one.log if parcel.packet.kind is kind}


def check_only_the_victim_left(one: Any, code: Code) -> None:
    """It sent no vector, the server knows why it is missing, and the sum of the others is exact."""
    (done,) = one.outcome(RoundDone)
    assert done.survivors == one.roster.clients[1:]
    assert (done.total == one.plain_sum(done)).all()
    assert VICTIM not in sent(one, MaskedInput)
    assert not one.journals[VICTIM]
    told = [parcel.message for parcel in one.log if parcel.sender == VICTIM and parcel.packet.kind is Abort]
    assert [(abort.code, abort.culprit) for abort in told] == [(code, SERVER)]


@pytest.mark.threat("server/downgrade")
@pytest.mark.threat("server/splits-rosters")
def test_a_configuration_below_the_policy_or_not_right_ends_the_session(deceived: Deceived) -> None:
    for policy, changes, refusal in [
        (Policy(), {"mode": "semi-honest"}, "mode = semi-honest; this client's policy accepts one of active"),
        (Policy(), {"clip": 2.0}, "clip = 2.0; this client's policy accepts at most 1.0"),
        (Policy(), {"colluders": 0}, "colluders = 0; this client's policy accepts at least 1 of the 5 clients"),
        (Policy(least_corrupt=0.4), {}, "colluders = 1; this client's policy accepts at least 2 of the 5 clients"),
        (Policy(smallest_cohort=6), {}, "clients = 5; this client's policy accepts at least 6"),
        (Policy(schemes=("fedsgd",)), {}, "scheme = fedavg; this client's policy accepts one of fedsgd"),
        (Policy(), {"ring_bits": 8}, "the configuration has no room for its sum"),
    ]:
        one = deceived(policies={VICTIM: policy})
        one.tell(Welcome, configuration=encode_structure(small_configuration(CLIENTS, **changes))).deceive()
        assert one.victim_ended.code is Code.POLICY
        assert refusal in one.victim_ended.detail
        left = [(event.member, refusal in event.detail) for event in one.outcome(ClientLeft, SERVER)]
        assert left == [(VICTIM, True)]
        check_only_the_victim_left(one, Code.POLICY)
        one.policies = {}
        one.check_honest_round()

    for changes, code in [
        ({"roster": bytes(32)}, Code.ROSTER),
        ({"configuration": b""}, Code.MALFORMED),
        ({"configuration": b"\x80"}, Code.MALFORMED),
        ({"configuration": encode_structure(small_configuration(CLIENTS)) + b"\x00"}, Code.MALFORMED),
    ]:
        one = deceived().tell(Welcome, **changes).deceive()
        assert one.victim_ended.code is code
        assert one.clients[VICTIM].state is TrainingState.ENDED
        check_only_the_victim_left(one, code)
        one.check_honest_round()


@pytest.mark.threat("server/threshold-below-floor")
@cases(("mode", "floor"), [("active", 4), ("semi-honest", 3)])
def test_every_threshold_below_the_rule_is_refused_by_everybody(deceived: Deceived, mode: str, floor: int) -> None:
    for threshold in range(1, CLIENTS + 2):
        one = deceived(mode=mode, threshold=threshold)
        one.run()
        (done,) = one.outcome(RoundDone)
        if floor <= threshold <= CLIENTS:
            assert (done.total == one.plain_sum(done)).all(), threshold
            continue
        assert done.total is None, threshold
        refusal = f"the server proposes threshold = {threshold}; this client's policy accepts {floor} to 5 of 5 clients"
        assert [(over.code, over.detail) for over in one.outcome(RoundOver)] == [(Code.POLICY, refusal)] * CLIENTS
        assert not one.outcome(Train), threshold
        assert not sent(one, MaskedInput), threshold
        one.configuration = small_configuration(CLIENTS, mode=mode)
        one.restart()
        one.check_honest_round()


@pytest.mark.threat("server/threshold-below-floor")
@cases(
    ("policy", "threshold", "refusal"),
    [
        (Policy(), 3, "threshold = 3; this client's policy accepts 4 to 5 of 5 clients"),
        (Policy(threshold_floor=5), 4, "threshold = 4; this client's policy accepts 5 to 5 of 5 clients"),
        (Policy(threshold_floor=1), 1, "threshold = 1; this client's policy accepts 4 to 5 of 5 clients"),
        (Policy(threshold_floor=3), 3, "threshold = 3; this client's policy accepts 4 to 5 of 5 clients"),
    ],
)
def test_a_threshold_below_the_floor_is_told_to_one_client(
    deceived: Deceived, policy: Policy, threshold: int, refusal: str
) -> None:
    one = deceived(policies={VICTIM: policy})
    one.tell(Welcome, configuration=encode_structure(small_configuration(CLIENTS, threshold=threshold))).deceive()
    assert (one.victim_over.round, one.victim_over.code) == (1, Code.POLICY)
    assert refusal in one.victim_over.detail
    check_only_the_victim_left(one, Code.POLICY)
    one.policies = {}
    one.check_honest_round()


@pytest.mark.threat("server/threshold-below-floor")
def test_clients_that_ask_for_at_least_three_are_not_content_with_three_of_ten() -> None:
    """With three shares of each secret a lying server would need three clients for each of two lists of survivors."""
    policies = {f"client-{number}": Policy(threshold_floor=3) for number in range(10)}
    one = MemoryFederation(small_configuration(10, threshold=3), 10, policies=policies)
    one.run()
    (done,) = one.outcome(RoundDone)
    assert (done.total, done.survivors) == (None, ())
    refusal = "the server proposes threshold = 3; this client's policy accepts 7 to 10 of 10 clients"
    assert [(over.code, over.detail) for over in one.outcome(RoundOver)] == [(Code.POLICY, refusal)] * 10
    one.configuration, one.rounds_left = small_configuration(10), 1
    one.start_server()
    one.run()
    honest = one.outcome(RoundDone)[-1]
    assert honest.survivors == one.roster.clients
    assert (honest.total == one.plain_sum(honest)).all()


SMALL_COHORTS = [(0, *others) for size in (0, 1) for others in combinations(range(1, CLIENTS), size)]


@pytest.mark.threat("server/small-cohort")
@pytest.mark.threat("server/asks-for-metrics")
def test_a_cohort_below_the_policy_or_not_right_is_refused(deceived: Deceived) -> None:
    # Of two or of the client alone: such a sum would be its update, and its metrics, or nearly so.
    for cohort in SMALL_COHORTS:
        one = deceived(metrics=("samples", "loss")).tell(StartRound, cohort=bitmap(*cohort)).deceive()
        assert (one.victim_over.round, one.victim_over.code) == (1, Code.POLICY)
        assert (
            f"the server proposes cohort = {len(cohort)}; this client's policy accepts 3 to 5" in one.victim_over.detail
        )
        assert not one.outcome(Train, VICTIM)
        check_only_the_victim_left(one, Code.POLICY)
        one.check_honest_round()

    for policy, cohort, code, refusal in [
        (Policy(smallest_cohort=5), bitmap(0, 1, 2, 3), Code.POLICY, "this client's policy accepts 5 to 5 clients"),
        (Policy(smallest_cohort=4), bitmap(0, 1, 2), Code.POLICY, "this client's policy accepts 4 to 5 clients"),
        (Policy(), bitmap(1, 2, 3, 4), Code.MEMBERS, "this client was not selected"),
        (Policy(), b"\x3f", Code.MEMBERS, "beyond the 5 members"),
    ]:
        one = deceived(policies={VICTIM: policy}).tell(StartRound, cohort=cohort).deceive()
        assert (one.victim_over.round, one.victim_over.code) == (1, code)
        assert refusal in one.victim_over.detail
        check_only_the_victim_left(one, code)
        one.policies = {}
        if policy != Policy():
            one.start(VICTIM)
        one.check_honest_round()


def suppressing(one: Any, kind: type[Message], kept: int) -> Callable[[Any], Message]:
    """What the server says if it declares all but the first clients dropped; right in everything else."""
    members = tuple(range(kept))
    agreement = agree(
        session=one.server.session,
        round=1,
        roster=one.roster,
        configuration=one.configuration,
        cohort=one.roster.clients,
        model=digest(SumLabel.MODEL, one.model),
    )

    def peer_keys(said: PeerKeys) -> PeerKeys:
        records = said.adverts[: kept * record_bytes(agreement)]
        listed = adverts_digest(agreement, split_adverts(agreement, records, members))
        return PeerKeys(advertised=bitmap(*members), digest=listed, included=bitmap(*members), adverts=records)

    def peer_shares(said: PeerShares) -> PeerShares:
        signatures = said.signatures[: len(said.signatures) // len(decode_members(said.owners, 5)) * kept]
        packets = said.packets[: kept * PACKET_BYTES]
        return PeerShares(sharers=bitmap(*members), owners=bitmap(*members), packets=packets, signatures=signatures)

    def unmask_request(said: UnmaskRequest) -> UnmaskRequest:
        signers = members if one.configuration.active else ()
        signatures = said.signatures[: len(signers) * SIGNATURE_BYTES]
        return msgspec.structs.replace(
            said, survivors=bitmap(*members), signers=bitmap(*signers), signatures=signatures
        )

    makers: dict[type[Message], Callable[[Any], Message]] = {
        PeerKeys: peer_keys,
        PeerShares: peer_shares,
        Survivors: lambda said: Survivors(survivors=bitmap(*members)),
        UnmaskRequest: unmask_request,
    }
    return makers[kind]


@pytest.mark.threat("server/suppresses-clients")
@cases(
    ("mode", "threshold", "kind"),
    [
        *(("active", 4, kind) for kind in (PeerKeys, PeerShares, Survivors, UnmaskRequest)),
        *(("semi-honest", 3, kind) for kind in (PeerKeys, PeerShares, UnmaskRequest)),
    ],
)
def test_who_is_left_alone_opens_nothing(deceived: Deceived, mode: str, threshold: int, kind: type[Message]) -> None:
    """All clients are told that all but one, or all but one fewer than the threshold, dropped out, in every phase."""
    for kept in range(1, threshold):
        one = deceived(mode=mode)
        one.tell(kind, to=one.roster.clients, message=suppressing(one, kind, kept)).deceive()
        (done,) = one.outcome(RoundDone)
        assert done.total is None
        assert (one.victim_over.code, f"only {kept} " in one.victim_over.detail) == (Code.THRESHOLD, True), kept
        assert {over.code for over in one.outcome(RoundOver)} == {Code.THRESHOLD, Code.MEMBERS}
        assert not sent(one, UnmaskShares)
        one.check_honest_round()


@pytest.mark.threat("server/suppresses-clients")
def test_signatures_of_a_few_open_nothing(deceived: Deceived) -> None:
    """The survivors are all, but only three of them are shown to have signed it."""
    one = deceived()

    def few(said: UnmaskRequest) -> UnmaskRequest:
        return msgspec.structs.replace(said, signers=bitmap(0, 1, 2), signatures=said.signatures[: 3 * SIGNATURE_BYTES])

    one.tell(UnmaskRequest, to=one.roster.clients, message=few).deceive()
    assert {(over.code, over.detail) for over in one.outcome(RoundOver)} == {
        (Code.THRESHOLD, "only 3 clients signed the survivors; 4 are needed")
    }
    assert not sent(one, UnmaskShares)
    one.check_honest_round()


EXAMPLES: dict[type[Message], Message] = {
    FetchVector: FetchVector(chunk=0),
    PeerComplaints: PeerComplaints(holders=b"\x02", signatures=bytes(64)),
    EndRound: EndRound(code=None, detail=""),
    NewRoster: NewRoster(roster=b"", signature=bytes(64)),
    Finish: Finish(),
    Abort: Abort(code=Code.LEFT, detail="", culprit=""),
}
"""What the server does not say in a first round of vectors of one chunk."""
OF_KEYS = {kind for kind in TO_HOLDER if kind is not Chunk}
"""There is a machine for these only where the clients agree on keys."""
ACCEPTED = sorted(
    {
        cause
        for table in (TRAINING_CLIENT_TABLE, *CLIENT_TABLES.values())
        for _, cause in table
        if isinstance(cause, type) and issubclass(cause, Message) and cause not in OF_KEYS
    },
    key=lambda kind: kind.TYPE,
)


@pytest.mark.threat("server/asks-for-metrics")
@cases("kind", [*ACCEPTED, None])
def test_no_message_has_room_for_a_question(deceived: Deceived, kind: type[Message] | None) -> None:
    """Every message that a client admits with one more field, and a type of its own: refused before it is acted on."""
    one = deceived()
    moment = Survivors if kind is None or kind in EXAMPLES else kind
    lost: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        packet = parcel.packet
        if kind is Resume and packet.kind is Survivors and parcel.receiver == VICTIM and not lost:
            lost.append(parcel)
            one.lose_link(VICTIM)
            one.restore_link(VICTIM)
            return []
        if parcel.receiver != VICTIM or packet.kind is not moment:
            return [parcel]
        envelope = {name: getattr(packet.envelope, name) for name in packet.envelope.__struct_fields__}
        envelope["type"] = kind.TYPE if kind else "metrics-request"
        envelope["round"] *= kind not in (Finish, NewRoster)
        message = EXAMPLES.get(kind, parcel.message)
        question = msgpack.unpackb(encode_structure(message)) | {"metrics": ["loss", "correct", "samples"]}
        frames = [encode_structure(type(packet.envelope)(**envelope)), msgpack.packb(question, use_bin_type=True)]
        return [Parcel(parcel.sender, parcel.receiver, (*frames, *parcel.frames[2:]))]

    one.hook = hook
    one.deceive()
    told = [parcel.message for parcel in one.log if parcel.sender == VICTIM and parcel.packet.kind is Abort]
    assert [(abort.code, abort.culprit) for abort in told] == [(Code.MALFORMED, SERVER)]
    refusals = ("is not in its canonical encoding", "bytes; at most") if kind else ("unknown message type",)
    assert any(refusal in told[0].detail for refusal in refusals)
    one.check_honest_round()
