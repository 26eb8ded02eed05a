"""Whom we play in double-blind adaptation: an owner and the dealer, towards the other owner.

Our parties are those of private inference in other sessions (inference_cast.py). Towards a model owner a second data
owner of ours is there in those cases in which a sum is due. Towards a data owner the dealer serves the sums too, to all
other data owners, which are ours and tell the model owner that they have survived.

The sums of what data owners have learned, which our dealer serves to a live data owner and to ours: one round of
learning, and one in which its sum is told.

Nothing is learned by ours: their shares are random words. The model owner's sum, which is ours too, is what makes of
all of them parameters of zero, and counts that can be.

What our parties do to a live one in double-blind adaptation, and what the specification says of it then.

As in private inference (inference_cases.py): one lie, and a session that ends for everybody in it, with the right code.
In an honest one the live party plays a round of learning through, up to its sum. A model owner tells no sum of one data
owner alone, so where a sum is due another data owner of ours learns in the same round.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgpack
import numpy as np
import torch
from msgspec import structs

from tacit.parties.adaptation.rounds import (
    RoundsKeeper,
    RoundsTask,
    configure_rounds,
    contribution,
    read_rounds_task,
    read_sum,
    roster_of_sums,
)
from tacit.parties.inference.conversation import limits
from tacit.parties.links.endpoint import Event, Received
from tacit.protocol.adaptation.data_owner import adaptation_terms
from tacit.protocol.adaptation.messages import (
    ADAPTATION_MESSAGES,
    AdaptationTerms,
    AskSum,
    BeginRound,
    KeepRound,
    OwnSum,
    RoundBegun,
    SumLost,
)
from tacit.protocol.adaptation.schedule import COUNTED, sum_words
from tacit.protocol.adaptation.sums import OpeningPolicy, sum_of_weights
from tacit.protocol.adaptation.tables import SumAsked, SumTold
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import CHUNK_BYTES, Abort, Message
from tacit.protocol.inference.data_owner import Wish
from tacit.protocol.inference.messages import (
    INFERENCE_VERSION,
    MOST_IMAGES,
    AgreeTerms,
    CloseInference,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    Opening,
    PassStarted,
    StartPass,
    Terms,
)
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Proposal
from tacit.secagg.ring import Words
from tacit.simulate.conformance.peer.against_client import Session
from tacit.simulate.conformance.peer.cast import Keyring, Line, connecting, listening
from tacit.simulate.conformance.peer.inference_cases import (
    BOTH,
    COMPLETES,
    DATA_OWNER,
    MATERIAL_CASES,
    MODEL_OWNER,
    OPENING_CASES,
    OTHER_HASH,
    WELCOME_CASES,
    WELCOME_ENDINGS,
    InferenceCase,
    Scene,
    astray,
    chunk_faults,
    ending,
    ends,
    following,
    offering,
    replaced_later,
    wider,
    wire_faults,
)
from tacit.simulate.conformance.peer.inference_cast import (
    AgainstDataOwner,
    AgainstModelOwner,
    OneSession,
    OwnerAndDealer,
)
from tacit.simulate.conformance.peer.script import (
    Lie,
    Saying,
    altered,
    carried,
    enveloped,
    instead,
    pickled,
    repeated,
    saying,
    with_received,
)
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.world import Parcel

SECONDS: Final = 100.0
"""That the live data owner gives a phase, if it is not told to go on."""


class SumsOfShares:
    """At this address, one session after the other: whenever the live data owner says hello."""

    def __init__(self, keyring: Keyring, live: str, terms: AdaptationTerms, address: str) -> None:
        sums, dealer = roster_of_sums(keyring.roster), keyring.roster.dealer.name
        self.line = Line(f"{dealer} (sums)", live, listening(keyring.keys[dealer], sums, address))
        self._keyring, self._live, self._terms = replace(keyring, roster=sums), live, terms
        self._session: SharesSession | None = None

    @property
    def session(self) -> SharesSession:
        """The latest."""
        assert self._session is not None
        return self._session

    async def take(self, event: Event) -> None:
        """Something has come over the line."""
        if not isinstance(event, Received) or event.sender != self._live:
            return
        parcel = Parcel(self._live, self._keyring.roster.server.name, event.frames)
        try:
            message, round = parcel.message, parcel.packet.envelope.round
        except RemoteProtocolError:
            message, round = None, 0
        if isinstance(message, Hello):
            self._session = SharesSession(self._keyring, self._live, self._terms)
        session = self._session
        if session is None or session.over:
            return
        session.over = isinstance(message, Abort) and not round
        session.put(with_received(parcel, session.said))
        session.advance()
        session.go_on()
        session.advance()
        for due in session.due:
            session.said += 1
            await self.line.send(saying(due.packet).frames(session.link))
        session.due.clear()


class SharesSession(Session):
    """One session of sums; `reproach` also says whether the live data owner has contributed what is no share."""

    def __init__(self, keyring: Keyring, live: str, terms: AdaptationTerms) -> None:
        task = RoundsTask(words=sum_words(terms.sizes, terms.learning), rounds=1)
        proposal = Proposal(
            mode="active", graph="complete", corrupt=0.05, dropout=0.34, threshold=0,
            clients=len(keyring.roster.clients), clip=1.0, value_bits=20, max_weight=1, train_seconds=SECONDS,
            phase_seconds=SECONDS,
        )  # fmt: skip
        configuration = configure_rounds(proposal, task)
        self.keeper = RoundsKeeper(configuration)
        self.survivors: tuple[str, ...] = ()
        """Of the round of learning, once it is over."""
        self.fault = ""
        """What is wrong with what the live data owner has contributed."""
        self._weight, _ = sum_of_weights(len(keyring.roster.clients), terms.least_count)
        super().__init__(keyring, live, configuration, model=self.keeper.bytes)

    def draw(self, name: str, round: int) -> Words:
        share = np.frombuffer(os.urandom(8 * read_rounds_task(self.configuration).words), np.int64)
        words = self.vectors[name, round] = contribution(self.configuration, torch.from_numpy(share.copy()))
        return words

    def go_on(self) -> None:
        """Begin the next round, or end the session, if a round is over."""
        if self.over or not self.held():
            return
        done = self.outcome(RoundDone)[-1]
        if done.total is not None:
            try:
                self.keeper.apply(self.keeper.decode(done.total, len(done.survivors)), round=done.round)
            except ValueError as error:
                self.fault = f"contributes what is no share ({error})"
        self.survivors = self.survivors or tuple(sorted(done.survivors))
        following = self.server.next_round if done.round == 1 else self.server.finish
        self.over = done.round > 1
        self.emit(self.host, following(self.keeper.bytes, 0.0))

    def own_sum(self) -> bytes:
        """The model owner's share of the sum."""
        found = read_sum(self.keeper.bytes)
        assert found is not None
        due = torch.zeros_like(found.words)
        due[len(due) - len(COUNTED) :] = torch.tensor([0, 0, found.owners, self._weight])
        return (due - found.words).numpy().astype("<i8").tobytes()


SUM, NO_SUM, ASKS = "tells the sum", "tells no sum", "asks for the sum"
STRANGER: Final = "zzz"
"""No data owner; behind all that are."""


class SharedRound(InferenceCase):
    """One script, in which another data owner of ours learns in the same round, and asks for its sum."""


@dataclass(frozen=True)
class OtherLearning(InferenceCase):
    """One script in which so much more is to be learned than the scales are for that come with it."""

    rank: int = 0
    classes: int = 0


def _next_pass(scene: Scene, said: Saying) -> list[Saying]:
    last = scene.former[StartPass]
    return [replace(last, round=last.round + 1)]


def _round_over(scene: Scene, said: Saying) -> list[Saying]:
    """The same round once more, from the parameters that its sum has given."""
    begun = scene.former[BeginRound]
    assert isinstance(begun.message, BeginRound)
    return list(altered(BeginRound, based=begun.message.number)(scene, begun))


def _going_on(result: str, *cases: InferenceCase) -> tuple[InferenceCase, ...]:
    """The same in sessions of learning: where all goes on, that is the result."""
    return tuple(
        replace(case, expected=f"{result}, {COMPLETES}") if case.expected == COMPLETES else case for case in cases
    )


IMAGE_CASES: Final = (
    ending("image-size", "opens patches of larger images", Code.VECTOR, BOTH,
           carried(Opening, payload=lambda payload: bytes(2 * len(payload)))),
    ending("opening-oversized", "opens more in a frame than a chunk has", Code.MALFORMED, BOTH,
           carried(Opening, payload=bytes(CHUNK_BYTES + 1))),
)  # fmt: skip
ADAPTED_MODEL_OWNER_CASES: Final = (
    SharedRound("honest", "a round of one batch, up to its sum, which another data owner shares",
                f"{SUM}, {COMPLETES}"),
    ending("other-roster", "holds another roster", Code.ROSTER, DATA_OWNER, altered(InferenceHello, roster=OTHER_HASH)),
    ending("pickled-hello", "sends a pickle for the body of inference-hello", Code.MALFORMED, DATA_OWNER,
           pickled(InferenceHello)),
    ending("other-protocol", "says hello in private inference", Code.VERSION, DATA_OWNER,
           enveloped(InferenceHello, version=INFERENCE_VERSION)),
    ending("other-terms", "agrees to other terms than were offered", Code.POLICY, DATA_OWNER,
           altered(AgreeTerms, terms=OTHER_HASH)),
    ending("smaller-batch", "wants to learn by smaller batches", Code.POLICY, DATA_OWNER,
           altered(AgreeTerms, batch=lambda batch: batch - 1)),
    ending("broken-batch", "wants to learn an image more than its batches have", Code.POLICY, DATA_OWNER,
           altered(AgreeTerms, images=following)),
    ending("more-images", "wants more images than are offered", Code.POLICY, DATA_OWNER,
           altered(AgreeTerms, lambda scene, message: {"images": MOST_IMAGES - MOST_IMAGES % message.batch})),
    ending("other-session", "writes another session into begin-round", Code.SESSION, BOTH, astray(BeginRound)),
    *wire_faults(BeginRound),
    ending("other-parameters", "begins with parameters of a round that was not told", Code.SESSION, BOTH,
           altered(BeginRound, based=following)),
    ending("other-count", "states images where nobody counts by them, or the other way round", Code.SESSION, BOTH,
           altered(BeginRound, count=lambda count: 0 if count else 7)),
    ending("other-model", "asks for another model than was agreed on", Code.MODEL, BOTH,
           altered(StartPass, weights=OTHER_HASH)),
    ending("pass-too-many", "asks for a pass more than was agreed on", Code.POLICY, BOTH,
           instead(KeepRound, _next_pass)),
    ending("keeps-other-round", "ends another round than it has begun", Code.SESSION, BOTH,
           altered(KeepRound, number=following)),
    ending("keeps-early", "ends a round in the middle of a batch", Code.UNEXPECTED, BOTH,
           instead(Opening, lambda scene, said: [Saying(KeepRound(number=1, secret=OTHER_HASH), round=0)])),
    ending("pass-without-round", "asks for a batch when it has ended the round", Code.UNEXPECTED, BOTH,
           instead(AskSum, _next_pass)),
    ending("survivors-disordered", "names survivors in another order", Code.MEMBERS, BOTH,
           altered(AskSum, survivors=lambda names: (STRANGER, *names))),
    ending("survivors-without-it", "names survivors without itself", Code.MEMBERS, BOTH,
           altered(AskSum, survivors=(STRANGER,))),
    SharedRound("other-survivors", "names a survivor more than the other data owner", f"{NO_SUM}, {COMPLETES}",
                altered(AskSum, survivors=lambda names: (*names, STRANGER))),
    InferenceCase("alone", "asks for the sum of its own share alone", f"{NO_SUM}, {COMPLETES}"),
    SharedRound("round-over", "begins a round whose sum was told", f"{ends(Code.SESSION, BOTH)}, {SUM}",
                instead(CloseInference, _round_over)),
    *IMAGE_CASES,
    *OPENING_CASES,
    *_going_on(NO_SUM, *WELCOME_CASES),
    *MATERIAL_CASES,
)  # fmt: skip
"""What our data owner and our dealer do to a live model owner. What is not the dealer's is our data owner's."""


def _learning(**sizes: int) -> Lie:
    """Other sizes of what is learned in the terms."""

    def change(scene: Scene, message: InferenceTerms) -> dict[str, bytes]:
        terms = msgpack.unpackb(message.terms)
        learning = {name: terms["learning"][name] + more for name, more in sizes.items()}
        return {"terms": msgpack.packb({**terms, "learning": {**terms["learning"], **learning}})}

    return altered(InferenceTerms, change)


def _lost(further: int = 0, detail: str = "it is lost") -> Lie:
    """Gives up the round that was asked about, or one so much further."""

    def lost(scene: Scene, said: Saying) -> list[Saying]:
        assert isinstance(said.message, OwnSum)
        return [Saying(SumLost(number=said.message.number + further, detail=detail), round=0)]

    return instead(OwnSum, lost)


def _sum_early(scene: Scene, said: Saying) -> list[Saying]:
    return [Saying(OwnSum(number=1, chunk=0), round=0, payload=bytes(8))]


ADAPTED_DATA_OWNER_CASES: Final = (
    InferenceCase("honest", "a round of learning, up to its sum", f"{ASKS}, {COMPLETES}"),
    ending("other-roster", "holds another roster", Code.ROSTER, MODEL_OWNER,
           altered(InferenceTerms, roster=OTHER_HASH)),
    ending("terms-trailing", "sends a byte too much in the terms", Code.MALFORMED, MODEL_OWNER,
           altered(InferenceTerms, terms=lambda terms: terms + b"\0")),
    ending("terms-some-blocks", "offers adapters at some blocks only", Code.MALFORMED, MODEL_OWNER,
           _learning(adapters=1)),
    OtherLearning("terms-rank", "offers adapters of a higher rank than its scales are for", ends(Code.MODEL, BOTH),
                  rank=1),
    OtherLearning("terms-classes", "offers a head of more classes than its scales are for", ends(Code.MODEL, BOTH),
                  classes=1),
    ending("terms-wider", "offers a model for larger images", Code.MODEL, MODEL_OWNER, altered(InferenceTerms, wider)),
    ending("terms-purpose", "offers predictions", Code.POLICY, MODEL_OWNER, offering({}, purpose="prediction")),
    ending("terms-reveal", "offers to reveal outputs of blocks, which no terms can say", Code.MALFORMED, MODEL_OWNER,
           offering({}, reveal="all")),
    ending("terms-batch", "offers to learn by larger batches", Code.POLICY, MODEL_OWNER, _learning(batch=1)),
    ending("terms-counts", "counts data owners by their images", Code.POLICY, MODEL_OWNER,
           offering({}, least_count=1)),
    ending("terms-cohort", "opens sums of two data owners", Code.POLICY, MODEL_OWNER, offering({}, smallest_cohort=2)),
    ending("other-session", "writes another session into masked-weights", Code.SESSION, BOTH, astray(MaskedWeights)),
    *chunk_faults(MaskedWeights, "layer", prefix="weights-"),
    *wire_faults(RoundBegun),
    ending("sum-early", "tells a sum where a round is to begin", Code.UNEXPECTED, BOTH,
           instead(RoundBegun, _sum_early)),
    ending("begun-ahead", "goes on behind a batch that nobody has", Code.SESSION, BOTH,
           altered(RoundBegun, done=following)),
    ending("other-model", "starts a pass with another model than agreed", Code.MODEL, BOTH,
           altered(PassStarted, weights=OTHER_HASH)),
    ending("model-replaced", "starts the second pass with another model", Code.MODEL, BOTH, replaced_later),
    ending("started-twice", "starts a pass twice", Code.UNEXPECTED, BOTH, repeated(PassStarted)),
    *IMAGE_CASES,
    *OPENING_CASES,
    *chunk_faults(OwnSum, "number", prefix="sum-"),
    InferenceCase("sum-lost", "says that the round is lost", f"{ASKS}, {COMPLETES}", _lost()),
    ending("sum-lost-other", "says that another round is lost", Code.SESSION, BOTH, _lost(1)),
    ending("sum-lost-silently", "says that the round is lost, and not why", Code.SESSION, BOTH, _lost(detail="")),
    *_going_on(ASKS, *WELCOME_CASES),
    *WELCOME_ENDINGS,
)  # fmt: skip
"""What our model owner and our dealer do to a live data owner. What is not the dealer's is our model owner's."""


class LearnersAndDealer(OwnerAndDealer, MemoryAdaptation):
    """As OwnerAndDealer, in sessions of learning."""


class TeacherAndDealer(OwnerAndDealer, MemoryAdaptation):
    """The same with a model owner of ours."""

    def __init__(self, cast: AgainstLearner, terms: AdaptationTerms, sums_served: SumsOfShares) -> None:
        owners = len(cast.roster.clients)
        opening = OpeningPolicy(rounds=terms.rounds, owners=owners, smallest_cohort=2, colluders=0)
        super().__init__(cast, {}, terms=terms, opening=opening)
        self._served = sums_served

    def sum_of(self, number: int) -> bytes:
        return self._served.session.own_sum()

    def others_say(self, number: int) -> None:
        """All other data owners have learned in the round, and say who survived."""
        survivors = self._served.session.survivors
        for name in survivors:
            if name != self.outside:
                self.sums.begin(name, number)
                self.sums.keep(name, number)
        for name in survivors:
            if name != self.outside:
                self.sums.say(name, number, survivors, self.now)


class AgainstLearner(AgainstDataOwner):
    """We play the model owner at this address, and the dealer, whose sums are at another one. A live data owner that
    has learned a round, or is refused, must be started again."""

    SPOKEN = ADAPTATION_MESSAGES

    def __init__(
        self,
        keyring: Keyring,
        live: str,
        terms: AdaptationTerms,
        address: str,
        dealer_address: str,
        sums_address: str,
        *,
        wait: float,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(keyring, live, terms, address, dealer_address, wait=wait, tell=tell)
        self._served = SumsOfShares(keyring, live, terms, sums_address)
        self.lines[self._served.line.own] = self._served.line

    def session_on(self, terms: Terms) -> OneSession:
        found, case = adaptation_terms(terms), self.case
        if isinstance(case, OtherLearning):
            self.observed.liar = self.own
            sizes = {"rank": found.learning.rank + case.rank, "classes": found.learning.classes + case.classes}
            found = structs.replace(found, learning=structs.replace(found.learning, **sizes))
        return TeacherAndDealer(self, found, self._served)

    async def begin(self) -> None:
        # Who comes to the sums again and again, and never to the model owner, is no sign of life.
        async with asyncio.timeout(self.wait):
            await super().begin()

    async def take(self, own: str, event: Event) -> None:
        if own == self._served.line.own:
            await self._served.take(event)
        else:
            await super().take(own, event)

    async def feed(self, parcel: Parcel, message: Message | None) -> None:
        if isinstance(message, AskSum) and isinstance(self.world, TeacherAndDealer):
            if message.survivors != self._served.session.survivors:
                self.observed.reproach = "names other survivors than the sums have"
            self.world.others_say(message.number)
        await super().feed(parcel, message)

    def conclude(self) -> None:
        super().conclude()
        if self.world is not None and self.observed.held:
            self.observed.reproach = self.observed.reproach or self._served.session.fault
            self.observed.found = ASKS if self.world.outcome(SumAsked) else ""


class AgainstTeacher(AgainstModelOwner):
    """We play these two data owners, of whom the first tells the lies; the model owner listens at the address, and has
    told no sum before."""

    SPOKEN = ADAPTATION_MESSAGES
    TERMS = AdaptationTerms

    def __init__(
        self, keyring: Keyring, owners: Sequence[str], address: str, dealer_address: str, *, wait: float
    ) -> None:
        own, other = owners
        super().__init__(keyring, own, address, dealer_address, wait=wait)
        live = keyring.roster.server
        link = connecting(keyring.keys[other], live, address, wait, limits(wait))
        self.lines[other] = Line(other, live.name, link)
        self._other = other
        self._number = 0
        """Of the round of this case, or the last."""
        self._told = 0
        """The last round whose sum was told."""

    def session_on(self, terms: Terms) -> OneSession:
        found = adaptation_terms(terms)
        self._number += 1
        learns = [self.own]
        if isinstance(self.case, SharedRound):
            learns.append(self._other)
            self.involved.add(self._other)
        plan = round_plan(self._number, sorted(learns), based=self._told)
        batch, sizes = found.learning.batch, found.sizes
        return LearnersAndDealer(
            self,
            dict.fromkeys(learns, plan),
            terms=found,
            counts=dict.fromkeys(learns, found.least_count),
            wish=Wish(images=batch, batch=batch, channels=sizes.channels, side=sizes.side),
        )

    def conclude(self) -> None:
        super().conclude()
        told = [] if self.world is None else self.world.outcome(SumTold)
        sums = {None if each.data is None else bytes(each.data) for each in told}
        if sums:
            self.observed.found = "tells different sums" if len(sums) > 1 else NO_SUM if None in sums else SUM
        if sums - {None}:
            self._told = self._number
