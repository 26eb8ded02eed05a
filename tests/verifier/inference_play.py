"""The operations of the vectors of private inference, and the parties of its transcripts: docs/spec/vectors.md."""

from typing import Any

from constants import WEIGHTS, Refused
from conversation import Roster
from inference_dealer import AtDealer, DealerSession, material_key
from inference_material import (
    Stream,
    corrections,
    draw,
    octets,
    pairs,
    read_correction,
    read_requests,
    tree_keys,
    write_requests,
)
from inference_owner import DataOwner, ModelOwner, Owner
from inference_terms import INFERENCE, TERMS, layers_of, passes_of, read_terms, rounds_of, terms_digest
from inference_trees import below, point_words
from inference_waves import cosines, factors, inverse_table, table_digest
from messages import raw_frame, read_body, read_envelope, write_message
from operations import WITH_DETAIL, from_body, members_of, shown, to_body
from operations import octets as given
from play import entropy
from primitives import digest


def do_write_message(payload: str | None = None, **inputs: Any) -> list[bytes]:
    return write_message(
        inputs["type"],
        given(inputs["session"]),
        inputs["round"],
        inputs["sender"],
        inputs["sequence"],
        from_body(inputs["body"]),
        None if payload is None else given(payload),
        INFERENCE,
    )


def do_read_message(frames: list[str]) -> dict[str, Any]:
    received = [given(frame) for frame in frames]
    envelope = read_envelope(received, INFERENCE)
    body = read_body(envelope, received, INFERENCE)
    return {"envelope": to_body(envelope), "body": to_body(body), "payload": raw_frame(received)}


def do_write_terms(terms: dict[str, Any]) -> dict[str, bytes]:
    encoding = TERMS.write(from_body(terms))
    return {"encoding": encoding, "digest": terms_digest(encoding)}


def do_commit(salt: str, layers: list[dict[str, list[int]]]) -> bytes:
    return digest(WEIGHTS, given(salt), *(octets(layer[part]) for layer in layers for part in ("words", "bias")))


def do_schedule(sizes: dict[str, int], images: int, batch: int, number: int) -> dict[str, Any]:
    own = passes_of(images, batch)[number - 1]
    return {"images": own, "rounds": rounds_of(sizes, own)}


def do_material_key(owner: str, **inputs: str) -> bytes:
    session, terms = given(inputs["session"]), given(inputs["terms"])
    contributions = given(inputs["owner_contribution"]), given(inputs["dealer_contribution"])
    return material_key(session, terms, owner, *contributions)


def do_draw(key: str, number: int, requests: str, rank: int) -> list[list[bytes]]:
    return [
        [octets(words) for words in draw(request, rank, Stream(given(key), place))]
        for place, request in enumerate(read_requests(given(requests)), number)
    ]


def do_trees(key: str, number: int, requests: str, rank: int, correction: str, places: list[int]) -> dict[str, Any]:
    (request,) = read_requests(given(requests))
    drawn = draw(request, rank, Stream(given(key), number))
    levels, index = request["levels"], request["index"]
    parts = read_correction(request, given(correction))
    thresholds = tree_keys(parts[:3], levels)
    points = tree_keys(parts[3:], index) if index else []
    return {
        "below": [
            [below(rank, root, keys, place, levels) for place in places]
            for root, keys in zip(pairs(drawn[1]), thresholds, strict=True)
        ],
        "points": [
            octets([word for words in point_words(rank, root, keys, index) for word in words])
            for root, keys in zip(pairs(drawn[-1]), points, strict=bool(index))
        ],
    }


def do_cosines(places: list[int]) -> dict[str, Any]:
    return {"digest": table_digest(), "values": [cosines()[place] for place in places]}


PURE: dict[str, Any] = {
    "write message": do_write_message,
    "read message": do_read_message,
    "write terms": do_write_terms,
    "read terms": lambda encoding: to_body(read_terms(given(encoding))),
    "commit to weights": do_commit,
    "layers": lambda sizes: [[name, a, b, 8 * a * b] for name, a, b in layers_of(sizes)],
    "schedule": do_schedule,
    "derive material key": do_material_key,
    "write requests": write_requests,
    "read requests": lambda encoding: read_requests(given(encoding)),
    "draw material": do_draw,
    "correct material": lambda keys, requests: corrections([given(key) for key in keys], given(requests)),
    "evaluate trees": do_trees,
    "cosines": do_cosines,
    "wave factors": lambda wave, places: factors(wave, places),
    "inverse table": inverse_table,
}


class InferencePerformance:
    """One file's operations, one after the other."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, list[bytes]]] = []
        self.sends: list[tuple[str, list[bytes]]] = []
        self.events: list[dict[str, Any]] = []
        self.data_owners: dict[str, DataOwner] = {}
        self.served: dict[str, ModelOwner] = {}
        self.at_dealer: dict[tuple[str, str], AtDealer] = {}
        self.dealt: dict[str, DealerSession] = {}
        self.draws: dict[str, Any] = {}
        self.spent: dict[str, dict[str, int]] = {}
        self.party = ""
        self.touched: Any = None

    def perform(self, name: str, inputs: dict[str, Any]) -> Any:
        if name in PURE:
            return shown(PURE[name](**inputs))
        if name == "begin inference":
            return shown(self.begin(**inputs))
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
        dealer: dict[str, Any] | None = None,
    ) -> bytes:
        self.roster = Roster(members_of(roster))
        self.model_owner, self.dealer = model_owner, dealer
        (self.dealer_name,) = (row["name"] for row in roster if row["role"] == "dealer")
        for row in data_owners:
            wish = row | {"weights": None if row["weights"] is None else given(row["weights"])}
            exchange = (row["name"], self.roster.server, row["patience"], self.transmit, self.tell)
            self.data_owners[row["name"]] = DataOwner(self.roster.hash, wish, *exchange)
            self.draws[row["name"]] = entropy(given(row["entropy"]))
        for name, played in ((self.roster.server, model_owner), (self.dealer_name, dealer)):
            if played is not None:
                self.draws[name] = entropy(given(played["entropy"]))
        return self.roster.hash

    def transmit(self, receiver: str, frames: list[bytes]) -> None:
        self.messages.append((self.party, receiver, frames))
        self.sends.append((receiver, frames))

    def tell(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def sent(self, receiver: str, frames: list[bytes]) -> dict[str, Any]:
        envelope = read_envelope(frames, INFERENCE)
        if envelope["type"] in WITH_DETAIL:
            body = read_body(envelope, frames, INFERENCE)
            if body.pop("detail"):
                return {"to": receiver, "type": envelope["type"], "fields": to_body(body)}
        return {"to": receiver, "frames": frames}

    def touch(self, machine: Any) -> Any:
        self.touched = machine
        return machine

    def of(self, party: str, data_owner: str | None) -> str:
        """The data owner whose session an owner's operation is about."""
        return party if party in self.data_owners else data_owner or self.roster.clients[0]

    def owner(self, party: str, data_owner: str | None = None) -> Any:
        sessions: dict[str, Any] = self.served if party == self.roster.server else self.data_owners
        return self.touch(sessions[self.of(party, data_owner)])

    def do_hello(self, party: str, now: float) -> None:
        self.owner(party).hello(now)

    def do_mask(self, party: str, layer: int, data: str, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).mask(layer, given(data), now)

    def do_ask(self, party: str, now: float) -> None:
        self.owner(party).ask(now)

    def do_begin_pass(
        self, party: str, weights: str, now: float, data_owner: str | None = None, at: float = 0.0
    ) -> None:
        self.owner(party, data_owner).begin(given(weights), at, now)

    def do_give(self, party: str, step: int, data: str, now: float, data_owner: str | None = None) -> None:
        self.owner(party, data_owner).give(step, given(data), now)

    def do_close(self, party: str, now: float) -> None:
        self.owner(party).close(now)

    def do_hello_to_dealer(self, party: str, now: float, data_owner: str | None = None) -> None:
        owner: Owner = self.owner(party, data_owner)
        exchange = (party, self.dealer_name, owner.patience, self.transmit, self.tell)
        drawn = self.draws[party]()
        machine = AtDealer(self.roster.hash, owner.peer, owner.session, owner.digest, drawn, *exchange)
        self.at_dealer[party, self.of(party, data_owner)] = self.touch(machine)
        machine.hello(now)

    def do_order(
        self,
        party: str,
        requests: str,
        count: int,
        corrections: list[dict[str, int]],
        now: float,
        data_owner: str | None = None,
    ) -> None:
        machine = self.touch(self.at_dealer[party, self.of(party, data_owner)])
        machine.order(given(requests), count, corrections, now)

    def do_order_no_more(self, party: str, now: float, data_owner: str | None = None) -> None:
        self.touch(self.at_dealer[party, self.of(party, data_owner)]).no_more()

    def do_deliver(self, party: str, data_owner: str, owner: str, number: int, data: str, now: float) -> None:
        self.touch(self.dealt[data_owner]).deliver(owner, number, given(data))

    def exchange(self, party: str, peer: str, data_owner: str | None) -> Any:
        if party == self.dealer_name:
            return self.touch(self.dealt[peer])
        if peer == self.dealer_name:
            return self.touch(self.at_dealer[party, self.of(party, data_owner)])
        return self.owner(party, peer)

    def do_give_up(
        self, party: str, peer: str, code: str, culprit: str, now: float, data_owner: str | None = None
    ) -> None:
        self.exchange(party, peer, data_owner).give_up(code, culprit)

    def do_expire(self, party: str, peer: str, now: float, data_owner: str | None = None) -> None:
        self.exchange(party, peer, data_owner).expire(now)

    def do_drop(self, party: str, peer: str, now: float) -> None:
        if party == self.dealer_name:
            for session in self.dealt.values():
                if peer in session.owners:
                    self.touch(session).drop(peer)
        elif peer == self.dealer_name:
            for (owner, _), machine in self.at_dealer.items():
                if owner == party:
                    self.touch(machine).drop()
        elif party == self.roster.server:
            if peer in self.served:
                self.touch(self.served.pop(peer)).drop()
        else:
            self.owner(party).drop()

    def do_receive(
        self, party: str, sender: str, now: float, message: int | None = None, frames: list[str] | None = None
    ) -> None:
        received = [given(frame) for frame in frames or []] if message is None else self.messages[message][2]
        if message is not None and self.messages[message][:2] != (sender, party):
            raise ValueError(f"message {message} is another")
        try:
            envelope: dict[str, Any] | None = read_envelope(received, INFERENCE)
        except Refused:
            envelope = None
        if party == self.dealer_name:
            self.dealer_receives(sender, received, envelope, now)
        elif sender == self.dealer_name:
            for (owner, _), machine in self.at_dealer.items():
                if owner == party and (envelope is None or envelope["session"] == machine.session):
                    self.touch(machine).receive(received, now)
        elif party == self.roster.server:
            self.model_owner_receives(sender, received, envelope, now)
        else:
            self.owner(party).receive(received, now)

    def model_owner_receives(
        self, sender: str, received: list[bytes], envelope: dict[str, Any] | None, now: float
    ) -> None:
        hello = sender not in self.served if envelope is None else envelope["type"] == "inference-hello"
        if hello:
            if sender in self.served:
                self.served[sender].drop()
            assert self.model_owner is not None
            exchange = (self.roster.server, sender, self.model_owner["patience"], self.transmit, self.tell)
            draws, terms = self.draws[self.roster.server], given(self.model_owner["terms"])
            quota = tuple(self.model_owner.get(name, 1 << 40) for name in ("images_a_day", "refused_a_day"))
            spent = self.spent.setdefault(sender, {"day": 0, "images": 0, "refused": 0})
            offered = (terms, draws, quota, spent)
            self.served[sender] = ModelOwner(self.roster.hash, self.roster.clients, *offered, *exchange)
        if sender in self.served:
            self.touch(self.served[sender]).receive(received, now)

    def dealer_receives(self, sender: str, received: list[bytes], envelope: dict[str, Any] | None, now: float) -> None:
        if envelope is None:
            concerned = [session for session in self.dealt.values() if sender in session.owners and not session.over]
            if not concerned and sender in (self.roster.server, *self.roster.clients):
                others = [sender] if sender in self.roster.clients else [""]
                concerned = [self.new_at_dealer([self.roster.server, *others], bytes(32), now)]
            for session in concerned:
                self.touch(session).receive(sender, received, now)
            return
        data_owner = self.session_owner(sender, received, envelope)
        if data_owner is None:
            return
        current = self.dealt.get(data_owner)
        if envelope["type"] == "material-hello" and (current is None or current.session != envelope["session"]):
            if current is not None and not current.over:
                waits_for_sender = current.state == "AWAIT_OWNERS" and current.hellos and sender not in current.hellos
                if waits_for_sender and sender == self.roster.server:
                    return
                current.give_up("SESSION", data_owner)
            current = self.new_at_dealer([self.roster.server, data_owner], envelope["session"], now)
            self.dealt[data_owner] = current
        if current is not None and current.session == envelope["session"]:
            self.touch(current).receive(sender, received, now)

    def new_at_dealer(self, owners: list[str], session: bytes, now: float) -> DealerSession:
        assert self.dealer is not None
        draws, patience, out = self.draws[self.dealer_name], self.dealer["patience"], (self.transmit, self.tell)
        return DealerSession(self.dealer_name, self.roster.hash, owners, session, draws, patience, now, *out)

    def session_owner(self, sender: str, received: list[bytes], envelope: dict[str, Any]) -> str | None:
        if sender in self.roster.clients:
            return sender
        for name, session in self.dealt.items():
            if session.session == envelope["session"]:
                return name
        if envelope["type"] != "material-hello":
            return None
        peer = read_body(envelope, received, INFERENCE)["peer"]
        return peer if peer in self.roster.clients else None
