"""Sections of docs/costs.md that are not measured with the page: declared by the protocol, or measured at one time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from docs.generate.traffic import Degrees, declared_bytes, declared_key_bytes
from tacit.protocol.core.primitives import SIGNATURE_BYTES
from tacit.protocol.group_key.agreement import KeyAgreement
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.states import Phase
from tacit.secagg.graph import complete_parameters
from tacit.secagg.ring import Ring

CLIENTS: Final = (5, 100)


def section() -> list[str]:
    """Lines of docs/costs.md."""
    lines = [
        "",
        "## Group keys",
        "",
        "Bytes of frames of one client, as `docs/generate/traffic.py` declares them, and as a test finds them.",
        "A group key is for all n clients.",
        "",
        "| n | up | down |",
        "|---|---|---|",
    ]
    for clients in CLIENTS:
        lines.append(f"| {' | '.join(f'{number:,}' for number in (clients, *_key(clients)))} |")
    return lines + _packets() + _delays()


def ratios() -> list[str]:
    """What became faster when the server stopped checking every share, as measured then."""
    return [
        "",
        "## Beside the code before",
        "",
        "`tacit bench secagg` at commit 6da3a9c2 and at the one that brought this table, in turn, three times each, on",
        "2026-11-29: medians on two cores (AMD EPYC, x86_64, 8.2 GB/s of AES-256-CTR, 32,000 X25519 and 2.3 million",
        "SHA-256 a second on one), with real-time priority, as the sums above: the machine was at other work too. All",
        "are exact.",
        "",
        "| options | party | 6da3a9c2 (ms) | then | times as fast |",
        "|---|---|---|---|---|",
        "| `--clients 100 --dimension 100000 --dropout 0.3` | server | 234 | 125 | 1.87 |",
        "| | client | 15.1 | 10.7 | 1.41 |",
        "| `--clients 1000 --dimension 100000 --corrupt 0.05 --dropout 0.05 --tolerate-dropout 0.05` | server | 612 |"
        " 284 | 2.16 |",
        "| | client | 7.5 | 5.4 | 1.39 |",
        "",
        "Of a server of 1,000 clients, whose messages are played to it again, 236 ms, by part: on two cores, masks",
        "drawn and added 76 and key agreements 25, which would be 69 and 22 if shared evenly; on one, seeds of masks",
        "15, their ciphers 14, vectors added 12, secrets opened 7. These are 149 of the 204 that would be three times",
        "as fast. The rest, 13 us for each of 6,850 messages: read 21, written 9, handled and phases closed 57. Where",
        "they come from other processes, as in the table, caches are cold, and it is 48 more. A server of 100 clients",
        "takes 105 so: masks 45, key agreements 23, seeds 10, ciphers 9, the rest 18.",
        "",
        "A whole ViT-S: 16 clients of 22,000,000 entries (`--corrupt 0.05 --tolerate-dropout 0.05`), in one process,",
        "once: the server's peak is 479 MB, with five vectors of 88 MB. It was 764 MB with eight of 24 clients, and",
        "766 of 100, because invited clients uploaded beside those whose turn it was. A client's process takes",
        "2.03 vectors, and sends 66.0 MB. With 100 clients the server took 7.9 s and a client 0.18 s at 22a3022c.",
        "",
        "A thousand clients in active mode (`--clients 1000 --dimension 10000 --mode active --graph regular`, the",
        "same fractions, 52 neighbours), all in one process, once each: server 3.3 s, before 4.5; a client 23.6 ms,",
        "before 27.5. Processor time of all is 34 s, before 32: threads help where cores are idle, and cost a little",
        "where none is. By number, and the time of one (54, 20 and 31 us), 20 s of it are checks, signatures and key",
        "agreements by libsodium.",
        "",
        "These set the floor: for 120 clients on one core (20 neighbours) all parties take 1.42 s of processor time,",
        "as at 6da3a9c2 (1.43 s in turn), of which 0.97 s are 11,002 checks, 2,634 signatures and 8,648 key",
        "agreements. Three times as fast as then is not to be had without fewer of them.",
        "",
        "A server of 10,000 clients (the same options, 62 neighbours) peaks at 609 MB above its imports, when it",
        "sends the keys of neighbours: measured up to UNMASK, with messages that were made up and not checked. Of",
        "2,000 real clients it takes 132 MB, of made-up ones 134.",
        "",
        "All parties of 10,000 (`tacit bench secagg --clients 10000 --dimension 10000 --mode active --graph regular",
        "--corrupt 0.05 --dropout 0.05 --tolerate-dropout 0.05`), once, on 2026-11-29, beside other work on two cores:",
        "exact, 433 s of processor time (466 s in an earlier version, on another machine), a client 38 ms, the server",
        "49.8 s, 42.5 of them in SHARE_KEYS, where it checks 620,000 signatures, and a peak of 740 MB.",
    ]


def _packets() -> list[str]:
    lines = [
        "",
        "## Signed packets",
        "",
        "In active mode an owner signs the packet of every holder on its own, so that a complaint can be settled:",
        "64 bytes up and down for each, where one signature was over them all. Where nobody complains nothing else",
        "is said. Bytes of frames of one client in SHARE_KEYS and MASKED_INPUT without the vector, in a complete",
        "graph:",
        "",
        "| n | up | of it signatures | down | of it signatures |",
        "|---|---|---|---|---|",
    ]
    for clients in CLIENTS:
        agreement, parts = _agreement(clients, Ring(32)), (Phase.SHARE_KEYS, Phase.MASKED_INPUT)
        degrees = Degrees(holders=clients, owners=clients, known=clients, signers=agreement.parameters.threshold)
        (up, down), stating = (
            tuple(sum(getattr(moved[phase], way) for phase in parts) for way in ("sent", "received"))
            for moved in (
                declared_bytes(each, each.cohort[0], degrees) for each in (agreement, replace(agreement, spending=True))
            )
        )
        signatures = SIGNATURE_BYTES * clients
        lines.append(f"| {clients} | {up:,} | {signatures:,} | {down:,} | {signatures:,} |")
    return [
        *lines,
        "",
        "Under noise that has a cost clients state what they have spent of their privacy budgets, 72 bytes in every",
        f"advert and packet: for {clients} clients that makes {stating[0]:,} bytes up and {stating[1]:,} down.",
        "",
        "A signature takes 26 us of processor time and its check 65 us on the machine of this page, with",
        "libsodium; with OpenSSL 38 and 129 in the same minutes. That is 2.6 ms in SHARE_KEYS and 6.5 ms in",
        "MASKED_INPUT for each of 100 clients, and 0.65 s for their server, which checks all of them before it",
        "passes any on. `tacit bench secagg --clients 100 --dimension 100000 --mode active --dropout 0.05`, three",
        "times with each in turn, 2026-11-26, on a machine that was at other work too: 90 to 121 ms for a client",
        "with OpenSSL, 70 to 103 with libsodium; 1.9 to 2.0 s for the server, and 1.3 to 1.5. With one signature",
        "over all packets it was 304,600 bytes up and 32,707 down, and is 310,950 and 39,153. A complaint costs",
        "64 bytes and its answer 72, both from a client to the server and from the server to a client.",
    ]


def _delays() -> list[str]:
    """What a round takes beyond the training of its slowest client (tests/protocol/session/test_delays.py)."""
    return [
        "",
        "## Round trips",
        "",
        "One-way delays of a round beyond the training of its slowest client, from start-round to the last",
        "message of a client, with a model of one window of chunks and a vector of several:",
        "",
        "| | active | semi-honest | none |",
        "|---|---|---|---|",
        "| the slowest client trains longest by itself, however many there are | 8 | 6 | 4 |",
        "| 8 clients train equally long | 10 | 8 | 6 |",
        "| 30 clients train equally long | 22 | 20 | 18 |",
        "",
        "Keys and shares go while clients train. Of those who still train the server asks a few for their vectors",
        "in advance, as many as upload at a time; where more are ready at once, each few of them take a round trip.",
        "What that costs: a client that is lost in its training has shared its secrets, so that the server takes",
        "one mask off for each neighbour of it that is left, D words each, and its holders open one share more.",
        "Where all train equally long the server holds 4 + 1 vectors, where some take longer at most 2 * 4 + 1, with",
        "groups 4 * 4 + 1, whatever the number of clients.",
    ]


def _agreement(clients: int, ring: Ring, length: int = 0) -> Agreement:
    return Agreement(
        session=bytes(32),
        round=1,
        server="server",
        cohort=_names(clients),
        signing_keys=_signing_keys(clients),
        active=True,
        regular=False,
        parameters=complete_parameters(clients, active=True, colluders=clients // 20),
        ring=ring,
        length=length,
        roster=bytes(32),
        configuration=bytes(32),
        model=bytes(32),
        train_seconds=1.0,
        phase_seconds=1.0,
    )


def _key(clients: int) -> tuple[int, int]:
    names = _names(clients)
    agreement = KeyAgreement(
        session=bytes(32),
        epoch=0,
        server="server",
        members=names,
        signing_keys=_signing_keys(clients),
        roster=bytes(32),
        configuration=bytes(32),
        phase_seconds=1.0,
    )
    moved = declared_key_bytes(agreement, names[0])
    return moved.sent, moved.received


def _names(clients: int) -> tuple[str, ...]:
    return tuple(f"client-{number}" for number in range(clients))


def _signing_keys(clients: int) -> tuple[bytes, ...]:
    """Distinct ones; nothing is signed."""
    return tuple(number.to_bytes(32, "little") for number in range(clients))
