"""An array in chunks: each is asked for once, at most a window of them at a time, and only the next one is taken."""

import pytest

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.transfer import WINDOW, Transfer


@pytest.mark.parametrize("chunks", range(3 * WINDOW))
def test_every_chunk_is_asked_for_once_and_in_order(chunks: int) -> None:
    transfer = Transfer(chunks)
    asked = list(transfer.requests)
    assert len(asked) == min(WINDOW, chunks)
    for chunk in range(chunks):
        assert not transfer.done
        transfer.check(chunk)
        transfer.advance()
        asked += transfer.requests
        assert len(asked) - transfer.received <= WINDOW
    assert transfer.done
    assert asked == list(range(chunks))


@pytest.mark.parametrize("received", range(4))
def test_other_chunks_are_refused_and_change_nothing(received: int) -> None:
    transfer = Transfer(3)
    for chunk in range(received):
        transfer.check(chunk)
        transfer.advance()
    for chunk in {*range(5)} - ({received} if received < 3 else set()):
        with pytest.raises(RemoteProtocolError, match=f"chunk {chunk} came where chunk {received} of 3") as caught:
            transfer.check(chunk)
        assert caught.value.code is Code.UNEXPECTED
    assert transfer.received == received
