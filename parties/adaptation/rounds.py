"""Rounds of adaptation at the dealer and the data owners: the secure sum carries words of shares, not values.

docs/spec/adaptation.md has the protocol. The dealer is two services, each with its own address, with the same keys: it
deals correlated randomness, and it serves the sum of data owners' shares, whose clients they are. That sum is random to
it: the model owner holds the other share, and reveals its sum to the data owners alone.

At the beginning of a round a data owner receives, in place of a model, the last such sum, with its round and its
survivors. So a session of sums has one more round than the training; it delivers the last sum. The ring of the sum is
that of the shares, modulo 2^64; the state of a round is the last sum behind its head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta, structs

from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation.adapter import AdapterShares
from tacit.parties.adaptation.fixed_point import KEPT
from tacit.parties.adaptation.head import HeadShares
from tacit.parties.adaptation.step import ParameterShares, StepSizes, shaped
from tacit.parties.inference.conversation import ended
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.operations import MODEL
from tacit.parties.inference.stages import encoded
from tacit.parties.protections.sides import TaskError, TermsError
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.server import Evaluation, ServerParty, ServerSettings
from tacit.parties.session.task import Octets, ServerTask, check_derived
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS
from tacit.protocol.adaptation.sums import LARGEST_SUM
from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration, Proposal
from tacit.secagg.packing import Total, WeightForm
from tacit.secagg.ring import Words

SCHEME: Final = "adaptation"
_RING_BITS: Final = 64
_HEAD: Final = 2
"""Words of the state before the sum: its round, and its number of data owners."""
_MOST_WORDS: Final = 1 << 28


class RoundsTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="adaptation"):
    """Task of a session of sums, known to all members."""

    words: Annotated[int, Meta(ge=1, le=_MOST_WORDS)]
    rounds: Annotated[int, Meta(ge=1, le=100_000)]
    """Training rounds; one more round delivers the last sum."""

    def check(self, expected: RoundsTask) -> None:
        """Raise TermsError unless this is the task that a party expects of the dealer."""
        if self.rounds != expected.rounds:
            raise TermsError(
                f"the dealer sums {self.rounds} rounds; here and at the model owner there are {expected.rounds}"
            )
        if self.words != expected.words:
            raise TermsError(f"the dealer sums {self.words} words, and a share has {expected.words}: correct its file")


@dataclass(frozen=True)
class SharesSum:
    round: int
    owners: int
    words: torch.Tensor = field(repr=False)
    """int64 [n], modulo 2^64."""


def roster_of_sums(roster: Roster) -> Roster:
    """Roster in which the dealer serves the data owners: same names and keys, without the model owner."""
    dealer, clients = roster.dealer, [member for member in roster.members if member.role == "client"]
    return Roster((structs.replace(dealer, role="server"), *clients))


def configure_rounds(terms: Proposal, task: RoundsTask) -> Configuration:
    chosen = {name: getattr(terms, name) for name in Proposal.__struct_fields__}
    return Configuration(
        **chosen | {"max_weight": 1, "clip": 1.0},
        scheme=SCHEME,
        ring_bits=_RING_BITS,
        form=WeightForm.WORDS,
        tensor_sizes=(task.words,),
        metrics=(),
        state=StateLayout(type="uint64", count=_HEAD + task.words),
        task=encode_structure(task),
    )


def read_rounds_task(said: Configuration) -> RoundsTask:
    """Return the task in a dealer's configuration. TaskError if the task implies another configuration,
    RemoteProtocolError if there is none."""
    task = decode_structure(said.task, RoundsTask, limit=BODY_LIMIT)
    check_derived(said, configure_rounds(said, task), "dealer")
    return task


def contribution(configuration: Configuration, share: torch.Tensor) -> Words:
    """Ring words of one data owner's share, int64 [n]."""
    (words,) = configuration.tensor_sizes
    if len(share) != words:
        raise TaskError(f"a share of {len(share)} words, where the dealer sums {words}")
    return np.append(share.numpy().view(np.uint64), np.uint64(1))


def read_sum(state: bytes) -> SharesSum | None:
    """Read the state at the beginning of a round; None before the first sum. TaskError for an invalid sum."""
    words = np.frombuffer(state, "<u8")
    number, owners = int(words[0]), int(words[1])
    if not number:
        return None
    if not 1 <= owners <= 10_000 or number > 1 << 31:
        raise TaskError(f"the dealer's sum is of round {number}, over {owners} data owners")
    return SharesSum(number, owners, torch.from_numpy(words[_HEAD:].astype(np.int64)))


class RoundsKeeper(ServerTask):
    """The dealer's state, in place of a model. last: the state when it stopped; None: none yet.

    ValueError for a state that is no sum of this task."""

    service = "sums"

    def __init__(self, configuration: Configuration, *, last: Octets | None = None) -> None:
        self._rounds, size = read_rounds_task(configuration).rounds, configuration.state.size
        self._state = bytes(size) if last is None else last
        if len(self._state) != size:
            raise ValueError(f"a sum of {len(self._state)} bytes is kept, and one of {size} bytes is summed")
        self._summed: Words = np.zeros(0, np.uint64)
        self._former = self._state

    @property
    def bytes(self) -> Octets:
        return self._state

    def decode(self, words: Words, contributors: int) -> Total:
        """Check the sum. ValueError if it cannot be a sum of contributions."""
        if int(words[-1]) != contributors:
            raise ValueError(f"the sum says of itself that it is over {int(words[-1])} data owners, not {contributors}")
        self._summed = words[:-1]
        return Total(values=np.zeros(0), weights=np.asarray(contributors), metrics={}, tensor_sizes=())

    def apply(self, total: Total, vectors: Mapping[str, Words] | None = None, *, round: int = 1) -> None:
        if round <= self._rounds:
            self._former = self._state
            head = np.array([round, int(total.weights)], np.uint64)
            self._state = np.append(head, self._summed).astype("<u8").tobytes()

    def undo(self) -> None:
        self._state = self._former


def shares_of_known(parameters: AdapterParameters) -> ParameterShares:
    """Share of an owner who knows the parameters; the other owner's share is `nothing`."""
    words = {name: encoded(tensor, 2.0**KEPT) for name, tensor in parameters.tensors.items()}
    adapters = tuple(
        AdapterShares(**{name: words[name][index] for name in ADAPTER_TENSORS})
        for index in range(len(parameters.scale))
    )
    return ParameterShares(adapters=adapters, head=HeadShares(weight=words["head_weight"], bias=words["head_bias"]))


def nothing(sizes: StepSizes) -> ParameterShares:
    return shaped(torch.zeros(sizes.parameters, dtype=torch.int64), sizes)


def refreshed(words: torch.Tensor, zero: torch.Tensor, rank: int) -> torch.Tensor:
    """Refresh this owner's words [n] with a sharing of zero before every attempt at a sum: two attempts with different
    survivors would otherwise reveal one owner's words. zero: random words from a stream that both owners share."""
    return words + zero if rank == MODEL else words - zero


def mean_of(total: torch.Tensor, weight: int, sizes: StepSizes) -> AdapterParameters:
    """Common parameters, float64, from the sum [n] modulo 2^64 of the words (`flat`) of the model owner and of data
    owners with this total weight.

    ValueError for an impossible weight."""
    if not 1 <= weight <= LARGEST_SUM:
        raise ValueError(f"a sum over data owners whose weight is {weight}; 1 to {LARGEST_SUM} can be added")
    parts = shaped(total, sizes)

    def value(words: torch.Tensor) -> torch.Tensor:
        return words.double() / (2.0**KEPT * weight)

    empty = {
        "channel_down": (sizes.rank, sizes.width),
        "channel_up": (sizes.width, sizes.rank),
        "token_down": (sizes.rank, sizes.tokens),
        "token_up": (sizes.tokens, sizes.rank),
        "scale": (),
    }
    adapters = {
        name: torch.stack([value(getattr(each, name)) for each in parts.adapters])
        if parts.adapters
        else torch.zeros(0, *empty[name], dtype=torch.float64)
        for name in ADAPTER_TENSORS
    }
    return AdapterParameters(**adapters, head_weight=value(parts.head.weight), head_bias=value(parts.head.bias))


async def deal_and_sum(
    dealing: DealerSettings,
    summing: ServerSettings,
    *,
    last: bytes | None = None,
    dealt: EventLog,
    summed: EventLog,
    on_sum: Callable[[int, bytes], None] = lambda round, words: None,
) -> Ended:
    """Serve both until the rounds end; return how the session of sums ended. EndpointError if it cannot listen.

    last: the sum of a former session; dealt, summed: the event logs of both services; on_sum: called in a thread with
    every round that has a sum, and the state for the next one. ValueError for a last sum that does not belong to this
    task."""
    keeper = RoundsKeeper(summing.configuration, last=last)

    def keep(done: RoundDone, total: Total | None) -> Evaluation:
        if total is not None:
            on_sum(done.round, keeper.bytes)
        return Evaluation()

    dealer = DealerParty(dealing, dealt)
    deals = asyncio.ensure_future(dealer.run())
    sums = asyncio.ensure_future(ServerParty(summing, keeper, summed, on_round=keep).run())
    try:
        await asyncio.wait([deals, sums], return_when=asyncio.FIRST_COMPLETED)
        if deals.done():
            await deals  # It serves until cancelled, so ending means that it could not listen.
        over = await sums
        # Data owners close their sessions with the model owner after the last sum.
        with suppress(TimeoutError):
            async with asyncio.timeout(dealing.patience):
                await dealer.quiet()
        return over
    finally:
        await ended(deals, sums)
