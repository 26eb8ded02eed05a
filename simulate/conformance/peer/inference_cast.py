"""Our two parties in a case of private inference, each with a link to the live third one, and the play of a case.

We play an owner and the dealer, towards the other owner; or both owners, towards the dealer. Our machines' messages to
the live party pass the lie of the case. A case is over when the live party has ended the session towards both of ours,
or completed it, or is silent for too long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Final

from tacit.parties.correlated.material import Dealing, RequestError, Weight
from tacit.parties.inference.conversation import limits
from tacit.parties.inference.material import (
    AnyBlockRequest,
    Fixed,
    Lookup,
    Matrix,
    correction_bytes,
    decoded_requests,
    encoded_correction,
    encoded_requests,
)
from tacit.protocol.core.codec import Envelope, decode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.messages import Abort, Kinds, Message
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    TERMS_LIMIT,
    AgreeTerms,
    DealerHello,
    DealingOver,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    OrderRandomness,
    Terms,
)
from tacit.protocol.inference.results import Deal, InferenceEnded, MaterialArrived, MaterialKey
from tacit.simulate.conformance.peer.cast import Cast, Keyring, Line, connecting, listening
from tacit.simulate.conformance.peer.inference_cases import (
    BOTH,
    COMPLETES,
    DATA_OWNER,
    DEALER,
    MODEL_OWNER,
    OTHER_SESSION,
    OTHERS,
    InferenceCase,
    Scene,
    ends,
)
from tacit.simulate.conformance.peer.script import PeerError, PeerVerdict, Saying, saying, verdict
from tacit.simulate.world.inference import MachineOutput, MemoryInference, Owner, Side, content, small_terms
from tacit.simulate.world.world import Parcel


@dataclass
class Observed:
    roles: Mapping[str, str]
    case: InferenceCase
    liar: str = ""
    aborts: dict[str, Abort] = field(default_factory=dict)
    """Aborts from the live party, by recipient."""
    reproach: str = ""
    """Other faults, in words."""
    found: str = ""
    """Result of the session, if it is checked."""
    held: bool = False
    """Whether a session came to its regular end."""

    def words(self) -> str:
        told: dict[tuple[Code, str], list[str]] = {}
        for name, abort in self.aborts.items():
            role = self.roles.get(name, OTHERS)
            if self.case.witness in ("", role):
                told.setdefault((abort.code, abort.culprit), []).append(role)
        words = []
        for (code, culprit), roles in told.items():
            blames = "" if self.case.anyone or culprit == self.liar else f", blames {culprit or 'nobody'}"
            words.append(ends(code, BOTH if len(roles) == len(self.roles) else roles[0]) + blames)
        words += [each for each in (self.reproach, self.found) if each]
        words += [COMPLETES] if self.held else []
        if not self.liar and self.case.lies and self.held:
            words.append("it is over before the lie")
        return ", ".join(words)


class OneSession(MemoryInference):
    """Our two parties in one session with the live one; a cast receives their outputs. of_world, more: as for a world
    without a live party."""

    def __init__(self, cast: InferenceCast, *of_world: Any, **more: Any) -> None:
        super().__init__(*of_world, **more, seed=os.urandom(32), roster=cast.roster)
        self.outside = cast.live
        self._cast = cast

    def note(self, told: MachineOutput) -> None:
        super().note(told)
        self._cast.note(told)


class InferenceCast(Cast):
    """roles: names of our parties in verdicts; liars: parties that lie, unless a case names both."""

    SPOKEN: ClassVar[Kinds] = INFERENCE_MESSAGES
    """Messages between owners; with the dealer they use private inference."""
    world: OneSession | None = None
    """World of the session, once it has begun."""

    def __init__(
        self,
        keyring: Keyring,
        live: str,
        lines: Sequence[Line],
        *,
        roles: Mapping[str, str],
        liars: Collection[str] | None = None,
        wait: float,
    ) -> None:
        super().__init__(live, lines, wait=wait)
        self.roster = keyring.roster
        self._liars: Collection[str] = roles if liars is None else liars
        self._roles = roles
        self._links: dict[tuple[str, bytes], Link] = {}
        """Keyed by our party, and the session."""
        self._former: dict[str, dict[type[Message], Saying]] = {}
        self.past: set[bytes] = set()
        """Sessions of earlier cases."""
        self._replaced: set[bytes] = set()
        """Sessions of this case that we replaced by another one."""
        self._sessions: set[bytes] = set()
        """All sessions of this case."""
        self._silent: set[str] = set()
        self._liars_before: set[str] = set()
        self.case: InferenceCase
        self.observed: Observed
        self.involved: set[str] = set()
        """Our parties with messages to or from the live one in this session."""
        self.done: set[str] = set()
        """Our parties that are finished with the live one."""
        self.refused: set[str] = set()
        """Our parties that received an end with a code."""

    def kinds(self, own: str) -> Kinds:
        return INFERENCE_MESSAGES if self.roster.dealer.name in (own, self.live) else self.SPOKEN

    async def play(self, case: InferenceCase) -> PeerVerdict:
        self.case, self.observed = case, Observed(self._roles, case)
        self.past |= self._sessions
        self._sessions, self._replaced, self._silent, self._liars_before = set(), set(), set(), set()
        self._former, self._links = {name: {} for name in self.lines}, {}
        self._restart()
        try:
            await self.open()
            await self.begin()
            await self.listen(self._settled)
        except TimeoutError:
            self.observed.reproach = f"nothing more comes for {self.wait:g} s"
        self.conclude()
        await self._dismiss()
        return verdict(case, self.observed.words())

    async def begin(self) -> None:
        """Begin a session with the live party. TimeoutError if it does not come."""
        raise NotImplementedError

    async def feed(self, parcel: Parcel, message: Message | None) -> None:
        """Handle a message of this session; message: None if unreadable."""
        if self.world is not None:
            self.world.put(parcel)
            await self.go_on(self.world)

    def note(self, told: MachineOutput) -> None:
        """Note that one of our machines ended regularly, or refused a message of the live party."""
        ended = told.output
        if not isinstance(ended, InferenceEnded):
            return
        if ended.code is None:
            if told.side == self._side and told.party not in self._silent:
                self.done.add(told.party)
        elif not self.observed.aborts and not self.observed.reproach:
            self.observed.reproach = f"breaks a rule: {ended.code.name}, {ended.detail}"

    def conclude(self) -> None:
        owners = [] if self.world is None else self.world.shells
        machines = [machine for owner in owners for side, machine in owner.machines() if side == self._side]
        closed = bool(machines) and all(machine.state.name == "CLOSED" for machine in machines)
        self.observed.held = closed and self.involved <= self.done and not self.refused

    async def relay(self, parcel: Parcel) -> None:
        own, packet, case = parcel.sender, parcel.packet, self.case
        said, session = saying(packet), packet.envelope.session
        # After ending towards one of ours, the live party must end towards the other by itself.
        if session in self._replaced or (self.observed.aborts and isinstance(said.message, Abort)):
            return
        if not packet.envelope.sequence:
            self._links.pop((own, NO_SESSION), None)
            self._links[own, session] = self.link(own, session)
        self._sessions |= {session} - {NO_SESSION}
        if own in self._silent:
            return
        lies: Sequence[Saying] = [said]
        if (own in self._liars or case.together) and own not in self._liars_before:
            acts = packet.kind is case.at
            lies = [] if acts else list(case.lie(Scene(own, self._former[own], self._openings(own)), said))
            if lies != [said]:
                self.observed.liar = own
                self._liars_before.add(own)
            if acts:
                await self._act(own)
                return
        self._former[own][packet.kind] = said
        for lie in lies:
            await self._say(self._links[own, session], lie)
        if case.act == "stops" and own == self.observed.liar:
            self._silent.add(own)

    async def hear(self, parcel: Parcel, envelope: Envelope | None, message: Message | None) -> None:
        own, session = parcel.receiver, NO_SESSION if envelope is None else envelope.session
        if session in self.past or session == OTHER_SESSION:
            return
        if isinstance(message, Abort):
            self.observed.aborts.setdefault(own, message)
        if session in self._replaced:
            return
        if isinstance(message, Abort):
            self.done.add(own)
            self.refused.add(own)
        await self.feed(parcel, message)

    @property
    def _side(self) -> Side:
        return "dealer" if self.live == self.roster.dealer.name else "owners"

    def _openings(self, own: str) -> tuple[tuple[int, int], ...]:
        owners = [] if self.world is None else self.world.shells
        sizes = (enumerate(owner.openings) for owner in owners if owner.name == own)
        return tuple((step, size) for step, size in chain(*sizes) if size)

    def _restart(self) -> None:
        self.world = None
        self.involved, self.done, self.refused = set(), set(), set()

    async def _act(self, own: str) -> None:
        if self.case.act == "begins again":
            self._replaced |= self._sessions
            self._restart()
            await self.begin()
            return
        self._silent.add(own)
        if self.case.act == "hangs up":
            self.done.add(own)
            await self.lines[own].close()

    def link(self, own: str, session: bytes) -> Link:
        return Link(own, self.live, session, Traffic(), self.kinds(own))

    async def _say(self, link: Link, said: Saying) -> None:
        if said.envelope.get("session") == OTHER_SESSION:
            link = self.link(link.own, OTHER_SESSION)
        elif isinstance(said.message, Abort | DealingOver):
            self.done.add(link.own)
        await self.say(said, link)

    def _settled(self) -> bool:
        observed, witness = self.observed, self.case.witness
        if witness and observed.aborts and not observed.reproach:
            return any(self._roles[name] == witness for name in observed.aborts)
        return bool(observed.reproach) or (bool(self.involved) and self.involved <= self.done)

    async def _dismiss(self) -> None:
        abort = Saying(Abort(code=Code.LEFT, detail="the next test begins another session", culprit=""), round=0)
        left = self.involved - self.done
        for (own, session), link in self._links.items():
            if own in left and session not in self._replaced:
                await self._say(link, abort)


_IMAGES: Final = 2
"""Images of our data owner, one per pass, if the terms admit them."""
_ORDERS: Final[tuple[tuple[AnyBlockRequest, ...], ...]] = (
    (Weight(0, (3, 2)), Fixed(0, (5,), 0, (3, 2))),
    (Matrix("matmul", (2, 3), (3, 4)), Lookup((2,), levels=3)),
)
"""Orders to a live dealer: for the weights, and for the one pass."""


class OwnerAndDealer(OneSession):
    """Our owner orders the same as the live owner. Our dealer sends content of the right length: nothing checks it."""

    def order(self, owner: Owner, again: int = 0) -> None:
        """Order only after the live owner."""

    def follow(self, order: OrderRandomness, session: bytes) -> None:
        for owner in self.shells:
            if owner.machine.session == session:
                owner.order(order.requests, [0] * order.count)

    def deal(self, dealer: InferenceDealer, deal: Deal) -> None:
        rank = dealer.owners.index(self.outside)
        try:
            requests = decoded_requests(deal.requests)
        except RequestError as error:
            detail = f"an order that this kit cannot read: {error}"
            refusal = RemoteProtocolError(Code.MALFORMED, detail, culprit=self.outside)
            self.tell_dealer(dealer, dealer.give_up(refusal, self.now))
            return
        for number, request in enumerate(requests, deal.first):
            if rank in request.receivers and (size := correction_bytes(request)):
                self.tell_dealer(dealer, dealer.deliver(self.outside, number, content(size, number), self.now))


class BothOwners(OneSession):
    """They order supported requests from the live dealer, and compute with none of them."""

    def order(self, owner: Owner, again: int = 0) -> None:
        requests = _ORDERS[bool(owner.ordered)]
        sizes = [correction_bytes(request) if owner.rank in request.receivers else 0 for request in requests]
        owner.order(encoded_requests(requests), sizes)


class AgainstOwner(InferenceCast):
    """We play an owner and the dealer. line: from our owner to the live one; role: of ours."""

    def __init__(self, keyring: Keyring, live: str, line: Line, dealer_address: str, *, role: str, wait: float) -> None:
        self.own, self.dealer = line.own, keyring.roster.dealer.name
        listen = listening(keyring.keys[self.dealer], keyring.roster, dealer_address, limits(wait))
        roles = {self.own: role, self.dealer: DEALER}
        super().__init__(keyring, live, (Line(self.dealer, live, listen), line), roles=roles, wait=wait)

    async def feed(self, parcel: Parcel, message: Message | None) -> None:
        if isinstance(message, AgreeTerms | MaskedWeights | DealerHello):
            self.involved.add(self.dealer)
        elif isinstance(message, DealingOver) and (self.own, parcel.packet.envelope.session) in self._links:
            self.done.add(parcel.receiver)
        await super().feed(parcel, message)
        if isinstance(message, OrderRandomness) and isinstance(self.world, OwnerAndDealer):
            self.world.follow(message, parcel.packet.envelope.session)
            await self.go_on(self.world)


class AgainstDataOwner(AgainstOwner):
    """We play the model owner at this address. A live data owner begins every session itself, so it must be restarted
    repeatedly. tell: receives instructions for its operator."""

    def __init__(
        self,
        keyring: Keyring,
        live: str,
        terms: Terms,
        address: str,
        dealer_address: str,
        *,
        wait: float,
        tell: Callable[[str], None],
    ) -> None:
        self._terms, self._address, self._tell = terms, address, tell
        self._hello: Parcel | None = None
        """Hello that begins the next session."""
        own = keyring.roster.server.name
        line = Line(own, live, listening(keyring.keys[own], keyring.roster, address, limits(wait)))
        super().__init__(keyring, live, line, dealer_address, role=MODEL_OWNER, wait=wait)

    def session_on(self, terms: Terms) -> OneSession:
        return OwnerAndDealer(self, {}, terms=terms)

    async def begin(self) -> None:
        if self._hello is None:
            self._tell(f"waiting for {self.live!r} to say hello at {self._address}: start it if it does not run")
            await self.listen(lambda: self._hello is not None)
        hello, self._hello = self._hello, None
        assert hello is not None
        self.world = self.session_on(self._terms)
        self.involved.add(self.own)
        await super().feed(hello, None)

    async def feed(self, parcel: Parcel, message: Message | None) -> None:
        if not isinstance(message, InferenceHello):
            await super().feed(parcel, message)
            return
        self._hello = parcel
        if self.world is not None:
            self.observed.reproach = "begins another session without a word about this one"


class AgainstModelOwner(AgainstOwner):
    """We play this data owner; the model owner listens at the address, and serves for ever."""

    TERMS: ClassVar[type[Terms]] = Terms
    """Type of the offered terms."""

    def __init__(self, keyring: Keyring, own: str, address: str, dealer_address: str, *, wait: float) -> None:
        self._terms: Terms | None = None
        live = keyring.roster.server
        line = Line(own, live.name, connecting(keyring.keys[own], live, address, wait, limits(wait)))
        super().__init__(keyring, live.name, line, dealer_address, role=DATA_OWNER, wait=wait)

    def session_on(self, terms: Terms) -> OneSession:
        """Return a session with the most that these terms admit, up to our images."""
        images = min(_IMAGES, terms.most_images)
        request = InferenceRequest(images=images, batch=1, channels=terms.sizes.channels, side=terms.sizes.side)
        return OwnerAndDealer(self, {self.own: request})

    async def begin(self) -> None:
        if self._terms is None:
            # The permitted request depends on the terms, so a first session only fetches these.
            link = self.link(self.own, NO_SESSION)
            await self.say(Saying(InferenceHello(roster=self.roster.hash), round=0), link)
            await self.listen(lambda: self._terms is not None)
        assert self._terms is not None
        self.involved.add(self.own)
        self.world = self.session_on(self._terms)
        self.world.start()
        await self.go_on(self.world)

    async def feed(self, parcel: Parcel, message: Message | None) -> None:
        if self._terms is None:
            self._terms = await self._terms_in(parcel, message)
        else:
            await super().feed(parcel, message)

    async def _terms_in(self, parcel: Parcel, message: Message | None) -> Terms:
        try:
            if not isinstance(message, InferenceTerms):
                raise RemoteProtocolError(Code.UNEXPECTED, f"the answer to inference-hello is {message}")
            terms = decode_structure(message.terms, self.TERMS, limit=TERMS_LIMIT)
        except RemoteProtocolError as error:
            raise PeerError(f"the model owner at this address says no terms: {error.detail}") from None
        session = parcel.packet.envelope.session
        self.past.add(session)
        link = self.link(self.own, session)
        leaves = Abort(code=Code.LEFT, detail="the tests begin with the next hello", culprit=self.own)
        await self.say(Saying(leaves, round=0), link)
        return terms


class AgainstDealer(InferenceCast):
    """We play the model owner and this data owner; the dealer listens at the address.

    We know the keys of all streams, so the dealer's corrections are compared with the expected ones.
    """

    def __init__(self, keyring: Keyring, data_owner: str, address: str, *, wait: float) -> None:
        live, owners = keyring.roster.dealer, (keyring.roster.server.name, data_owner)
        lines = [
            Line(own, live.name, connecting(keyring.keys[own], live, address, wait, limits(wait))) for own in owners
        ]
        roles = dict(zip(owners, (MODEL_OWNER, DATA_OWNER), strict=True))
        super().__init__(keyring, live.name, lines, roles=roles, liars=(data_owner,), wait=wait)

    async def begin(self) -> None:
        self.involved |= {*self.lines}
        terms = small_terms()
        request = InferenceRequest(images=1, batch=1, channels=terms.sizes.channels, side=terms.sizes.side)
        self.world = BothOwners(self, dict.fromkeys(self._liars, request), terms=terms)
        self.world.start()
        await self.go_on(self.world)

    def conclude(self) -> None:
        super().conclude()
        if self.world is None or not self.observed.held:
            return
        keys = [self.world.outcome(MaterialKey, own)[0].key for own in self.lines]
        dealing, dealt = Dealing(keys), {}
        owners = tuple(self.lines)
        for number, request in enumerate(chain(*_ORDERS)):
            if (words := encoded_correction(request, dealing.correction(request, number))) is not None:
                dealt.update({(owners[rank], number): bytes(words) for rank in request.receivers})
        arrived = {
            (own, each.number): bytes(each.data) for own in owners for each in self.world.outcome(MaterialArrived, own)
        }
        if dealt != arrived:
            self.observed.reproach = "deals other corrections than the keys of both owners give"
