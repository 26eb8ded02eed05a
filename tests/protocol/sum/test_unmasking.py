"""Secrets from the shares of whoever answers."""

import numpy as np

from tacit.protocol.sum.sharing import Returned, open_secrets
from tacit.secagg.shamir import encode_share, share
from tests.cases import cases
from tests.world.sums import memory_sum

HOLDERS = {0: (0, 1, 2), 1: (0, 1, 2), 2: (1, 2, 3), 3: (0, 2, 4)}
"""Of each owner, as in a regular graph."""
SECRETS = {owner: bytes([owner + 1]) * 32 for owner in HOLDERS}


def shares_of(owner: int) -> dict[int, bytes]:
    points = np.array(HOLDERS[owner]) + 1
    made = share([SECRETS[owner]], points=points, threshold=3, seed=bytes([owner]) * 32)
    return {holder: encode_share(row[0]) for holder, row in zip(HOLDERS[owner], made, strict=True)}


def returned(shares: dict[int, dict[int, bytes]]) -> dict[int, Returned]:
    """As their holders return them."""
    given = {
        holder: {owner: shares[owner][holder] for owner in shares if holder in shares[owner]} for holder in range(5)
    }
    return {holder: Returned(tuple(own), b"".join(own.values())) for holder, own in given.items()}


def test_every_owner_has_holders_of_its_own() -> None:
    agreement = memory_sum(5, active=False).agreement
    assert agreement.parameters.threshold == 3
    assert open_secrets(agreement, returned({owner: shares_of(owner) for owner in HOLDERS})) == SECRETS
    assert open_secrets(agreement, {}) == {}
    few = {owner: dict(list(shares_of(owner).items())[:2]) if owner == 2 else shares_of(owner) for owner in HOLDERS}
    assert open_secrets(agreement, returned(few)) == {owner: SECRETS[owner] for owner in (0, 1, 3)}


@cases("owner", HOLDERS)
def test_shares_of_no_secret_open_nothing_and_the_others_open(owner: int) -> None:
    agreement = memory_sum(5, active=False).agreement
    shares = {other: shares_of(other) for other in HOLDERS}
    for wrong in (b"\xff\xff", b"\xf0\xfe"):
        shares[owner] = {holder: bytes(33) + bytes([7 * holder + 1]) + wrong for holder in HOLDERS[owner]}
        assert open_secrets(agreement, returned(shares)) == {**SECRETS, owner: None}
