"""A client of a federation: docs/spec/session.md."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aggregation import Terms
from aggregation_client import AggregationClient
from constants import (
    BODY_LIMIT,
    CHUNK_BYTES,
    MODEL,
    MOST_PROMISES,
    NAMES,
    SIGN_VOID,
    WINDOW,
    Refused,
    require,
)
from constants import CONFIGURATION as CONFIGURATION_LABEL
from conversation import Conversation, Roster
from encoding import decode, read_members
from messages import CONFIGURATION, abort_body, raw_frame, read_body, read_envelope
from parameters import Packing, graph_of, parameters, unpack_words, whole
from primitives import digest, sign, u32, verify

SUM_MESSAGES = ("peer-keys", "peer-shares", "fetch-vector", "survivors", "unmask-request")


@dataclass
class Policy:
    modes: list[str] = field(default_factory=lambda: ["active"])
    schemes: list[str] = field(default_factory=lambda: ["fedavg", "fedsgd"])
    protections: list[str] = field(
        default_factory=lambda: ["none", "fixed-position", "binary-weights", "locked-binary-weights"]
    )
    smallest_cohort: int = 3
    threshold_floor: int = 0
    least_corrupt: float = 0.05
    largest_clip: float = 1.0

    def check_configuration(self, found: dict[str, Any]) -> None:
        accepted = (
            found["mode"] in self.modes
            and found["scheme"] in self.schemes
            and found["protection"] in self.protections
            and found["clip"] <= self.largest_clip
            and found["corrupt"] >= self.least_corrupt
        )
        require(accepted, "POLICY")
        try:
            packing_of(found)
        except Refused:
            raise Refused("POLICY") from None

    def check_cohort(self, found: dict[str, Any], size: int) -> None:
        require(self.smallest_cohort <= size <= found["clients"], "POLICY")
        try:
            neighbours, by_rule = parameters(size, found["corrupt"], found["dropout"], found["mode"], found["graph"])
        except Refused:
            raise Refused("POLICY") from None
        floor = self.threshold_floor or by_rule
        most = size if graph_of(size, found["mode"], found["graph"]) == "complete" else neighbours
        require(max(floor, 2) <= (found["threshold"] or by_rule) <= most, "POLICY")


def packing_of(found: dict[str, Any]) -> Packing:
    names = ("clients", "clip", "value_bits", "max_weight", "form", "tensor_sizes", "metrics", "ring_bits")
    return Packing(**{name: found[name] for name in names})


def promises_needed(sharers: int, threshold: int, corrupt: int) -> int:
    """Promises that show that a round's sum will never be opened."""
    return min(sharers - threshold + 1 + corrupt, sharers)


def configuration_hash(encoded: bytes) -> bytes:
    return digest(CONFIGURATION_LABEL, encoded)


def terms_of(
    roster: Roster,
    session: bytes,
    round_number: int,
    encoded: bytes,
    model: bytes,
    cohort: list[str],
    smallest_cohort: int,
) -> Terms:
    """What a round's sum is about; INVALID if there are no parameters for this cohort."""
    found = decode(CONFIGURATION, encoded, BODY_LIMIT)
    size = len(cohort)
    neighbours, threshold = parameters(size, found["corrupt"], found["dropout"], found["mode"], found["graph"])
    graph = graph_of(size, found["mode"], found["graph"])
    packing = packing_of(found)
    left = size - whole(found["dropout"], size) if graph == "regular" else 0
    return Terms(
        session=session,
        round=round_number,
        server=roster.server,
        cohort=cohort,
        signing_keys=[roster.signing_keys[name] for name in cohort],
        mode=found["mode"],
        graph=graph,
        neighbours=neighbours,
        threshold=found["threshold"] or threshold,
        ring_bits=packing.ring_bits,
        length=packing.length,
        roster=roster.hash,
        configuration=configuration_hash(encoded),
        model=model,
        train_seconds=found["train_seconds"],
        phase_seconds=found["phase_seconds"],
        corrupt=whole(found["corrupt"], size) if found["mode"] == "active" else 0,
        fewest_survivors=max(smallest_cohort, left),
    )


class SessionClient:
    """`transmit(receiver, frames)` and `report(event)` are the ways out, `draw()` gives 32 random bytes."""

    def __init__(
        self,
        roster: Roster,
        name: str,
        signing_private: bytes,
        draw: Callable[[], bytes],
        policy: Policy,
        journal: list[dict[str, Any]],
        patience: float,
        grace: float,
        transmit: Callable[[str, list[bytes]], None],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.roster, self.name, self.signing_private, self.draw = roster, name, signing_private, draw
        self.policy, self.journal, self.patience, self.grace = policy, list(journal), patience, grace
        self.transmit, self.report = transmit, report
        self.state = "OFFLINE"
        self.own_deadline: float | None = None
        self.gone_at: float | None = None
        self.conversation: Conversation | None = None
        self.sum: AggregationClient | None = None
        self.round, self.masked, self.awaits_end = 0, False, False

    @property
    def deadline(self) -> float | None:
        in_sum = self.sum.deadline if self.sum and self.state == "AGGREGATING" else None
        return min((at for at in (self.own_deadline, in_sum, self.gone_at) if at is not None), default=None)

    def go_to(self, state: str, deadline: float | None) -> None:
        self.state, self.own_deadline = state, deadline

    def send(self, kind: str, round_number: int, body: dict[str, Any], raw: bytes | None = None) -> None:
        talk = self.conversation or Conversation(bytes(32), self.name, self.roster.server, sent=1)
        self.transmit(self.roster.server, talk.write(kind, round_number, body, raw))

    def promise(self, session: bytes, round_number: int) -> dict[str, Any]:
        signature = sign(self.signing_private, SIGN_VOID, session, u32(round_number), self.name.encode("ascii"))
        return {"session": session, "round": round_number, "signature": signature}

    def hello(self, now: float) -> None:
        open_rounds = [entry for entry in self.journal if not entry["unmasked"]][-MOST_PROMISES:]
        promises = [self.promise(entry["session"], entry["round"]) for entry in open_rounds]
        first = Conversation(bytes(32), self.name, self.roster.server)
        body = {"roster": self.roster.hash, "promises": promises}
        self.transmit(self.roster.server, first.write("hello", 0, body, None))
        self.go_to("AWAIT_WELCOME", now + self.patience)

    def end(self, code: str | None) -> None:
        self.go_to("ENDED", None)
        self.gone_at = None
        self.report({"event": "ended", "code": code})

    def receive(self, sender: str, frames: list[bytes], now: float) -> None:
        if self.state == "ENDED":
            return
        try:
            envelope = read_envelope(frames)
            first = self.conversation is None
            talk = self.conversation or Conversation(envelope["session"], self.name, self.roster.server)
            talk.check(envelope)
            self.conversation = talk
            if self.ignored(envelope):
                return
        except Refused as reason:
            self.end_session(reason.code)
            return
        try:
            self.check_state(envelope["type"])
            body = read_body(envelope, frames)
            self.act(envelope, body, raw_frame(frames), now)
        except Refused as reason:
            if first or envelope["round"] == 0:
                self.end_session(reason.code)
            elif self.state == "AGGREGATING" and self.sum is not None:
                self.sum.refuse(reason.code)
                self.after_sum(now)
            else:
                self.send("abort", envelope["round"], abort_body(reason.code, self.roster.server))
                self.leave_round(reason.code, now)

    def end_session(self, code: str) -> None:
        self.send("abort", 0, abort_body(code, self.roster.server))
        self.end(code)

    def ignored(self, envelope: dict[str, Any]) -> bool:
        """Step 9, and what AWAIT_ROUND does not listen to."""
        kind, number = envelope["type"], envelope["round"]
        if kind in ("welcome", "finish"):
            require(number == 0, "SESSION")
            return False
        if number == 0:
            require(kind == "abort", "SESSION")
            return False
        if kind == "start-round":
            require(number > self.round, "SESSION")
            return False
        require(number <= self.round, "SESSION")
        if number < self.round:
            return True
        return self.state == "AWAIT_ROUND" and (kind in SUM_MESSAGES or kind in ("model-chunk", "abort"))

    def check_state(self, kind: str) -> None:
        admitted = {
            "AWAIT_WELCOME": ("welcome", "finish", "abort"),
            "AWAIT_ROUND": ("start-round", "end-round", "finish", "abort"),
            "FETCHING_MODEL": ("model-chunk", "end-round", "finish", "abort"),
            "TRAINING": ("end-round", "finish", "abort"),
            "AGGREGATING": ("end-round", "finish", "abort"),
        }[self.state]
        in_sum = self.state == "AGGREGATING" and self.sum is not None and self.sum.admits(kind)
        require(kind in admitted or in_sum, "UNEXPECTED")

    def act(self, envelope: dict[str, Any], body: dict[str, Any], raw: bytes | None, now: float) -> None:
        kind = envelope["type"]
        if kind == "welcome":
            self.on_welcome(body, now)
        elif kind == "start-round":
            self.on_start_round(envelope["round"], body, now)
        elif kind == "model-chunk":
            self.on_model_chunk(body, raw, now)
        elif kind == "end-round":
            self.on_end_round(None if body["code"] is None else NAMES[body["code"]], now)
        elif kind == "finish":
            self.end(None)
        elif kind == "abort" and envelope["round"] == 0:
            self.end(NAMES[body["code"]])
        elif kind == "abort":
            self.leave_round(NAMES[body["code"]], now)
        elif self.sum is not None:
            self.sum.receive(kind, body, now)
            self.after_sum(now)

    def on_welcome(self, body: dict[str, Any], now: float) -> None:
        require(body["roster"] == self.roster.hash, "ROSTER")
        self.encoded = body["configuration"]
        self.configuration = decode(CONFIGURATION, self.encoded, BODY_LIMIT)
        self.policy.check_configuration(self.configuration)
        self.report({"event": "accepted", "configuration": configuration_hash(self.encoded)})
        self.go_to("AWAIT_ROUND", now + self.patience)

    def on_start_round(self, number: int, body: dict[str, Any], now: float) -> None:
        assert self.conversation is not None
        self.round, self.masked, self.awaits_end, self.sum = number, False, False, None
        clients = self.roster.clients
        cohort = [clients[place] for place in read_members(body["cohort"], len(clients))]
        require(self.name in cohort, "MEMBERS")
        self.policy.check_cohort(self.configuration, len(cohort))
        session = self.conversation.session
        require(all((old["session"], old["round"]) != (session, number) for old in self.journal), "SESSION")
        require(body["model_bytes"] == 4 * sum(self.configuration["tensor_sizes"]), "MODEL")
        self.check_fresh(body["model"], body["voided"])
        self.terms = terms_of(
            self.roster, session, number, self.encoded, body["model"], cohort, self.policy.smallest_cohort
        )
        self.model, self.model_bytes = b"", int(body["model_bytes"])
        for chunk in range(min(WINDOW, self.model_chunks)):
            self.send("fetch-model", number, {"chunk": chunk})
        self.go_to("FETCHING_MODEL", now + 2 * self.terms.phase_seconds)

    @property
    def model_chunks(self) -> int:
        return -(-self.model_bytes // CHUNK_BYTES)

    def check_fresh(self, model: bytes, voided: list[dict[str, Any]]) -> None:
        """The model was not contributed to, or every such round is shown to be closed for good."""
        shown = {(entry["session"], entry["round"]): entry["promises"] for entry in voided}
        require(len(shown) == len(voided), "REPEATED_MODEL")
        for promises in shown.values():
            require(len({promise["member"] for promise in promises}) == len(promises), "REPEATED_MODEL")
        for old in self.journal:
            if old["model"] != model:
                continue
            found = shown.get((old["session"], old["round"]))
            require(not old["unmasked"] and found is not None, "REPEATED_MODEL")
            counted = {
                promise["member"]: promise["signature"]
                for promise in found or []
                if promise["member"] in old["sharers"] and promise["member"] in self.roster.clients
            }
            needed = promises_needed(len(old["sharers"]), old["threshold"], old["corrupt"])
            require(len(counted) >= needed, "REPEATED_MODEL")
            for name, signature in counted.items():
                parts = (old["session"], u32(old["round"]), name.encode("ascii"))
                verify(self.roster.signing_keys[name], signature, SIGN_VOID, *parts)

    def on_model_chunk(self, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        require(body["chunk"] * CHUNK_BYTES == len(self.model), "UNEXPECTED")
        expected = min(CHUNK_BYTES, self.model_bytes - len(self.model))
        require(raw is not None and len(raw) == expected, "MODEL")
        self.model += raw or b""
        if body["chunk"] + WINDOW < self.model_chunks:
            self.send("fetch-model", self.round, {"chunk": body["chunk"] + WINDOW})
        if len(self.model) < self.model_bytes:
            self.go_to("FETCHING_MODEL", now + 2 * self.terms.phase_seconds)
            return
        require(digest(MODEL, self.model) == self.terms.model, "MODEL")
        numbers = struct.unpack(f"<{len(self.model) // 4}f", self.model)
        require(all(math.isfinite(number) for number in numbers), "MODEL")
        self.report({"event": "train", "round": self.round, "model": self.terms.model})
        self.go_to("TRAINING", None)

    def contribute(self, words: bytes, now: float) -> None:
        vector = unpack_words(words, self.terms.ring_bits)
        require(self.state == "TRAINING" and len(vector) == self.terms.length, "INVALID")
        self.sum = AggregationClient(
            self.terms,
            self.name,
            self.signing_private,
            vector,
            self.draw,
            lambda kind, body, raw: self.send(kind, self.round, body, raw),
            self.on_sum_event,
        )
        self.go_to("AGGREGATING", None)
        self.sum.start(now)

    def on_sum_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "journal":
            self.masked = not event["unmasked"]
            self.journal.append(
                {
                    "session": self.terms.session,
                    "round": self.round,
                    "model": self.terms.model,
                    "sharers": event["sharers"],
                    "threshold": self.terms.threshold,
                    "corrupt": self.terms.corrupt,
                    "unmasked": event["unmasked"],
                }
            )
        if event["event"] == "aborted":
            self.aborted_with = event["code"]
        else:
            self.report(event)

    def after_sum(self, now: float) -> None:
        if self.sum is None or not self.sum.over:
            return
        if self.sum.state == "DONE":
            self.awaits_end = True
            self.go_to("AWAIT_ROUND", now + self.patience)
        else:
            self.leave_round(self.aborted_with, now)

    def leave_round(self, code: str, now: float) -> None:
        """The round ends with a code; if it could still be opened with this client's share, it never will."""
        if self.masked and self.conversation is not None:
            self.send("void-round", self.round, self.promise(self.conversation.session, self.round))
            self.masked = False
        self.sum = None
        self.report({"event": "round over", "round": self.round, "code": code})
        self.go_to("AWAIT_ROUND", now + self.patience)

    def on_end_round(self, code: str | None, now: float) -> None:
        if self.state != "AWAIT_ROUND" and code is not None:
            self.leave_round(code, now)
        elif self.state != "AWAIT_ROUND" or self.awaits_end:
            self.awaits_end, self.sum = False, None
            self.report({"event": "round over", "round": self.round, "code": code})
            if self.state != "AWAIT_ROUND":
                self.go_to("AWAIT_ROUND", now + self.patience)

    def link_lost(self, peer: str, now: float) -> None:
        self.gone_at = now + self.grace

    def expire(self, now: float) -> None:
        if self.state == "ENDED" or self.deadline is None or now < self.deadline:
            return
        if self.gone_at is not None and now >= self.gone_at:
            self.end("LEFT")
        elif self.state == "AGGREGATING":
            self.leave_round("TIMEOUT", now)
        else:
            self.end("TIMEOUT")
