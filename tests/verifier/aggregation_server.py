"""The server of a secure sum, phase by phase: docs/spec/secure-aggregation.md."""

from collections.abc import Callable
from typing import Any

from aggregation import (
    Advert,
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
from aggregation_client import share_commitment
from constants import (
    KEY_SHARE,
    PAIRWISE_MASK,
    SEED,
    SEED_SHARE,
    SELF_MASK,
    SELF_SEED,
    SHARE_BYTES,
    SIGN_COMPLAINT,
    SIGN_SHARES,
    TRANSFER_LIMIT,
    UPLOADS,
    WINDOW,
    Refused,
    require,
)
from encoding import read_members
from messages import abort_body
from parameters import add, mask_stream, pack_words, unpack_words, word_bytes
from primitives import derive, digest, reconstruct, x25519_public

PHASES = [
    *("ADVERTISE_KEYS", "SHARE_KEYS", "MASKED_INPUT", "ANSWER_COMPLAINTS", "CONSISTENCY_CHECK", "UNMASK"),
    *("COMPLETED", "ABORTED"),
]
PHASE_OF = {
    "advertise-keys": "ADVERTISE_KEYS",
    "share-keys": "SHARE_KEYS",
    "masked-input": "MASKED_INPUT",
    "vector-chunk": "MASKED_INPUT",
    "answer-complaints": "ANSWER_COMPLAINTS",
    "confirm-survivors": "CONSISTENCY_CHECK",
    "unmask-shares": "UNMASK",
}


class AggregationServer:
    """`send(name, type, body)` and `report(event)` are the ways out."""

    def __init__(
        self,
        terms: Terms,
        now: float,
        send: Callable[[str, str, dict[str, Any]], None],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.terms, self.send, self.report = terms, send, report
        self.began = now
        self.own_deadline: float | None
        self.open_phase("ADVERTISE_KEYS", list(range(terms.size)), now)
        self.out: set[int] = set()
        self.adverts: dict[int, Advert] = {}
        self.stated: dict[str, bytes] = {}
        self.choices: dict[int, list[int]] = {}
        self.packets: dict[int, dict[int, bytes]] = {}
        self.seed_commitments: dict[int, bytes] = {}
        self.packet_signatures: dict[int, dict[int, bytes]] = {}
        self.complaints: dict[int, dict[int, bytes]] = {}
        self.accused: dict[int, list[int]] = {}
        self.answers: dict[int, dict[int, bytes]] = {}
        self.convicted: set[int] = set()
        self.received: dict[int, list[int]] = {}
        self.uploading: dict[int, list[float]] = {}
        """Until when the next chunk may come, and until when all of them."""
        self.queue: list[int] = []
        self.invited: set[int] = set()
        self.last: list[int] = []
        """Who may be invited: all others of their group are ready."""
        self.whole: dict[int, list[int]] = {}
        """The vectors that have come, by member."""
        self.left_out: set[int] = set()
        self.total = [0] * terms.length
        self.survivors: list[int] = []
        self.signatures: dict[int, bytes] = {}
        self.returned: dict[int, dict[int, bytes]] = {}
        self.secrets: dict[int, bytes] = {}

    @property
    def deadline(self) -> float | None:
        times = [self.own_deadline, *(min(times) for times in self.uploading.values())]
        return min((at for at in times if at is not None), default=None)

    @property
    def over(self) -> bool:
        return self.state in ("COMPLETED", "ABORTED")

    def admits(self, member: int, kind: str) -> bool:
        """Whether the body is looked at; a message to be ignored is False, one to be refused raises."""
        if self.over or member in self.out:
            return False
        if kind == "abort":
            return True
        known = kind in PHASE_OF and (self.terms.active or kind != "confirm-survivors")
        require(known and PHASES.index(PHASE_OF[kind]) <= PHASES.index(self.state), "UNEXPECTED")
        if PHASE_OF[kind] != self.state or member not in self.waited:
            return False
        return not (kind == "masked-input" and member in self.complaints)

    def receive(self, member: int, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        handlers = {
            "advertise-keys": self.on_advertise_keys,
            "share-keys": self.on_share_keys,
            "masked-input": self.on_masked_input,
            "vector-chunk": self.on_vector_chunk,
            "answer-complaints": self.on_answer_complaints,
            "confirm-survivors": self.on_confirm_survivors,
            "unmask-shares": self.on_unmask_shares,
        }
        handlers[kind](member, body, raw, now)
        self.close_when_complete(now)

    def exclude(self, member: int, code: str, tell: bool, now: float) -> None:
        """A member is out of the sum; the phase may be over without it."""
        self.leave(member, code, tell, now)
        self.close_when_complete(now)

    def leave(self, member: int, code: str, tell: bool, now: float) -> None:
        name = self.terms.cohort[member]
        if tell:
            self.send(name, "abort", abort_body(code, name))
        self.out.add(member)
        if code == "SHARES":
            self.convicted.add(member)
        self.waited.discard(member)
        if member not in self.whole:
            self.leave_out(self.terms.group_of(member), now)
        self.report({"event": "client-dropped", "member": name, "phase": self.state, "code": code})

    def expire(self, now: float) -> None:
        for member in [member for member, times in self.uploading.items() if now >= min(times)]:
            self.exclude(member, "TIMEOUT", tell=True, now=now)
        if self.own_deadline is not None and now >= self.own_deadline:
            self.own_deadline = None
            ready = set(self.complaints) if self.state == "MASKED_INPUT" else set()
            for member in sorted(self.waited - ready):
                self.leave(member, "TIMEOUT", True, now)
            self.close_when_complete(now)

    def close_when_complete(self, now: float) -> None:
        if self.over or self.waited:
            return
        closing = {
            "ADVERTISE_KEYS": self.close_advertise_keys,
            "SHARE_KEYS": self.close_share_keys,
            "MASKED_INPUT": self.close_masked_input,
            "ANSWER_COMPLAINTS": self.close_complaints,
            "CONSISTENCY_CHECK": self.close_consistency_check,
            "UNMASK": self.close_unmask,
        }
        try:
            closing[self.state](now)
        except Refused as reason:
            for member in range(self.terms.size):
                if member not in self.out:
                    self.send(self.terms.cohort[member], "abort", abort_body(reason.code, reason.culprit or ""))
            self.state, self.own_deadline = "ABORTED", None
            self.report({"event": "aborted", "code": reason.code, "culprit": reason.culprit or ""})

    def open_phase(self, state: str, waited: list[int], now: float) -> None:
        training = self.terms.train_seconds if state == "MASKED_INPUT" else 0.0
        self.state, self.waited, self.own_deadline = state, set(waited), now + self.terms.phase_seconds + training

    def start(self, now: float) -> None:
        """Only without masks the server speaks first."""

    def there(self, members: Any) -> list[int]:
        return [member for member in sorted(members) if member not in self.out]

    def tell(self, member: int, kind: str, **body: Any) -> None:
        self.send(self.terms.cohort[member], kind, body)

    def on_advertise_keys(self, member: int, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        advert = Advert(body["channel_key"], body["mask_key"], body["choices"], body["spent"], body["signature"])
        advert.check_keys()
        choices = self.terms.check_choices(member, advert.choices)
        advert.check_signature(self.terms, member)
        keys = {advert.channel_key, advert.mask_key}
        others = {key for other in self.adverts.values() for key in (other.channel_key, other.mask_key)}
        require(len(keys) == 2 and not keys & others, "KEYS")
        self.adverts[member], self.choices[member] = advert, choices
        self.waited.discard(member)

    def close_advertise_keys(self, now: float) -> None:
        terms = self.terms
        self.advertised = self.there(self.adverts)
        require(len(self.advertised) >= terms.threshold, "THRESHOLD")
        bitmap = terms.bitmap(self.advertised)
        records = b"".join(self.adverts[member].record for member in self.advertised)
        self.adverts_digest = adverts_digest(terms, bitmap, records)
        choices = {member: self.choices[member] for member in self.advertised}
        self.hoods = {
            member: neighbourhood(terms, member, self.advertised, self.adverts_digest, choices)
            for member in self.advertised
        }
        for member in self.advertised:
            known = self.hoods[member].known
            self.tell(
                member,
                "peer-keys",
                advertised=bitmap,
                digest=self.adverts_digest,
                included=terms.bitmap(known),
                adverts=b"".join(self.adverts[other].record for other in known),
            )
        spent = {terms.cohort[member]: self.adverts[member].spent for member in self.advertised}
        self.stated = spent if terms.spending else {}
        self.open_phase("SHARE_KEYS", self.advertised, now)

    def on_share_keys(self, member: int, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        terms = self.terms
        holders = read_members(body["holders"], terms.size)
        require(holders == self.hoods[member].holders, "MEMBERS")
        packets = cut_records(body["packets"], terms.packet_bytes, holders)
        signatures = terms.cut_signatures(body["signatures"], holders)
        for holder, packet in packets.items():
            parts = signed_packet(terms, self.adverts_digest, member, holder, packet)
            terms.check_signature(member, signatures[holder], SIGN_SHARES, *parts)
        self.seed_commitments[member] = body["seed_commitment"]
        self.packets[member], self.packet_signatures[member] = packets, signatures
        self.waited.discard(member)

    def close_share_keys(self, now: float) -> None:
        terms = self.terms
        self.sharers = self.there(self.packets)
        require(len(self.sharers) >= terms.threshold, "THRESHOLD")
        self.sharing = sharing_digest(terms, self.adverts_digest, self.sharers)
        for member in self.sharers:
            owners = self.owners(member)
            packets = b"".join(self.packets[owner][member] for owner in owners)
            signatures = b"".join(self.packet_signatures[owner][member] for owner in owners)
            bitmaps = {"sharers": terms.bitmap(self.sharers), "owners": terms.bitmap(owners)}
            self.tell(member, "peer-shares", **bitmaps, packets=packets, signatures=signatures)
        self.open_phase("MASKED_INPUT", self.sharers, now)
        self.invite(now)

    def invite(self, now: float) -> None:
        if self.terms.chunks > 1:
            self.last += [member for member in range(self.terms.size) if len(self.terms.group_of(member)) == 1]
            self.start_uploads(now)

    def owners(self, member: int) -> list[int]:
        return [owner for owner in self.hoods[member].owners if owner in self.sharers]

    def on_masked_input(self, member: int, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        terms = self.terms
        complaints = read_members(body["complaints"], terms.size)
        require(set(complaints) <= set(self.owners(member)) - {member}, "MEMBERS")
        signatures = terms.cut_signatures(body["signatures"], complaints)
        for owner, signature in signatures.items():
            terms.check_signature(member, signature, SIGN_COMPLAINT, *signed_complaint(self.sharing, owner, member))
        require((raw is None) == (terms.chunks > 1), "VECTOR")
        words = None if raw is None else self.check_chunk(raw, 0)
        self.complaints[member] = signatures
        for owner in complaints:
            names = {"by": terms.cohort[member], "against": terms.cohort[owner]}
            self.report({"event": "complaint-received", **names})
        group = terms.group_of(member)
        missing = [other for other in group if other not in self.complaints]
        if member in self.left_out:
            self.waited.discard(member)
        elif words is not None:
            self.add_vector(member, words)
        elif member in self.invited:
            self.invited.remove(member)
            self.expect_chunks(member, now)
        elif not missing:
            self.queue += group
        elif len(missing) == 1:
            self.last += missing
        self.start_uploads(now)
        for owner in complaints:
            accusing = sum(owner in others for others in self.complaints.values())
            if accusing > terms.most_complaints and owner not in self.out:
                self.leave(owner, "SHARES", True, now)

    def leave_out(self, group: list[int], now: float) -> None:
        """One of them is gone without its vector: those who are ready have nothing more to send."""
        self.left_out |= set(group)
        for member in group:
            self.uploading.pop(member, None)
            self.invited.discard(member)
            if member in self.queue:
                self.queue.remove(member)
            if member in self.complaints and self.state == "MASKED_INPUT":
                self.waited.discard(member)
        self.start_uploads(now)

    def check_chunk(self, raw: bytes, chunk: int) -> list[int]:
        bits, count = self.terms.ring_bits, self.terms.words_in(chunk)
        require(len(raw) == word_bytes(bits) * count, "VECTOR")
        try:
            return unpack_words(raw, bits)
        except Refused:
            raise Refused("VECTOR") from None

    def add_vector(self, member: int, words: list[int]) -> None:
        self.whole[member] = words
        self.waited.discard(member)
        group = self.terms.group_of(member)
        if set(group) <= set(self.whole):
            for other in group:
                self.total = add(self.total, self.whole[other], 1, self.terms.ring_bits)
            self.survivors += group

    def start_uploads(self, now: float) -> None:
        asked = []
        while len(self.uploading) < UPLOADS:
            if self.queue:
                asked.append(self.queue.pop(0))
                self.expect_chunks(asked[-1], now)
            elif self.last and len(self.uploading) + len(self.invited) < UPLOADS:
                member = self.last.pop(0)
                if member not in self.complaints and member not in self.left_out:
                    asked.append(member)
                    self.invited.add(member)
                    self.queue += [other for other in self.terms.group_of(member) if other != member]
            else:
                break
        for member in asked:
            for chunk in range(min(WINDOW, self.terms.chunks)):
                self.tell(member, "fetch-vector", chunk=chunk)

    def expect_chunks(self, member: int, now: float) -> None:
        phase = self.terms.phase_seconds
        self.uploading[member] = [now + phase, now + TRANSFER_LIMIT * phase]
        self.received[member] = []

    def on_vector_chunk(self, member: int, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        terms, chunk = self.terms, body["chunk"]
        require(member in self.uploading, "UNEXPECTED")
        require(chunk * terms.chunk_words == len(self.received[member]), "UNEXPECTED")
        require(raw is not None, "VECTOR")
        self.received[member] += self.check_chunk(raw or b"", chunk)
        self.uploading[member][0] = now + terms.phase_seconds
        if chunk + WINDOW < terms.chunks:
            self.tell(member, "fetch-vector", chunk=chunk + WINDOW)
        if chunk + 1 == terms.chunks:
            self.add_vector(member, self.received.pop(member))
            del self.uploading[member]
            self.start_uploads(now)

    def enough_there(self) -> list[int]:
        there = self.there(self.complaints)
        enough = len(there) >= self.terms.threshold and len(self.survivors) >= self.terms.fewest_summed
        require(enough, "THRESHOLD")
        return there

    def close_masked_input(self, now: float) -> None:
        self.survivors.sort()
        there = self.enough_there()
        accused = {owner: [holder for holder in there if owner in self.complaints[holder]] for owner in there}
        self.accused = {owner: holders for owner, holders in accused.items() if holders}
        for owner, holders in self.accused.items():
            signatures = b"".join(self.complaints[holder][owner] for holder in holders)
            self.tell(owner, "peer-complaints", holders=self.terms.bitmap(holders), signatures=signatures)
        if self.accused:
            self.open_phase("ANSWER_COMPLAINTS", list(self.accused), now)
        else:
            self.tell_survivors(there, now)

    def on_answer_complaints(self, owner: int, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        shares = cut_records(body["shares"], 2 * SHARE_BYTES, self.accused[owner])
        for holder, both in shares.items():
            mine = share_commitment(self.terms, KEY_SHARE, owner, holder, both[:SHARE_BYTES])
            mine += share_commitment(self.terms, SEED_SHARE, owner, holder, both[SHARE_BYTES:])
            require(mine == self.packets[owner][holder][:64], "SHARES")
        for holder, both in shares.items():
            del self.complaints[holder][owner]
            self.answers.setdefault(holder, {})[owner] = both
        self.waited.discard(owner)

    def close_complaints(self, now: float) -> None:
        self.tell_survivors(self.enough_there(), now)

    def tell_survivors(self, there: list[int], now: float) -> None:
        terms = self.terms
        for owner in self.sharers:
            content = [
                holder
                for holder in self.hoods[owner].holders
                if holder in there and owner not in self.complaints[holder]
            ]
            if len(content) < terms.threshold:
                raise Refused("SHARES", terms.cohort[owner] if owner in self.convicted else None)
        if terms.active:
            for member in there:
                self.tell(member, "survivors", survivors=terms.bitmap(self.survivors))
            self.open_phase("CONSISTENCY_CHECK", there, now)
        else:
            self.request_unmasking(there, now)

    def on_confirm_survivors(self, member: int, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        signed_survivors(self.terms, member, body["signature"], self.sharing, self.survivors)
        self.signatures[member] = body["signature"]
        self.waited.discard(member)

    def close_consistency_check(self, now: float) -> None:
        there = self.there(self.signatures)
        require(len(there) >= self.terms.threshold, "THRESHOLD")
        self.request_unmasking(there, now)

    def request_unmasking(self, members: list[int], now: float) -> None:
        terms = self.terms
        for member in members:
            signers = self.signers(member) if terms.active else []
            answers = self.answers.get(member, {})
            self.tell(
                member,
                "unmask-request",
                survivors=terms.bitmap(self.survivors),
                signers=terms.bitmap(signers),
                signatures=b"".join(self.signatures[signer] for signer in signers),
                answered=terms.bitmap(answers),
                answers=b"".join(answers[owner] for owner in sorted(answers)),
            )
        self.open_phase("UNMASK", members, now)

    def signers(self, member: int) -> list[int]:
        return [holder for holder in self.hoods[member].holders if holder in self.signatures][: self.terms.threshold]

    def on_unmask_shares(self, member: int, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        terms = self.terms
        owners = read_members(body["owners"], terms.size)
        require(owners == [o for o in self.owners(member) if o not in self.complaints[member]], "SHARES")
        require(len(body["shares"]) == SHARE_BYTES * len(owners), "SHARES")
        shares = {owner: body["shares"][SHARE_BYTES * at :][:SHARE_BYTES] for at, owner in enumerate(owners)}
        self.returned[member] = shares
        self.waited.discard(member)

    def close_unmask(self, now: float) -> None:
        terms = self.terms
        closed = [owner for owner in self.sharers if owner not in self.secrets]
        holders = {owner: [m for m in sorted(self.returned) if owner in self.returned[m]] for owner in closed}
        require(all(len(members) >= terms.threshold for members in holders.values()), "THRESHOLD")
        refused = []
        for owner in closed:
            members = holders[owner][: terms.threshold]
            shares = [self.returned[member][owner] for member in members]
            try:
                secret = reconstruct(shares, [member + 1 for member in members])
                self.check_secret(owner, secret)
                self.secrets[owner] = secret
            except Refused:
                refused.append(owner)
        if refused:
            liars = [m for m in sorted(self.returned) if not all(self.as_committed(owner, m) for owner in refused)]
            if not liars:
                raise Refused("SECRET", terms.cohort[refused[0]])
            for member in liars:
                del self.returned[member]
                self.leave(member, "SHARES", True, now)
            self.close_unmask(now)
            return
        for owner in self.sharers:
            self.take_off_masks(owner, self.secrets[owner])
        self.state, self.own_deadline = "COMPLETED", None
        words = pack_words(self.total, terms.ring_bits)
        self.report({"event": "sum", "words": words, "survivors": terms.names(self.survivors)})

    def as_committed(self, owner: int, holder: int) -> bool:
        """Whether this holder returned no other share of this owner than it was given."""
        if owner not in self.returned[holder]:
            return True
        survived, packet = owner in self.survivors, self.packets[owner][holder]
        label, committed = (SEED_SHARE, packet[32:64]) if survived else (KEY_SHARE, packet[:32])
        return share_commitment(self.terms, label, owner, holder, self.returned[holder][owner]) == committed

    def check_secret(self, owner: int, secret: bytes) -> None:
        if owner in self.survivors:
            require(digest(SEED, self.terms.context, secret) == self.seed_commitments[owner], "SECRET")
        else:
            require(x25519_public(secret) == self.adverts[owner].mask_key, "SECRET")

    def take_off_masks(self, owner: int, secret: bytes) -> None:
        terms = self.terms
        bits, length = terms.ring_bits, terms.length
        if owner in self.survivors:
            seed = derive(secret, SELF_SEED, self.sharing, b"")
            self.total = add(self.total, mask_stream(seed, SELF_MASK, bits, length), -1, bits)
            return
        for peer in self.hoods[owner].peers:
            if peer in self.survivors:
                seed, way = pairwise_mask(secret, self.adverts[peer].mask_key, self.sharing, owner, peer)
                self.total = add(self.total, mask_stream(seed, PAIRWISE_MASK, bits, length), way, bits)
