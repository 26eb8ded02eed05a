"""A data owner and the model owner of double-blind adaptation, and which sums are told: docs/spec/adaptation.md."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from adaptation_terms import ADAPTATION, adaptation_rounds, read_adaptation_terms, rounds_of_blocks, sum_words
from constants import KEPT, require
from inference_owner import DataOwner, Due, ModelOwner, Owner, cut
from inference_terms import passes_of, terms_digest
from primitives import digest


class Sums:
    """*Which sums are told*, over all sessions of a model owner."""

    def __init__(self, policy: dict[str, int], opened: int, current: int, survivors: list[str]) -> None:
        self.policy, self.opened, self.current, self.survivors = policy, opened, current, survivors
        self.owners: set[str] = set()
        self.counts: dict[str, int] = {}
        self.begun: dict[str, int] = {}
        self.shares: dict[str, int] = {}
        self.words: dict[str, list[str]] = {}
        self.lost: set[int] = set()

    def check_owner(self, owner: str) -> None:
        require(owner in self.owners or len(self.owners) < self.policy["owners"], "POLICY")

    def begin(self, owner: str, number: int, based: int, count: int) -> None:
        require(self.opened < self.policy["rounds"], "POLICY")
        self.check_owner(owner)
        require(number > self.current and based == self.current, "SESSION")
        require(self.counts.get(owner, count) == count, "SESSION")
        self.owners.add(owner)
        self.counts[owner] = count
        self.begun[owner] = number

    def keep(self, owner: str, number: int) -> None:
        self.shares.pop(owner, None)
        self.words.pop(owner, None)
        # A round that was begun before another became final is none.
        if self.begun.pop(owner, None) == number and number not in self.lost:
            self.shares[owner] = number

    def has_none_for(self, owner: str, number: int, survivors: list[str]) -> bool:
        """Whether this owner is answered with `sum-lost` at once."""
        if number < self.current or number in self.lost:
            return True
        if number == self.current:
            return bool(survivors) and survivors != self.survivors
        return bool(survivors) and self.shares.get(owner) != number

    def say(self, owner: str, number: int, survivors: list[str]) -> None:
        self.owners.add(owner)
        if number <= self.current or not survivors:
            return
        words = [said for name, said in self.words.items() if self.shares[name] == number]
        few = len(survivors) - self.policy["colluders"] < self.policy["smallest_cohort"]
        if few or self.opened >= self.policy["rounds"] or any(said != survivors for said in words):
            self.lose(number)
            return
        self.words[owner] = survivors
        if all(self.shares.get(name) == number and self.words.get(name) == survivors for name in survivors):
            self.opened, self.current, self.survivors = self.opened + 1, number, survivors
            self.begun, self.shares, self.words, self.lost = {}, {}, {}, set()

    def lose(self, number: int) -> None:
        self.lost.add(number)
        for owner in [owner for owner, round_number in self.shares.items() if round_number == number]:
            del self.shares[owner]
            self.words.pop(owner, None)

    def wait_no_longer(self, number: int) -> None:
        """Survivors who have not said anything lose the round; where nobody has said who survived, nobody does."""
        said = {name: names for name, names in self.words.items() if self.shares[name] == number}
        if {name for names in said.values() for name in names} - said.keys():
            self.lose(number)


class Kept:
    """*Kept shares*: what one owner keeps of a data owner's images."""

    def __init__(self, terms: bytes, last: list[Any], before: list[Any], uses: int) -> None:
        self.terms, self.last, self.before, self.uses = terms, (last[0], last[1]), (before[0], before[1]), uses

    def under(self, terms: bytes) -> "Kept":
        return self if self.terms == terms else Kept(terms, [0, bytes(32)], [0, bytes(32)], 0)

    def go_on(self, terms: bytes, common: tuple[int, bytes], uses: int) -> None:
        self.terms, self.last, self.uses = terms, common, uses if common[0] else 0
        if self.before[0] >= common[0]:
            self.before = (0, bytes(32))

    def add(self, session: bytes, number: int, images: int) -> None:
        place = number.to_bytes(8, "big") + images.to_bytes(8, "big")
        self.before = self.last
        self.last = (self.last[0] + images, digest(KEPT, self.last[1], session, place))

    def use(self) -> None:
        self.uses += 1


class Learner(Owner):
    family = ADAPTATION
    brought = 0
    """How many passes of the session bring images."""

    @property
    def keeps(self) -> bool:
        return bool(self.terms["purpose"] == "learning")

    @property
    def brings(self) -> bool:
        """Whether the next pass brings images."""
        return self.keeps and self.number < self.brought

    @property
    def judges(self) -> bool:
        return not self.keeps

    def go_on_behind(self, common: tuple[int, bytes], uses: int, steps: int) -> None:
        """Both keep so much."""
        images, batch = self.agreement
        self.kept.go_on(self.digest, common, uses)
        brought = passes_of(images - common[0], batch) if images > common[0] else []
        self.brought, self.passes = len(brought), [*brought, *[batch] * steps]
        self.tell(
            {"event": "agreed", "terms": self.digest, "images": images, "batch": batch}
            | {"kept": common[0], "steps": steps}
        )

    def agree(self, terms: dict[str, Any], encoded: bytes, images: int, batch: int) -> None:
        if terms["purpose"] != "learning":
            super().agree(terms, encoded, images, batch)
            return
        self.terms, self.digest, self.agreement = terms, terms_digest(encoded), (images, batch)

    def check_choice(self, images: list[int], code: str) -> None:
        have, batch = self.agreement
        require(len(images) == batch and all(image < have for image in images), code)

    def read_terms(self, encoded: bytes) -> dict[str, Any]:
        return read_adaptation_terms(encoded)

    def rounds(self, images: int) -> list[tuple[str, int, int]]:
        if self.keeps and self.number <= self.brought:
            return rounds_of_blocks(self.terms["sizes"], images)
        return adaptation_rounds(self.terms, images)


class LearningDataOwner(Learner, DataOwner):
    awaiting = (
        "AWAIT_TERMS",
        "AWAIT_KEPT",
        "AWAIT_WEIGHTS",
        "AWAIT_ROUND",
        "AWAIT_START",
        "AWAIT_COIN",
        "AWAIT_KEYS",
        "AWAIT_SUM",
        "CLOSING",
    )

    def __init__(self, draw: Callable[[], bytes], kept: Kept, steps: int, *given: Any) -> None:
        super().__init__(*given)
        self.draw, self.kept, self.steps, self.chosen = draw, kept, steps, False

    def on_terms(self, body: dict[str, Any], now: float) -> None:
        super().on_terms(body, now)
        if self.keeps:
            self.found = self.kept.under(self.digest)
            images, chain = self.found.last
            if images > self.agreement[0]:
                images, chain = 0, bytes(32)
            self.send("compare-kept", {"images": images, "chain": chain, "uses": self.found.uses, "steps": self.steps})
            self.go_to("AWAIT_KEPT", now)

    def count(self) -> int:
        return 0 if self.keeps else super().count()

    def choose(self, images: list[int], now: float) -> None:
        if self.over:
            return
        require(self.state == "IDLE", "INVALID")
        self.check_choice(images, "INVALID")
        self.send("choose-images", {"images": images})
        self.chosen = True
        self.go_to("IDLE", now)

    def ask(self, at: float, now: float) -> None:
        require(not self.keeps or self.chosen is not self.brings, "INVALID")
        super().ask(at, now)
        self.chosen = False

    def check_terms(self, terms: dict[str, Any]) -> None:
        require(terms["purpose"] == self.request["purpose"], "POLICY")
        require(terms["purpose"] != "learning" or terms["learning"]["batch"] == self.request["batch"], "POLICY")
        counted = terms["least_count"] > 0
        require(terms["purpose"] != "learning" or counted == (self.request["count"] > 0), "POLICY")
        require(terms["smallest_cohort"] >= self.request["smallest_cohort"], "POLICY")

    def admitted(self) -> tuple[str, ...]:
        own = {
            "AWAIT_KEPT": ("kept-compared",),
            "AWAIT_ROUND": ("round-begun",),
            "AWAIT_SUM": ("own-sum", "sum-lost"),
        }
        return own.get(self.state, super().admitted())

    def handle(self, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        if kind == "kept-compared":
            common = (body["images"], body["chain"])
            if common[0]:
                require(common in (self.found.last, self.found.before), "SESSION")
                require(self.found.uses - body["uses"] in (0, 1), "SESSION")
            self.go_on_behind(common, self.found.uses, self.steps)
            self.go_to("AWAIT_WEIGHTS" if self.brought else "IDLE", now)
        elif kind == "round-begun":
            require(body["done"] <= self.said_done, "SESSION")
            self.go_to("IDLE", now)
            self.tell({"event": "round answered", "done": body["done"]})
        elif kind == "own-sum":
            data = self.sum.take(body["number"], body["chunk"], raw)
            self.go_to("AWAIT_SUM" if data is None else "IDLE", now)
            if data is not None:
                self.tell({"event": "sum told", "number": body["number"], "data": data})
        elif kind == "sum-lost":
            require(body["number"] == self.asked and body["detail"] != "", "SESSION")
            self.go_to("IDLE", now)
            self.tell({"event": "sum told", "number": body["number"], "data": None})
        else:
            super().handle(kind, body, raw, now)

    def say(self, kind: str, body: dict[str, Any], state: str, now: float) -> None:
        require(self.state == "IDLE", "INVALID")
        self.send(kind, body)
        self.go_to(state, now)

    def begin_round(self, number: int, based: int, done: int, now: float) -> None:
        self.said_done = done
        body = {"number": number, "based": based, "done": done, "count": self.request["count"]}
        self.say("begin-round", body, "AWAIT_ROUND", now)

    def keep_round(self, number: int, now: float) -> None:
        self.say("keep-round", {"number": number, "secret": self.draw()}, "IDLE", now)

    def ask_sum(self, number: int, survivors: list[str], now: float) -> None:
        self.asked, self.sum = number, Due([(number, 8 * sum_words(self.terms))])
        self.say("ask-sum", {"number": number, "survivors": sorted(survivors)}, "AWAIT_SUM", now)


class LearningModelOwner(Learner, ModelOwner):
    awaiting = ("AWAIT_AGREEMENT", "AWAIT_KEPT", "AWAIT_COIN", "AWAIT_KEYS")

    def __init__(self, sums: Sums, kept: Kept, *given: Any) -> None:
        super().__init__(*given)
        self.sums, self.kept, self.round, self.chosen = sums, kept, 0, False

    def admitted(self) -> tuple[str, ...]:
        between = ("choose-images", "begin-round", "start-pass", "keep-round", "ask-sum", "close-inference")
        own = {"AWAIT_KEPT": ("compare-kept",), "IDLE": between}
        return own.get(self.state, super().admitted())

    def count(self) -> int:
        return super().count() if not self.keeps or self.number <= self.brought else 0

    def on_compare_kept(self, body: dict[str, Any], now: float) -> None:
        require(body["images"] <= self.agreement[0], "SESSION")
        require(body["steps"] <= self.sums.policy["steps"], "POLICY")
        own, said = self.kept.under(self.digest), (body["images"], body["chain"])
        uses, common = own.uses, (0, bytes(32))
        if said[0] and own.last[0]:
            require(body["uses"] - uses in (0, 1), "SESSION")
            known = said in (own.last, own.before)
            require(known or said[0] > own.last[0], "SESSION")
            common = said if known else own.last
        self.send("kept-compared", {"images": common[0], "chain": common[1], "uses": uses})
        self.go_on_behind(common, body["uses"], body["steps"])
        self.go_to("MASKING" if self.brought else "IDLE", now)

    @property
    def learning(self) -> bool:
        return bool(self.offered["purpose"] == "learning")

    def handle(self, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        if kind == "compare-kept":
            self.on_compare_kept(body, now)
        elif kind == "choose-images":
            require(self.learning and not self.brings and self.round != 0, "UNEXPECTED")
            self.check_choice(body["images"], "SESSION")
            self.chosen = True
            self.go_to("IDLE", now)
        elif kind == "begin-round":
            require(self.learning, "UNEXPECTED")
            require((body["count"] > 0) == (self.offered["least_count"] > 0), "SESSION")
            self.sums.begin(self.peer, body["number"], body["based"], body["count"])
            self.round, self.said_done = body["number"], body["done"]
            self.go_to("BEGINNING_ROUND", now)
            self.tell({"event": "round asked", "number": body["number"], "done": body["done"]})
        elif kind == "keep-round":
            require(self.round != 0 and body["number"] == self.round, "SESSION")
            self.round = 0
            self.sums.keep(self.peer, body["number"])
            self.go_to("IDLE", now)
            self.tell({"event": "round kept", "number": body["number"], "secret": body["secret"]})
        elif kind == "ask-sum":
            self.on_ask_sum(body["number"], body["survivors"], now)
        else:
            if kind == "agree-terms" and self.learning:
                batch = self.offered["learning"]["batch"]
                require(body["batch"] == batch, "POLICY")
            step = kind == "start-pass" and self.learning and not self.brings
            require(not step or (self.round != 0 and self.chosen), "UNEXPECTED")
            super().handle(kind, body, raw, now)
            self.chosen = self.chosen and not step
            if kind == "agree-terms" and self.learning:
                self.go_to("AWAIT_KEPT", now)

    def on_ask_sum(self, number: int, survivors: list[str], now: float) -> None:
        require(self.learning, "UNEXPECTED")
        self.sums.check_owner(self.peer)
        if survivors:
            require(all(a < b for a, b in pairwise(survivors)), "MEMBERS")
            require(self.peer in survivors, "MEMBERS")
        self.asked = number
        if self.sums.has_none_for(self.peer, number, survivors):
            self.send("sum-lost", {"number": number, "detail": "lost"})
            self.go_to("IDLE", now)
            return
        self.sums.say(self.peer, number, survivors)
        self.go_to("SUMMING", now)
        self.tell({"event": "sum asked", "number": number})

    def answer_round(self, done: int, now: float) -> None:
        require(self.state == "BEGINNING_ROUND" and 0 <= done <= self.said_done, "INVALID")
        self.send("round-begun", {"done": done})
        self.go_to("IDLE", now)

    def tell_sum(self, number: int, data: bytes | None, now: float) -> None:
        require(self.state == "SUMMING" and number == self.asked, "INVALID")
        if data is None:
            self.sums.wait_no_longer(number)
            self.send("sum-lost", {"number": number, "detail": "lost"})
        else:
            require(number == self.sums.current and len(data) == 8 * sum_words(self.terms), "INVALID")
            for chunk, piece in enumerate(cut(data)):
                self.send("own-sum", {"number": number, "chunk": chunk}, 0, piece)
        self.go_to("IDLE", now)
