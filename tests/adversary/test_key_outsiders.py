"""Members that talk into an agreement on a key that they are not part of, over real sockets: nobody listens."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tacit.parties.protections.encryption import Encryption
from tacit.protocol.core.codec import decode
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.messages import Message
from tacit.protocol.group_key.events import KeyAgreementStarted
from tacit.protocol.group_key.messages import KeyAccepted, KeyCommit, KeyComplaint
from tacit.protocol.session.messages import MESSAGES, Hello

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from test_client_floods import raw

SAID: tuple[Message, ...] = (
    KeyCommit(epoch=0, channel_key=bytes(32), commitment=bytes(32), signature=bytes(64)),
    KeyComplaint(epoch=0, accused=0, channel_private=bytes(32)),
    KeyAccepted(epoch=0),
    KeyAccepted(epoch=7),
)


@pytest.mark.threat("client/group-key-outsider")
@pytest.mark.asyncio
async def test_who_comes_too_late_for_an_agreement(protected: Callable[..., Any]) -> None:
    """Three agree, of whom client-3 says nothing, so that it goes on; client-4 comes meanwhile."""
    federation = protected(encryption=Encryption())
    federation.configuration = structs.replace(federation.configuration, clients=3)
    server = await federation.serve(rounds=1)
    public, hello = federation.keys["server"].curve_public, Hello(roster=federation.roster.hash)

    async def greet(name: str, socket: Any) -> Link:
        first = Link(name, "server", NO_SESSION, Traffic(), MESSAGES)
        await socket.send_multipart(first.frames(hello, round=0))
        async with asyncio.timeout(federation.seconds):
            while len(frames := await socket.recv_multipart()) < 2:
                pass
        return Link(name, "server", decode(frames, MESSAGES).envelope.session, Traffic(), MESSAGES)

    for name in ("client-1", "client-2"):
        federation.join(name)
    async with (
        raw(federation.keys["client-3"], public, federation.address) as silent,
        raw(federation.keys["client-4"], public, federation.address) as outsider,
    ):
        await greet("client-3", silent)
        await federation.event("server", KeyAgreementStarted)
        link = await greet("client-4", outsider)
        for message in SAID:
            await outsider.send_multipart(link.frames(message, round=0))
        # What nobody can read is the next that the server says something of.
        await outsider.send_multipart([b"noise"] * 2)
        await federation.event("server", MessageRefused)
        assert [fields.code for fields in federation.events("server", MessageRefused)] == ["MALFORMED"]
        assert not server.done()
        assert len(federation.events("server", KeyAgreementStarted)) == 1
    await federation.vanish(server)
