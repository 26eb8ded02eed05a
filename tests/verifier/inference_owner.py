"""A data owner and the model owner towards each other: docs/spec/inference.md."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from constants import AUDIT_COIN, AUDIT_COMMITMENT, CHUNK_BYTES, NAMES, Refused, require
from conversation import Conversation
from inference_terms import INFERENCE, layers_of, passes_of, read_terms, rounds_of, terms_digest
from messages import abort_body, raw_frame, read_body, read_envelope
from primitives import digest

IN_A_PASS = ("start-pass", "audit-commitment", "audit-coin", "audit-keys", "pass-started", "opening")
OVER = ("CLOSED", "ABORTED")


class Due:
    """What is to come from one sender: indices and lengths, in order."""

    def __init__(self, due: Iterable[tuple[int, int]] = ()) -> None:
        self.due = deque((index, size) for index, size in due if size)
        self.arrived = b""

    def check(self, index: int, chunk: int, raw: bytes | None) -> None:
        require(bool(self.due), "UNEXPECTED")
        expected, size = self.due[0]
        require((index, chunk) == (expected, len(self.arrived) // CHUNK_BYTES), "UNEXPECTED")
        require(raw is not None and len(raw) == min(CHUNK_BYTES, size - len(self.arrived)), "VECTOR")

    def take(self, index: int, chunk: int, raw: bytes | None) -> bytes | None:
        """The whole, once its last chunk is there."""
        self.check(index, chunk, raw)
        self.arrived += raw or b""
        if len(self.arrived) < self.due[0][1]:
            return None
        whole, self.arrived = self.arrived, b""
        self.due.popleft()
        return whole

    @property
    def next(self) -> int | None:
        return self.due[0][0] if self.due else None


def cut(data: bytes) -> list[bytes]:
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


class Exchange:
    """What one party says to another in one session; `tell` is for the party around it."""

    family = INFERENCE

    def __init__(
        self,
        name: str,
        peer: str,
        patience: float,
        transmit: Callable[[str, list[bytes]], None],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.name, self.peer, self.patience = name, peer, patience
        self.transmit, self.tell = transmit, tell
        self.conversation = Conversation(bytes(32), name, peer, family=self.family)
        self.state = "READY"
        self.deadline: float | None = None

    @property
    def over(self) -> bool:
        return self.state in OVER

    def send(self, kind: str, body: dict[str, Any], round_number: int = 0, raw: bytes | None = None) -> None:
        self.transmit(self.peer, self.conversation.write(kind, round_number, body, raw))

    def end(self, code: str | None, culprit: str) -> None:
        self.state, self.deadline = "CLOSED" if code is None else "ABORTED", None
        self.tell({"event": "ended", "code": code, "culprit": culprit})

    def fail(self, code: str, culprit: str) -> None:
        self.send("abort", abort_body(code, culprit))
        self.end(code, culprit)

    def receive(self, frames: list[bytes], now: float) -> None:
        if self.over:
            return
        try:
            envelope = read_envelope(frames, self.family)
            if self.ignores(envelope):
                return
            self.conversation.check(envelope)
            self.check_round(envelope["type"], envelope["round"])
            kind = envelope["type"]
            require(self.hears_abort() if kind == "abort" else kind in self.admitted(), "UNEXPECTED")
            body = read_body(envelope, frames, self.family)
            if kind == "abort":
                self.end(NAMES[body["code"]], body["culprit"])
            else:
                self.handle(kind, body, raw_frame(frames), now)
        except Refused as reason:
            self.fail(reason.code, self.peer)

    def ignores(self, envelope: dict[str, Any]) -> bool:
        return False

    def hears_abort(self) -> bool:
        return self.state not in ("READY", "AWAIT_HELLO")

    def check_round(self, kind: str, round_number: int) -> None:
        require(round_number == 0, "SESSION")

    def admitted(self) -> tuple[str, ...]:
        raise NotImplementedError

    def handle(self, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        raise NotImplementedError

    def expire(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.fail("TIMEOUT", self.peer)

    def drop(self) -> None:
        if not self.over:
            self.end("LEFT", self.peer)

    def give_up(self, code: str, culprit: str) -> None:
        if not self.over:
            self.fail(code, culprit)


class Owner(Exchange):
    """What both owners have in common: the agreement, and the rounds of a pass."""

    model_owner = False
    number = 0
    unaudited = False
    quota: tuple[int, int]
    spent: dict[str, int]

    @property
    def judges(self) -> bool:
        """Whether passes come to a verdict."""
        return True

    def agree(self, terms: dict[str, Any], encoded: bytes, images: int, batch: int) -> None:
        self.terms, self.digest = terms, terms_digest(encoded)
        self.passes = passes_of(images, batch)
        self.tell({"event": "agreed", "terms": self.digest, "images": images, "batch": batch})

    @property
    def session(self) -> bytes:
        return self.conversation.session

    def check_round(self, kind: str, round_number: int) -> None:
        due = 0
        if kind in IN_A_PASS:
            due = self.number + 1 if kind == "start-pass" else self.number
        require(kind == "abort" or round_number == due, "SESSION")

    def audits(self) -> bool:
        """Whether a pass is audited before it begins."""
        return bool(self.terms["audited"] > 0)

    def candidates(self, contribution: bytes, numbers: list[int]) -> None:
        self.contribution, self.numbers = contribution, numbers

    def pick(self, theirs: bytes) -> None:
        """*The audit*: the candidates that the coin picks."""
        of_model, of_data = (self.contribution, theirs) if self.model_owner else (theirs, self.contribution)
        self.picked = []
        for number in self.numbers:
            coin = digest(AUDIT_COIN, self.session, of_model, of_data, number.to_bytes(8, "big"))
            if int.from_bytes(coin[:2], "big") < self.terms["audited"]:
                self.picked.append(number)
        self.unaudited = bool(self.picked)
        self.tell({"event": "audit picked", "numbers": self.picked})

    def say_keys(self, keys: list[bytes], state: str, now: float) -> None:
        if self.over:
            return
        require(self.state == "REVEALING" and len(keys) == len(self.picked), "INVALID")
        self.send("audit-keys", {}, self.number, b"".join(keys))
        self.go_to(state, now)

    def on_keys(self, raw: bytes | None, state: str, now: float) -> None:
        require(raw is not None and len(raw) == 32 * len(self.picked), "VECTOR")
        assert raw is not None
        self.go_to(state, now)
        keys = [raw[start : start + 32] for start in range(0, len(raw), 32)]
        self.tell({"event": "keys revealed", "keys": keys})

    def begin_rounds(self, now: float) -> None:
        rounds = self.rounds(self.passes[self.number - 1])
        sizes = [(of_model, of_data) if self.model_owner else (of_data, of_model) for _, of_model, of_data in rounds]
        self.owed = deque((step, own) for step, (own, _) in enumerate(sizes) if own)
        self.due = Due((step, other) for step, (_, other) in enumerate(sizes))
        self.range_step = next((step for step, (operation, _, _) in enumerate(rounds) if operation == "range"), None)
        self.range_words: list[int] = []
        self.go_to("COMPUTING", now)
        self.tell({"event": "pass begun", "number": self.number, "rounds": len(rounds)})

    def read_terms(self, encoded: bytes) -> dict[str, Any]:
        return read_terms(encoded)

    def rounds(self, images: int) -> list[tuple[str, int, int]]:
        return rounds_of(self.terms["sizes"], images, self.terms["results"]["labels"])

    def waits(self) -> bool:
        """For an opening: where the next one due is not behind a round in which this side has something to open."""
        return self.due.next is not None and (not self.owed or self.due.next <= self.owed[0][0])

    def go_to(self, state: str, now: float) -> None:
        self.state = state
        waits = self.waits() if state == "COMPUTING" else state in self.awaiting
        self.deadline = now + self.patience if waits else None

    awaiting: tuple[str, ...] = ()

    def on_opening(self, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        self.due.check(body["step"], body["chunk"], raw)
        require(not self.owed or body["step"] <= self.owed[0][0], "UNEXPECTED")
        data = self.due.take(body["step"], body["chunk"], raw)
        self.after_opening(body["step"], data, now)
        if data is not None:
            self.tell({"event": "opened", "step": body["step"], "data": data})
        self.tell_of_refusal()

    def give(self, step: int, data: bytes, now: float) -> None:
        if self.over:
            return
        require(self.state == "COMPUTING" and bool(self.owed) and self.owed[0] == (step, len(data)), "INVALID")
        require(self.due.next is None or self.due.next >= step, "INVALID")
        self.owed.popleft()
        for chunk, piece in enumerate(cut(data)):
            self.send("opening", {"step": step, "chunk": chunk}, self.number, piece)
        self.after_opening(step, data, now)
        self.tell_of_refusal()

    def after_opening(self, step: int, data: bytes | None, now: float) -> None:
        if data is not None and step == self.range_step:
            self.range_words.append(int.from_bytes(data, "little"))
        self.judged = step == self.range_step and len(self.range_words) == 2
        self.refused = self.judged and sum(self.range_words) % 2**64 != 0
        going_on = not self.refused and (self.owed or self.due.next is not None)
        self.go_to("COMPUTING" if going_on else "IDLE", now)

    def tell_of_refusal(self) -> None:
        if self.refused:
            self.tell({"event": "pass refused", "number": self.number})
        elif self.judged:
            self.in_range()

    def in_range(self) -> None:
        self.charge(self.spent, 0, -self.count())

    def end(self, code: str | None, culprit: str) -> None:
        if self.state == "COMPUTING" and self.judges and any(step == self.range_step for step, _ in self.owed):
            self.charge(self.spent, 0, -self.count())
        super().end(code, culprit)

    def count(self) -> int:
        """How much of the quota a pass takes."""
        raise NotImplementedError

    def used_on(self, day: int) -> dict[str, int]:
        return self.spent if self.spent["day"] >= day else {"day": day, "used": 0, "refused": 0}

    def may_use(self, used: dict[str, int], count: int) -> bool:
        refused = not self.judges or used["refused"] + count <= self.quota[1]
        return used["used"] + count <= self.quota[0] and refused

    def charge(self, used: dict[str, int], count: int, refused: int) -> None:
        counts = {"used": used["used"] + count, "refused": used["refused"] + refused}
        self.spent.update({"day": used["day"], **counts})
        self.tell({"event": "charged", **self.spent})


class DataOwner(Owner):
    awaiting = ("AWAIT_TERMS", "AWAIT_WEIGHTS", "AWAIT_START", "AWAIT_COIN", "AWAIT_KEYS", "CLOSING")

    def __init__(self, roster: bytes, request: dict[str, Any], spent: dict[str, int], *exchange: Any) -> None:
        super().__init__(*exchange)
        self.roster, self.request, self.spent = roster, request, spent
        self.quota = (request["quota"]["used"], request["quota"]["refused"])

    def hello(self, now: float) -> None:
        require(self.state == "READY", "INVALID")
        self.send("inference-hello", {"roster": self.roster})
        self.go_to("AWAIT_TERMS", now)

    def ignores(self, envelope: dict[str, Any]) -> bool:
        if self.state != "AWAIT_TERMS":
            return False
        if envelope["sequence"] != 0:
            return True
        self.conversation = Conversation(envelope["session"], self.name, self.peer, family=self.family)
        return False

    def admitted(self) -> tuple[str, ...]:
        awaited = {
            "AWAIT_TERMS": ("inference-terms",),
            "AWAIT_WEIGHTS": ("masked-weights",),
            "AWAIT_START": ("audit-commitment", "pass-started"),
            "AWAIT_COIN": ("audit-coin",),
            "AWAIT_KEYS": ("audit-keys",),
            "COMPUTING": ("opening",),
            "CLOSING": ("inference-closed",),
        }
        return awaited.get(self.state, ())

    def handle(self, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        if kind == "inference-terms":
            self.on_terms(body, now)
        elif kind == "masked-weights":
            data = self.layers.take(body["layer"], body["chunk"], raw)
            self.go_to("AWAIT_WEIGHTS" if self.layers.next is not None else "IDLE", now)
            if data is not None:
                self.tell({"event": "layer", "layer": body["layer"], "data": data})
        elif kind == "audit-commitment":
            require(self.unaudited, "UNEXPECTED")
            self.commitment = body["commitment"]
            self.go_to("AUDITING", now)
            self.tell({"event": "audit asked"})
        elif kind == "audit-coin":
            require(digest(AUDIT_COMMITMENT, body["contribution"]) == self.commitment, "SECRET")
            self.pick(body["contribution"])
            self.go_to("REVEALING" if self.picked else "AWAIT_START", now)
        elif kind == "audit-keys":
            self.on_keys(raw, "AWAIT_START", now)
        elif kind == "pass-started":
            require(body["weights"] == self.terms["weights"], "MODEL")
            require(not self.unaudited, "UNEXPECTED")
            self.charge(self.asked_on, self.count(), self.count() * self.judges)
            self.begin_rounds(now)
        elif kind == "opening":
            self.on_opening(body, raw, now)
        else:
            self.end(None, "")

    def on_terms(self, body: dict[str, Any], now: float) -> None:
        require(body["roster"] == self.roster, "ROSTER")
        terms, request = self.read_terms(body["terms"]), self.request
        require(terms["results"]["bits"] >= request.get("bits", 0), "POLICY")
        require(terms["audited"] == request["audited"], "POLICY")
        require(request["weights"] in (None, terms["weights"]), "MODEL")
        require(all(terms["sizes"][name] == request[name] for name in ("side", "channels")), "MODEL")
        images, batch = request["images"], min(request["batch"], request["images"])
        require(images <= terms["most_images"] and batch <= terms["most_batch"], "POLICY")
        self.check_terms(terms)
        agreed_on = terms_digest(body["terms"])
        self.send("agree-terms", {"terms": agreed_on, "images": images, "batch": batch})
        self.agree(terms, body["terms"], images, batch)
        self.layers = Due(enumerate(octets for *_, octets in layers_of(terms["sizes"])))
        self.go_to("AWAIT_WEIGHTS", now)

    def check_terms(self, terms: dict[str, Any]) -> None:
        pass

    def count(self) -> int:
        return 1

    def ask(self, at: float, now: float) -> None:
        if self.over:
            return
        require(self.state == "IDLE" and self.number < len(self.passes), "INVALID")
        self.asked_on = self.used_on(int(at // 86400))
        if not self.may_use(self.asked_on, self.count()):
            self.fail("POLICY", self.name)
            return
        self.number += 1
        self.unaudited = self.audits()
        self.send("start-pass", {"weights": self.terms["weights"]}, self.number)
        self.go_to("AWAIT_START", now)

    def audit(self, contribution: bytes, numbers: list[int], now: float) -> None:
        if self.over:
            return
        require(self.state == "AUDITING", "INVALID")
        self.candidates(contribution, numbers)
        self.send("audit-coin", {"contribution": contribution}, self.number)
        self.go_to("AWAIT_COIN", now)

    def reveal(self, keys: list[bytes], now: float) -> None:
        self.say_keys(keys, "AWAIT_KEYS", now)

    def close(self, now: float) -> None:
        if self.over:
            return
        require(self.state == "IDLE", "INVALID")
        self.send("close-inference", {})
        self.go_to("CLOSING", now)


class ModelOwner(Owner):
    model_owner = True
    awaiting = ("AWAIT_AGREEMENT", "IDLE", "AWAIT_COIN", "AWAIT_KEYS")

    def __init__(
        self,
        roster: bytes,
        clients: list[str],
        encoded: bytes,
        draw: Callable[[], bytes],
        quota: tuple[int, int],
        spent: dict[str, int],
        *exchange: Any,
    ) -> None:
        super().__init__(*exchange)
        self.quota, self.spent = quota, spent
        self.roster, self.clients, self.encoded, self.draw = roster, clients, encoded, draw
        self.offered = self.read_terms(encoded)
        self.masked = 0
        self.state = "AWAIT_HELLO"

    def admitted(self) -> tuple[str, ...]:
        return {
            "AWAIT_HELLO": ("inference-hello",),
            "AWAIT_AGREEMENT": ("agree-terms",),
            "IDLE": ("start-pass", "close-inference"),
            "AWAIT_COIN": ("audit-coin",),
            "AWAIT_KEYS": ("audit-keys",),
            "COMPUTING": ("opening",),
        }.get(self.state, ())

    def handle(self, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        if kind == "inference-hello":
            require(self.peer in self.clients, "MEMBERS")
            require(body["roster"] == self.roster, "ROSTER")
            self.conversation = Conversation(self.draw(), self.name, self.peer, family=self.family)
            self.send("inference-terms", {"roster": self.roster, "terms": self.encoded})
            self.go_to("AWAIT_AGREEMENT", now)
        elif kind == "agree-terms":
            offered = self.offered
            require(body["terms"] == terms_digest(self.encoded), "POLICY")
            require(body["images"] <= offered["most_images"], "POLICY")
            require(body["batch"] <= min(offered["most_batch"], body["images"]), "POLICY")
            self.agree(offered, self.encoded, body["images"], body["batch"])
            self.go_to("MASKING", now)
        elif kind == "start-pass":
            require(self.number < len(self.passes), "POLICY")
            require(body["weights"] == self.terms["weights"], "MODEL")
            self.number += 1
            self.unaudited = self.audits()
            self.go_to("PREPARING", now)
            self.tell({"event": "pass asked", "number": self.number})
        elif kind == "audit-coin":
            self.send("audit-coin", {"contribution": self.contribution}, self.number)
            self.pick(body["contribution"])
            self.go_to("AWAIT_KEYS" if self.picked else "PREPARING", now)
        elif kind == "audit-keys":
            self.on_keys(raw, "REVEALING", now)
        elif kind == "opening":
            self.on_opening(body, raw, now)
        else:
            self.send("inference-closed", {})
            self.end(None, "")

    def mask(self, layer: int, data: bytes, now: float) -> None:
        if self.over:
            return
        sizes = [octets for *_, octets in layers_of(self.terms["sizes"])]
        require(self.state == "MASKING" and layer == self.masked and len(data) == sizes[layer], "INVALID")
        self.masked += 1
        for chunk, piece in enumerate(cut(data)):
            self.send("masked-weights", {"layer": layer, "chunk": chunk}, 0, piece)
        self.go_to("MASKING" if self.masked < len(sizes) else "IDLE", now)

    def audit(self, contribution: bytes, numbers: list[int], now: float) -> None:
        if self.over:
            return
        require(self.state == "PREPARING" and self.unaudited, "INVALID")
        self.candidates(contribution, numbers)
        self.send("audit-commitment", {"commitment": digest(AUDIT_COMMITMENT, contribution)}, self.number)
        self.go_to("AWAIT_COIN", now)

    def reveal(self, keys: list[bytes], now: float) -> None:
        self.say_keys(keys, "PREPARING", now)

    def begin(self, weights: bytes, at: float, now: float) -> None:
        if self.over:
            return
        require(self.state == "PREPARING" and not self.unaudited, "INVALID")
        if weights != self.terms["weights"]:
            self.fail("MODEL", self.name)
            return
        used, images = self.used_on(int(at // 86400)), self.count()
        if not self.may_use(used, images):
            self.fail("POLICY", self.peer)
            return
        self.charge(used, images, images * self.judges)
        self.send("pass-started", {"weights": weights}, self.number)
        self.begin_rounds(now)

    def count(self) -> int:
        return self.passes[self.number - 1]
