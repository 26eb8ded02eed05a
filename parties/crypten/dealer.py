"""The dealer: a party of its own that makes correlated randomness for the computing parties, and sees nothing else.

It learns what they ask for (kinds and shapes, and by them the architecture, the batch size and the timing), neither
weights nor data. It is trusted in two ways. It does not collude: with the keystreams of all parties it could open
everything that one of them shows it. And its corrections are right: a correction is indistinguishable from random
words, so a wrong one is noticed in the result at best. One that is late, missing, reordered, of another shape, session
or request is refused by the party that expects it.

The dealer listens, the computing parties connect. It works segment by segment (supply.py): wait for the announcement of
every party, compare, expand the streams of all, send the corrections. Two parties that disagree end the session, and
each is told who says what.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

import torch

from tacit.parties.correlated.material import AnyRequest, Dealing, Linear, Purpose, RequestError, derive
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import Listener, errors_told
from tacit.parties.crypten.supply import ANNOUNCE, FINISHED, JOIN, Announcement, Join, agree, corrections_of

_PAUSE_SECONDS: Final = 60.0
"""The dealer waits without end for the next request, and in pieces of this length."""


class Dealer:
    """One session: made when all computing parties have connected, and over with their last announcement."""

    def __init__(self, listener: Listener, parties: Sequence[str]) -> None:
        """Let the parties join; `parties` are their names in the order of their ranks.

        MpcError names a party that does not come, or comes with another rank or of another computation.
        """
        links = listener.accept()
        self._listener = listener
        self._links = [links[name] for name in parties]
        self.dealt = 0
        """Requests met so far."""
        with errors_told(self._links):
            self._let_join()
            secrets = [agree(link, first=False)[0] for link in self._links]
        keys = [derive(secret, Purpose.MATERIAL, rank=rank) for rank, secret in enumerate(secrets)]
        self._dealing = Dealing(keys)

    def serve(self) -> None:
        """Meet every request until the parties are done. MpcError names who is late, gone or out of step."""
        with errors_told(self._links):
            while requests := self._next_segment():
                first = self.dealt
                messages: list[list[torch.Tensor]] = [[] for _ in self._links]
                for request in requests:
                    messages[request.receiver] += self._correct(request)
                    self.dealt += 1
                for link, message in zip(self._links, messages, strict=True):
                    if message:
                        link.send(corrections_of(first, len(requests)), message)
            for link in self._links:
                link.send(FINISHED, [])

    def _let_join(self) -> None:
        joins = [link.receive_fields(JOIN, Join) for link in self._links]
        for rank, (link, join) in enumerate(zip(self._links, joins, strict=True)):
            if (join.rank, join.parties) != (rank, len(joins)):
                raise MpcError(
                    link.peer,
                    JOIN,
                    f"it is rank {join.rank} of {join.parties}, here {rank} of {len(joins)}: name the computing "
                    "parties in the same order everywhere",
                )
            if join.computation != joins[0].computation:
                raise MpcError(
                    link.peer,
                    JOIN,
                    f"it is in computation {join.computation.hex()[:16]}, {self._links[0].peer!r} in "
                    f"{joins[0].computation.hex()[:16]}: start all parties again",
                )

    def _next_segment(self) -> tuple[AnyRequest, ...]:
        while not self._listener.ready(_PAUSE_SECONDS):
            pass
        announcements = [link.receive_fields(ANNOUNCE, Announcement) for link in self._links]
        reference = announcements[0]
        for rank, (link, announcement) in enumerate(zip(self._links, announcements, strict=True)):
            if announcement.first != self.dealt:
                raise MpcError(
                    link.peer,
                    ANNOUNCE,
                    f"it announces request {announcement.first} where {self.dealt} is next: it has missed a call, or "
                    "was restored from an earlier state; material is used once, so start all parties again",
                )
            if announcement.requests != reference.requests:
                raise MpcError(link.peer, ANNOUNCE, self._difference(announcement, reference))
            follower = (rank + 1) % len(announcements)
            if announcement.following != announcements[follower].previous:
                raise MpcError(
                    link.peer,
                    ANNOUNCE,
                    f"it has drawn {announcement.following} words of the zero sharing with "
                    f"{self._links[follower].peer!r}, which has drawn {announcements[follower].previous}: one of them "
                    "has missed a call or was restored from an earlier state; start all parties again",
                )
        return reference.requests

    def _correct(self, request: AnyRequest) -> list[torch.Tensor]:
        """The receiver's shares of the dependent words of the next request."""
        try:
            return list(self._dealing.correction(request, self.dealt))
        except RequestError as error:
            asker = self._links[request.owner if isinstance(request, Linear) else 0].peer
            raise MpcError(asker, f"request {self.dealt}", str(error)) from error

    def _difference(self, announcement: Announcement, reference: Announcement) -> str:
        other = self._links[0].peer
        pairs = zip_longest(announcement.requests, reference.requests)
        position, (own, expected) = next(pair for pair in enumerate(pairs) if pair[1][0] != pair[1][1])
        return (
            f"it asks for {own or 'nothing'} as request {self.dealt + position}, {other!r} for {expected or 'nothing'}"
            ": one of them has missed a call; let all parties run the same program on the same shapes"
        )
