"""A live data owner or a live model owner: we play the other owner and the dealer.

A session of our owner is a machine that opens random bytes of the right length, since nothing checks them, and the
session of our dealer that belongs to it. A live model owner serves for ever. A live data owner begins every session
itself, so it must be started again and again by whoever runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from tacit.parties.inference.owner import dealer_of, limits
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.codec import Frame, decode, decode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, Wish
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    TERMS_LIMIT,
    AgreeTerms,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    MaterialHello,
    MaterialOver,
    Terms,
)
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import Agreed, InferenceEnded, Opened, PassAsked, PassBegun
from tacit.protocol.inference.schedule import Round, weight_bytes
from tacit.protocol.inference.tables import InferenceState
from tacit.simulate.conformance.peer.dealer_part import DealerPart
from tacit.simulate.conformance.peer.inference_cast import FOREVER, InferenceCast, Line
from tacit.simulate.conformance.peer.inference_script import DATA_OWNER, DEALER, MODEL_OWNER
from tacit.simulate.conformance.peer.keyring import Keyring
from tacit.simulate.conformance.peer.script import PeerError

_IMAGES: Final = 2
"""That our data owner has, one for a pass, if the terms admit them."""


class AgainstOwner(InferenceCast):
    """Plays the cases of one side. own: our owner, live: the other one, line: between them."""

    machine: InferenceModelOwner | InferenceDataOwner | None = None

    def __init__(
        self, keyring: Keyring, own: str, live: str, line: Line, dealer_address: str, *, role: str, wait: float
    ) -> None:
        self.roster = keyring.roster
        self.own = own
        self.dealer = dealer_of(keyring.roster).name
        self._part: DealerPart | None = None
        self._early: list[tuple[Sequence[Frame], Message | None]] = []
        """What the live owner has said to our dealer before ours knew of the session."""
        self._rounds: tuple[Round, ...] = ()
        self._given: set[int] = set()
        """Rounds of the pass in which ours has opened something."""
        self._opened: set[int] = set()
        """Rounds of the pass in which the live owner has."""
        lines = (Line(self.dealer, live, _listening(keyring, self.dealer, dealer_address, wait)), line)
        super().__init__(live, lines, liars=(own, self.dealer), roles={own: role, self.dealer: DEALER}, wait=wait)

    @property
    def held(self) -> bool:
        return self.machine is not None and self.machine.state is InferenceState.CLOSED

    @property
    def openings(self) -> tuple[tuple[int, int], ...]:
        return tuple((step, size) for step, (size, _) in enumerate(map(self._sizes, self._rounds)) if size)

    def restart(self) -> None:
        super().restart()
        self.machine = self._part = None
        self._early.clear()

    async def hear(self, own: str, frames: Sequence[Frame], message: Message | None) -> None:
        if isinstance(message, AgreeTerms | MaskedWeights | MaterialHello):
            self.involved.add(self.dealer)
        if own != self.dealer:
            await self.hear_owner(frames, message)
        elif self._part is None:
            self._early.append((frames, message))
        else:
            if isinstance(message, MaterialOver):
                self.done.add(own)
            await self._perform(own, self._part.feed(frames, message))

    async def hear_owner(self, frames: Sequence[Frame], message: Message | None) -> None:
        """What the live owner says to ours."""
        if self.machine is not None:
            await self.perform(self.machine.feed(frames, 0.0))

    async def perform(self, outputs: Sequence[Output]) -> None:
        """Do what the machine of our owner says, and what it can do next."""
        await self._perform(self.own, outputs)
        await self.go_on()

    async def go_on(self) -> None:
        """Open what can be opened."""
        machine = self.machine
        if machine is None or machine.state is not InferenceState.COMPUTING:
            return
        for step, (own, lives) in enumerate(map(self._sizes, self._rounds)):
            if own and step not in self._given:
                self._given.add(step)
                await self.perform(machine.give(step, os.urandom(own), 0.0))
                return
            if lives and step not in self._opened:
                return

    async def act(self, output: Output) -> None:
        """What the one of both owners does that the other does not."""

    async def _perform(self, own: str, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case Transmit():
                    await self.say(own, output.frames)
                case Agreed():
                    await self._begin_dealing(output)
                case PassBegun(rounds=rounds):
                    self._rounds, self._given, self._opened = rounds, set(), set()
                case Opened(step=step):
                    self._opened.add(step)
                case InferenceEnded(code=None):
                    self.done.add(own)
                case InferenceEnded():
                    self.blame(own, output)
            await self.act(output)

    async def _begin_dealing(self, agreed: Agreed) -> None:
        self._part = DealerPart(self.roster, dealer=self.dealer, own=self.own, live=self.live, agreed=agreed)
        await self._perform(self.dealer, self._part.start())
        early, self._early = self._early, []
        for frames, message in early:
            await self.hear(self.dealer, frames, message)

    def _sizes(self, round: Round) -> tuple[int, int]:
        """Bytes of ours and of the live owner."""
        sizes = round.model_owner_bytes, round.data_owner_bytes
        return sizes if self.own == self.roster.server.name else sizes[::-1]


class AgainstDataOwner(AgainstOwner):
    """We play the model owner at this address. tell: what the operator of the live party must do."""

    machine: InferenceModelOwner | None

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
        own = keyring.roster.server.name
        self._terms = terms
        self._address = address
        self._tell = tell
        self._hello: Sequence[Frame] = ()
        """With which the next session begins."""
        line = Line(own, live, _listening(keyring, own, address, wait))
        super().__init__(keyring, own, live, line, dealer_address, role=MODEL_OWNER, wait=wait)

    async def begin(self) -> None:
        if not self._hello:
            self._tell(f"waiting for {self.live!r} to say hello at {self._address}: start it if it does not run")
            await self.listen(lambda: bool(self._hello))
        hello, self._hello = self._hello, ()
        self.machine = InferenceModelOwner(
            self.live, self.roster, terms=self._terms, entropy=os.urandom, patience=FOREVER
        )
        self.involved.add(self.own)
        await self.perform(self.machine.feed(hello, 0.0))

    async def hear_owner(self, frames: Sequence[Frame], message: Message | None) -> None:
        if isinstance(message, InferenceHello):
            self._hello = frames
            if self.machine is not None:
                self.observed.reproach = "begins another session without a word about this one"
            return
        await super().hear_owner(frames, message)

    async def act(self, output: Output) -> None:
        assert self.machine is not None
        if isinstance(output, Agreed):
            for layer, size in enumerate(weight_bytes(output.terms.sizes)):
                await self.perform(self.machine.mask(layer, os.urandom(size), 0.0))
        elif isinstance(output, PassAsked):
            await self.perform(self.machine.begin(self._terms.weights, 0.0))


class AgainstModelOwner(AgainstOwner):
    """We play this data owner; the model owner listens at the address."""

    machine: InferenceDataOwner | None

    def __init__(self, keyring: Keyring, own: str, address: str, dealer_address: str, *, wait: float) -> None:
        self._wish: Wish | None = None
        live = keyring.roster.server.name
        line = Line(own, live, connecting(keyring, own, live, address, wait))
        super().__init__(keyring, own, live, line, dealer_address, role=DATA_OWNER, wait=wait)

    async def begin(self) -> None:
        if self._wish is None:
            await self._ask_terms()
        await self.begin_again()

    async def begin_again(self) -> None:
        assert self._wish is not None
        self.involved.add(self.own)
        self.machine = InferenceDataOwner(
            self.own, self.roster, wish=self._wish, policy=InferencePolicy(), patience=FOREVER
        )
        await self.perform(self.machine.start(0.0))

    async def go_on(self) -> None:
        machine = self.machine
        if machine is None or machine.state is not InferenceState.IDLE:
            await super().go_on()
        elif machine.number == machine.agreed.passes:
            await self.perform(machine.finish(0.0))
        else:
            await self.perform(machine.ask(0.0))

    async def hear_owner(self, frames: Sequence[Frame], message: Message | None) -> None:
        if self._wish is None:
            self._wish = await self._wish_for(frames, message)
            return
        await super().hear_owner(frames, message)

    async def _ask_terms(self) -> None:
        """What we may ask for depends on the terms, so a first session is only for these."""
        hello = InferenceHello(roster=self.roster.hash)
        link = Link(self.own, self.live, NO_SESSION, Traffic(), INFERENCE_MESSAGES)
        await self._lines[self.own].send(link.frames(hello, round=0))
        await self.listen(lambda: self._wish is not None)

    async def _wish_for(self, frames: Sequence[Frame], message: Message | None) -> Wish:
        try:
            if not isinstance(message, InferenceTerms):
                raise RemoteProtocolError(Code.UNEXPECTED, f"the answer to inference-hello is {message}")
            terms = decode_structure(message.terms, Terms, limit=TERMS_LIMIT)
        except RemoteProtocolError as error:
            raise PeerError(f"the model owner at this address says no terms: {error.detail}") from None
        session = decode(frames, INFERENCE_MESSAGES).envelope.session
        self._past.add(session)
        link = Link(self.own, self.live, session, Traffic(), INFERENCE_MESSAGES)
        leaves = Abort(code=Code.LEFT, detail="the tests begin with the next hello", culprit=self.own)
        await self._lines[self.own].send(link.frames(leaves, round=0))
        images = min(_IMAGES, terms.most_images)
        return Wish(images=images, batch=1, channels=terms.sizes.channels, side=terms.sizes.side)


def connecting(keyring: Keyring, own: str, live: str, address: str, wait: float) -> Callable[[], Any]:
    """Opens a link of ours to a live party that listens."""
    return lambda: ClientEndpoint.connect(
        address,
        keys=keyring.keys[own],
        server=keyring.roster.member(live),
        limits=limits(wait),
        connect_deadline=wait,
    )


def _listening(keyring: Keyring, own: str, address: str, wait: float) -> Callable[[], Any]:
    """Opens an end of ours at which the live party finds us."""
    return lambda: ServerEndpoint.bind(address, keys=keyring.keys[own], roster=keyring.roster, limits=limits(wait))
