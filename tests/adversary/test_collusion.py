"""Colluding clients: how many the bound admits, what they learn when they pool all they hold, and sums over few."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import Task, configure
from tacit.parties.links.keys import encode_key
from tacit.parties.protections.binary_weights import BinaryWeights, CoordinatedBinaryWeights
from tacit.parties.protections.fedrsm import FedRSM
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import KEY_BYTES, AgreementKey, derive, digest
from tacit.protocol.core.roster import decode_members, encode_members, new_keys
from tacit.protocol.session.messages import StartRound, Welcome
from tacit.protocol.session.one_sum import SumClient, SumResult, SumServer, SumSettings, make_roster
from tacit.protocol.session.rounds import RoundDone, RoundOver
from tacit.protocol.sum.agreement import pairwise_mask
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.messages import AdvertiseKeys, PeerKeys, PeerShares, ShareKeys
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.sharing import PACKET_BYTES, shares_array
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.shamir import LIMBS, PRIME, lagrange_at_zero, reconstruct
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases
from tests.world.sums import MemorySum, memory_sum


@pytest.mark.threat("server/small-cohort", "server/threshold-below-floor")
@cases("clients", range(3, 13))
@cases("mode", ["active", "semi-honest"])
def test_two_honest_clients_are_in_every_sum_whatever_is_proposed(mode: Any, clients: int) -> None:
    """For rosters of 3 to 12: every cohort, number of colluders, threshold and dropout that a server may propose.

    Of those that a default client accepts, with all m colluders in the cohort: every sum that is opened has two others;
    the shares of the colluders do not open a secret; and against a server that lies, no two disjoint sets of honest
    clients have shares of both kinds, for which 2 t > n + m (Bonawitz et al. 2017, section 6.2).
    """
    policy, m = Policy(modes=(mode,)), 33 * clients // 100
    accepted = 0
    proposals = product(range(clients), range(clients + 1), (0.0, 0.1, 0.33, 0.5, 0.9), range(1, clients + 1))
    for colluders, threshold, dropout, largest in proposals:
        configuration = small_configuration(
            largest, mode=mode, colluders=colluders, threshold=threshold, dropout=dropout
        )
        try:
            policy.check(configuration, clients=clients)
        except RemoteProtocolError:
            continue
        for cohort in range(1, clients + 1):
            try:
                t = policy.check_cohort(configuration, cohort).threshold
            except RemoteProtocolError:
                continue
            accepted += 1
            fewest = max(policy.smallest_cohort, configuration.fewest_survivors(cohort), t)
            assert m + 2 <= fewest <= cohort
            assert t > m
            assert mode != "active" or 2 * t > cohort + m
    assert accepted


@pytest.mark.threat("server/small-cohort")
@cases(("roster", "cohort"), [(30, 3), (30, 10), (5, 2), (10, 4)])
def test_a_cohort_of_a_victim_and_its_colluders_is_refused(roster: int, cohort: int) -> None:
    one = MemoryFederation(small_configuration(roster), roster)

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is not StartRound:
            return [parcel]
        return [altered(parcel, message=replace(parcel.message, cohort=encode_members(range(cohort), roster)))]

    one.hook = hook
    one.start()
    (over,) = one.outcome(RoundOver, "client-0")
    assert over.code is Code.POLICY


@pytest.mark.threat("server/groups")
def test_the_size_of_groups_follows_from_the_roster_and_not_from_the_proposed_clients() -> None:
    """Three of twelve may collude for the victim's owner, so that a group of three is too small for it."""
    groups = tuple(1 + number // 3 for number in range(12))
    victim = Policy(least_corrupt=0.25)
    honest = small_configuration(12, colluders=1, dropout=0.33)
    for said in ({"clients": 6}, {"clients": 6, "colluders": 3}, {"colluders": 3}, {}):
        one = MemoryFederation(honest, 12, groups=groups, policies={"client-0": victim})
        lie = encode_structure(replace(honest, **said))

        def hook(parcel: Parcel, lie: bytes = lie) -> list[Parcel]:
            if parcel.packet.kind is not Welcome:
                return [parcel]
            return [altered(parcel, message=replace(parcel.message, configuration=lie))]

        one.hook = hook
        one.start()
        ended = one.ended("client-0")
        assert ended is not None
        assert ended.code is Code.POLICY, said


@pytest.mark.threat("server/few-contributors")
@cases(
    ("protection", "accepted"),
    [
        (CoordinatedBinaryWeights(), True),
        (CoordinatedBinaryWeights(min_contributors=2), False),
        (BinaryWeights(min_contributors=3), False),
        (FedRSM(min_contributors=3), False),
    ],
)
def test_sums_of_few_are_not_disclosed_by_weights(protection: Any, accepted: bool) -> None:
    task = Task(
        model=ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2).architecture,
        training=TrainingConfiguration(), protection=protection, classes=3, channels=1,
    )  # fmt: skip
    model = task.build()
    configuration = configure(small_configuration(5, value_bits=12), task, model)
    if accepted:
        ClientPolicy().check(configuration, clients=5)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        ClientPolicy().check(configuration, clients=5)
    assert caught.value.code is Code.POLICY


ExactSum = Callable[[MemorySum], Summed]
CLIENTS = 5
VICTIM = "c0"
modes = cases("active", [True, False])


def pooled(run: MemorySum, coalition: range) -> dict[str, npt.NDArray[np.uint16]]:
    """The shares [holders, 18] of both secrets of c0 that these members hold once all have masked their vectors."""
    assert run.advance(lambda: all(client.masks for client in run.clients.values()))
    held = [run.clients[run.agreement.cohort[member]].data.held[0] for member in coalition]
    return {
        "key": np.concatenate([shares_array(shares.key) for shares in held]),
        "seed": np.concatenate([shares_array(shares.seed) for shares in held]),
    }


def limbs(secret: bytes) -> list[int]:
    number = int.from_bytes(secret, "little")
    return [number >> 15 * index & 0x7FFF for index in range(LIMBS)]


def started(active: bool) -> MemorySum:
    run = memory_sum(CLIENTS, active=active, seed=b"coalition")
    run.start()
    return run


@pytest.mark.threat("client/coalition")
@modes
def test_every_secret_fits_the_shares_of_one_holder_less_than_the_threshold(active: bool) -> None:
    """Each secret is met by exactly one share of the missing holder, so that with uniform shares all are as likely."""
    run = started(active)
    threshold = run.agreement.parameters.threshold
    coalition = range(1, threshold)
    points = np.array([*coalition, CLIENTS]) + 1
    coefficients = lagrange_at_zero(points).tolist()
    # The last coefficient is no zero of the field: the missing share and the secret determine each other.
    assert coefficients[-1] % PRIME
    inverse = pow(coefficients[-1], -1, PRIME)
    for known in pooled(run, coalition).values():
        so_far = [sum(c * int(share) for c, share in zip(coefficients, row, strict=False)) for row in known.T]
        for secret in (bytes(32), b"\xff" * 32, bytes(range(32)), run.streams.of("x")(32)):
            missing = [
                (limb - known_sum) * inverse % PRIME for limb, known_sum in zip(limbs(secret), so_far, strict=True)
            ]
            shares = np.vstack([known, np.array(missing, np.uint16)])
            assert reconstruct(shares[:, np.newaxis], points) == [secret]


@pytest.mark.threat("client/coalition")
@modes
def test_the_threshold_of_holders_and_the_server_know_the_vector(active: bool) -> None:
    """The other direction: what is tolerated ends exactly there."""
    run = started(active)
    agreement = run.agreement
    coalition = range(1, agreement.parameters.threshold + 1)
    shares = pooled(run, coalition)
    points = np.array(coalition) + 1
    (key,), (seed,) = (reconstruct(shares[kind][:, np.newaxis], points) for kind in ("key", "seed"))
    shared = next(d.message for d in run.log if isinstance(d.message, ShareKeys) and d.sender == VICTIM)
    assert digest(SumLabel.SEED, agreement.context, seed) == shared.seed_commitment
    adverts = {d.sender: d.message for d in run.log if isinstance(d.message, AdvertiseKeys)}
    mask_key = AgreementKey(key)
    assert mask_key.public == adverts[VICTIM].mask_key
    assert not np.array_equal(unmasked(run, None, seed), run.vectors[VICTIM])
    assert not np.array_equal(unmasked(run, mask_key, None), run.vectors[VICTIM])
    np.testing.assert_array_equal(unmasked(run, mask_key, seed), run.vectors[VICTIM])


def unmasked(run: MemorySum, mask_key: AgreementKey | None, seed: bytes | None) -> npt.NDArray[Any]:
    run.advance()
    agreement = run.agreement
    told = next(d.message for d in run.log if isinstance(d.message, PeerKeys) and d.receiver == VICTIM)
    sharing = agreement.sharing_digest(told.digest, told.advertised)
    masks = [] if seed is None else [Mask(derive(seed, SumLabel.SELF_SEED, salt=sharing), Usage.SELF_MASK, -1)]
    if mask_key is not None:
        for delivery in run.log:
            if isinstance(delivery.message, AdvertiseKeys) and delivery.sender != VICTIM:
                peer = agreement.places[delivery.sender]
                mask = pairwise_mask(mask_key, delivery.message.mask_key, sharing, 0, peer)
                masks.append(Mask(mask.seed, mask.usage, 1 if mask.sign == -1 else -1))
    payload = next(d.payload for d in run.log if d.kind == "masked-input" and d.sender == VICTIM)
    words = agreement.ring.unpack(payload or b"").copy()
    apply_masks(words, masks, agreement.ring)
    return words


@pytest.mark.threat("client/curious-log")
@modes
def test_what_a_client_is_told_of_another(active: bool, summed: ExactSum) -> None:
    """Public keys, and of every other client one packet: not the packets of others, no vector, no returned share."""
    run = memory_sum(CLIENTS, active=active, seed=b"coalition")
    run.run()
    summed(run)
    told = [delivery for delivery in run.log if delivery.receiver == "c1"]
    kinds = ["peer-keys", "peer-shares", *(["survivors"] if active else []), "unmask-request"]
    assert [delivery.kind for delivery in told] == kinds
    assert all(delivery.payload is None for delivery in told)
    shares = next(d.message for d in told if isinstance(d.message, PeerShares))
    owners = decode_members(shares.owners, CLIENTS)
    given = {d.sender: d.message.packets for d in run.log if isinstance(d.message, ShareKeys)}
    # A client's packets stand in the order of their holders: what c1 gets is the second of each.
    of_c1 = [given[run.agreement.cohort[owner]][PACKET_BYTES : 2 * PACKET_BYTES] for owner in owners]
    assert shares.packets == b"".join(of_c1)


@pytest.mark.threat("client/curious-log", "server/curious-log")
@pytest.mark.asyncio
async def test_no_log_has_a_secret(federation: Any) -> None:
    server = await federation.serve(rounds=1)
    words: list[bytes] = []
    clients = [
        federation.join(name, on_update=lambda round, update: words.append(update.words.tobytes()))
        for name in federation.clients
    ]
    await federation.all_of(server, *clients)
    secrets = [secret for keys in federation.keys.values() for secret in (keys.curve_secret, keys.signing_secret)] + [
        vector[start : start + 12] for vector in words for start in range(0, len(vector) - 12, 64)
    ]
    for name in ("server", *federation.clients):
        log = (federation.directory / f"{name}.events").read_bytes()
        assert b'"round-ended"' in log or b'"session-ended"' in log
        for secret in secrets:
            shown = [secret, secret.hex().encode(), base64.b64encode(secret)[:16], repr(secret)[2:-1].encode()]
            shown.append(encode_key(secret).encode() if len(secret) == KEY_BYTES else secret)
            assert not [form for form in shown if form in log]


@cases("mode", ["active", "semi-honest"])
@cases(("dropout", "lost"), [(0.0, 1), (0.1, 2), (0.2, 3)])
@pytest.mark.threat("server/suppresses-clients", "server/plans-for-fewer")
def test_no_more_are_lost_than_are_tolerated(mode: str, dropout: float, lost: int) -> None:
    """Clients that draw weights together plan for so many. Before, the threshold alone was kept in a complete graph: of
    4000 coordinates 186 had one contributor, whose values the server read."""
    for gone, opened in ((lost, False), (lost - 1, True)):
        one = MemoryFederation(small_configuration(10, mode=mode, graph="complete", dropout=dropout), 10, rounds=1)
        one.idle = {f"client-{number}" for number in range(gone)}
        one.run()
        (done,) = one.outcome(RoundDone)
        assert (done.total is not None) == opened
        assert done.code is (None if opened else Code.THRESHOLD)


def held(
    clients: int, gone: int, settings: SumSettings, *, smallest_cohort: int = 3
) -> tuple[SumServer, dict[str, SumClient]]:
    """A sum of so many clients, the last of which never say a word, and those who do."""
    names = [f"c{number}" for number in range(clients)]
    keys = {name: new_keys(name, entropy=os.urandom) for name in ("server", *names)}
    roster = make_roster(keys["server"].member("server"), *(keys[name].member("client") for name in names))
    server = SumServer(settings, roster, now=0.0)
    there = {
        name: SumClient(settings, roster, keys[name], entropy=os.urandom, smallest_cohort=smallest_cohort)
        for name in names[: clients - gone]
    }
    said = [(name, one) for name, own in there.items() for one in [*own.start(0.0), *own.contribute([1.0] * 3, 0.0)]]
    answers = [answer for name in names[clients - gone :] for answer in server.drop(name, 0.0)]
    while said or answers:
        answers += [answer for name, one in said for answer in server.receive(name, one, 0.0)]
        said = [(name, one) for name, answer in answers if name in there for one in there[name].receive(answer, 0.0)]
        answers = []
    return server, there


@cases(("mode", "smallest"), [("active", 10), ("active", 8), ("semi-honest", 8)])
@pytest.mark.threat("server/suppresses-clients")
def test_a_client_of_one_sum_keeps_to_its_own_smallest_cohort(
    mode: Literal["active", "semi-honest"], smallest: int
) -> None:
    """The server withholds what three of ten say: a Flower client of smallest_cohort = 10 opened the sum of seven."""
    settings = SumSettings(length=3, clip=1.0, mode=mode)
    server, clients = held(10, 3, settings, smallest_cohort=smallest)
    for own in clients.values():
        assert isinstance(own.outcome, ClientAborted)
        assert own.outcome.code is Code.THRESHOLD
    assert not isinstance(server.outcome, SumResult)
    server, _ = held(10, 3, settings)
    assert isinstance(server.outcome, SumResult)


@pytest.mark.threat("server/suppresses-clients")
def test_two_clients_are_no_sum() -> None:
    """Of three in semi-honest mode one is lost: the threshold is 2, and each would know the other's vector."""
    server, _ = held(3, 1, SumSettings(length=3, clip=1.0, mode="semi-honest", dropout=0.34))
    assert isinstance(server.outcome, ServerAborted)
    assert server.outcome.code is Code.THRESHOLD
