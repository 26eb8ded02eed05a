"""Bytes that pass a relay under CURVE: lengths are disclosed, contents are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zmq

from tacit.simulate.audit.views import LARGE, streams_of, traffic_summary
from tacit.simulate.federation.relay import Shaping, passed, relaying

ADDRESS = "tcp://127.0.0.1"
WAIT_MS = 60_000
Dialogue = list[tuple[bool, int]]
"""Whether the client sends, and how many octets; one after the other."""


def play(tap: Path, dialogues: list[Dialogue]) -> list[list[bytes]]:
    """Each by a client of its own under CURVE, through the relay; returns what was sent."""
    public, secret = zmq.curve_keypair()
    random, sent = np.random.default_rng(4), list[list[bytes]]()
    with relaying(Shaping(), tap) as relay, zmq.Context() as context:
        assert relay is not None
        server = context.socket(zmq.ROUTER)
        server.curve_server, server.curve_secretkey, server.rcvtimeo, server.linger = True, secret, WAIT_MS, 0
        port = server.bind_to_random_port(ADDRESS)
        for dialogue in dialogues:
            client = context.socket(zmq.DEALER)
            client.curve_serverkey, client.rcvtimeo, client.linger = public, WAIT_MS, 0
            client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
            client.connect(relay.address(f"{ADDRESS}:{port}"))
            client.send(b"")
            peer, _ = server.recv_multipart()
            sent.append([random.bytes(length) for _, length in dialogue])
            for (by_client, _), octets in zip(dialogue, sent[-1], strict=True):
                if by_client:
                    client.send_multipart([b"envelope", octets])
                    server.recv_multipart()
                else:
                    server.send_multipart([peer, b"envelope", octets])
                    client.recv_multipart()
            client.close()
        server.close()
    return sent


def test_lengths_are_those_of_what_was_sent_and_octets_are_not(tmp_path: Path) -> None:
    model, update = 40_000, 30_000
    dialogue = [(False, model), (True, 100), (True, update), (True, update // 2), (False, model), (True, update)]
    (sent,) = play(tmp_path / "tap", [dialogue])
    (found,) = streams_of(tmp_path / "tap")
    assert [len(one.octets) for one in found.given] == [model, model]
    assert [len(one.octets) for one in found.sent] == [update, update // 2, update]
    # Of two rounds, the first in two pieces.
    assert [len(one) for one in found.uploads()] == [update + update // 2, update]
    assert found.parameters() == model // 4
    in_the_clear = np.frombuffer(sent[-1], np.uint8)
    under_curve = np.frombuffer(found.sent[-1].octets, np.uint8)
    # Equal octets of independent ones: 1 in 256, and five standard deviations.
    assert abs((in_the_clear == under_curve).mean() - 1 / 256) < 5 * np.sqrt(1 / 256 / update)
    whole = b"".join(piece.octets for piece in passed(tmp_path / "tap"))
    assert all(octets[:32] not in whole for octets in sent)


def test_a_client_that_stops_is_noticed_by_missing_uploads(tmp_path: Path) -> None:
    round = [(False, 40_000), (True, LARGE)]
    play(tmp_path / "tap", [round * 3, round * 1, [(False, 40_000)], round * 3])
    streams = streams_of(tmp_path / "tap")
    assert [len(one.uploads()) for one in streams] == [3, 1, 0, 3]
    assert traffic_summary(streams) == "3 clients sent up to 3 updates of 10,000 numbers, 1 stopped early"


def test_only_its_owner_reads_what_passed_and_nothing_is_kept_unasked(tmp_path: Path) -> None:
    play(tmp_path / "tap", [[(True, 10)]])
    assert (tmp_path / "tap").stat().st_mode & 0o777 == 0o600
    assert streams_of(tmp_path / "tap")[0].uploads() == []
    with pytest.raises(FileNotFoundError):
        streams_of(tmp_path / "none")
    with relaying(Shaping()) as relay:
        assert relay is None
