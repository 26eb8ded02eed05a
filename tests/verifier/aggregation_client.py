"""A client of a secure sum, phase by phase, with every check in the order of docs/spec/secure-aggregation.md."""

from collections.abc import Callable
from typing import Any

from aggregation import (
    Advert,
    Neighbourhood,
    Terms,
    adverts_digest,
    cut_records,
    neighbourhood,
    pairwise_mask,
    sharing_digest,
    signed_complaint,
    signed_packet,
    signed_survivors,
)
from constants import (
    KEY_SHARE,
    PAIRWISE_MASK,
    SEED,
    SEED_SHARE,
    SELF_MASK,
    SELF_SEED,
    SHARE_BYTES,
    SHARE_CHANNEL,
    SIGN_ADVERT,
    SIGN_COMPLAINT,
    SIGN_SHARES,
    SIGN_SURVIVORS,
    WINDOW,
    Refused,
    require,
)
from encoding import read_members
from messages import abort_body
from parameters import add, mask_stream, pack_words
from primitives import derive, digest, order, seal, share, sign, u16, unseal, x25519, x25519_public

ADMITTED = {
    "AWAIT_PEER_KEYS": ("peer-keys",),
    "AWAIT_PEER_SHARES": ("peer-shares",),
    "AWAIT_UNMASK_REQUEST": ("unmask-request",),
}


def share_commitment(terms: Terms, label: bytes, owner: int, holder: int, item: bytes) -> bytes:
    return digest(label, terms.context, u16(owner) + u16(holder), item)


class AggregationClient:
    """`send(type, body, raw frame)` and `report(event)` are the ways out, `draw()` gives 32 random bytes."""

    def __init__(
        self,
        terms: Terms,
        name: str,
        signing_private: bytes,
        draw: Callable[[], bytes],
        send: Callable[..., None],
        report: Callable[[dict[str, Any]], None],
        spent: bytes = b"",
        known: dict[str, bytes] | None = None,
    ) -> None:
        self.spent, self.known = spent, known or {}
        self.stated: dict[str, bytes] = {}
        """What others have spent, by their adverts."""
        self.told: list[bytes] = []
        """What this client has spent, by the others' packets."""
        self.learn: Callable[[], None] = lambda: None
        """What follows from either."""
        self.terms, self.me, self.signing_private = terms, terms.cohort.index(name), signing_private
        self.draw, self.send, self.report = draw, send, report
        self.vector: list[int] | None = None
        self.asked = 0
        self.state = "READY"
        self.deadline: float | None = None
        self.opened: list[str] = []

    def admits(self, kind: str) -> bool:
        if self.over or self.state == "READY":
            return False
        if self.state == "AWAIT_VECTOR":
            return kind in ("abort", "fetch-vector")
        if self.state == "AWAIT_SURVIVORS":
            following = "survivors" if self.terms.active else "unmask-request"
            return kind in ("abort", "fetch-vector", "peer-complaints", following)
        return kind == "abort" or kind in ADMITTED[self.state]

    @property
    def over(self) -> bool:
        return self.state in ("DONE", "ABORTED")

    def receive(self, kind: str, body: dict[str, Any], now: float) -> None:
        """A message that `admits` allows."""
        handlers = {
            "peer-keys": self.on_peer_keys,
            "peer-shares": self.on_peer_shares,
            "fetch-vector": self.on_fetch_vector,
            "peer-complaints": self.on_peer_complaints,
            "survivors": self.on_survivors,
            "unmask-request": self.on_unmask_request,
        }
        handlers[kind](body, now)

    def refuse(self, code: str) -> None:
        self.send("abort", abort_body(code, self.terms.server), None)
        self.abort(code, self.terms.server)

    def abort(self, code: str, culprit: str) -> None:
        self.state, self.deadline = "ABORTED", None
        self.report({"event": "aborted", "code": code, "culprit": culprit})

    def go_to(self, state: str, deadline: float | None) -> None:
        self.state, self.deadline = state, deadline

    def signature(self, label: bytes, *parts: bytes) -> bytes:
        return sign(self.signing_private, label, *parts) if self.terms.active else b""

    def start(self, now: float) -> None:
        terms = self.terms
        self.channel_private, self.mask_private = self.draw(), self.draw()
        choices = b""
        if terms.chosen:
            others = [member for member in range(terms.size) if member != self.me]
            choices = b"".join(u16(member) for member in sorted(order(others, self.draw())[: terms.neighbours]))
        keys = x25519_public(self.channel_private), x25519_public(self.mask_private)
        signature = self.signature(SIGN_ADVERT, terms.context, u16(self.me), keys[0] + keys[1] + choices + self.spent)
        self.advert = Advert(*keys, choices, self.spent, signature)
        body = {"channel_key": keys[0], "mask_key": keys[1], "choices": choices, "spent": self.spent}
        body["signature"] = signature
        self.send("advertise-keys", body, None)
        self.go_to("AWAIT_PEER_KEYS", now + 2 * terms.phase_seconds)

    def give_vector(self, vector: list[int], now: float) -> None:
        require(self.vector is None and len(vector) == self.terms.length, "INVALID")
        self.vector = vector
        if self.state == "AWAIT_VECTOR":
            self.announce(now)

    def on_peer_keys(self, body: dict[str, Any], now: float) -> None:
        terms = self.terms
        advertised = read_members(body["advertised"], terms.size)
        included = read_members(body["included"], terms.size)
        require(self.me in included and set(included) <= set(advertised), "MEMBERS")
        size = terms.record_bytes
        require(len(body["adverts"]) == size * len(included), "KEYS")
        records = {member: body["adverts"][size * at : size * (at + 1)] for at, member in enumerate(included)}
        require(records[self.me] == self.advert.record, "KEYS")
        adverts = {member: self.cut(record) for member, record in records.items()}
        keys = [key for advert in adverts.values() for key in (advert.channel_key, advert.mask_key)]
        require(len(set(keys)) == len(keys), "KEYS")
        choices = {}
        for member, advert in adverts.items():
            advert.check_keys()
            choices[member] = terms.check_choices(member, advert.choices)
            advert.check_signature(terms, member)
        if terms.graph == "complete":
            require(body["digest"] == adverts_digest(terms, body["advertised"], body["adverts"]), "KEYS")
        mine = neighbourhood(terms, self.me, advertised, body["digest"], choices)
        require(included == mine.known, "MEMBERS")
        require(len(mine.holders) >= terms.threshold, "THRESHOLD")
        self.adverts, self.adverts_digest, self.advertised, self.mine = adverts, body["digest"], advertised, mine
        others = {terms.cohort[member]: advert.spent for member, advert in adverts.items() if member != self.me}
        self.stated = others if terms.spending else {}
        self.share_keys(mine)
        self.learn()
        self.go_to("AWAIT_PEER_SHARES", now + 2 * terms.phase_seconds)

    def cut(self, record: bytes) -> Advert:
        return Advert.cut(record, self.terms)

    def channel(self, owner: int, holder: int) -> bytes:
        other = holder if owner == self.me else owner
        secret = x25519(self.channel_private, self.adverts[other].channel_key)
        return derive(secret, SHARE_CHANNEL, self.terms.context, self.adverts_digest + u16(owner) + u16(holder))

    def share_keys(self, mine: Neighbourhood) -> None:
        terms, me = self.terms, self.me
        self.self_seed, polynomials = self.draw(), self.draw()
        points = [holder + 1 for holder in mine.holders]
        shares = share([self.mask_private, self.self_seed], points, terms.threshold, polynomials)
        packets = signatures = b""
        self.given: dict[int, bytes] = {}
        for holder, (key_share, seed_share) in zip(mine.holders, shares, strict=True):
            commitments = share_commitment(terms, KEY_SHARE, me, holder, key_share)
            commitments += share_commitment(terms, SEED_SHARE, me, holder, seed_share)
            told = self.known[terms.cohort[holder]] if terms.spending else b""
            packet = commitments + seal(self.channel(me, holder), key_share + seed_share + told, commitments)
            packets += packet
            signatures += self.signature(SIGN_SHARES, *signed_packet(terms, self.adverts_digest, me, holder, packet))
            self.given[holder] = key_share + seed_share
        commitment = digest(SEED, terms.context, self.self_seed)
        holders = terms.bitmap(mine.holders)
        body = {"seed_commitment": commitment, "holders": holders, "packets": packets, "signatures": signatures}
        self.send("share-keys", body, None)

    def on_peer_shares(self, body: dict[str, Any], now: float) -> None:
        terms, me = self.terms, self.me
        sharers = read_members(body["sharers"], terms.size)
        require(me in sharers and set(sharers) <= set(self.advertised), "MEMBERS")
        owners = read_members(body["owners"], terms.size)
        require(owners == [owner for owner in self.mine.owners if owner in sharers], "SHARES")
        packets = cut_records(body["packets"], terms.packet_bytes, owners)
        signatures = terms.cut_signatures(body["signatures"], owners)
        require(len(set(self.mine.holders) & set(sharers)) >= terms.threshold, "THRESHOLD")
        self.held: dict[int, tuple[bytes, bytes]] = {}
        for owner, packet in packets.items():
            parts = signed_packet(terms, self.adverts_digest, owner, me, packet)
            terms.check_signature(owner, signatures[owner], SIGN_SHARES, *parts)
        self.complaints: dict[int, bytes] = {}
        self.told = []
        for owner, packet in packets.items():
            try:
                self.held[owner] = self.open_packet(owner, packet)
            except Refused:
                require(owner != me, "SHARES")
                self.complaints[owner] = packet
        self.given = {holder: both for holder, both in self.given.items() if holder in sharers and holder != me}
        self.sharers, self.sharing = sharers, sharing_digest(terms, self.adverts_digest, sharers)
        if self.complaints:
            self.report({"event": "complaint-sent", "against": terms.names(self.complaints)})
        self.learn()
        self.go_to("AWAIT_VECTOR", None)
        if self.vector is not None:
            self.announce(now)

    def announce(self, now: float) -> None:
        terms = self.terms
        self.mask()
        made = [self.signature(SIGN_COMPLAINT, *signed_complaint(self.sharing, o, self.me)) for o in self.complaints]
        body = {"complaints": terms.bitmap(self.complaints), "signatures": b"".join(made)}
        self.send_vector(body)
        self.go_to("AWAIT_SURVIVORS", now + terms.train_seconds + terms.input_seconds + 2 * terms.phase_seconds)

    def send_vector(self, body: dict[str, Any]) -> None:
        self.send("masked-input", body, self.chunk(0) if self.terms.chunks == 1 else None)
        for chunk in range(self.asked):
            self.send("vector-chunk", {"chunk": chunk}, self.chunk(chunk))

    def open_packet(self, owner: int, packet: bytes) -> tuple[bytes, bytes]:
        commitments, sealed = packet[:64], packet[64:]
        opened = unseal(self.channel(owner, self.me), sealed, commitments)
        shares = self.read_shares(owner, commitments, opened[: 2 * SHARE_BYTES])
        if self.terms.spending:
            self.told.append(opened[2 * SHARE_BYTES :])
        return shares

    def read_shares(self, owner: int, commitments: bytes, shares: bytes) -> tuple[bytes, bytes]:
        key_share, seed_share = shares[:SHARE_BYTES], shares[SHARE_BYTES:]
        mine = share_commitment(self.terms, KEY_SHARE, owner, self.me, key_share)
        mine += share_commitment(self.terms, SEED_SHARE, owner, self.me, seed_share)
        require(mine == commitments, "SHARES")
        return key_share, seed_share

    def mask(self) -> None:
        terms = self.terms
        bits, length = terms.ring_bits, terms.length
        assert self.vector is not None
        stream = mask_stream(derive(self.self_seed, SELF_SEED, self.sharing, b""), SELF_MASK, bits, length)
        self.vector = add(self.vector, stream, 1, bits)
        for peer in self.mine.peers:
            if peer in self.sharers:
                public = self.adverts[peer].mask_key
                seed, way = pairwise_mask(self.mask_private, public, self.sharing, self.me, peer)
                self.vector = add(self.vector, mask_stream(seed, PAIRWISE_MASK, bits, length), way, bits)

    def chunk(self, number: int) -> bytes:
        assert self.vector is not None
        first = number * self.terms.chunk_words
        words = self.vector[first : first + self.terms.words_in(number)]
        return pack_words(words, self.terms.ring_bits)

    def on_fetch_vector(self, body: dict[str, Any], now: float) -> None:
        chunk, training = body["chunk"], self.vector is None
        require(1 < self.terms.chunks > chunk, "VECTOR")
        require(chunk == self.asked and (chunk < WINDOW or not training), "UNEXPECTED")
        self.asked += 1
        if not training:
            self.send("vector-chunk", {"chunk": chunk}, self.chunk(chunk))

    def on_peer_complaints(self, body: dict[str, Any], now: float) -> None:
        terms = self.terms
        holders = read_members(body["holders"], terms.size)
        require(set(holders) <= set(self.given), "MEMBERS")
        require(len(holders) <= terms.most_complaints, "THRESHOLD")
        for holder, signature in terms.cut_signatures(body["signatures"], holders).items():
            parts = signed_complaint(self.sharing, self.me, holder)
            terms.check_signature(holder, signature, SIGN_COMPLAINT, *parts)
        self.send("answer-complaints", {"shares": b"".join(self.given[holder] for holder in holders)}, None)
        self.given = {}

    def read_answers(self, body: dict[str, Any]) -> None:
        owners = read_members(body["answered"], self.terms.size)
        require(set(owners) <= set(self.complaints), "MEMBERS")
        shares = cut_records(body["answers"], 2 * SHARE_BYTES, owners)
        answered = {owner: self.read_shares(owner, self.complaints[owner][:64], both) for owner, both in shares.items()}
        self.held.update(answered)

    def check_survivors(self, bitmap: bytes) -> list[int]:
        survivors = read_members(bitmap, self.terms.size)
        require(set(survivors) <= set(self.sharers), "MEMBERS")
        self.terms.check_whole(survivors)
        require(self.me in survivors or bool(self.terms.groups), "MEMBERS")
        require(len(survivors) >= self.terms.fewest_summed, "THRESHOLD")
        return survivors

    def on_survivors(self, body: dict[str, Any], now: float) -> None:
        self.survivors = self.check_survivors(body["survivors"])
        signature = self.signature(SIGN_SURVIVORS, self.sharing, u16(self.me), body["survivors"])
        self.send("confirm-survivors", {"signature": signature}, None)
        self.go_to("AWAIT_UNMASK_REQUEST", now + 2 * self.terms.phase_seconds)

    def on_unmask_request(self, body: dict[str, Any], now: float) -> None:
        terms = self.terms
        survivors = self.check_survivors(body["survivors"])
        signers = read_members(body["signers"], terms.size)
        signatures = body["signatures"]
        if terms.active:
            require(survivors == self.survivors, "MEMBERS")
            require(set(signers) <= set(self.mine.holders), "MEMBERS")
            require(len(signatures) == 64 * len(signers), "SIGNATURE")
            require(len(signers) >= terms.threshold, "THRESHOLD")
            for place, signer in enumerate(signers):
                signature = signatures[64 * place : 64 * (place + 1)]
                signed_survivors(terms, signer, signature, self.sharing, survivors)
        else:
            require(not signers and not signatures, "SIGNATURE")
        self.read_answers(body)
        shares = b"".join(
            seed_share if owner in survivors else key_share
            for owner, (key_share, seed_share) in sorted(self.held.items())
        )
        self.send("unmask-shares", {"owners": terms.bitmap(self.held), "shares": shares}, None)
        self.opened = terms.names(survivors)
        self.go_to("DONE", None)
