"""An owner towards the dealer, and the dealer: docs/spec/inference.md, *Material*."""

from collections import deque
from collections.abc import Callable
from typing import Any

from constants import MATERIAL, MOST_ORDERS, NAMES, Refused, require
from conversation import Conversation
from inference_owner import OVER, Due, Exchange, cut
from inference_terms import INFERENCE
from messages import abort_body, read_body, read_envelope
from primitives import derive, framed


def material_key(session: bytes, terms: bytes, owner: str, of_owner: bytes, of_dealer: bytes) -> bytes:
    return derive(of_owner + of_dealer, MATERIAL, session, framed(MATERIAL, terms, owner.encode("ascii")))


class AtDealer(Exchange):
    """An owner towards the dealer."""

    def __init__(
        self, roster: bytes, other_owner: str, session: bytes, terms: bytes, contribution: bytes, *exchange: Any
    ) -> None:
        super().__init__(*exchange)
        self.conversation = Conversation(session, self.name, self.peer, family=INFERENCE)
        self.session, self.terms, self.contribution = session, terms, contribution
        self.roster, self.other_owner = roster, other_owner
        self.ordered, self.due = 0, Due()

    def hello(self, now: float) -> None:
        body = {"roster": self.roster, "peer": self.other_owner, "terms": self.terms}
        self.send("dealer-hello", body | {"contribution": self.contribution})
        self.state, self.deadline = "AWAIT_WELCOME", now + self.patience

    def ignores(self, envelope: dict[str, Any]) -> bool:
        return envelope["session"] != self.session

    def admitted(self) -> tuple[str, ...]:
        return {"AWAIT_WELCOME": ("dealer-welcome",), "SERVED": ("randomness",)}.get(self.state, ())

    def handle(self, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        if kind == "dealer-welcome":
            key = material_key(self.session, self.terms, self.name, self.contribution, body["contribution"])
            self.state, self.deadline = "SERVED", None
            self.tell({"event": "material key", "key": key})
            return
        data = self.due.take(body["number"], body["chunk"], raw)
        self.wait(now)
        if data is not None:
            self.tell({"event": "randomness", "number": body["number"], "data": data})

    def wait(self, now: float) -> None:
        self.deadline = None if self.due.next is None else now + self.patience

    def order(self, requests: bytes, count: int, corrections: list[dict[str, int]], now: float) -> None:
        if self.over:
            return
        require(self.state == "SERVED", "INVALID")
        self.send("order-randomness", {"first": self.ordered, "count": count, "requests": requests})
        self.ordered += count
        self.due.due.extend((each["number"], each["bytes"]) for each in corrections if each["bytes"])
        self.wait(now)

    def no_more(self) -> None:
        if self.over:
            return
        require(self.state == "SERVED", "INVALID")
        self.send("dealing-over", {})
        self.end(None, "")


class DealerSession:
    """The dealer with both owners of one session; the model owner comes first wherever order matters."""

    def __init__(
        self,
        name: str,
        roster: bytes,
        owners: list[str],
        session: bytes,
        draw: Callable[[], bytes],
        patience: float,
        now: float,
        transmit: Callable[[str, list[bytes]], None],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.name, self.roster, self.owners, self.session = name, roster, owners, session
        self.draw, self.patience, self.transmit, self.tell = draw, patience, transmit, tell
        self.conversations = {owner: Conversation(session, name, owner, family=INFERENCE) for owner in owners}
        self.hellos: dict[str, dict[str, Any]] = {}
        self.ahead: dict[str, deque[dict[str, Any]]] = {owner: deque() for owner in owners}
        self.ordered = dict.fromkeys(owners, 0)
        self.done: set[str] = set()
        self.state = "AWAIT_OWNERS"
        self.deadline: float | None = now + patience

    @property
    def over(self) -> bool:
        return self.state in OVER

    def other(self, owner: str) -> str:
        return self.owners[1 - self.owners.index(owner)]

    def send(self, owner: str, kind: str, body: dict[str, Any], raw: bytes | None = None) -> None:
        self.transmit(owner, self.conversations[owner].write(kind, 0, body, raw))

    def fail(self, code: str, culprit: str, but: str = "") -> None:
        come = self.owners if self.state == "SERVING" else {*self.hellos, culprit}
        for owner in self.owners:
            if owner in come and owner not in self.done and owner != but:
                self.send(owner, "abort", abort_body(code, culprit))
        self.end("ABORTED", code, culprit)

    def end(self, state: str, code: str | None, culprit: str) -> None:
        self.state, self.deadline = state, None
        self.tell({"event": "ended", "code": code, "culprit": culprit})

    def receive(self, sender: str, frames: list[bytes], now: float) -> None:
        if self.over:
            return
        try:
            envelope = read_envelope(frames, INFERENCE)
            self.conversations[sender].check(envelope)
            require(envelope["round"] == 0, "SESSION")
            kind = envelope["type"]
            admitted = ("dealer-hello",) if self.state == "AWAIT_OWNERS" else ("order-randomness", "dealing-over")
            require(kind in (*admitted, "abort"), "UNEXPECTED")
            body = read_body(envelope, frames, INFERENCE)
            if kind == "abort":
                self.fail(NAMES[body["code"]], body["culprit"] or sender, but=sender)
            elif kind == "dealer-hello":
                self.on_hello(sender, body)
            elif kind == "order-randomness":
                self.on_order(sender, body, now)
            else:
                self.done.add(sender)
                if len(self.done) == 2:
                    self.end("CLOSED", None, "")
        except Refused as reason:
            self.fail(reason.code, sender)

    def on_hello(self, sender: str, body: dict[str, Any]) -> None:
        require(body["roster"] == self.roster, "ROSTER")
        require(body["peer"] == self.other(sender), "MEMBERS")
        require(sender not in self.hellos, "UNEXPECTED")
        require(all(hello["terms"] == body["terms"] for hello in self.hellos.values()), "POLICY")
        self.hellos[sender] = body
        if len(self.hellos) < 2:
            return
        own = {owner: self.draw() for owner in self.owners}
        keys = [
            material_key(self.session, body["terms"], owner, self.hellos[owner]["contribution"], own[owner])
            for owner in self.owners
        ]
        self.tell({"event": "keys", "owners": self.owners, "keys": keys})
        for owner in self.owners:
            self.send(owner, "dealer-welcome", {"contribution": own[owner]})
        self.state, self.deadline = "SERVING", None

    def on_order(self, sender: str, body: dict[str, Any], now: float) -> None:
        require(sender not in self.done and body["first"] == self.ordered[sender], "SEQUENCE")
        waiting = self.ahead[self.other(sender)]
        require(not waiting or waiting[0] == body, "POLICY")
        require(bool(waiting) or len(self.ahead[sender]) < MOST_ORDERS, "UNEXPECTED")
        self.ordered[sender] += body["count"]
        if waiting:
            waiting.popleft()
            self.tell({"event": "deal", "first": body["first"], "count": body["count"]})
        else:
            self.ahead[sender].append(body)
        self.deadline = now + self.patience if any(self.ahead.values()) else None

    def deliver(self, owner: str, number: int, data: bytes) -> None:
        if self.over:
            return
        for chunk, piece in enumerate(cut(data)):
            self.send(owner, "randomness", {"number": number, "chunk": chunk}, piece)

    def expire(self, now: float) -> None:
        if self.deadline is None or now < self.deadline:
            return
        known: Any = self.hellos if self.state == "AWAIT_OWNERS" else {o for o in self.owners if self.ahead[o]}
        self.fail("TIMEOUT", next(owner for owner in self.owners if owner not in known))

    def drop(self, owner: str) -> None:
        if not self.over and owner not in self.done:
            self.fail("LEFT", owner, but=owner)

    def give_up(self, code: str, culprit: str) -> None:
        if not self.over:
            self.fail(code, culprit)
