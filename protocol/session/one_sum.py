"""One secure sum by itself, for a custom transport: bytes in, bytes out, no I/O.

Every party has its own keys (`new_keys`), and all hold the same roster (`make_roster`) and the same settings: otherwise
there is no sum. Methods return messages as bytes. The transport delivers each to its recipient, once and in order,
authenticates the sender, and keeps it confidential and intact, as TLS does if both sides have certificates. Names are
those of the roster.

Call `expire` when `deadline` has passed: a client that is silent for too long is excluded from the sum, as is one that
is dropped. A client is for one sum: make another for the next, with the same keys; a sum of the same title, settings
and clients is the same one, which no client may enter twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tacit.protocol.core.codec import Frame, decode_structure, encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Entropy, Machine, Output, Send
from tacit.protocol.core.messages import BODY_LIMIT, Abort, Kinds, by_type
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey, digest
from tacit.protocol.core.roster import Member, PartyKeys, Roster
from tacit.protocol.session.rounds import agree
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.configuration import Configuration, share
from tacit.protocol.sum.exchange import ClientAborted, Contributed, ServerAborted, Summed
from tacit.protocol.sum.messages import SUM_MESSAGES
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.server import AggregationServer
from tacit.protocol.sum.states import VERSION, SumLabel
from tacit.secagg.packing import Packing, WeightForm

_KINDS: Final = Kinds(protocol="a secure sum", version=VERSION, types=SUM_MESSAGES | by_type(Abort))
_ROUND: Final = 1
SMALLEST_COHORT: Final = 3
"""With two clients, each learns the other's vector from the sum."""


def make_roster(server: Member, *clients: Member) -> Roster:
    """The roster that all parties must hold, with the clients in this order. ValueError names the invalid member."""
    return Roster((server, *clients))


@dataclass(frozen=True, kw_only=True)
class SumSettings:
    """Parameters of a sum; equal for all parties.

    length: values of a vector. clip: the largest absolute value; larger ones are clipped. value_bits: the resolution of
    a value times its weight. max_weight: the largest weight of a vector. mode: assumed server, "active" (malicious) or
    "semi-honest". corrupt: fraction of the roster's clients that may collude with it: a sum has at least two more.
    dropout: fraction of the clients of the sum that may be lost. phase_seconds: time limit of an answer, and
    vector_seconds of the vector. title: distinguishes this sum from others of the same parties. clients: participants,
    in the order of the roster; empty: all of its clients, except those that wait for a group."""

    length: int
    clip: float
    value_bits: int = 20
    max_weight: int = 1
    mode: Literal["active", "semi-honest"] = "active"
    corrupt: float = 0.33
    dropout: float = 0.33
    phase_seconds: float = 60.0
    vector_seconds: float = 600.0
    title: str = ""
    clients: tuple[str, ...] = ()

    def packing(self, clients: int) -> Packing:
        """Encoding of a vector as ring words. ValueError if the sum of so many could overflow."""
        return Packing(
            clients=clients,
            clip=self.clip,
            value_bits=self.value_bits,
            max_weight=self.max_weight,
            form=WeightForm.SCALAR,
            tensor_sizes=(self.length,),
            metrics=(),
        )

    def cohort(self, roster: Roster) -> tuple[str, ...]:
        """The participants. ValueError for names that are no clients of the roster, for too few, and for a part of a
        group."""
        clients = self.clients or roster.gather(roster.clients, len(roster.clients))
        if clients != tuple(name for name in roster.clients if name in clients):
            raise ValueError(f"the clients {clients} are not some of {roster.clients}, each once and in this order")
        if len(clients) < SMALLEST_COHORT:
            raise ValueError(
                f"a sum of {len(clients)} clients tells each the other's vector: take {SMALLEST_COHORT} or more"
            )
        if roster.gather(clients, len(clients)) != clients:
            raise ValueError("some clients of a group of the roster are in this sum without the others of it")
        return clients

    def configuration(self, clients: int, roster: Roster) -> Configuration:
        """Configuration of a sum of so many clients, as a policy judges it. ValueError if it could overflow."""
        if self.mode not in ("active", "semi-honest"):
            raise ValueError(f"mode = {self.mode!r}: choose 'active' or 'semi-honest'")
        return Configuration(
            scheme="fedsgd",
            mode=self.mode,
            graph="auto",
            colluders=share(self.corrupt, len(roster.clients)),
            dropout=self.dropout,
            threshold=0,
            clients=clients,
            clip=self.clip,
            value_bits=self.value_bits,
            max_weight=self.max_weight,
            ring_bits=self.packing(clients).ring.bits,
            form=WeightForm.SCALAR,
            tensor_sizes=(self.length,),
            metrics=(),
            task=self.title.encode(),
            train_seconds=self.vector_seconds,
            phase_seconds=self.phase_seconds,
        )

    def check(self, roster: Roster, policy: Policy) -> None:
        """Judge the settings as a client of this roster does, before it enters their sum. ValueError for settings below
        its policy, and for invalid ones."""
        clients = self.cohort(roster)
        configuration = self.configuration(len(clients), roster)
        try:
            # NaN compares with nothing, so the bounds of the protocol come before those of a policy.
            decode_structure(encode_structure(configuration), Configuration, limit=BODY_LIMIT)
            policy.check(configuration, clients=len(roster.clients), groups=roster.group_sizes)
            policy.check_cohort(configuration, len(clients))
        except RemoteProtocolError as error:
            raise ValueError(error.detail) from None

    def identity(self, roster: Roster) -> bytes:
        """Hash of the roster and of the settings (32 bytes): a client enters one sum of an identity."""
        configuration = self.configuration(len(self.cohort(roster)), roster)
        return digest(SumLabel.CONFIGURATION, roster.hash, configuration.hash())

    def agreement(self, roster: Roster, *, smallest_cohort: int = SMALLEST_COHORT) -> Agreement:
        """Agreement of this sum, equal for all parties except in smallest_cohort: the fewest clients whose sum this
        party opens. ValueError if there can be no such sum."""
        clients = self.cohort(roster)
        configuration = self.configuration(len(clients), roster)
        configuration.check_dropouts(grouped=bool(roster.groups))
        if len(clients) < configuration.smallest_group:
            raise ValueError(
                f"a sum of {len(clients)} clients, and {configuration.colluders} of the {len(roster.clients)} in the "
                f"roster may collude: take {configuration.smallest_group} or more, or a smaller `corrupt`"
            )
        return agree(
            session=self.identity(roster),
            round=_ROUND,
            roster=roster,
            configuration=configuration,
            cohort=clients,
            model=bytes(32),
            fewest_survivors=max(smallest_cohort, SMALLEST_COHORT),
        )


@dataclass(frozen=True)
class SumResult:
    values: npt.NDArray[np.float64] = field(repr=False)
    """The sum over the contributors, each times its weight, float64 [length]."""
    weight: int
    contributors: tuple[str, ...]
    dropped: Mapping[str, str]
    """Clients that are not in it, with the reasons."""
    error_bound: float
    """Largest error of a value relative to the plain sum of the vectors, if none was clipped."""

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The weighted mean over the contributors, float64 [length]."""
        return self.values / self.weight


class SumClient:
    """One client of one sum. `outcome`: Contributed, or the reason of a failure; None until then.

    smallest_cohort: the fewest clients whose sum it helps to open, itself among them; at least 3. ValueError for
    invalid settings, and for a roster without these keys."""

    def __init__(
        self,
        settings: SumSettings,
        roster: Roster,
        keys: PartyKeys,
        *,
        entropy: Entropy,
        smallest_cohort: int = SMALLEST_COHORT,
    ) -> None:
        agreement = settings.agreement(roster, smallest_cohort=smallest_cohort)
        if keys.member("client") not in roster.members:
            raise ValueError(f"the roster has no client {keys.name!r} with these keys")
        if keys.name not in agreement.places:
            raise ValueError(f"{keys.name!r} is not among the clients of this sum")
        self._packing = settings.packing(agreement.size)
        self._rounding = np.random.default_rng(int.from_bytes(entropy(KEY_BYTES), "little"))
        self._link = Link(keys.name, agreement.server, agreement.session, Traffic(), _KINDS)
        self._machine = AggregationClient(
            agreement, keys.name, signing=SigningKey(keys.signing_secret), entropy=entropy
        )
        self.outcome: Contributed | ClientAborted | None = None

    @property
    def deadline(self) -> float | None:
        """Time at which to call `expire`, in the seconds of `now`."""
        return self._machine.next_deadline

    def start(self, now: float) -> list[bytes]:
        """The first messages to the server: keys, which need no vector yet."""
        return self._messages(self._machine.start(now))

    def contribute(self, vector: npt.ArrayLike, now: float, *, weight: int = 1) -> list[bytes]:
        """Submit its vector, once, after `start`. ValueError unless it is [settings.length] and finite, and its weight
        in 1..settings.max_weight."""
        values = np.asarray(vector, np.float64)
        if weight < 1 or not np.isfinite(values).all():
            raise ValueError(f"a vector is of finite values and has a weight of 1 or more; its weight is {weight}")
        clipped = np.clip(values, -self._packing.clip, self._packing.clip)
        words = self._packing.encode(clipped * weight, weight, {}, self._rounding).words
        return self._messages(self._machine.contribute(words, now))

    def receive(self, message: bytes, now: float) -> list[bytes]:
        return self._messages(_fed(self._machine, self._link, message, now))

    def expire(self, now: float) -> list[bytes]:
        return self._messages(self._machine.expire(now))

    def _messages(self, outputs: list[Output]) -> list[bytes]:
        for output in outputs:
            if isinstance(output, Contributed | ClientAborted):
                self.outcome = output
        return [_encoded(self._link, output) for output in outputs if isinstance(output, Send)]


class SumServer:
    """The server of one sum. `outcome`: the SumResult, or the reason of a failure; None until then.

    ValueError for invalid settings."""

    def __init__(self, settings: SumSettings, roster: Roster, *, now: float) -> None:
        agreement = settings.agreement(roster)
        self._packing = settings.packing(agreement.size)
        self._links = {
            name: Link(agreement.server, name, agreement.session, Traffic(_ROUND), _KINDS) for name in agreement.cohort
        }
        self._machine = AggregationServer(agreement, now)
        self.outcome: SumResult | ServerAborted | None = None

    @property
    def deadline(self) -> float | None:
        """Time at which to call `expire`, in the seconds of `now`."""
        return self._machine.next_deadline

    def receive(self, sender: str, message: bytes, now: float) -> list[tuple[str, bytes]]:
        """Process a client's message; returns messages with their recipients. KeyError for a name that is no client."""
        return self._messages(_fed(self._machine, self._links[sender], message, now))

    def drop(self, client: str, now: float) -> list[tuple[str, bytes]]:
        """A client is gone for good: stop waiting for it."""
        return self._messages(self._machine.drop(client, Code.LEFT, "its connection is gone", now))

    def expire(self, now: float) -> list[tuple[str, bytes]]:
        return self._messages(self._machine.expire(now))

    def _messages(self, outputs: list[Output]) -> list[tuple[str, bytes]]:
        for output in outputs:
            if isinstance(output, Summed):
                contributors = len(output.survivors)
                try:
                    total = self._packing.decode(output.total, contributors=contributors)
                except ValueError as error:
                    detail = f"the sum is not one of honest contributions: {error}"
                    self.outcome = ServerAborted(Code.VECTOR, detail, culprit="")
                    continue
                self.outcome = SumResult(
                    values=total.values,
                    weight=int(total.weights),
                    contributors=output.survivors,
                    dropped={drop.member: drop.detail for drop in self._machine.drops if not drop.included},
                    error_bound=self._packing.error_bound(contributors),
                )
            elif isinstance(output, ServerAborted):
                self.outcome = output
        return [(output.to, _encoded(self._links[output.to], output)) for output in outputs if isinstance(output, Send)]


def _fed(machine: Machine[Any], link: Link, message: bytes, now: float) -> list[Output]:
    """Process a message; one that breaks a rule excludes its sender from the sum."""
    try:
        try:
            frames = msgspec.msgpack.decode(message, type=list[bytes])
        except msgspec.MsgspecError:
            raise RemoteProtocolError(Code.MALFORMED, "a message that is no list of frames") from None
        packet = link.packet(frames)
    except RemoteProtocolError as error:
        return machine.reject(link.peer, error, now)
    return machine.receive(link.peer, packet, now)


def _encoded(link: Link, send: Send) -> bytes:
    frames: list[Frame] = link.frames(send.message, round=_ROUND, payload=send.payload)
    return msgspec.msgpack.encode([bytes(frame) for frame in frames])
