"""The operations of the vectors of double-blind adaptation, and its owners: docs/spec/vectors.md."""

from typing import Any

from adaptation_owner import LearningDataOwner, LearningModelOwner, Sums
from adaptation_terms import (
    ADAPTATION,
    ADAPTATION_TERMS,
    adaptation_rounds,
    read_adaptation_terms,
    sum_words,
    weight_of,
)
from constants import Refused
from conversation import Roster
from inference_material import Stream
from inference_terms import terms_digest
from messages import raw_frame, read_body, read_envelope, write_message
from operations import from_body, members_of, shown, to_body
from operations import octets as given
from play import entropy


def do_write_message(payload: str | None = None, **inputs: Any) -> list[bytes]:
    return write_message(
        inputs["type"],
        given(inputs["session"]),
        inputs["round"],
        inputs["sender"],
        inputs["sequence"],
        from_body(inputs["body"]),
        None if payload is None else given(payload),
        ADAPTATION,
    )


def do_read_message(frames: list[str]) -> dict[str, Any]:
    received = [given(frame) for frame in frames]
    envelope = read_envelope(received, ADAPTATION)
    body = read_body(envelope, received, ADAPTATION)
    return {"envelope": to_body(envelope), "body": to_body(body), "payload": raw_frame(received)}


def do_write_terms(terms: dict[str, Any]) -> dict[str, bytes]:
    encoding = ADAPTATION_TERMS.write(from_body(terms))
    return {"encoding": encoding, "digest": terms_digest(encoding)}


def do_draw_zeros(secret: str, words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in Stream(given(secret), 0).draw([words], 64))


def do_schedule(terms: dict[str, Any], images: int) -> dict[str, Any]:
    return {"rounds": adaptation_rounds(terms, images), "words": sum_words(terms)}


def weigh(count: int, least_count: int) -> int:
    return weight_of(count, least_count)


PURE: dict[str, Any] = {
    "write message": do_write_message,
    "read message": do_read_message,
    "write terms": do_write_terms,
    "read terms": lambda encoding: to_body(read_adaptation_terms(given(encoding))),
    "schedule": do_schedule,
    "draw zeros": do_draw_zeros,
    "weigh": weigh,
}


class AdaptationPerformance:
    """One file's operations, one after the other."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, list[bytes]]] = []
        self.sends: list[tuple[str, list[bytes]]] = []
        self.events: list[dict[str, Any]] = []
        self.data_owners: dict[str, LearningDataOwner] = {}
        self.served: dict[str, LearningModelOwner] = {}
        self.party = ""
        self.touched: Any = None

    def perform(self, name: str, inputs: dict[str, Any]) -> Any:
        if name in PURE:
            return shown(PURE[name](**inputs))
        if name == "begin adaptation":
            return shown(self.begin(**inputs))
        if name == "survivors":
            return self.sums.survivors if inputs["number"] == self.sums.current else None
        self.party, self.touched = inputs["party"], None
        getattr(self, "do_" + name.replace(" ", "_"))(**{"now": 0.0} | inputs)
        sends, events, self.sends, self.events = self.sends, self.events, [], []
        state, deadline = ("", None) if self.touched is None else (self.touched.state, self.touched.deadline)
        done = [self.sent(receiver, frames) for receiver, frames in sends]
        return shown({"sends": done, "events": events, "state": state, "deadline": deadline})

    def begin(
        self,
        roster: list[Any],
        data_owners: list[dict[str, Any]] = [],  # noqa: B006
        model_owner: dict[str, Any] | None = None,
    ) -> bytes:
        self.roster = Roster(members_of(roster))
        self.model_owner = model_owner
        for row in data_owners:
            wish = {"count": 0} | row | {"weights": None}
            exchange = (row["name"], self.roster.server, row["patience"], self.transmit, self.tell)
            self.data_owners[row["name"]] = LearningDataOwner(
                entropy(given(row["entropy"])), self.roster.hash, wish, *exchange
            )
        if model_owner is not None:
            self.draw = entropy(given(model_owner["entropy"]))
            known = [model_owner.get(name, 0) for name in ("opened", "current")]
            self.sums = Sums(model_owner, *known, list(model_owner.get("survivors", [])))
        return self.roster.hash

    def transmit(self, receiver: str, frames: list[bytes]) -> None:
        self.messages.append((self.party, receiver, frames))
        self.sends.append((receiver, frames))

    def tell(self, event: dict[str, Any]) -> None:
        if event["event"] == "charged":
            event = {"event": "charged", "peer": self.touched.peer}
        self.events.append(event)

    def sent(self, receiver: str, frames: list[bytes]) -> dict[str, Any]:
        envelope = read_envelope(frames, ADAPTATION)
        if envelope["type"] in ("abort", "sum-lost"):
            body = read_body(envelope, frames, ADAPTATION)
            if body.pop("detail"):
                return {"to": receiver, "type": envelope["type"], "fields": to_body(body)}
        return {"to": receiver, "frames": frames}

    def owner(self, party: str, data_owner: str | None = None) -> Any:
        sessions: dict[str, Any] = self.data_owners
        if party == self.roster.server:
            sessions, party = self.served, data_owner or self.roster.clients[0]
        self.touched = sessions[party]
        return self.touched

    def do_hello(self, party: str, now: float) -> None:
        self.owner(party).hello(now)

    def do_mask(self, party: str, layer: int, data: str, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).mask(layer, given(data), now)

    def do_ask(self, party: str, now: float) -> None:
        self.owner(party).ask(now)

    def do_begin_pass(self, party: str, weights: str, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).begin(given(weights), 0.0, now)

    def do_give(self, party: str, step: int, data: str, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).give(step, given(data), now)

    def do_begin_round(self, party: str, number: int, based: int, done: int, now: float) -> None:
        self.owner(party).begin_round(number, based, done, now)

    def do_answer_round(self, party: str, done: int, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).answer_round(done, now)

    def do_keep_round(self, party: str, number: int, now: float) -> None:
        self.owner(party).keep_round(number, now)

    def do_ask_sum(self, party: str, number: int, survivors: list[str], now: float) -> None:
        self.owner(party).ask_sum(number, survivors, now)

    def do_tell_sum(self, party: str, number: int, data: str | None, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).tell_sum(number, None if data is None else given(data), now)

    def do_close(self, party: str, now: float) -> None:
        self.owner(party).close(now)

    def do_expire(self, party: str, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).expire(now)

    def do_drop(self, party: str, peer: str, now: float) -> None:
        if party != self.roster.server:
            self.owner(party).drop()
        elif peer in self.served:
            self.owner(party, peer).drop()
            del self.served[peer]

    def do_receive(
        self, party: str, sender: str, now: float, message: int | None = None, frames: list[str] | None = None
    ) -> None:
        received = [given(frame) for frame in frames or []] if message is None else self.messages[message][2]
        if message is not None and self.messages[message][:2] != (sender, party):
            raise ValueError(f"message {message} is another")
        if party != self.roster.server:
            self.owner(party).receive(received, now)
            return
        try:
            hello = read_envelope(received, ADAPTATION)["type"] == "inference-hello"
        except Refused:
            hello = sender not in self.served or self.served[sender].over
        if hello:
            if sender in self.served:
                self.owner(party, sender).drop()
            assert self.model_owner is not None
            exchange = (self.roster.server, sender, self.model_owner["patience"], self.transmit, self.tell)
            quota, spent = (1 << 40, 1 << 40), {"day": 0, "images": 0, "refused": 0}
            offered = (given(self.model_owner["terms"]), self.draw, quota, spent)
            self.served[sender] = LearningModelOwner(
                self.sums, self.roster.hash, self.roster.clients, *offered, *exchange
            )
        if sender in self.served:
            self.owner(party, sender).receive(received, now)
