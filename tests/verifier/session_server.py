"""The server of a federation: docs/spec/session.md."""

from collections.abc import Callable
from typing import Any

from aggregation import Terms, amount_of, held_of
from aggregation_server import PHASE_OF, AggregationServer
from constants import BREAKS_NO_RULE, CODES, HELLO_SECONDS, HELLOS, MODEL, NAMES, STATEMENT_BYTES, Refused, require
from conversation import Conversation, Roster
from encoding import write_members
from key_keeper import FROM_MEMBERS, KeyKeeper
from messages import abort_body, raw_frame, read_body, read_configuration, read_envelope
from plain_sum import PlainServer
from primitives import digest
from proposal import terms_of
from transfer import Outgoing, announcement


class SessionServer:
    def __init__(
        self,
        roster: Roster,
        configuration: bytes,
        model: bytes,
        session: bytes,
        smallest_cohort: int,
        join_seconds: float,
        grace: float,
        transmit: Callable[[str, list[bytes]], None],
        report: Callable[[dict[str, Any]], None],
        completed: int,
        fixed: bytes = b"",
        held: Any = (),
    ) -> None:
        self.held: dict[bytes, bytes] = dict(held)
        self.fixed = fixed
        self.roster, self.encoded, self.model, self.session = roster, configuration, model, session
        self.configuration = read_configuration(configuration)
        self.smallest_cohort, self.grace = smallest_cohort, grace
        self.transmit, self.report = transmit, report
        self.state = "GATHERING"
        self.own_deadline: float | None = join_seconds
        self.waits_for_enough, self.ends_with_too_few = False, not completed
        self.declined: set[str] = set()
        self.conversations: dict[str, Conversation] = {}
        self.barred: set[str] = set()
        self.lost: dict[str, float] = {}
        self.hellos: dict[str, float] = {}
        self.counted_at: dict[str, float] = {}
        self.waiting: dict[str, float] = {}
        self.turns: dict[str, Callable[[str, float], None]] = {}
        self.links: dict[str, int] = {}
        self.asked: dict[str, dict[str, Any]] = {}
        self.round = self.completed = completed
        self.cohort: list[str] = []
        self.told: list[str] = []
        self.sum: AggregationServer | None = None
        self.later: list[dict[str, Any]] = []
        self.outgoing: dict[str, Outgoing] = {}
        self.outgoing_fixed: dict[str, Outgoing] = {}
        self.keeper = KeyKeeper(self)
        self.outcome: dict[str, Any] = {}
        self.holds: dict[str, bytes] = {}
        self.successor: Roster | None = None
        self.reports_sums_early = False
        """Whether what happens in a sum is reported at once; vectors of operations have it at the end of the round."""

    @property
    def deadline(self) -> float | None:
        in_sum = self.sum.deadline if self.sum and self.state == "IN_ROUND" else None
        times = [self.own_deadline, in_sum, self.keeper.deadline, *self.lost.values(), *self.waiting.values()]
        return min((at for at in times if at is not None), default=None)

    def send(self, name: str, kind: str, round_number: int, body: dict[str, Any], raw: bytes | None = None) -> None:
        talk = self.conversations.get(name) or self.conversation(name)
        self.transmit(name, talk.write(kind, round_number, body, raw))

    def conversation(self, name: str) -> Conversation:
        return Conversation(self.session, self.roster.server, name, link=self.links.get(name, 0))

    def receive(self, name: str, frames: list[bytes], now: float) -> None:
        if name not in self.roster.clients or name in self.barred:
            return
        try:
            envelope = read_envelope(frames)
            if self.state == "ENDED" and envelope["type"] != "resume":
                return
            talk = self.conversations.get(name)
            require(envelope["type"] not in ("hello", "resume") or envelope["round"] == 0, "SESSION")
            if envelope["type"] == "hello":
                self.on_hello(name, envelope, frames, now)
            elif envelope["type"] == "resume":
                self.on_resume(name, envelope, frames, now)
            elif talk is not None and not talk.late(envelope):
                talk.check(envelope)
                talk.check_round(envelope["round"])
                self.on_message(name, envelope, frames, now)
        except Refused as reason:
            self.bar(name, reason.code, now)
        self.go_on(now)

    def on_resume(self, name: str, envelope: dict[str, Any], frames: list[bytes], now: float) -> None:
        talk = self.conversations.get(name)
        if talk is None or not talk.may_be_asked(envelope):
            require(envelope["sender"] == name, "SENDER")
            read_body(envelope, frames)
            self.asked[name] = envelope
            self.at_its_turn(name, self.refuse_stray, now)
        elif envelope["link"] >= talk.link:
            talk.asked(envelope)
            read_body(envelope, frames)
            self.asked[name] = envelope
            self.at_its_turn(name, self.resume, now)

    def at_its_turn(self, name: str, answer: Callable[[str, float], None], now: float) -> None:
        left = self.hello_seconds(name, now)
        if left < HELLO_SECONDS:
            self.waiting[name] = now + HELLO_SECONDS - left
            self.turns[name] = answer
        else:
            answer(name, now)

    def refuse_stray(self, name: str, now: float) -> None:
        self.spend(name, now)
        self.refuse_to_resume(name, self.asked[name])

    def resume(self, name: str, now: float) -> None:
        self.spend(name, now)
        self.lost.pop(name, None)
        talk = self.conversations[name]
        if talk.goes_on():
            for frames in talk.answer():
                self.transmit(name, frames)
        else:
            self.refuse_to_resume(name, self.asked[name])
            self.leave(name, now)

    def refuse_to_resume(self, name: str, asked: dict[str, Any]) -> None:
        ends = (asked["session"], self.roster.server, name)
        talk = Conversation(*ends, sent=asked["received"], link=asked["link"])
        self.transmit(name, talk.write("abort", 0, abort_body("LEFT", name), None))

    def bar(self, name: str, code: str, now: float) -> None:
        self.report({"event": "message-refused", "member": name, "code": code})
        self.part_with(name, code, now)

    def part_with(self, name: str, code: str, now: float) -> None:
        """Out of the session, and told so; for good, if it broke a rule."""
        self.send(name, "abort", 0, abort_body(code, name))
        if code not in BREAKS_NO_RULE:
            self.barred.add(name)
        self.leave(name, now, code)

    def leave(self, name: str, now: float, code: str = "LEFT") -> None:
        self.lost.pop(name, None)
        self.waiting.pop(name, None)
        self.told = [other for other in self.told if other != name]
        if self.conversations.pop(name, None) is not None:
            self.report({"event": "client-left", "member": name})
            self.keeper.left(name, code, now)
        self.drop(name, code, now)

    def drop(self, name: str, code: str, now: float) -> None:
        """Out of the sum, if there is one going on, without a message about it."""
        if self.state == "IN_ROUND" and self.sum is not None and name in self.cohort:
            member = self.cohort.index(name)
            if not self.sum.over and member not in self.sum.out:
                self.sum.exclude(member, code, tell=False, now=now)

    def on_hello(self, name: str, envelope: dict[str, Any], frames: list[bytes], now: float) -> None:
        self.links[name] = envelope["link"]
        Conversation(bytes(32), self.roster.server, name, link=envelope["link"]).check(envelope)
        body = read_body(envelope, frames)
        self.holds[name] = body["roster"]
        if name in self.conversations:
            self.leave(name, now)
        self.at_its_turn(name, self.greet, now)

    def hello_seconds(self, name: str, now: float) -> float:
        """What the member has left, each hello at HELLO_SECONDS."""
        since, most = now - self.counted_at.get(name, now), HELLOS * HELLO_SECONDS
        return min(most, self.hellos.get(name, most) + since)

    def spend(self, name: str, now: float) -> None:
        self.hellos[name], self.counted_at[name] = self.hello_seconds(name, now) - HELLO_SECONDS, now
        self.waiting.pop(name, None)

    def greet(self, name: str, now: float) -> None:
        self.spend(name, now)
        if self.holds[name] != self.roster.hash:
            self.correct(name)
            return
        self.conversations[name] = self.conversation(name)
        self.declined.discard(name)
        if self.state == "GATHERING" and self.waits_for_enough and self.suffices(self.there()):
            self.waits_for_enough, self.own_deadline = False, now + self.grace
        self.keep_statements()
        spent = held_of(self.held, self.roster.all_keys[name]) if self.configuration["spending"] else b""
        self.send(name, "welcome", 0, {"roster": self.roster.hash, "configuration": self.encoded, "spent": spent})
        self.report({"event": "client-joined", "member": name})

    def keep_statements(self) -> None:
        """docs/spec/session.md, *Spending*: the highest of each key."""
        for name, statement in self.sum.stated.items() if self.sum else ():
            key = self.roster.signing_keys[name]
            self.held[key] = max(self.held.get(key, bytes(STATEMENT_BYTES)), statement, key=amount_of)

    def correct(self, name: str) -> None:
        """It holds another roster, and is told this one, if it has an operator."""
        if self.roster.operator:
            self.send(name, "new-roster", 0, {"roster": self.roster.encoded, "signature": self.roster.signature})
        else:
            self.send(name, "abort", 0, abort_body("ROSTER", name))
        self.report({"event": "message-refused", "member": name, "code": "ROSTER"})

    def on_message(self, name: str, envelope: dict[str, Any], frames: list[bytes], now: float) -> None:
        kind, number = envelope["type"], envelope["round"]
        require(number <= self.round, "SESSION")
        of_key = self.configuration["group_key"] and number == 0
        if kind in PHASE_OF or (kind in ("fetch", "fetch-fixed") and not of_key):
            if 0 < number < self.round or (kind in PHASE_OF and number < self.round):
                return
            if self.state != "IN_ROUND":
                return
        if kind == "abort":
            self.on_abort(name, envelope, frames, now)
        elif kind in ("fetch", "fetch-fixed") and self.state == "IN_ROUND" and number > 0:
            outgoing = self.outgoing if kind == "fetch" else self.outgoing_fixed
            require(name in outgoing, "UNEXPECTED")
            chunk = read_body(envelope, frames)["chunk"]
            self.send(name, "chunk", number, {"chunk": chunk}, outgoing[name].give(chunk))
        elif kind in FROM_MEMBERS and self.configuration["group_key"]:
            self.keeper.receive(name, envelope, frames, raw_frame(frames), now)
        else:
            require(kind in PHASE_OF and self.state == "IN_ROUND" and name in self.cohort, "UNEXPECTED")
            self.in_sum(name, envelope, frames, now)

    def on_abort(self, name: str, envelope: dict[str, Any], frames: list[bytes], now: float) -> None:
        of_this_sum = self.state == "IN_ROUND" and envelope["round"] == self.round
        if envelope["round"] > 0 and not of_this_sum:
            return
        body = read_body(envelope, frames)
        if envelope["round"] == 0:
            if NAMES[body["code"]] != "LEFT" and name in self.conversations:
                self.declined.add(name)
            self.leave(name, now)
        else:
            self.drop(name, "LEFT", now)

    def in_sum(self, name: str, envelope: dict[str, Any], frames: list[bytes], now: float) -> None:
        assert self.sum is not None
        member = self.cohort.index(name)
        try:
            if self.sum.admits(member, envelope["type"]):
                body = read_body(envelope, frames)
                self.sum.receive(member, envelope["type"], body, raw_frame(frames), now)
        except Refused as reason:
            self.sum.exclude(member, reason.code, tell=True, now=now)

    def there(self) -> list[str]:
        return [name for name in self.roster.clients if name in self.conversations]

    def go_on(self, now: float) -> None:
        """What follows once nobody is waited for any more."""
        if self.state == "IN_ROUND" and self.sum is not None and self.sum.over:
            self.after_sum(now)
        elif self.state == "GATHERING":
            linked = [name for name in self.there() if name not in self.lost]
            if len(self.gather(linked)) >= len(self.gather(self.possible())):
                self.choose_cohort(now)

    def possible(self) -> list[str]:
        return [name for name in self.roster.clients if name not in self.barred | self.declined]

    def suffices(self, names: list[str]) -> bool:
        return len(self.gather(names)) >= self.smallest_cohort

    def choose_cohort(self, now: float) -> None:
        self.prepare(self.gather(self.there()), now)

    def gather(self, names: list[str]) -> list[str]:
        return self.roster.gather(names, self.configuration["clients"])

    def prepare(self, chosen: list[str], now: float) -> None:
        """The round, if there are enough and they have a key; else the key first."""
        cohort = self.gather([name for name in chosen if name in self.there()])
        enough = len(cohort) >= self.smallest_cohort
        if not enough and self.suffices(self.possible()) and not (self.state == "GATHERING" and self.ends_with_too_few):
            self.gather_again(now)
        elif enough and self.configuration["group_key"] and not self.keeper.fits(cohort):
            self.state, self.own_deadline = "KEYING", None
            self.keeper.agree(cohort, now)
        else:
            self.start_round(cohort, now)

    def gather_again(self, now: float) -> None:
        """A grace for all of them, then for as many as a round takes; without end in the vectors."""
        self.waits_for_enough = self.state == "GATHERING"
        self.own_deadline = None if self.waits_for_enough else now + self.grace
        self.state, self.ends_with_too_few = "GATHERING", False

    def keyed(self, members: list[str], model: bytes | None, now: float) -> None:
        if model is not None:
            self.model = model
            self.report({"event": "new model", "model": model, "round": self.round})
        self.prepare(members, now)

    def key_failed(self, code: str, culprits: list[str], now: float) -> None:
        for name in culprits:
            if name in self.conversations:
                self.part_with(name, code, now)
        self.choose_cohort(now)

    def distributed(self, without: list[str]) -> None:
        if without:
            self.report({"event": "without model", "members": without})
        self.send_finish()

    def start_round(self, cohort: list[str], now: float) -> None:
        self.cohort = cohort
        self.own_deadline = None
        self.round += 1
        try:
            require(len(self.cohort) >= self.smallest_cohort, "THRESHOLD")
            model, key = digest(MODEL, self.model), self.keeper.transcript
            terms = terms_of(
                self.roster, self.session, self.round, self.encoded, model, cohort, self.smallest_cohort, key
            )
            most = terms.size if terms.graph == "complete" else terms.neighbours
            require(not terms.secure or 2 <= terms.threshold <= most, "THRESHOLD")
        except Refused:
            self.end("THRESHOLD")
            return
        body = {
            "cohort": self.bitmap(self.cohort),
            "model": announcement(MODEL, self.model),
        }
        for name in self.cohort:
            self.send(name, "start-round", self.round, body)
        self.outgoing = {name: Outgoing(self.model) for name in self.cohort}
        self.outgoing_fixed = {name: Outgoing(self.fixed) for name in self.cohort}
        self.told = list(self.cohort)
        self.keeper.rounds += 1
        self.begin_sum(terms, now)

    def bitmap(self, cohort: list[str]) -> bytes:
        clients = self.roster.clients
        return write_members([clients.index(name) for name in cohort], len(clients))

    def begin_sum(self, terms: Terms, now: float) -> None:
        self.keep_statements()
        self.terms: Terms = terms
        self.sum = (AggregationServer if terms.secure else PlainServer)(
            terms, now, lambda name, kind, fields: self.send(name, kind, self.round, fields), self.on_sum_event
        )
        self.state = "IN_ROUND"
        self.sum.start(now)

    def on_sum_event(self, event: dict[str, Any]) -> None:
        self.later.append(event)
        if self.reports_sums_early and event["event"] in ("client-dropped", "complaint-received"):
            self.report(event)

    def after_sum(self, now: float) -> None:
        assert self.sum is not None
        *before, last = self.later
        self.later = []
        for event in [] if self.reports_sums_early else before:
            self.report(event)
        code = last.get("code")
        self.outcome = {"code": code, "culprit": last.get("culprit", "")}
        self.report(
            {
                "event": "round done",
                "round": self.round,
                "code": code,
                "words": last.get("words"),
                "survivors": last.get("survivors", []),
                "culprit": self.outcome["culprit"],
            }
        )
        self.state = "BETWEEN_ROUNDS"
        self.bar_culprits(before, now)

    def bar_culprits(self, before: list[dict[str, Any]], now: float) -> None:
        faults = {event["member"]: event["code"] for event in before if event["event"] == "client-dropped"}
        if self.state == "BETWEEN_ROUNDS" and self.outcome["culprit"]:
            faults[self.outcome["culprit"]] = self.outcome["code"]
        for name, fault in faults.items():
            if fault not in BREAKS_NO_RULE and name not in self.barred:
                self.bar(name, fault, now)

    def end_round(self, unusable: str) -> None:
        """`unusable`: why the sum could not be applied."""
        code = "VECTOR" if unusable else self.outcome["code"]
        body = {"code": CODES[code] if code else None, "detail": code.lower() if code else ""}
        for name in self.told:
            if name in self.conversations:
                self.send(name, "end-round", self.round, body)

    def next_round(self, model: bytes, unusable: str, now: float) -> None:
        require(self.state == "BETWEEN_ROUNDS", "INVALID")
        self.end_round(unusable)
        self.model = model
        self.choose_cohort(now)
        self.go_on(now)

    def finish(self, model: bytes, unusable: str, now: float) -> None:
        require(self.state == "BETWEEN_ROUNDS", "INVALID")
        self.end_round(unusable)
        if self.keeper.readers:
            self.state = "DISTRIBUTING"
            self.keeper.distribute(model, now)
        else:
            self.send_finish()

    def change_roster(self, roster: Roster, model: bytes, now: float) -> None:
        require(self.state in ("GATHERING", "BETWEEN_ROUNDS"), "INVALID")
        self.successor = roster
        if self.state == "GATHERING":
            self.send_finish()
        else:
            self.finish(model, "", now)

    def send_finish(self) -> None:
        roster = self.successor
        told = {} if roster is None else {"roster": roster.encoded, "signature": roster.signature}
        for name in self.roster.clients:
            if name in self.conversations:
                self.send(name, "finish" if roster is None else "new-roster", 0, told)
        self.close(None if roster is None else "ROSTER")

    def end(self, code: str) -> None:
        for name in self.roster.clients:
            if name in self.conversations:
                self.send(name, "abort", 0, abort_body(code, ""))
        self.close(code)

    def close(self, code: str | None) -> None:
        self.state, self.own_deadline, self.waiting = "ENDED", None, {}
        self.report({"event": "ended", "code": code})

    def link_lost(self, name: str, now: float) -> None:
        if name in self.conversations and self.state != "ENDED":
            self.lost[name] = now + self.grace
            self.conversations[name].broken = True

    def link_back(self, name: str, now: float) -> None:
        if self.state != "ENDED":
            self.lost.pop(name, None)

    def expire(self, now: float) -> None:
        for name, at in list(self.lost.items()):
            if now >= at:
                self.leave(name, now)
        for name, at in list(self.waiting.items()):
            if now >= at:
                self.turns[name](name, now)
                self.go_on(now)
        if self.state == "IN_ROUND" and self.sum is not None:
            self.sum.expire(now)
        self.keeper.expire(now)
        if self.own_deadline is not None and now >= self.own_deadline:
            self.choose_cohort(now)
        self.go_on(now)
