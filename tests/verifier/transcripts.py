"""Replay of transcripts: docs/spec/vectors.md, *Transcripts*."""

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from adaptation_owner import Kept, LearningDataOwner, LearningModelOwner, Sums
from adaptation_terms import ADAPTATION, ADAPTATION_TERMS
from aggregation import Terms
from computations import from_body, octets, to_body, written
from constants import Refused
from conversation import Roster
from group_key import KeyTerms
from inference_dealer import AtDealer, DealerSession
from inference_owner import DataOwner, Exchange, ModelOwner
from inference_terms import INFERENCE, TERMS
from messages import CONFIGURATION, FEDERATION, Family, read_body, read_envelope
from parameters import PlainPacking, pack_words, unpack_words
from play import KeyMemberParty, KeyRelayParty, Stage, SumClientParty, SumServerParty, entropy
from proposal import Policy
from session_client import SessionClient
from session_server import SessionServer

FAMILIES = {
    "secure sum": FEDERATION,
    "group key": FEDERATION,
    "federation": FEDERATION,
    "private inference": INFERENCE,
    "double-blind adaptation": ADAPTATION,
}


def roster_of(given: dict[str, Any]) -> Roster:
    found = given["roster"]
    return Roster(
        *(found[name] for name in ("members", "version", "operator", "signature", "lineage", "standby", "former"))
    )


class Players:
    """The machines of one transcript."""

    def __init__(self, transcript: dict[str, Any]) -> None:
        self.protocol, self.common, self.steps = (transcript[name] for name in ("protocol", "common", "steps"))
        self.messages = [
            (message["sender"], message["receiver"], message["frames"]) for message in transcript["messages"]
        ]
        self.stage = Stage()
        self.machines: dict[str, Any] = {}
        self.ring_bits = 0

    def take(self, number: int) -> dict[str, Any]:
        """What comes of a step."""
        step = self.steps[number]
        name, now = step["machine"], step.get("now", 0.0)
        given = from_body(step.get("given", {}))
        if step["do"] == "create":
            settings = from_body(self.common) | given | {"now": now, "machine": name, "draw": self.draws(number)}
            self.machines[name] = CREATE[self.protocol, step["role"]](self, settings)
        elif step["do"] == "receive":
            sender, _, texts = self.messages[step["message"]]
            frames = [octets(text) for text in texts]
            machine = self.machines[name]
            machine.receive(*([] if isinstance(machine, Exchange) else [sender]), frames, now)
        else:
            CALLS[self.protocol, step["do"]](self.machines[name], given, now)
        machine = self.machines[name]
        found = {"state": "", "deadline": None} if isinstance(machine, Sums | Kept) else self.stage.outcome(machine)
        events = (self.recorded(event) for event in found.get("events", []))
        return {
            "sends": [(name.split("/")[0], *sent) for sent in found.get("sends", [])],
            "events": ordered(to_body(event) for event in events if event is not None),
            "state": found["state"],
            "deadline": found["deadline"],
        }

    def draws(self, created: int) -> Any:
        """The randomness of a machine from its creation on."""
        name, drawn = self.steps[created]["machine"], self.steps[created].get("entropy", "")
        for step in self.steps[created + 1 :]:
            if step["machine"] == name:
                if step["do"] == "create":
                    break
                drawn += step.get("entropy", "")
        return entropy(bytes.fromhex(drawn))

    def report(self, event: dict[str, Any]) -> None:
        self.stage.events.append(event)

    def recorded(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """An event as transcripts have it; None if they do not have it."""
        names = EVENTS[self.protocol].get(event["event"])
        if names is None:
            return None
        if "words" in event:
            words = event["words"]
            event = event | {"total": None if words is None else short(unpack_words(words, self.ring_bits))}
        if event["event"] == "train":
            event = event | {"key": event.get("transcript")}
        if event["event"] == "agreed" and "terms" in event:
            event = event | {"digest": event["terms"]}
        return {"event": event["event"]} | {name: event[name] for name in names if name in event}

    # What is created.

    def sum_terms(self, agreement: dict[str, Any]) -> Terms:
        bits = agreement["ring"]["bits"]
        plain, mode = agreement["plain"], "active" if agreement["active"] else "semi-honest"
        self.ring_bits = 64 if plain else bits
        given = {name: agreement[name] for name in (field.name for field in fields(Terms)) if name in agreement}
        return Terms(
            **given | {"plain": plain and PlainPacking(**plain)},
            **agreement["parameters"],
            mode="none" if plain else mode,
            graph="regular" if agreement["regular"] else "complete",
            ring_bits=bits,
        )

    def sum_client(self, given: dict[str, Any]) -> SumClientParty:
        terms = self.sum_terms(given["agreement"])
        nothing = pack_words([0] * terms.length, terms.ring_bits)
        client = {"name": given["name"], "signing_private": given["signing"], "vector": nothing, "entropy": b""}
        party = SumClientParty(self.stage, terms, client)
        party.machine.draw = given["draw"]
        return party

    def key_member(self, given: dict[str, Any]) -> KeyMemberParty:
        member = {"name": given["name"], "signing_private": given["signing"], "entropy": b""}
        party = KeyMemberParty(self.stage, KeyTerms(**given["agreement"]), member)
        party.machine.draw = given["draw"]
        return party

    def session_client(self, given: dict[str, Any]) -> SessionClient:
        known = [field.name for field in fields(Policy)]
        policy = Policy(**{name: value for name, value in given["policy"].items() if name in known})
        groups = [line["group"] for line in given["journal"] if line["type"] == "group"]
        return SessionClient(
            roster_of(given),
            given["name"],
            given["signing"],
            given["draw"],
            policy,
            given["journal"],
            groups[-1] if groups else None,
            given["patience"],
            given["grace"],
            self.stage.transmit,
            self.report,
            given.get("held", ()),
            given.get("spent"),
        )

    def session_server(self, given: dict[str, Any]) -> SessionServer:
        encoded = CONFIGURATION.write(given["configuration"])
        configuration = given["configuration"]
        self.ring_bits = 64 if configuration["mode"] == "none" else configuration["ring_bits"]
        server = SessionServer(
            roster_of(given),
            encoded,
            given["model"],
            given["draw"](),
            given["smallest_cohort"],
            given["join_seconds"],
            given["grace"],
            self.stage.transmit,
            self.report,
            given.get("completed", 0),
            given.get("fixed", b""),
            given.get("held", ()),
        )
        server.own_deadline, server.reports_sums_early = given["now"] + given["join_seconds"], True
        return server

    def exchange(self, name: str, peer: str, given: dict[str, Any]) -> tuple[Any, ...]:
        return name, peer, given["patience"], self.stage.transmit, self.report

    def data_owner(self, given: dict[str, Any]) -> DataOwner:
        roster, asked = roster_of(given), ("purpose", "reveal", "selection", "smallest_cohort", "count")
        learning = {"reveal": "none", "selection": "data-owner", "count": 0}
        request = learning | given["request"] | given["policy"] | {name: given[name] for name in asked if name in given}
        exchange = self.exchange(given["name"], roster.server, given)
        if self.protocol == "private inference":
            return DataOwner(roster.hash, request, dict(given["spent"]), *exchange)
        own = (given["draw"], self.machines[given["kept"]], given["steps"])
        return LearningDataOwner(*own, roster.hash, request, dict(given["spent"]), *exchange)

    def model_owner(self, given: dict[str, Any]) -> ModelOwner:
        roster, quota = roster_of(given), given["quota"]
        of_inference = self.protocol == "private inference"
        encoded = (TERMS if of_inference else ADAPTATION_TERMS).write(given["terms"])
        limits = (quota["used"], quota["refused"])
        offered = (roster.hash, roster.clients, encoded, given["draw"], limits, dict(given["spent"]))
        exchange = self.exchange(roster.server, given["peer"], given)
        if of_inference:
            return ModelOwner(*offered, *exchange)
        return LearningModelOwner(self.machines[given["sums"]], self.machines[given["kept"]], *offered, *exchange)

    def at_dealer(self, given: dict[str, Any]) -> AtDealer:
        agreed = given["agreed"]
        return AtDealer(
            roster_of(given).hash,
            agreed["peer"],
            agreed["session"],
            agreed["terms"],
            given["draw"](),
            *self.exchange(given["name"], given["dealer"], given),
        )

    def dealer(self, given: dict[str, Any]) -> DealerSession:
        roster = roster_of(given)
        owners = [roster.server, given["data_owner"]]
        out = (self.stage.transmit, self.report)
        own = (given["draw"], given["patience"], given["now"])
        return DealerSession(given["name"], roster.hash, owners, given["session"], *own, *out)


CREATE: dict[tuple[str, str], Callable[[Players, dict[str, Any]], Any]] = {
    ("secure sum", "client"): Players.sum_client,
    ("secure sum", "server"): lambda to, given: SumServerParty(to.stage, to.sum_terms(given["agreement"])),
    ("group key", "member"): Players.key_member,
    ("group key", "server"): lambda to, given: KeyRelayParty(to.stage, KeyTerms(**given["agreement"])),
    ("federation", "client"): Players.session_client,
    ("federation", "server"): Players.session_server,
    ("private inference", "data owner"): Players.data_owner,
    ("private inference", "model owner"): Players.model_owner,
    ("private inference", "owner at the dealer"): Players.at_dealer,
    ("private inference", "dealer"): Players.dealer,
    ("double-blind adaptation", "data owner"): Players.data_owner,
    ("double-blind adaptation", "model owner"): Players.model_owner,
    ("double-blind adaptation", "kept"): lambda to, given: Kept(
        given.get("terms_digest", b""),
        given.get("last", [0, bytes(32)]),
        given.get("before", [0, bytes(32)]),
        given.get("uses", 0),
    ),
    ("double-blind adaptation", "sums"): lambda to, given: Sums(
        given["policy"], given.get("opened", 0), given.get("current", 0), given.get("survivors", [])
    ),
}


def short(words: list[int]) -> list[int] | dict[str, int]:
    """Ring words as transcripts have them."""
    return {"zeros": len(words)} if len(words) > 4096 and not any(words) else words


def words_of(given: list[int] | dict[str, int]) -> list[int]:
    return [0] * given["zeros"] if isinstance(given, dict) else given


def give_up(machine: Any, given: dict[str, Any], now: float) -> None:
    if not isinstance(machine, Sums):  # They learn of it from the machine that answers.
        machine.give_up(given["error"]["code"], given["error"]["culprit"])


def finish(machine: Any, given: dict[str, Any], now: float) -> None:
    if isinstance(machine, AtDealer):
        machine.no_more()
    else:
        machine.close(now)


def drop(machine: Any, given: dict[str, Any], now: float) -> None:
    machine.drop(*([given["owner"]] if isinstance(machine, DealerSession) else []))


def order(machine: Any, given: dict[str, Any], now: float) -> None:
    corrections = [{"number": number, "bytes": size} for number, size in given["corrections"]]
    machine.order(given["requests"], given["count"], corrections, now)


def contribute(machine: Any, given: dict[str, Any], now: float) -> None:
    if machine.state == "TRAINING" and machine.round == given["round"]:
        machine.contribute(pack_words(words_of(given["vector"]), machine.terms.ring_bits), now)


def begin_round(machine: Any, given: dict[str, Any], now: float) -> None:
    if isinstance(machine, LearningModelOwner):
        machine.answer_round(given["done"], now)
    else:
        machine.begin_round(given["number"], given["based"], given["done"], now)


Call = Callable[[Any, dict[str, Any], float], Any]
OF_INFERENCE: dict[str, Call] = {
    "start": lambda it, given, now: it.hello(now),
    "ask": lambda it, given, now: it.ask(given["at"], now),
    "audit": lambda it, given, now: it.audit(given["contribution"], given["numbers"], now),
    "reveal": lambda it, given, now: it.reveal(given["keys"], now),
    "give": lambda it, given, now: it.give(given["step"], given["data"], now),
    "mask": lambda it, given, now: it.mask(given["layer"], given["data"], now),
    "begin": lambda it, given, now: it.begin(given["weights"], given["at"], now),
    "finish": finish,
    "give_up": give_up,
    "drop": drop,
    "order": order,
    "deliver": lambda it, given, now: it.deliver(given["owner"], given["number"], given["data"]),
    "choose": lambda it, given, now: it.choose(given["images"], now),
    "add": lambda it, given, now: it.add(given["session"], given["number"], given["images"]),
    "use": lambda it, given, now: it.use(),
    "begin_round": begin_round,
    "keep_round": lambda it, given, now: it.keep_round(given["number"], now),
    "ask_sum": lambda it, given, now: it.ask_sum(given["number"], given["survivors"], now),
    "provide": lambda it, given, now: it.tell_sum(given["number"], given["data"], now),
}
OF_PROTOCOL: dict[str, dict[str, Call]] = {
    "secure sum": {
        "start": lambda it, given, now: it.machine.start(now),
        "contribute": lambda it, given, now: it.machine.give_vector(words_of(given["vector"]), now),
        "drop": lambda it, given, now: it.drop(given["member"], now),
    },
    "group key": {
        "start": lambda it, given, now: it.machine.start(now),
        "drop": lambda it, given, now: it.drop(given["member"], now),
    },
    "federation": {
        "start": lambda it, given, now: it.hello(now),
        "contribute": contribute,
        "provide": lambda it, given, now: it.provide(given["epoch"], given["model"], now),
        "server_lost": lambda it, given, now: it.link_lost("", now),
        "server_back": lambda it, given, now: it.link_back("", now),
        "next_round": lambda it, given, now: it.next_round(given["model"], given.get("unusable", ""), now),
        "finish": lambda it, given, now: it.finish(given["model"], given.get("unusable", ""), now),
        "change_roster": lambda it, given, now: it.change_roster(roster_of(given), given["model"], now),
        "link_lost": lambda it, given, now: it.link_lost(given["member"], now),
        "link_back": lambda it, given, now: it.link_back(given["member"], now),
    },
    "private inference": OF_INFERENCE,
    "double-blind adaptation": OF_INFERENCE,
}
CALLS: dict[tuple[str, str], Call] = {
    (protocol, do): call
    for protocol, calls in OF_PROTOCOL.items()
    for do, call in ({"expire": lambda it, given, now: it.expire(now)} | calls).items()
}

OF_OWNERS: dict[str, tuple[str, ...]] = {
    "agreed": ("digest", "images", "batch", "kept", "steps"),
    "layer": ("layer", "data"),
    "pass asked": ("number",),
    "audit asked": (),
    "audit picked": ("numbers",),
    "keys revealed": ("keys",),
    "charged": ("day", "used", "refused"),
    "pass begun": ("number",),
    "opened": ("step", "data"),
    "pass refused": ("number",),
    "material key": ("key",),
    "randomness": ("number", "data"),
    "keys": ("owners", "keys"),
    "deal": ("first", "count"),
    "ended": ("code", "culprit"),
    "round asked": ("number", "done"),
    "round answered": ("done",),
    "round kept": ("number", "secret"),
    "sum asked": ("number",),
    "sum told": ("number", "data"),
}
EVENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "secure sum": {
        "sum": ("total", "survivors"),
        "aborted": ("code", "culprit"),
        "client-dropped": ("member", "phase", "code"),
        "complaint-received": ("by", "against"),
        "complaint-sent": ("against",),
        "message-refused": ("member", "code"),
    },
    "group key": {
        "group key": ("key", "transcript"),
        "agreed": ("transcript",),
        "failed": ("code", "culprits", "remaining"),
        "aborted": ("code", "culprit"),
        "message-refused": ("member", "code"),
    },
    "federation": {
        "accepted": (),
        "fixed part": (),
        "journal": ("round",),
        "journal group": ("group",),
        "journal spending": ("spent",),
        "train": ("round", "key"),
        "new model": ("model", "round"),
        "last model": ("model",),
        "encrypt": ("source", "round", "key", "former"),
        "roster changed": ("roster",),
        "round over": ("round", "code"),
        "round done": ("round", "code", "culprit", "survivors", "total"),
        "ended": ("code",),
        "client-joined": ("member",),
        "client-left": ("member",),
        "message-refused": ("member", "code"),
        "client-dropped": ("member", "phase", "code"),
        "complaint-received": ("by", "against"),
        "complaint-sent": ("against",),
        "key-agreement-failed": ("epoch", "code", "by"),
    },
    "private inference": OF_OWNERS,
    "double-blind adaptation": OF_OWNERS,
}
"""By protocol, what is recorded of an event; others are not."""


def ordered(events: Iterable[dict[str, Any]]) -> list[str]:
    """Those of a step may be reported in any order."""
    return sorted(json.dumps(event, sort_keys=True) for event in events)


def plain(texts: list[str], family: Family) -> Any:
    """A message without its explanation, the words of which are free."""
    try:
        frames = [octets(text) for text in texts[:2]]
        envelope = read_envelope(frames, family)
        body = read_body(envelope, [*frames, *(b"" for _ in texts[2:])], family)
    except (Refused, ValueError):
        return texts
    return (texts[0], body | {"detail": ""}, texts[2:]) if "detail" in body else texts


def disagreement(transcript: dict[str, Any]) -> str | None:
    """The first step that comes out otherwise."""
    family = FAMILIES[transcript["protocol"]]
    if transcript["version"] != family.version:
        return f"it is of version {transcript['version']}"
    players = Players(transcript)
    for number, step in enumerate(transcript["steps"]):
        due = [players.messages[place] for place in step.get("sends", [])]
        expected = {name: step.get(name, default) for name, default in NOTHING.items()}
        expected["events"] = ordered(expected["events"])
        expected["sends"] = [(sender, receiver, plain(frames, family)) for sender, receiver, frames in due]
        try:
            found: Any = players.take(number)
            sent = [(sender, to, list(map(written, frames))) for sender, to, frames in found["sends"]]
            found["sends"] = [(sender, to, plain(texts, family)) for sender, to, texts in sent]
        except Exception as error:
            # A wrong transcript may break anything, and whatever it is, the file does not hold.
            found = {"failed": f"{type(error).__name__}: {getattr(error, 'code', error)}"}
        if found != expected:
            expected = {name: value for name, value in expected.items() if found.get(name) != value}
            found = {name: found[name] for name in expected if name in found} or found
            return f"step {number}, {step['machine']}, {step['do']}:\n  expected {expected}\n  found    {found}"
    return None


NOTHING: dict[str, Any] = {"sends": [], "events": [], "state": "", "deadline": None}
"""What a step leaves out where there is none."""
