"""Computations of the cryptography: agreement, derivations, sealing, signatures, and what they are bound to."""

from __future__ import annotations

from typing import Final

from docs.generate.specification import LABELS
from tacit.parties.links.keys import KeysLabel
from tacit.protocol.core.primitives import PRIME_25519
from tacit.protocol.group_key.states import KeyLabel
from tacit.protocol.sum.states import SumLabel
from tests.vectors_corpus.primitives import drawn, flipped, vectors
from tests.vectors_corpus.script import Script

SMALL_ORDER: Final = (
    0,
    1,
    PRIME_25519 - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)

LATER: Final = (KeysLabel.SIGN_NODE,)
"""Labels of protocols that came when this file was frozen: vectors of their own show them."""

ALICE: Final = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
BOB: Final = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"


@vectors("X25519 with checked keys: RFC 7748, section 6.1, and keys of our own.")
def agreement(script: Script) -> None:
    # The first private and the second public key of the RFC.
    script.do(
        "agree",
        private=ALICE,
        public=BOB,
    )
    first = script.do("agree", private=drawn("first key"), public=(9).to_bytes(32, "little"))
    second = script.do("agree", private=drawn("second key"), public=first["public"])
    script.do("agree", private=drawn("first key"), public=second["public"])


@vectors("Public keys of small order, or not in canonical form.")
def agreement_bad_point(script: Script) -> None:
    for point in SMALL_ORDER:
        script.refuse("KEYS", "agree", private=drawn("first key"), public=point.to_bytes(32, "little"))
    for value in (PRIME_25519, PRIME_25519 + 1, PRIME_25519 + 9, 2**255 + 9, 2**256 - 1):
        script.refuse("KEYS", "agree", private=drawn("first key"), public=value.to_bytes(32, "little"))


@vectors("Hashes and derived keys under every label; parts are framed by their lengths.")
def derivations(script: Script) -> None:
    for label in (label for label in LABELS.values() if label not in LATER):
        name = label.decode()
        script.do("digest", label=name, parts=[])
        script.do("digest", label=name, parts=[b"ab", b"", drawn("part", 100)])
        script.do("digest", label=name, parts=[b"a", b"b", drawn("part", 100)])
        script.do("derive", secret=drawn("secret"), label=name, salt=drawn("salt"), info=b"")
        script.do("derive", secret=drawn("secret"), label=name, salt=b"", info=b"\1\2")


@vectors("ChaCha20-Poly1305 under keys that serve once, with associated data.")
def sealing(script: Script) -> None:
    for length, associated in ((0, b""), (72, drawn("commitments", 64)), (200, b"x")):
        sealed = script.do("seal", key=drawn("key"), plaintext=drawn("plain", length), associated=associated)
        script.do("open", key=drawn("key"), ciphertext=sealed, associated=associated)


@vectors("What was not sealed so does not open.")
def sealing_bad_ciphertext(script: Script) -> None:
    key, associated = drawn("key"), drawn("commitments", 64)
    sealed = bytes.fromhex(script.do("seal", key=key, plaintext=drawn("plain", 72), associated=associated))
    for ciphertext in (flipped(sealed, 0), flipped(sealed, -1), sealed[:-1], sealed + b"\0", b"", sealed[:15]):
        script.refuse("SHARES", "open", key=key, ciphertext=ciphertext, associated=associated)
    script.refuse("SHARES", "open", key=flipped(key, 0), ciphertext=sealed, associated=associated)
    script.refuse("SHARES", "open", key=key, ciphertext=sealed, associated=flipped(associated, 63))


SIGNING: Final = (
    SumLabel.SIGN_ADVERT, SumLabel.SIGN_SHARES, SumLabel.SIGN_SURVIVORS, KeyLabel.SIGN_KEY_COMMIT,
    KeyLabel.SIGN_CONTRIBUTION, KeyLabel.SIGN_CONFIRMATION,
)  # fmt: skip


@vectors("Ed25519 over framed parts, under every label that is signed.")
def signatures(script: Script) -> None:
    for label in SIGNING:
        parts = [drawn("context"), (3).to_bytes(2, "little"), b""]
        signed = script.do("sign", private=drawn("signing"), label=label.decode(), parts=parts)
        script.do("verify", **signed, label=label.decode(), parts=parts)


@vectors("A signature under another label, over other parts, or by somebody else does not verify.")
def signatures_bad_context(script: Script) -> None:
    label, parts = SumLabel.SIGN_ADVERT.decode(), [b"ab", b"c"]
    signed = script.do("sign", private=drawn("signing"), label=label, parts=parts)
    signature, public = bytes.fromhex(signed["signature"]), signed["public"]
    for other in SIGNING[1:]:
        script.refuse("SIGNATURE", "verify", **signed, label=other.decode(), parts=parts)
    for others in ([b"a", b"bc"], [b"abc"], [b"ab", b"c", b""], []):
        script.refuse("SIGNATURE", "verify", **signed, label=label, parts=others)
    for wrong in (flipped(signature, 0), flipped(signature, -1, 128), signature[:-1], b"", bytes(64)):
        script.refuse("SIGNATURE", "verify", public=public, signature=wrong, label=label, parts=parts)
    script.refuse("SIGNATURE", "verify", public=drawn("nobody"), signature=signature, label=label, parts=parts)


@vectors("Hashes of rosters and of what a sum's members hold alike; seeds of pairwise masks.")
def transcripts(script: Script) -> None:
    roster = [
        {
            "name": name,
            "role": role,
            "curve_public": drawn(f"{name} curve"),
            "signing_public": drawn(f"{name} signing"),
        }
        for name, role in (("server", "server"), ("a", "client"), ("hospital-2", "client"), ("dealer", "dealer"))
    ]
    script.do("roster", members=roster)
    script.do("roster", members=[*roster[1:], roster[0]])
    terms = {
        "session": drawn("session"), "round": 7, "server": "server", "cohort": ["a", "hospital-2", "z"],
        "signing_keys": [drawn(name) for name in "abc"], "mode": "active", "graph": "complete", "neighbours": 2,
        "threshold": 3, "ring_bits": 24, "length": 1_000_000, "roster": drawn("roster"),
        "configuration": drawn("configuration"), "model": drawn("model"), "train_seconds": 60.0, "phase_seconds": 5.0,
        "fewest_survivors": 0,
    }  # fmt: skip
    script.do("context", terms=terms)
    for name, value in (
        ("session", drawn("other")), ("round", 8), ("cohort", ["a", "b", "z"]), ("neighbours", 1), ("threshold", 2),
        ("roster", drawn("other")), ("configuration", drawn("other")), ("model", drawn("other")), ("ring_bits", 64),
        ("group_key", drawn("transcript")),
    ):  # fmt: skip
        script.do("context", terms=terms | {name: value})
    ends = {member: script.do("agree", private=drawn(f"end {member}"), public=BOB) for member in (3, 300)}
    for own, peer in ((3, 300), (300, 3)):
        script.do(
            "pairwise mask",
            private=drawn(f"end {own}"),
            public=ends[peer]["public"],
            sharing=drawn("sharing"),
            member=own,
            peer=peer,
        )
