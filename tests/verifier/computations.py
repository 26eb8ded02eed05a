"""The computations of the test vectors (docs/spec/vectors.md), from their inputs."""

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

from aggregation import Terms, pairwise_mask
from constants import require
from conversation import Roster
from encoding import read_members, write_members
from messages import (
    CONFIGURATION,
    FEDERATION,
    Family,
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


def octets(text: str) -> bytes:
    """A byte string of an input."""
    if text.startswith("00*"):
        return bytes(int(text.removeprefix("00*")))
    return bytes.fromhex(text)


def written(data: bytes) -> str:
    """A byte string as the vectors write it."""
    if len(data) <= 4096:
        return data.hex()
    return f"sha256({hashlib.sha256(data).hexdigest()})" if any(data) else f"00*{len(data)}"


def shown(result: Any) -> Any:
    """A result as the vectors write it."""
    if isinstance(result, bytes):
        return written(result)
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
        return {"hex": written(value)}
    if isinstance(value, dict):
        return {key: to_body(item) for key, item in value.items()}
    return [to_body(item) for item in value] if isinstance(value, list) else value


def members_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"group": 0}
        | row
        | {"curve_public": octets(row["curve_public"]), "signing_public": octets(row["signing_public"])}
        | {"previous": [octets(key) for key in row.get("previous", ())]}
        for row in rows
    ]


def roster_of(
    members: list[dict[str, Any]],
    version: int = 0,
    operator: str = "",
    lineage: str = "",
    standby: str = "",
    former: Sequence[dict[str, Any]] = (),
) -> Roster:
    keys = {"lineage": octets(lineage), "standby": octets(standby)}
    return Roster(members_of(members), version, octets(operator), **keys, former=members_of(former))


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


def do_write_message(payload: str | None = None, family: Family = FEDERATION, **inputs: Any) -> list[bytes]:
    return write_message(
        inputs["type"],
        octets(inputs["session"]),
        inputs["round"],
        inputs["sender"],
        inputs["sequence"],
        from_body(inputs["body"]),
        None if payload is None else octets(payload),
        family,
        link=inputs.get("link", 0),
        received=inputs.get("received", 0),
    )


def do_read_message(frames: list[str], family: Family = FEDERATION) -> dict[str, Any]:
    received = [octets(frame) for frame in frames]
    envelope = read_envelope(received, family)
    body = read_body(envelope, received, family)
    return {"envelope": to_body(envelope), "body": to_body(body), "payload": raw_frame(received)}


def do_write_configuration(configuration: dict[str, Any]) -> dict[str, Any]:
    encoding = CONFIGURATION.write(from_body(configuration))
    return {"encoding": encoding, "hash": configuration_hash(encoding)}


def do_read_configuration(encoding: str, policy: dict[str, Any], clients: int) -> bytes:
    found = read_configuration(octets(encoding))
    Policy(**policy).check_configuration(found, clients, [])
    return configuration_hash(octets(encoding))


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


COMPUTATIONS: dict[str, Callable[..., Any]] = {
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
    "use group key": lambda key, transcript, label, info: derive(
        octets(key), label.encode(), octets(transcript), octets(info)
    ),
    "coordinated weights": do_coordinated_weights,
    "encrypt model": do_encrypt_model,
    "first embeddings": lambda group, tensors: first_embeddings(
        octets(group["key"]), octets(group["transcript"]), tensors
    ),
}
