"""A model owner that tells a data owner an order of rows that is none, where outputs of blocks are told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacit.parties.adaptation.shuffled import ShuffledRows
from tacit.parties.inference.operations import DATA
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.inference.schedule import STREAM
from tests.cases import cases

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent.parent / "parties" / "inference")
    from in_memory import Pair


@pytest.mark.threat("model-owner/no-order")
@cases("told", [[0, 0, 1], [1, 2, 3], [-1, 0, 1], [0, 1, 1 << 31]])
def test_what_is_no_order_is_refused(told: list[int]) -> None:
    program = ShuffledRows(Pair().parties[DATA], (3, 2), STREAM, None).run(torch.zeros(3, 2, dtype=torch.int64))
    next(program)
    with pytest.raises(RemoteProtocolError, match="an order of 3 rows that does not have each of them once") as refused:
        program.send([torch.tensor(told)])
    assert refused.value.code is Code.MALFORMED
