"""Secrets from the shares of whoever answers: those who gave wrong ones are named, and nobody else."""

import numpy as np
import pytest

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.sharing import open_secrets
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


def test_every_owner_has_holders_of_its_own() -> None:
    agreement = memory_sum(5, active=False).agreement
    assert agreement.parameters.threshold == 3
    assert open_secrets(agreement, {owner: shares_of(owner) for owner in HOLDERS}) == SECRETS
    assert open_secrets(agreement, {}) == {}


@cases("owner", HOLDERS)
def test_whose_shares_are_wrong_is_named(owner: int) -> None:
    agreement = memory_sum(5, active=False).agreement
    shares = {other: shares_of(other) for other in HOLDERS}
    shares[owner] = {holder: bytes(34) + bytes([7 * holder + 1, 255]) for holder in HOLDERS[owner]}
    with pytest.raises(RemoteProtocolError, match="do not reconstruct to a secret") as refused:
        open_secrets(agreement, shares)
    assert (refused.value.code, refused.value.culprit) == (Code.SECRET, f"c{owner}")
