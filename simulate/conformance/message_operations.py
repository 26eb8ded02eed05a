"""Operations on wire messages: a message to frames, frames to a message, and configurations."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tacit.protocol.core.codec import Envelope, decode, decode_structure, encode, encode_structure
from tacit.protocol.core.messages import BODY_LIMIT, Kinds
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy
from tacit.simulate.conformance.notation import Octets, VectorError, from_hex, to_hex
from tacit.simulate.conformance.operations import Operations

Fields = dict[str, Any]
"""A body or a configuration: byte strings are objects {"hex": ...}, because a body has text as well."""


class MessageFamily:
    """The messages of one kind of link, written and read."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def operations(self) -> Operations:
        """By the names that vectors use."""
        return {"write message": self.write_message, "read message": self.read_message}

    def write_message(
        self,
        *,
        type: str,
        session: Octets,
        round: int,
        sender: str,
        sequence: int,
        body: Fields,
        payload: Octets | None = None,
        link: int = 0,
        received: int = 0,
    ) -> list[bytes]:
        """The frames of a message."""
        if type not in self._kinds:
            raise VectorError(f"there is no message {type!r}")
        envelope = Envelope(
            version=self._kinds.version, type=type, session=session, round=round, sender=sender, sequence=sequence,
            link=link, received=received,
        )  # fmt: skip
        return [bytes(frame) for frame in encode(structure_of(body, self._kinds[type]), envelope, payload)]

    def read_message(self, *, frames: tuple[Octets, ...]) -> dict[str, Any]:
        """The envelope, the body and the raw frame (or null) of a message."""
        packet = decode(frames, self._kinds)
        message = packet.parse()
        return {"envelope": fields_of(packet.envelope), "body": fields_of(message), "payload": packet.payload}


def write_configuration(*, configuration: Fields) -> dict[str, bytes]:
    """The encoding of a configuration and its hash."""
    made: Configuration = structure_of(configuration, Configuration)
    return {"encoding": encode_structure(made), "hash": made.hash()}


def read_configuration(*, encoding: Octets, policy: Policy, clients: int) -> bytes:
    """The hash of a well-formed configuration that a client with this policy accepts in a roster of so many clients."""
    configuration = decode_structure(encoding, Configuration, limit=BODY_LIMIT)
    policy.check(configuration, clients=clients)
    return configuration.hash()


def fields_of(structure: msgspec.Struct) -> Fields:
    """The fields of a body or an envelope, as vectors have them."""
    fields: Fields = to_hex(msgspec.to_builtins(structure, builtin_types=(bytes,)))
    return fields


def structure_of(fields: Fields, kind: Any) -> Any:
    """The inverse of `fields_of`."""
    return msgspec.convert(from_hex(fields), kind, builtin_types=(bytes,))


MESSAGE_OPERATIONS: Final[Operations] = {
    **MessageFamily(MESSAGES).operations(),
    "write configuration": write_configuration,
    "read configuration": read_configuration,
}
"""By the names that vectors use."""
