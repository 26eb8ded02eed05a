"""Our dealer in one session with a live owner: the machine of the dealer, and of our owner's side of it.

Our owner orders what the live one has ordered. The live one gets random words for corrections: nothing checks them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from tacit.parties.correlated.dealing import RequestError
from tacit.parties.inference.material import correction_bytes, decoded_requests
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.messages import MaterialOver, OrderMaterial
from tacit.protocol.inference.results import Agreed, Deal, InferenceEnded
from tacit.simulate.conformance.peer.inference_cast import FOREVER


class DealerPart:
    """own: our owner, live: the other one, agreed: what ours goes by."""

    def __init__(self, roster: Roster, *, dealer: str, own: str, live: str, agreed: Agreed) -> None:
        (data_owner,) = {own, live} - {roster.server.name}
        self._own, self._live = own, live
        self._machine = InferenceDealer(
            dealer,
            roster,
            data_owner=data_owner,
            session=agreed.session,
            entropy=os.urandom,
            patience=FOREVER,
            now=0.0,
        )
        self._ours = MaterialOwner(own, roster, dealer=dealer, agreed=agreed, entropy=os.urandom, patience=FOREVER)

    def start(self) -> list[Output]:
        """Our owner comes. Of this and of `feed`: messages to the live owner, and how our dealer has ended."""
        return self._carried(self._ours.start(0.0))

    def feed(self, frames: Sequence[Frame], message: Message | None) -> list[Output]:
        """A message of the live owner; message: None if it cannot be read."""
        found = self._carried(self._machine.feed(self._live, frames, 0.0))
        if isinstance(message, OrderMaterial) and not self._machine.over:
            found += self._carried(self._ours.order(message.requests, message.count, (), 0.0))
        elif isinstance(message, MaterialOver):
            found += self._carried(self._ours.finish(0.0))
        return found

    def _carried(self, outputs: Sequence[Output]) -> list[Output]:
        """Carry messages between our two machines until none is left."""
        queue, found = deque(outputs), list[Output]()
        while queue:
            output = queue.popleft()
            if isinstance(output, Transmit) and output.to == self._machine.own:
                queue.extend(self._machine.feed(self._own, output.frames, 0.0))
            elif isinstance(output, Transmit) and output.to == self._own:
                self._ours.feed(output.frames, 0.0)  # Corrections for ours are never dealt, so it has nothing to say.
            elif isinstance(output, Deal):
                queue.extend(self._dealt(output))
            elif isinstance(output, Transmit) or (isinstance(output, InferenceEnded) and output.code is not None):
                found.append(output)
        return found

    def _dealt(self, deal: Deal) -> list[Output]:
        """Random corrections for the live owner."""
        rank = self._machine.owners.index(self._live)
        try:
            requests = decoded_requests(deal.requests)
        except RequestError as error:
            detail = f"an order that this kit cannot read: {error}"
            return self._machine.give_up(RemoteProtocolError(Code.MALFORMED, detail, culprit=self._live), 0.0)
        sizes = {
            number: correction_bytes(request)
            for number, request in enumerate(requests, deal.first)
            if request.receiver == rank
        }
        return [
            output
            for number, size in sizes.items()
            if size
            for output in self._machine.deliver(self._live, number, os.urandom(size), 0.0)
        ]
