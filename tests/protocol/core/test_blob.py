"""An array in chunks: each is asked for once, at most a window of them at a time, and only the next one is taken."""

import pytest

from tacit.protocol.core.blob import WINDOW, check_due, requests_after
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tests.cases import cases


@cases("chunks", range(3 * WINDOW))
def test_every_chunk_is_asked_for_once_and_in_order(chunks: int) -> None:
    asked = list(requests_after(0, chunks))
    assert len(asked) == min(WINDOW, chunks)
    for chunk in range(chunks):
        check_due(chunk, chunk, chunks)
        asked += requests_after(chunk + 1, chunks)
        assert len(asked) - (chunk + 1) <= WINDOW
    assert asked == list(range(chunks))


@cases("received", range(4))
def test_other_chunks_are_refused(received: int) -> None:
    for chunk in {*range(5)} - ({received} if received < 3 else set()):
        with pytest.raises(RemoteProtocolError, match=f"chunk {chunk} came where chunk {received} of 3") as caught:
            check_due(chunk, received, 3)
        assert caught.value.code is Code.UNEXPECTED
