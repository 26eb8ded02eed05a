"""The operations of the test vectors (docs/spec/vectors.md): what this verifier returns for their inputs."""

import hashlib
from collections.abc import Callable
from typing import Any

from aggregation import Terms, pairwise_mask
from constants import BODY_LIMIT, require
from conversation import Roster
from encoding import decode, read_members, write_members
from messages import CONFIGURATION, raw_frame, read_body, read_envelope, roster_hash, write_message
from parameters import Packing, add, mask_stream, pack_words, parameters, signed, unpack_words
from play import Stage, begin_session, begin_sum
from primitives import (
    derive,
    digest,
    ed25519_public,
    keystream,
    order,
    reconstruct,
    seal,
    share,
    sign,
    unseal,
    verify,
    x25519,
    x25519_public,
)
from session_client import Policy, configuration_hash

WITH_DETAIL = ("abort", "end-round")


def octets(text: str) -> bytes:
    """A byte string of an input."""
    if text.startswith("shake256("):
        seed, length = text.removeprefix("shake256(").removesuffix(")").split(",")
        return hashlib.shake_256(bytes.fromhex(seed)).digest(int(length))
    return bytes.fromhex(text)


def shown(result: Any) -> Any:
    """A result as the vectors write it."""
    if isinstance(result, bytes):
        return result.hex() if len(result) <= 4096 else f"sha256({hashlib.sha256(result).hexdigest()})"
    if isinstance(result, dict):
        return {key: shown(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [shown(value) for value in result]
    return result


def from_body(value: Any) -> Any:
    """Where text occurs as well, a byte string is {"hex": ...}."""
    if isinstance(value, dict):
        return octets(value["hex"]) if set(value) == {"hex"} else {key: from_body(item) for key, item in value.items()}
    return [from_body(item) for item in value] if isinstance(value, list) else value


def to_body(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: to_body(item) for key, item in value.items()}
    return [to_body(item) for item in value] if isinstance(value, list) else value


def members_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row | {"curve_public": octets(row["curve_public"]), "signing_public": octets(row["signing_public"])}
        for row in rows
    ]


def with_octets(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return row | {name: octets(row[name]) for name in names}


def terms_of(row: dict[str, Any]) -> Terms:
    row = with_octets(row, "session", "roster", "configuration", "model")
    return Terms(**row | {"signing_keys": [octets(key) for key in row["signing_keys"]]})


def do_mask(bits: int, words: str, start: int, masks: list[dict[str, Any]]) -> bytes:
    result = unpack_words(octets(words), bits)
    for mask in masks:
        stream = mask_stream(octets(mask["seed"]), mask["usage"].encode(), bits, len(result), start)
        result = add(result, stream, mask["sign"], bits)
    return pack_words(result, bits)


def do_agree(private: str, public: str) -> dict[str, Any]:
    return {"public": x25519_public(octets(private)), "secret": x25519(octets(private), octets(public))}


def do_sign(private: str, label: str, parts: list[str]) -> dict[str, Any]:
    signature = sign(octets(private), label.encode(), *map(octets, parts))
    return {"public": ed25519_public(octets(private)), "signature": signature}


def do_verify(public: str, signature: str, label: str, parts: list[str]) -> bool:
    verify(octets(public), octets(signature), label.encode(), *map(octets, parts))
    return True


def do_reconstruct(shares: list[list[str]], points: list[int]) -> list[bytes]:
    require(len(shares) == len(points) and len({len(row) for row in shares}) == 1, "INVALID")
    return [reconstruct([octets(item) for item in column], points) for column in zip(*shares, strict=True)]


def do_parameters(**inputs: Any) -> dict[str, int]:
    neighbours, threshold = parameters(**inputs)
    return {"neighbours": neighbours, "threshold": threshold}


def do_pack(bits: int, numbers: list[int]) -> bytes:
    require(all(-(2 ** (bits - 1)) <= number < 2 ** (bits - 1) for number in numbers), "INVALID")
    return pack_words([number % 2**bits for number in numbers], bits)


def do_layout(packing: dict[str, Any]) -> dict[str, int]:
    layout = Packing(**packing)
    return {
        "ring_bits": layout.ring_bits,
        "levels": layout.levels,
        "value_field": layout.value_field,
        "length": layout.length,
    }


def do_write_contribution(packing: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    words, clipped = Packing(**packing).write(**inputs)
    return {"words": words, "clipped": clipped}


def do_context(terms: dict[str, Any]) -> dict[str, Any]:
    found = terms_of(terms)
    return {"context": found.context, "chunks": found.chunks, "chunk_words": found.chunk_words}


def do_pairwise_mask(private: str, public: str, sharing: str, member: int, peer: int) -> dict[str, Any]:
    seed, way = pairwise_mask(octets(private), octets(public), octets(sharing), member, peer)
    return {"seed": seed, "sign": way}


def do_write_message(payload: str | None = None, **inputs: Any) -> list[bytes]:
    return write_message(
        inputs["type"],
        octets(inputs["session"]),
        inputs["round"],
        inputs["sender"],
        inputs["sequence"],
        from_body(inputs["body"]),
        None if payload is None else octets(payload),
    )


def do_read_message(frames: list[str]) -> dict[str, Any]:
    received = [octets(frame) for frame in frames]
    envelope = read_envelope(received)
    body = read_body(envelope, received)
    return {"envelope": to_body(envelope), "body": to_body(body), "payload": raw_frame(received)}


def do_write_configuration(configuration: dict[str, Any]) -> dict[str, Any]:
    encoding = CONFIGURATION.write(from_body(configuration))
    return {"encoding": encoding, "hash": configuration_hash(encoding)}


def do_read_configuration(encoding: str, policy: dict[str, Any]) -> bytes:
    found = decode(CONFIGURATION, octets(encoding), BODY_LIMIT)
    Policy(**policy).check_configuration(found)
    return configuration_hash(octets(encoding))


PURE: dict[str, Callable[..., Any]] = {
    "keystream": lambda seed, usage, length: keystream(octets(seed), usage.encode(), length),
    "mask": do_mask,
    "agree": do_agree,
    "derive": lambda secret, label, salt, info: derive(octets(secret), label.encode(), octets(salt), octets(info)),
    "digest": lambda label, parts: digest(label.encode(), *map(octets, parts)),
    "sign": do_sign,
    "verify": do_verify,
    "seal": lambda key, plaintext, associated: seal(octets(key), octets(plaintext), octets(associated)),
    "open": lambda key, ciphertext, associated: unseal(octets(key), octets(ciphertext), octets(associated)),
    "share": lambda secrets, points, threshold, seed: share(
        [octets(secret) for secret in secrets], points, threshold, octets(seed)
    ),
    "reconstruct": do_reconstruct,
    "ring order": lambda members, seed: order(members, octets(seed)),
    "parameters": do_parameters,
    "pack": do_pack,
    "unpack": lambda bits, words: [signed(word, bits) for word in unpack_words(octets(words), bits)],
    "layout": do_layout,
    "write contribution": do_write_contribution,
    "read sum": lambda packing, words, contributors: Packing(**packing).read(octets(words), contributors),
    "write members": write_members,
    "read members": lambda bitmap, size: read_members(octets(bitmap), size),
    "roster": lambda members: roster_hash(members_of(members)),
    "context": do_context,
    "pairwise mask": do_pairwise_mask,
    "write message": do_write_message,
    "read message": do_read_message,
    "write configuration": do_write_configuration,
    "read configuration": do_read_configuration,
}


class Performance:
    """One file's operations, one after the other."""

    def __init__(self) -> None:
        self.stage = Stage()

    def perform(self, name: str, inputs: dict[str, Any]) -> Any:
        if name in PURE:
            return shown(PURE[name](**inputs))
        if name == "begin sum":
            terms = terms_of(inputs["terms"])
            names = ("signing_private", "vector", "entropy")
            begin_sum(self.stage, terms, [with_octets(row, *names) for row in inputs["clients"]], inputs["server"])
            return shown(terms.context)
        if name == "begin session":
            return shown(self.begin_session(**inputs))
        return self.act(name, **inputs)

    def begin_session(self, roster: list[Any], clients: list[Any], server: dict[str, Any] | None) -> bytes:
        found = Roster(members_of(roster))
        played = [
            with_octets(row, "signing_private", "entropy")
            | {"journal": [with_octets(entry, "session", "model") for entry in row["journal"]]}
            for row in clients
        ]
        if server is not None:
            server = with_octets(server, "configuration", "model", "entropy")
        begin_session(self.stage, found, played, server)
        return found.hash

    def act(self, name: str, party: str = "", now: float = 0.0, **inputs: Any) -> dict[str, Any]:
        stage = self.stage
        actor = stage.parties[party] if party else stage.server()
        if name == "start":
            actor.machine.start(now)
        elif name == "hello":
            actor.hello(now)
        elif name == "receive":
            number, frames = inputs.get("message"), inputs.get("frames", [])
            received = [octets(frame) for frame in frames] if number is None else stage.messages[number]
            actor.receive(inputs["sender"], received, now)
        elif name == "contribute":
            require(actor.round == inputs["round"], "INVALID")
            actor.contribute(octets(inputs["words"]), now)
        elif name == "next round":
            actor.next_round(octets(inputs["model"]), now)
        elif name == "finish":
            actor.finish(now)
        elif name == "link lost":
            actor.link_lost(inputs["peer"], now)
        elif name == "drop":
            stage.server().drop(party, now)
            actor = stage.server()
        elif name == "expire":
            actor.expire(now)
        else:
            raise ValueError(f"there is no operation {name!r}")
        return self.outcome(stage.outcome(actor))

    def outcome(self, found: dict[str, Any]) -> dict[str, Any]:
        found["sends"] = [self.sent(receiver, frames) for receiver, frames in found["sends"]]
        return dict(shown(found))

    def sent(self, receiver: str, frames: list[bytes]) -> dict[str, Any]:
        """A message that explains itself to people is given by its other fields, because the words are free."""
        envelope = read_envelope(frames)
        if envelope["type"] in WITH_DETAIL:
            body = read_body(envelope, frames)
            if body.pop("detail"):
                return {"to": receiver, "type": envelope["type"], "fields": to_body(body)}
        return {"to": receiver, "frames": frames}
