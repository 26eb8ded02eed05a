"""The operations of the test vectors (docs/spec/vectors.md): what this verifier returns for their inputs."""

import hashlib
import struct
from collections.abc import Callable
from typing import Any

from aggregation import Terms, pairwise_mask
from constants import require
from conversation import Roster
from encoding import read_members, write_members
from group_key import KeyTerms, Transcript, commit_record
from messages import (
    CONFIGURATION,
    raw_frame,
    read_body,
    read_configuration,
    read_envelope,
    write_message,
)
from parameters import (
    Packing,
    PlainPacking,
    add,
    mask_stream,
    pack_words,
    parameters,
    signed,
    unpack_words,
)
from play import Stage, begin_group_key, begin_session, begin_sum
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
from proposal import Policy, configuration_hash
from protections import (
    ModelKey,
    coordinated_weights,
    first_embeddings,
)

WITH_DETAIL = ("abort", "end-round", "end-key")


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
        {"group": 0}
        | row
        | {"curve_public": octets(row["curve_public"]), "signing_public": octets(row["signing_public"])}
        for row in rows
    ]


def roster_of(
    members: list[dict[str, Any]], version: int = 0, operator: str | None = None, lineage: str | None = None
) -> Roster:
    return Roster(members_of(members), version, octets(operator or ""), lineage=octets(lineage or ""))


def do_sign_roster(**given: Any) -> dict[str, bytes]:
    found = roster_of(**given)
    return {"encoded": found.encoded, "signature": found.signature}


def with_octets(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return row | {name: octets(row[name]) for name in names}


def terms_of(row: dict[str, Any]) -> Terms:
    given = ["group_key"] if "group_key" in row else []
    row = with_octets(row, "session", "roster", "configuration", "model", *given)
    if row["mode"] == "none":
        row |= {"plain": PlainPacking(len(row["cohort"]), 255, "scalar", [row["length"] - 1], [])}
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
        link=inputs.get("link", 0),
        received=inputs.get("received", 0),
    )


def do_read_message(frames: list[str]) -> dict[str, Any]:
    received = [octets(frame) for frame in frames]
    envelope = read_envelope(received)
    body = read_body(envelope, received)
    return {"envelope": to_body(envelope), "body": to_body(body), "payload": raw_frame(received)}


def do_write_configuration(configuration: dict[str, Any]) -> dict[str, Any]:
    encoding = CONFIGURATION.write(from_body(configuration))
    return {"encoding": encoding, "hash": configuration_hash(encoding)}


def do_read_configuration(encoding: str, policy: dict[str, Any], clients: int) -> bytes:
    found = read_configuration(octets(encoding))
    Policy(**policy).check_configuration(found, clients, [])
    return configuration_hash(octets(encoding))


def key_terms_of(row: dict[str, Any]) -> KeyTerms:
    row = with_octets(row, "session", "roster", "configuration")
    return KeyTerms(**row | {"signing_keys": [octets(key) for key in row["signing_keys"]]})


def do_group_key(terms: dict[str, Any], members: list[dict[str, Any]]) -> dict[str, Any]:
    found = key_terms_of(terms)
    places = range(found.size)
    signing = [octets(member["signing_private"]) for member in members]
    secrets = [octets(member["entropy"]) for member in members]
    commits = [
        commit_record(found, place, signing[place], secrets[place][:32], secrets[place][32:]) for place in places
    ]
    transcript = Transcript(found, commits)
    key = transcript.key({place: secrets[place][32:] for place in places})
    return {
        "context": found.context,
        "commits": commits,
        "transcript": transcript.digest,
        "packets": [
            [
                transcript.packet(secrets[owner][:32], signing[owner], secrets[owner][32:], owner, holder)
                for holder in found.others(owner)
            ]
            for owner in places
        ],
        "key": key,
        "confirmations": [transcript.confirmation(key, signing[place], place) for place in places],
    }


def do_coordinated_weights(group: dict[str, Any], **inputs: Any) -> list[int]:
    tensors, layers = inputs["tensors"], inputs["layers"]
    return coordinated_weights(
        octets(group["key"]),
        octets(group["transcript"]),
        group["members"],
        inputs["member"],
        inputs["round"],
        tensors,
        [layers.get(tensor["name"], inputs["zero_probability"]) for tensor in tensors],
        inputs["min_contributors"],
        inputs["survivors"],
    )


def do_encrypt_model(group: dict[str, Any], tensors: list[dict[str, Any]], matrix: str, model: str) -> list[float]:
    key = ModelKey(octets(group["key"]), octets(group["transcript"]), tensors, matrix)
    given = octets(model)
    count = len(given) // 4
    encrypted = key.encrypt(tensors, list(struct.unpack(f"<{count}f", given)))
    return [round(number, 5) for number in struct.unpack(f"<{count}f", struct.pack(f"<{count}f", *encrypted))]


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
    "roster": lambda **given: roster_of(**given).hash,
    "sign roster": do_sign_roster,
    "context": do_context,
    "pairwise mask": do_pairwise_mask,
    "write message": do_write_message,
    "read message": do_read_message,
    "write configuration": do_write_configuration,
    "read configuration": do_read_configuration,
    "group key": do_group_key,
    "use group key": lambda key, transcript, label, info: derive(
        octets(key), label.encode(), octets(transcript), octets(info)
    ),
    "coordinated weights": do_coordinated_weights,
    "encrypt model": do_encrypt_model,
    "first embeddings": lambda group, tensors: first_embeddings(
        octets(group["key"]), octets(group["transcript"]), tensors
    ),
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
        if name == "begin group key":
            key_terms = key_terms_of(inputs["terms"])
            members = [with_octets(row, "signing_private", "entropy") for row in inputs["members"]]
            begin_group_key(self.stage, key_terms, members, inputs["server"])
            return shown(key_terms.context)
        if name == "begin session":
            return shown(self.begin_session(**inputs))
        return self.act(name, **inputs)

    def begin_session(
        self, roster: list[Any], clients: list[Any], server: dict[str, Any] | None, **signed: Any
    ) -> bytes:
        found = roster_of(roster, **signed)
        played = [
            with_octets(row, "signing_private", "entropy")
            | {"journal": [with_octets(entry, "session") for entry in row["journal"]]}
            | {"group": octets(row["group"]) if row.get("group") is not None else None}
            for row in clients
        ]
        if server is not None:
            server = with_octets(
                server | {"fixed": server.get("fixed") or ""}, "configuration", "model", "entropy", "fixed"
            )
        begin_session(self.stage, found, played, server)
        return found.hash

    def act(self, name: str, party: str = "", now: float = 0.0, **inputs: Any) -> dict[str, Any]:
        stage = self.stage
        actor = stage.parties[party] if party else stage.server()
        if name == "start":
            actor.machine.start(now)
        elif name == "give vector":
            actor.machine.give_vector(actor.vector, now)
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
            actor.next_round(octets(inputs["model"]), inputs.get("unusable", ""), now)
        elif name == "finish":
            actor.finish(octets(inputs.get("model", "")), inputs.get("unusable", ""), now)
        elif name == "change roster":
            later = roster_of(inputs["roster"], inputs["version"], inputs["operator"], inputs["lineage"])
            actor.change_roster(later, octets(inputs.get("model", "")), now)
        elif name == "provide":
            actor.provide(inputs["epoch"], octets(inputs["model"]), now)
        elif name == "link lost":
            actor.link_lost(inputs["peer"], now)
        elif name == "link back":
            actor.link_back(inputs["peer"], now)
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
