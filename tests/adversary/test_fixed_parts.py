"""A server that changes the part of the model that is not trained, for one client or for all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import CHUNK_BYTES, Chunk
from tacit.protocol.session.messages import Welcome
from tacit.protocol.session.rounds import FixedPart, RoundDone, RoundOver, Train
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

pytestmark = pytest.mark.threat("server/two-fixed-parts")

FIXED = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"the end"
OTHER = FIXED[::-1]


def federation(policy: Policy | None = None, *, clients: int = 3) -> MemoryFederation:
    configuration = small_configuration(clients, fixed=announce(FIXED, SumLabel.FIXED))
    policies = {} if policy is None else {"client-0": policy}
    return MemoryFederation(configuration, clients, fixed=FIXED, policies=policies)


def test_what_is_not_what_was_announced_is_not_used() -> None:
    one = federation()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is not Chunk or parcel.receiver != "client-0" or parcel.packet.payload is None:
            return [parcel]
        return [altered(parcel, payload=bytes(len(parcel.packet.payload)))]

    one.hook = hook
    one.run()
    (over,) = one.outcome(RoundOver, "client-0")
    assert (over.code, "fixed" in over.detail) == (Code.MODEL, True)
    assert not one.outcome(FixedPart, "client-0")
    assert not one.outcome(Train, "client-0")


def test_who_was_told_of_another_one_is_in_no_sum_with_the_others() -> None:
    """The digest is in the configuration, and that in every signature and mask."""
    one = federation(clients=4)
    configuration = encode_structure(replace(one.configuration, fixed=announce(OTHER, SumLabel.FIXED)))

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver != "client-0" or parcel.packet.kind is not Welcome:
            return [parcel]
        return [altered(parcel, message=replace(parcel.message, configuration=configuration))]

    one.hook = hook
    one.start()
    one.settle(until=one.now + 600.0)
    assert next(over.code for over in one.outcome(RoundOver, "client-0")) is not None
    assert not [done for done in one.outcome(RoundDone) if done.total is not None and "client-0" in done.survivors]


@cases(
    ("policy", "accepted"),
    [
        (Policy(fixed_part=announce(FIXED, SumLabel.FIXED).digest.hex()), True),
        (Policy(fixed_part=announce(b"other", SumLabel.FIXED).digest.hex()), False),
        (Policy(largest_model=len(FIXED) // 4 + 1), True),
        (Policy(largest_model=len(FIXED) // 4), False),
    ],
)
def test_an_owner_may_pin_it_and_bounds_its_size(policy: Policy, accepted: bool) -> None:
    one = federation(policy)
    one.start("client-0")
    ended = one.ended("client-0")
    assert (ended is None) == accepted
    assert ended is None or ended.code is Code.POLICY
    assert one.ended(SERVER) is None
