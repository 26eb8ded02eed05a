"""Tokens of starts: a copied folder is noticed on both sides, whichever it is of, and never takes a place silently."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.parties.links import server_endpoint
from tacit.parties.links.client_endpoint import ClientEndpoint, CopyError, NotAdmittedError
from tacit.parties.links.endpoint import CopyDetected, LinkLost, LinkUp, Received
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.tokens import TOKEN_BYTES, TokenFile, TokenFileError, Verdict
from tacit.protocol.core.roster import Roster

Keys = dict[str, PartyKeys]
ANYWHERE = "tcp://127.0.0.1:*"


async def until_it_fails(client: ClientEndpoint) -> None:
    while True:
        await asyncio.wait_for(client.receive(), 30)


class House:
    """Folders of a server and of its client Alice, and their starts."""

    def __init__(self, path: Path, keys: Keys, roster: Roster) -> None:
        self.path = path
        self._keys = keys
        self._roster = roster
        self.server: ServerEndpoint

    def copy(self, name: str, to: str) -> None:
        shutil.copy(self.path / name, self.path / to)

    async def serve(self, folder: str) -> ServerEndpoint:
        self.server = await ServerEndpoint.bind(
            ANYWHERE, keys=self._keys["server"], roster=self._roster, tokens=TokenFile(self.path / folder)
        )
        return self.server

    async def start(self, folder: str, *, tokens: bool = True) -> ClientEndpoint:
        return await ClientEndpoint.connect(
            self.server.address,
            keys=self._keys["alice"],
            server=self._roster.server,
            tokens=TokenFile(self.path / folder) if tokens else None,
        )

    async def heard(self, client: ClientEndpoint, text: bytes = b"hello") -> None:
        """What the client says reaches the server, and the answer the client."""
        await client.send([text])
        while not isinstance(event := await asyncio.wait_for(self.server.receive(), 30), Received):
            pass
        assert bytes(event.frames[0]) == text
        await self.server.send("alice", [text])
        while not isinstance(event := await asyncio.wait_for(client.receive(), 30), Received):
            pass

    async def copies(self) -> CopyDetected:
        while not isinstance(event := await asyncio.wait_for(self.server.receive(), 30), CopyDetected):
            pass
        return event

    async def refused(self, client: ClientEndpoint, why: str) -> CopyError:
        """The server takes in the greeting, and the client is told."""
        listening = asyncio.ensure_future(self.copies())
        try:
            with pytest.raises(CopyError, match=why) as caught:
                await until_it_fails(client)
        finally:
            listening.cancel()
        await client.close()
        return caught.value


@pytest.fixture
def house(tmp_path: Path, keys: Keys, roster: Roster) -> House:
    return House(tmp_path, keys, roster)


@pytest.mark.threat("stranger/copied-folder")
@pytest.mark.asyncio
async def test_strangers_do_not_silence_the_alert(
    house: House, keys: Keys, roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many refusals as are reported are those of keys that nobody knows."""
    monkeypatch.setattr(server_endpoint, "_MAX_REFUSALS", 1)
    async with await house.serve("server"):
        with pytest.raises(NotAdmittedError):
            await ClientEndpoint.connect(house.server.address, keys=keys["stranger"], server=roster.server)
        async with await house.start("alice") as first:
            await house.heard(first)
        house.copy("alice", "backup")
        async with await house.start("alice") as second:
            await house.heard(second)
            async with await house.start("backup"):
                assert (await house.copies()).peer == "alice"


@pytest.mark.threat("stranger/copied-folder")
@pytest.mark.asyncio
async def test_an_old_token_is_refused_and_the_link_in_use_goes_on(house: House) -> None:
    async with await house.serve("server"):
        async with await house.start("alice") as first:
            await house.heard(first)
        house.copy("alice", "backup")
        async with await house.start("alice") as second:
            await house.heard(second)
            backup = await house.start("backup")
            event = await house.copies()
            assert (event.peer, event.address, event.other) == ("alice", "127.0.0.1", "127.0.0.1")
            assert "its folder is a copy or a backup" in event.detail
            error = await house.refused(backup, r"'alice' started elsewhere since \(127\.0\.0\.1\), so")
            assert (error.other, error.server) == ("127.0.0.1", "")
            # Without a token it is no better.
            async with await house.start("none", tokens=False) as silent:
                await silent.send([b"from the copy"])
                await house.heard(second, b"goes on")


@pytest.mark.threat("stranger/copied-folder")
@pytest.mark.asyncio
async def test_a_backup_of_a_folder_that_waited_for_its_server_is_refused(house: House, roster: Roster) -> None:
    """It has the fresh token that the server accepted later; so has a process that was killed before it knew."""
    presented = TokenFile(house.path / "alice").present(roster.server)
    house.copy("alice", "backup")
    known = TokenFile(house.path / "elsewhere")
    assert [known.judge(roster.member("alice"), presented) for _ in range(2)] == [Verdict.CURRENT] * 2
    async with await house.serve("server"), await house.start("alice") as alice:
        await house.heard(alice)
        await house.refused(await house.start("backup"), "started elsewhere since")
        await house.heard(alice, b"goes on")


@pytest.mark.threat("stranger/copied-folder")
@pytest.mark.asyncio
async def test_a_start_with_the_current_token_takes_the_place_and_the_former_process_is_told(house: House) -> None:
    async with await house.serve("server"):
        first = await house.start("alice")
        await house.heard(first)
        house.copy("alice", "clone")
        async with await house.start("clone") as clone:
            await house.heard(clone)
            await house.refused(first, r"another process of 'alice' \(127\.0\.0\.1\) took the place of this one")
            # Started again, the original is the one with an old token.
            await house.refused(await house.start("alice"), "started elsewhere since")
            await house.heard(clone)


@pytest.mark.threat("stranger/copied-folder")
@pytest.mark.asyncio
async def test_starts_of_one_folder_are_no_copies(house: House, until: Callable) -> None:
    """Also where the server starts again, and where the answer to a greeting never came."""
    for _ in range(2):
        async with await house.serve("server") as server:
            for _ in range(3):
                async with await house.start("alice") as client:
                    await house.heard(client)
                assert await until(server, LinkLost) == LinkLost("alice")
            unanswered = await house.start("alice")
            await until(server, LinkUp)
            await unanswered.close()
            assert await until(server, LinkLost) == LinkLost("alice")


@pytest.mark.threat("stranger/copied-folder")
@pytest.mark.asyncio
async def test_a_server_on_a_copy_of_its_folder_is_told_by_its_clients(house: House) -> None:
    async with await house.serve("server"), await house.start("alice") as client:
        await house.heard(client)
    house.copy("server", "clone")
    async with await house.serve("server"), await house.start("alice") as client:
        await house.heard(client)
    async with await house.serve("clone"):
        client = await house.start("alice")
        assert "the folder of this server is a copy or a backup" in (await house.copies()).detail
        assert (await house.refused(client, "is a copy, or was restored from a backup")).server
    # Where it is to go on, its owner says so.
    (house.path / "clone").unlink()
    async with await house.serve("clone"), await house.start("alice") as client:
        await house.heard(client)


@pytest.mark.threat("stranger/copied-folder")
def test_who_only_looks_spends_no_token(tmp_path: Path, roster: Roster) -> None:
    server, alice = roster.server, roster.member("alice")
    own, at_server = TokenFile(tmp_path / "alice"), TokenFile(tmp_path / "server")

    def look() -> Verdict:
        return at_server.judge(alice, TokenFile(tmp_path / "alice", probe=True).present(server))

    assert look() is Verdict.CURRENT
    for _ in range(2):
        assert at_server.judge(alice, own.present(server)) is Verdict.CURRENT
        assert look() is Verdict.CURRENT
        own.accepted(server, alice.signing_public)
        before = (tmp_path / "alice").read_bytes(), (tmp_path / "server").read_bytes()
        assert look() is Verdict.CURRENT
        assert before == ((tmp_path / "alice").read_bytes(), (tmp_path / "server").read_bytes())


@pytest.mark.threat("stranger/copied-folder")
def test_tokens_are_of_keys(tmp_path: Path, roster: Roster) -> None:
    """A member with other keys begins anew, also in the folder that it had before."""
    server, alice = roster.server, roster.member("alice")
    own, at_server = TokenFile(tmp_path / "alice"), TokenFile(tmp_path / "server")
    assert at_server.judge(alice, own.present(server)) is Verdict.CURRENT
    own.accepted(server, alice.signing_public)
    again = TokenFile(tmp_path / "another")
    assert at_server.judge(alice, again.present(server)) is Verdict.COPY
    assert at_server.judge(generate("alice").member("client"), again.present(server)) is Verdict.CURRENT
    other = TokenFile(tmp_path / "other server")
    assert other.judge(alice, own.present(generate("server").member("server"))) is Verdict.CURRENT


@pytest.mark.threat("stranger/copied-folder")
def test_what_is_no_token_is_that_of_a_copy_once_there_is_one(tmp_path: Path, roster: Roster) -> None:
    alice, at_server = roster.member("alice"), TokenFile(tmp_path / "server")
    for presented in (b"", b"x", os.urandom(500)):
        assert at_server.judge(alice, presented) is Verdict.CURRENT
    assert at_server.judge(alice, TokenFile(tmp_path / "alice").present(roster.server)) is Verdict.CURRENT
    for presented in (b"", b"x", os.urandom(500), bytes(8 + 2 * TOKEN_BYTES)):
        assert at_server.judge(alice, presented) is Verdict.COPY


@pytest.mark.threat("stranger/copied-folder")
def test_a_file_that_is_none_is_named(tmp_path: Path, roster: Roster) -> None:
    path = tmp_path / "tokens.json"
    path.write_text("{")
    with pytest.raises(TokenFileError, match=r"tokens\.json cannot be read .*: make it accessible, or restore it"):
        TokenFile(path)
    with pytest.raises(TokenFileError, match="cannot be written"):
        TokenFile(tmp_path / "no" / "tokens.json").present(roster.server)
