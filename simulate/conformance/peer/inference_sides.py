"""Whom we play in private inference: an owner and the dealer, towards the other owner; or both, towards the dealer.

What our owners compute with follows from where it is used, since nothing checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import ClassVar, Final

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
from tacit.protocol.core.codec import decode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.inference.data_owner import Wish
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.messages import (
    TERMS_LIMIT,
    AgreeTerms,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    MaterialHello,
    MaterialOver,
    OrderMaterial,
    Terms,
)
from tacit.protocol.inference.results import Deal, MaterialArrived, MaterialKey
from tacit.simulate.conformance.peer.cast import Line, connecting, listening
from tacit.simulate.conformance.peer.inference_cases import DATA_OWNER, DEALER, MODEL_OWNER
from tacit.simulate.conformance.peer.inference_cast import InferenceCast, OneSession
from tacit.simulate.conformance.peer.keyring import Keyring
from tacit.simulate.conformance.peer.script import PeerError, Saying
from tacit.simulate.world.inference import Owner, content, small_terms
from tacit.simulate.world.network import Parcel

_IMAGES: Final = 2
"""That our data owner has, one for a pass, if the terms admit them."""
_ORDERS: Final[tuple[tuple[AnyBlockRequest, ...], ...]] = (
    (Weight(0, (3, 2)), Fixed(0, (5,), 0, (3, 2))),
    (Matrix("matmul", (2, 3), (3, 4)), Lookup((2,), levels=3)),
)
"""To a live dealer: for the weights, and for the one pass."""


class OwnerAndDealer(OneSession):
    """Ours orders what the live owner has ordered. What the dealer deals is content of the right length: nothing checks
    it."""

    def order(self, owner: Owner) -> None:
        """Not before the live one."""

    def follow(self, order: OrderMaterial, session: bytes) -> None:
        """Let ours in this session order the same, and expect no corrections."""
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
    """They order from the live dealer what it can deal, and compute with none of it."""

    def order(self, owner: Owner) -> None:
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
        if isinstance(message, AgreeTerms | MaskedWeights | MaterialHello):
            self.involved.add(self.dealer)
        elif isinstance(message, MaterialOver) and (self.own, parcel.packet.envelope.session) in self._links:
            self.done.add(parcel.receiver)
        await super().feed(parcel, message)
        if isinstance(message, OrderMaterial) and isinstance(self.world, OwnerAndDealer):
            self.world.follow(message, parcel.packet.envelope.session)
            await self.go_on(self.world)


class AgainstDataOwner(AgainstOwner):
    """We play the model owner at this address. A live data owner begins every session itself, so it must be started
    again and again. tell: what its operator must do."""

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
        """With which the next session begins."""
        own = keyring.roster.server.name
        line = Line(own, live, listening(keyring.keys[own], keyring.roster, address, limits(wait)))
        super().__init__(keyring, live, line, dealer_address, role=MODEL_OWNER, wait=wait)

    def session_on(self, terms: Terms) -> OneSession:
        """A session in which these are offered."""
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
    """What is offered to us."""

    def __init__(self, keyring: Keyring, own: str, address: str, dealer_address: str, *, wait: float) -> None:
        self._terms: Terms | None = None
        live = keyring.roster.server
        line = Line(own, live.name, connecting(keyring.keys[own], live, address, wait, limits(wait)))
        super().__init__(keyring, live.name, line, dealer_address, role=DATA_OWNER, wait=wait)

    def session_on(self, terms: Terms) -> OneSession:
        """A session on the most that these terms admit, up to what we have."""
        images = min(_IMAGES, terms.most_images)
        wish = Wish(images=images, batch=1, channels=terms.sizes.channels, side=terms.sizes.side)
        return OwnerAndDealer(self, {self.own: wish})

    async def begin(self) -> None:
        if self._terms is None:
            # What we may ask for depends on the terms, so a first session is only for these.
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
        """The session in which they came is over then."""
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

    We know the keys of all streams. So what the dealer sends is compared with what it must be.
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
        wish = Wish(images=1, batch=1, channels=terms.sizes.channels, side=terms.sizes.side)
        self.world = BothOwners(self, dict.fromkeys(self._liars, wish), terms=terms)
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
