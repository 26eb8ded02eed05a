"""A client of a federation: docs/spec/session.md."""

from collections.abc import Callable
from typing import Any

from aggregation import Terms, amount_of, held_of, highest, state_spending
from aggregation_client import AggregationClient
from constants import FIXED, MODEL, NAMES, STATEMENT_BYTES, Refused, require
from conversation import Conversation, Roster, rotated
from encoding import read_members
from key_holder import FROM_SERVER, KeyHolder
from messages import abort_body, raw_frame, read_body, read_configuration, read_envelope
from parameters import unpack_words
from plain_sum import PlainClient
from primitives import digest
from proposal import Policy, configuration_hash, terms_of
from transfer import Incoming, state_size

SUM_MESSAGES = ("peer-keys", "peer-shares", "fetch-vector", "survivors", "unmask-request")
IN_ROUND = ("end-round", "new-roster", "finish", "abort", "resume")
ADMITTED = {
    "AWAIT_WELCOME": ("welcome", "new-roster", "finish", "abort", "resume"),
    "AWAIT_ROUND": ("start-round", *IN_ROUND),
    "FETCHING_MODEL": ("chunk", *IN_ROUND),
    "TRAINING": IN_ROUND,
    "AGGREGATING": IN_ROUND,
}
IN_SUM = ("FETCHING_MODEL", "TRAINING", "AGGREGATING")


def about_keys(envelope: dict[str, Any]) -> bool:
    """Whether a message is one of docs/spec/group-key.md."""
    return envelope["type"] in FROM_SERVER or (envelope["type"] == "chunk" and envelope["round"] == 0)


class SessionClient:
    """`transmit(receiver, frames)` and `report(event)` are the ways out, `draw(n)` gives n random bytes, or 32."""

    def __init__(
        self,
        roster: Roster,
        name: str,
        signing_private: bytes,
        draw: Callable[..., bytes],
        policy: Policy,
        journal: list[dict[str, Any]],
        group: bytes | None,
        patience: float,
        grace: float,
        transmit: Callable[[str, list[bytes]], None],
        report: Callable[[dict[str, Any]], None],
        held: Any = (),
        stated: float | None = None,
    ) -> None:
        self.others: dict[bytes, bytes] = dict(held)
        self.stated, self.knows, self.spent = stated, bool(journal), 0.0
        for line in journal:
            if line["type"] == "spending":
                self.spent = max(self.spent, line["spent"])
            elif line["type"] == "stage":
                self.spent += line.get("cost", 0.0)
        self.before = self.spent
        journal = [line for line in journal if line["type"] == "stage"]
        self.roster, self.name, self.signing_private, self.draw = roster, name, signing_private, draw
        self.policy, self.journal, self.patience, self.grace = policy, list(journal), patience, grace
        self.group = group
        self.transmit, self.report = transmit, report
        self.state = "OFFLINE"
        self.own_deadline: float | None = None
        self.gone_at: float | None = None
        self.conversation = Conversation(bytes(32), name, roster.server)
        self.sum: AggregationClient | None = None
        self.round, self.awaits_end = 0, False
        self.greeted, self.former, self.encoded = False, b"", b""
        self.holder: KeyHolder | None = None
        self.fixed = self.held = b""
        self.key: tuple[bytes, bytes] | None = None

    @property
    def deadline(self) -> float | None:
        in_sum = self.sum.deadline if self.sum and self.state in IN_SUM else None
        of_key = self.holder.deadline if self.holder else None
        return min((at for at in (self.own_deadline, in_sum, of_key, self.gone_at) if at is not None), default=None)

    def go_to(self, state: str, deadline: float | None) -> None:
        self.state, self.own_deadline = state, deadline

    def send(self, kind: str, round_number: int, body: dict[str, Any], raw: bytes | None = None) -> None:
        self.transmit(self.roster.server, self.conversation.write(kind, round_number, body, raw))

    def hello(self, now: float) -> None:
        link = self.conversation.link + 1 if self.greeted else int.from_bytes(self.draw(2), "little")
        self.greeted = True
        first, self.conversation = (Conversation(bytes(32), self.name, self.roster.server, link=link) for _ in range(2))
        self.transmit(self.roster.server, first.write("hello", 0, {"roster": self.roster.hash}, None))
        self.go_to("AWAIT_WELCOME", now + self.patience)

    def end(self, code: str | None) -> None:
        self.go_to("ENDED", None)
        self.gone_at = self.holder = self.sum = None
        self.report({"event": "ended", "code": code})

    def receive(self, sender: str, frames: list[bytes], now: float) -> None:
        if self.state == "ENDED":
            return
        try:
            envelope = read_envelope(frames)
            first = self.state == "AWAIT_WELCOME"
            talk = self.conversation
            if first and talk.session == bytes(32):
                talk = Conversation(envelope["session"], self.name, self.roster.server, link=talk.link)
                talk.agreed, talk.broken = self.conversation.agreed, self.conversation.broken
            if envelope["link"] != talk.link or talk.late(envelope):
                return
            (talk.answered if envelope["type"] == "resume" else talk.check)(envelope)
            if talk is not self.conversation and talk.session not in (self.former, bytes(32)):
                self.round = 0
            self.conversation = talk
            if self.ignored(envelope):
                return
        except Refused as reason:
            self.end_session(reason.code)
            return
        try:
            self.check_state(envelope)
            if about_keys(envelope) and self.holder and not self.holder.admits(envelope["type"]):
                self.own_deadline = now + self.patience
                return
            body = read_body(envelope, frames)
            self.act(envelope, body, raw_frame(frames), now)
        except Refused as reason:
            if first or envelope["round"] == 0:
                self.end_session(reason.code)
            elif self.state in IN_SUM and self.sum is not None:
                self.sum.refuse(reason.code)
                self.after_sum(now)
            else:
                self.send("abort", envelope["round"], abort_body(reason.code, self.roster.server))
                self.leave_round(reason.code, now)

    def begin_again(self, now: float) -> None:
        """*Resumption*: the round is over, and another conversation begins."""
        if self.state not in ("AWAIT_WELCOME", "AWAIT_ROUND") or self.awaits_end:
            self.report({"event": "round over", "round": self.round, "code": "LEFT"})
        self.sum = self.holder = self.key = None
        if self.conversation.session != bytes(32):
            self.former = self.conversation.session
        self.awaits_end = False
        self.hello(now)

    def end_session(self, code: str) -> None:
        self.send("abort", 0, abort_body(code, self.roster.server))
        self.end(code)

    def ignored(self, envelope: dict[str, Any]) -> bool:
        """Step 9, and what AWAIT_ROUND does not listen to."""
        kind, number = envelope["type"], envelope["round"]
        if kind in ("welcome", "new-roster", "finish", "resume", *FROM_SERVER):
            require(number == 0, "SESSION")
            return False
        if number == 0:
            require(kind == "abort" or (kind == "chunk" and self.state in ("AWAIT_WELCOME", "AWAIT_ROUND")), "SESSION")
            return False
        if kind == "start-round":
            require(number > self.round, "SESSION")
            return False
        require(number <= self.round, "SESSION")
        if number < self.round:
            return True
        return self.state == "AWAIT_ROUND" and (kind in SUM_MESSAGES or kind in ("chunk", "abort"))

    def check_state(self, envelope: dict[str, Any]) -> None:
        kind = envelope["type"]
        in_sum = self.state in IN_SUM and self.sum is not None and self.sum.admits(kind)
        of_key = self.state == "AWAIT_ROUND" and self.holder is not None and about_keys(envelope)
        require(kind in ADMITTED[self.state] or in_sum or of_key, "UNEXPECTED")

    def act(self, envelope: dict[str, Any], body: dict[str, Any], raw: bytes | None, now: float) -> None:
        kind = envelope["type"]
        if kind == "welcome":
            self.on_welcome(body, now)
        elif kind == "start-round":
            self.on_start_round(envelope["round"], body, now)
        elif kind == "chunk" and envelope["round"] > 0:
            self.on_chunk(body, raw, now)
        elif kind == "end-round":
            self.on_end_round(None if body["code"] is None else NAMES[body["code"]], now)
        elif kind == "new-roster":
            self.on_new_roster(body)
        elif kind == "finish":
            self.end(None)
        elif kind == "resume":
            if not self.conversation.goes_on():
                self.begin_again(now)
            elif self.state == "AWAIT_ROUND":
                self.own_deadline = now + self.patience
            for frames in self.conversation.again():
                self.transmit(self.roster.server, frames)
        elif kind == "abort" and envelope["round"] == 0:
            told_that_it_is_gone = NAMES[body["code"]] in ("LEFT", "TIMEOUT") and body["culprit"] == self.name
            if told_that_it_is_gone and (self.state != "AWAIT_WELCOME" or self.conversation.asking):
                self.begin_again(now)
            else:
                self.end(NAMES[body["code"]])
        elif kind == "abort":
            self.leave_round(NAMES[body["code"]], now)
        elif about_keys(envelope) and self.holder is not None:
            self.own_deadline = now + self.patience
            self.holder.receive(kind, body, raw, now)
        elif self.sum is not None:
            self.sum.receive(kind, body, now)
            self.after_sum(now)

    def on_welcome(self, body: dict[str, Any], now: float) -> None:
        require(body["roster"] == self.roster.hash, "ROSTER")
        self.encoded = body["configuration"]
        self.configuration = read_configuration(self.encoded)
        self.policy.check_configuration(self.configuration, len(self.roster.clients), self.roster.group_sizes)
        self.check_group(self.roster, write=True)
        self.learn_at_first(body["spent"])
        self.report({"event": "accepted", "configuration": configuration_hash(self.encoded)})
        if self.configuration["group_key"]:
            self.holder = KeyHolder(self)
        self.go_to("AWAIT_ROUND", now + self.patience)

    def learn_at_first(self, told: bytes) -> None:
        """docs/spec/session.md, *Spending*; the policies of transcripts have no budget."""
        require(len(told) == (STATEMENT_BYTES if self.configuration["spending"] else 0), "SIGNATURE")
        witnessed = highest([told] if told else [], self.roster.lineage, self.roster.all_keys[self.name])
        spent = max(self.spent, witnessed, self.stated or 0.0)
        if spent != self.spent or (not self.knows and self.stated is not None):
            self.knows = True
            self.report({"event": "journal spending", "spent": spent})
        self.spent = self.before = spent
        self.stated = None

    def learn(self) -> None:
        """What the others say in the adverts and the packets of a sum."""
        assert self.sum is not None
        for name, statement in self.sum.stated.items():
            key = self.roster.signing_keys[name]
            self.others[key] = max(self.others.get(key, bytes(STATEMENT_BYTES)), statement, key=amount_of)
        known = highest(self.sum.told, self.roster.lineage, self.roster.all_keys[self.name])
        if known > self.before:
            self.before, self.spent = known, known + self.spent - self.before
            self.report({"event": "journal spending", "spent": self.spent})

    def on_new_roster(self, body: dict[str, Any]) -> None:
        found = self.roster.later(body["roster"], body["signature"], self.name)
        before, after = ({member["name"]: member for member in roster.members} for roster in (self.roster, found))
        stay = [name for name in after if name in before]

        def place(roster: Roster, name: str) -> tuple[bool, set[str]]:
            return roster.waits(name), set(roster.group_of(name))

        different = {
            "added": [name for name in after if name not in before],
            "removed": [name for name in before if name not in after],
            "rotated": [name for name in stay if rotated(before[name], after[name])],
            "regrouped": [name for name in stay if place(self.roster, name) != place(found, name)],
        }
        kinds = zip(("add", "remove", "rotate", "regroup"), different.values(), strict=True)
        require(all(kind in self.policy.roster_changes for kind, names in kinds if names), "POLICY")
        self.check_group(found, write=False)
        self.report({"event": "roster changed", "roster": found.hash, **different})
        self.end("ROSTER")

    def check_group(self, roster: Roster, write: bool) -> None:
        """docs/spec/session.md, *Journal*: another group than before, or none, is refused."""
        if roster.waits(self.name):
            return
        group, before = roster.group_hash(self.name), self.group
        if before is None and self.journal:
            before = b""
        require(before is None or before == group, "POLICY")
        if before is None and group and write:
            self.group = group
            self.report({"event": "journal group", "group": group})

    def cohort_of(self, bitmap: bytes) -> list[str]:
        clients = self.roster.clients
        cohort = [clients[place] for place in read_members(bitmap, len(clients))]
        require(self.name in cohort, "MEMBERS")
        self.roster.check_whole(cohort)
        self.policy.check_cohort(self.configuration, len(cohort))
        return cohort

    def on_start_round(self, number: int, body: dict[str, Any], now: float) -> None:
        self.round, self.awaits_end, self.sum = number, False, None
        cohort = self.cohort_of(body["cohort"])
        session = self.conversation.session
        require(all((old["session"], old["round"]) != (session, number) for old in self.journal), "SESSION")
        require(body["model"]["size"] == state_size(self.configuration), "MODEL")
        self.key = self.holder.for_round(cohort) if self.holder else None
        self.model = body["model"]["digest"]
        self.terms: Terms = terms_of(
            self.roster,
            self.conversation.session,
            self.round,
            self.encoded,
            self.model,
            cohort,
            self.policy.smallest_cohort,
            self.key[1] if self.key else b"",
        )
        self.begin_sum(now)
        fixed = self.configuration["fixed"]
        self.then_fetched = []
        if fixed["size"] and self.fixed != fixed["digest"]:
            self.then_fetched.append(Incoming(FIXED, fixed))
        model = Incoming(MODEL, body["model"], self.configuration["state"])
        if model.size and self.held != self.model:
            self.held = b""
            self.then_fetched.append(model)
        elif not model.size:
            require(digest(MODEL, b"") == self.model, "MODEL")
        self.fetch_next(now)

    def fetch_next(self, now: float) -> None:
        """docs/spec/session.md, *Fetching*: what is not here yet, or else the training."""
        if not self.then_fetched:
            keys = {"key": self.key[0], "transcript": self.key[1]} if self.key else {}
            self.report({"event": "train", "round": self.round, "model": self.model} | keys)
            self.go_to("TRAINING", None)
            return
        self.go_to("FETCHING_MODEL", now + 2 * self.terms.phase_seconds)
        self.incoming = self.then_fetched.pop(0)
        for chunk in self.incoming.first():
            self.ask(chunk)

    def ask(self, chunk: int) -> None:
        self.send("fetch-fixed" if self.incoming.label == FIXED else "fetch", self.round, {"chunk": chunk})

    def on_chunk(self, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        following = self.incoming.take(body["chunk"], raw)
        if following is not None:
            self.ask(following)
        if not self.incoming.whole:
            self.go_to(self.state, now + 2 * self.terms.phase_seconds)
        elif self.incoming.label == FIXED:
            self.fixed = self.incoming.expected
            self.report({"event": "fixed part", "digest": self.fixed})
            self.fetch_next(now)
        else:
            self.held = self.incoming.expected
            self.fetch_next(now)

    def begin_sum(self, now: float) -> None:
        """docs/spec/session.md, *Journal*: the entry, and only then the first word."""
        self.journal.append({"session": self.terms.session, "round": self.round})
        self.report({"event": "journal", "round": self.round})
        self.before = self.spent
        self.sum = (AggregationClient if self.terms.secure else PlainClient)(
            self.terms,
            self.name,
            self.signing_private,
            self.draw,
            lambda kind, body, raw: self.send(kind, self.round, body, raw),
            self.on_sum_event,
            state_spending(self.signing_private, self.roster.lineage, self.spent) if self.terms.spending else b"",
            {name: held_of(self.others, self.roster.all_keys[name]) for name in self.terms.cohort},
        )
        self.sum.learn = self.learn
        self.sum.start(now)

    def provide(self, epoch: int, model: bytes, now: float) -> None:
        if self.holder is not None:
            self.holder.provide(epoch, model, now)

    def contribute(self, words: bytes, now: float) -> None:
        vector = unpack_words(words, self.terms.ring_bits)
        require(self.state == "TRAINING" and self.sum is not None, "INVALID")
        self.go_to("AGGREGATING", None)
        if self.sum is not None:
            self.sum.give_vector(vector, now)
            self.after_sum(now)

    def on_sum_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "aborted":
            self.aborted_with = event["code"]
        else:
            self.report(event)

    def after_sum(self, now: float) -> None:
        if self.sum is None or not self.sum.over:
            return
        if self.sum.state == "DONE":
            self.awaits_end = True
            others = 0.0 if self.terms.secure else self.terms.train_seconds + self.terms.input_seconds
            self.go_to("AWAIT_ROUND", now + others + self.patience)
        else:
            self.leave_round(self.aborted_with, now)

    def leave_round(self, code: str, now: float) -> None:
        self.sum = None
        self.report({"event": "round over", "round": self.round, "code": code})
        self.go_to("AWAIT_ROUND", now + self.patience)

    def on_end_round(self, code: str | None, now: float) -> None:
        if self.state != "AWAIT_ROUND" and code is not None:
            self.leave_round(code, now)
        elif self.state != "AWAIT_ROUND" or self.awaits_end:
            self.awaits_end, self.sum = False, None
            self.report({"event": "round over", "round": self.round, "code": code})
        if self.state == "AWAIT_ROUND" or code is None:
            self.go_to("AWAIT_ROUND", now + self.patience)

    def link_lost(self, peer: str, now: float) -> None:
        self.gone_at, self.conversation.broken = now + self.grace, True

    def link_back(self, peer: str, now: float) -> None:
        if self.gone_at is not None:
            self.gone_at = None
            self.transmit(self.roster.server, self.conversation.ask())

    def expire(self, now: float) -> None:
        if self.state == "ENDED" or self.deadline is None or now < self.deadline:
            return
        if self.gone_at is not None and now >= self.gone_at:
            self.end("LEFT")
        elif self.holder is not None and self.holder.deadline is not None and now >= self.holder.deadline:
            self.end_session("TIMEOUT")
        elif self.sum is not None and self.sum.deadline is not None and now >= self.sum.deadline:
            self.leave_round("TIMEOUT", now)
        elif self.conversation.broken:
            self.begin_again(now)
        elif self.gone_at is not None:
            self.own_deadline = now + self.patience
        elif self.state == "AWAIT_ROUND" and not self.conversation.asking:
            self.own_deadline = now + self.patience
            self.transmit(self.roster.server, self.conversation.ask())
        else:
            self.end("TIMEOUT")
