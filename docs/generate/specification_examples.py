"""The page docs/spec/examples.md: short worked examples, computed when the page is written.

They let another implementation check one step at a time before it turns to the vectors, which hold whole transcripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from docs.generate.specification import prose
from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.codec import Envelope, encode, encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import AgreementKey, SigningKey, derive, digest, framed
from tacit.protocol.core.roster import Member, Roster, encode_members
from tacit.protocol.session.messages import Finish, Hello
from tacit.protocol.session.rounds import agree
from tacit.protocol.sum.agreement import Agreement, Graph, adverts_digest, pairwise_mask, sign_advert
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.sharing import commit_share, seal_shares
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.graph import GraphChoice, GraphParameters, choose_parameters, ring_order
from tacit.secagg.keystream import Mask, Usage, apply_masks, keystream
from tacit.secagg.packing import Packing, WeightForm
from tacit.secagg.ring import Ring
from tacit.secagg.shamir import share

COUNTING: Final = bytes(range(32))
"""00 01 .. 1f, the seed or key of most examples."""

_QUESTIONS: Final[tuple[tuple[int, int, int, str, GraphChoice], ...]] = (
    (3, 0, 0, "active", "complete"),
    (5, 1, 1, "semi-honest", "complete"),
    (10, 3, 0, "active", "auto"),
    (10, 5, 0, "active", "complete"),
    (100, 29, 0, "semi-honest", "complete"),
    (100, 33, 33, "active", "complete"),
    (5, 1, 1, "semi-honest", "regular"),
    (20, 1, 1, "semi-honest", "auto"),
    (100, 33, 33, "semi-honest", "auto"),
    (1000, 50, 50, "semi-honest", "auto"),
    (100, 5, 5, "active", "regular"),
    (1000, 50, 50, "active", "regular"),
    (100, 33, 33, "active", "regular"),
)


def examples_page() -> str:
    """docs/spec/examples.md."""
    lines = [
        "# Worked examples",
        "",
        *prose(
            "Computed by the code when `make docs` writes this page; a test fails when they differ. The rules are "
            "in [primitives.md](primitives.md), [encoding.md](encoding.md), "
            "[secure-aggregation.md](secure-aggregation.md) and [parameters.md](parameters.md); complete "
            "transcripts are in the vectors ([vectors.md](vectors.md)). Byte strings are in hexadecimal. *S* is "
            "the byte string 00 01 02 .. 1f, 32 bytes."
        ),
    ]
    for title, make in (
        ("Primitives", _primitives),
        ("Encoding", _encoding),
        ("Secret sharing", _sharing),
        ("Derivations of a round", _round),
        ("Masks", _masks),
        ("Neighbourhoods", _neighbourhoods),
        ("Packing", _packing),
    ):
        lines += ["", f"## {title}", "", "```text"]
        for name, value in make():
            lines += _entry(name, value.hex() if isinstance(value, bytes) else str(value))
        lines.append("```")
    lines += [
        "",
        "## Neighbours and threshold",
        "",
        "| n | colluders | dropouts | mode | graph | k | t |",
        "|" + "---|" * 7,
    ]
    lines += [f"| {' | '.join(map(str, question))} | {_answer(question)} |" for question in _QUESTIONS]
    return "\n".join(lines) + "\n"


def _entry(name: str, text: str) -> Iterator[str]:
    yield f"{name} ="
    yield from (f"    {text[start : start + 112]}" for start in range(0, len(text), 112))


def _answer(question: tuple[int, int, int, str, GraphChoice]) -> str:
    clients, colluders, dropouts, mode, graph = question
    try:
        found = choose_parameters(clients, colluders=colluders, dropouts=dropouts, active=mode == "active", graph=graph)
    except ValueError:
        return "none | none"
    return f"{found.neighbours} | {found.threshold}"


def _primitives() -> Iterator[tuple[str, Any]]:
    yield "framed(MODEL, empty, 0102)", framed(SumLabel.MODEL, b"", b"\x01\x02")
    yield "H(MODEL, empty, 0102)", digest(SumLabel.MODEL, b"", b"\x01\x02")
    derived = derive(COUNTING, SumLabel.SELF_SEED, salt=b"\xaa" * 32)
    yield "derive(S, SELF_SEED, salt = 32 bytes aa, info empty)", derived
    yield "public X25519 key of the private key S", AgreementKey(COUNTING).public
    yield "public Ed25519 key of the private key S", SigningKey(COUNTING).public
    yield "sign(SIGN_ADVERT, S, u32(7), ASCII c0) under it", _signature()
    yield "keystream(S, PAIRWISE_MASK, 32)", keystream(COUNTING, Usage.PAIRWISE_MASK, 32)
    yield "order(0 1 2 3 4 5, S)", ring_order(np.arange(6), COUNTING).tolist()


def _signature() -> bytes:
    return SigningKey(COUNTING).sign(SumLabel.SIGN_ADVERT, COUNTING, (7).to_bytes(4, "little"), b"c0")


def _encoding() -> Iterator[tuple[str, Any]]:
    envelope = Envelope(version=1, type="hello", session=NO_SESSION, round=0, sender="c0", sequence=0)
    hello = encode(Hello(roster=COUNTING), envelope)
    yield "envelope of a hello from c0", bytes(hello[0])
    yield "body: roster hash S", bytes(hello[1])
    later = msgspec.structs.replace(envelope, type="abort", session=COUNTING, round=300, sequence=70000)
    abort = Abort(code=Code.THRESHOLD, detail="caf\u00e9 " + "x" * 30, culprit="")
    yield "envelope of an abort, session S, round 300, sequence 70000", bytes(encode(abort, later)[0])
    yield "body: code 14, detail of 35 characters in 36 bytes, no culprit", encode_structure(abort)
    yield "body of finish", encode_structure(Finish())
    yield "set {0, 3, 9} of 10 members", encode_members((0, 3, 9), 10)
    yield "empty set of 10 members", encode_members((), 10)
    for member in _roster().members:
        keys = f"CURVE {member.curve_public[:2].hex()}.., Ed25519 {member.signing_public.hex()}"
        yield f"member {member.name} of the roster, {member.role}", keys
    yield (
        "hash of this roster; keys that end with .. repeat the byte; private Ed25519 keys 00.., 01.., 02..",
        _roster().hash,
    )
    yield "a configuration", msgspec.json.encode(_configuration()).decode()
    yield "its canonical encoding (layout is S, in base64 above)", encode_structure(_configuration())
    yield "its hash", _configuration().hash()


def _sharing() -> Iterator[tuple[str, Any]]:
    shares = share((COUNTING, bytes(32)), points=np.array([1, 2, 3]), threshold=2, seed=COUNTING).astype("<u2")
    limbs = [int.from_bytes(COUNTING, "little") >> 15 * limb & 0x7FFF for limb in range(18)]
    yield "limbs of S", limbs
    yield "shares of S, then of 32 zero bytes, t = 2, coefficients from the seed S; at the point 1", shares[0].tobytes()
    yield "at the point 3", shares[2].tobytes()


def _roster() -> Roster:
    """A server and three clients; all keys but the signing keys are constant bytes."""
    server = Member(name="server", role="server", curve_public=b"\x10" * 32, signing_public=b"\x20" * 32)
    clients = [
        Member(
            name=f"c{member}",
            role="client",
            curve_public=bytes([0x11 + member]) * 32,
            signing_public=SigningKey(bytes([member]) * 32).public,
        )
        for member in range(3)
    ]
    return Roster((server, *clients))


def _configuration() -> Configuration:
    return Configuration(
        scheme="fedavg",
        mode="active",
        graph="auto",
        colluders=0,
        dropout=0.05,
        threshold=0,
        clients=3,
        clip=1.0,
        value_bits=16,
        max_weight=100,
        ring_bits=24,
        form=WeightForm.SCALAR,
        tensor_sizes=(2, 3),
        metrics=("samples",),
        state=StateLayout(type="float32", count=5),
        layout=COUNTING,
        task=b"",
        train_seconds=60.0,
        phase_seconds=10.0,
    )


def _agreement() -> Agreement:
    roster = _roster()
    return agree(
        session=COUNTING,
        round=1,
        roster=roster,
        configuration=_configuration(),
        cohort=roster.clients,
        model=digest(SumLabel.MODEL, bytes(20)),
    )


def _round() -> Iterator[tuple[str, Any]]:
    agreement = _agreement()
    found = agreement.parameters
    yield (
        "session S, round 1, model of 20 zero bytes, all three clients; k, t",
        f"{found.neighbours}, {found.threshold}",
    )
    yield "context", agreement.context
    channels = [AgreementKey(bytes([0x40 + member]) * 32) for member in range(3)]
    masks = [AgreementKey(bytes([0x50 + member]) * 32) for member in range(3)]
    adverts = {
        member: sign_advert(
            agreement,
            member,
            SigningKey(bytes([member]) * 32),
            channel_key=channels[member].public,
            mask_key=masks[member].public,
            choices=b"",
        )
        for member in range(3)
    }
    yield "record of member 1 (private channel key 32 bytes 41, private mask key 32 bytes 51)", adverts[1].record
    digest_of_adverts = adverts_digest(agreement, adverts)
    yield "adverts digest of 40../50.., 41../51.., 42../52..", digest_of_adverts
    packets, _ = seal_shares(
        agreement,
        digest_of_adverts,
        owner=1,
        channel=channels[1],
        secrets=(masks[1].private, COUNTING),
        holders={member: channels[member].public for member in range(3)},
        entropy=lambda length: COUNTING,
    )
    yield "packet of member 1 for member 2; self-mask seed S, polynomials from the seed S", packets[304:456]
    yield "seed_commitment of the self-mask seed S", digest(SumLabel.SEED, agreement.context, COUNTING)
    yield (
        "key commitment of owner 1, holder 2 to a share of 36 zero bytes",
        commit_share(SumLabel.KEY_SHARE, agreement, owner=1, holder=2, share=bytes(36)),
    )
    sharing = agreement.sharing_digest(digest_of_adverts, encode_members((0, 1, 2), 3))
    yield "sharing digest, all three sharing", sharing
    yield "self stream seed for the self-mask seed S", derive(COUNTING, SumLabel.SELF_SEED, salt=sharing)
    mask = pairwise_mask(masks[1], masks[2].public, sharing, 1, 2)
    yield "pairwise seed of members 1 and 2", mask.seed
    yield (
        "sign of member 1 towards member 2, and of 2 towards 1",
        (
            mask.sign,
            pairwise_mask(masks[2], masks[1].public, sharing, 2, 1).sign,
        ),
    )


def _masks() -> Iterator[tuple[str, Any]]:
    for bits in (24, 32, 40):
        ring = Ring(bits)
        words = np.array([1, 2, ring.modulus - 1], ring.word)
        apply_masks(words, [Mask(COUNTING, Usage.SELF_MASK, 1)], ring)
        yield (
            f"words 1, 2, 2^{bits} - 1 and the self-mask stream of S, ring of {bits} bits, packed",
            bytes(ring.pack(words)),
        )


def _neighbourhoods() -> Iterator[tuple[str, Any]]:
    members = tuple(member for member in range(9) if member != 4)
    agreement = replace(
        _agreement(),
        cohort=tuple(f"c{member}" for member in range(9)),
        active=False,
        regular=True,
        parameters=GraphParameters(neighbours=4, threshold=3),
    )
    yield "context as above, but nine members c0 .. c8, k = 4, t = 3", agreement.context
    graph = Graph(agreement, members, COUNTING, {})
    seed = digest(SumLabel.RING_SEED, agreement.context, COUNTING)
    yield "seed of the ring for the adverts digest S", seed
    yield "order of all but member 4", ring_order(np.array(members), seed).tolist()
    yield "neighbours of member 0", list(graph.of(0).holders)


def _packing() -> Iterator[tuple[str, Any]]:
    yield (
        "integers, of tensors with 1 and 2 values; clients 3, clip 1, value_bits 3, max_weight 2: L = 3, F = 5",
        "3 -3 0",
    )
    yield "weights as scalar, per tensor, per coordinate; one metric, 300", "2; 2 1; 2 1 0"
    for form, weights in (
        (WeightForm.SCALAR, np.array(2)),
        (WeightForm.TENSOR, np.array([2, 1])),
        (WeightForm.COORDINATE, np.array([2, 1, 0])),
    ):
        packing = Packing(
            clients=3, clip=1.0, value_bits=3, max_weight=2, form=form, tensor_sizes=(1, 2), metrics=("m",)
        )
        integers = np.array([3, -3, 0], np.float64) * packing.quantiser.step
        words = packing.encode(integers, weights, {"m": 300}, np.random.default_rng(0)).words
        yield f"{form.value}: ring of {packing.ring.bits} bits, words", words.tolist()
