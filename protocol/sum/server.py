"""The server of one secure sum: relay keys and shares, add masked vectors, remove the masks.

A member that breaks a rule is excluded and named; one that left or is late is dropped. A holder's complaint does not
determine the party at fault: the accused answers it with the shares that it committed to, or is out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import IGNORE, Handler, Heard, Output, Row, Step, Table, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import SIGNATURE_BYTES, AgreementKey
from tacit.protocol.core.roster import (
    check_records,
    decode_members,
    encode_each,
    encode_members,
    records_by_receiver,
    split_records,
)
from tacit.protocol.sum.agreement import (
    Advert,
    Agreement,
    Graph,
    Neighbourhood,
    adverts_digest,
    check_advert,
    complaint_signed,
    packet_signed,
    refuse_equal_keys,
    survivors_signed,
)
from tacit.protocol.sum.events import ComplaintReceived, GroupsExcluded
from tacit.protocol.sum.exchange import Attendance, Summed
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    AnswerComplaints,
    ConfirmSurvivors,
    MaskedInput,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    VectorChunk,
)
from tacit.protocol.sum.sharing import (
    BOTH_BYTES,
    Returned,
    check_mask_key,
    check_seed,
    is_committed,
    open_secrets,
    packet_bytes,
    read_shares,
    remove_masks,
)
from tacit.protocol.sum.spending import seen_in
from tacit.protocol.sum.states import ServerState, SumLabel
from tacit.secagg.shamir import SHARE_BYTES


class AggregationServer(Attendance):
    """The server of one secure sum. Members are awaited from the start; `now` starts the first deadline."""

    def __init__(self, agreement: Agreement, now: float) -> None:
        table = SERVER_TABLES["active" if agreement.active else "semi-honest"]
        super().__init__(table, ServerState.ADVERTISE_KEYS, agreement, now)
        self._adverts: dict[int, Advert] = {}
        self._taken_keys: set[bytes] = set()
        self._choices: dict[int, tuple[int, ...]] = {}
        self._adverts_digest = b""
        self._sharing = b""
        self._neighbourhoods: dict[int, Neighbourhood] = {}
        self._holders: dict[int, bytes] = {}
        """The bitmap of every member's holders."""
        self._owners: dict[int, tuple[int, ...]] = {}
        """Owners whose shares every sharer holds."""
        self._owned: dict[int, bytes] = {}
        """The bitmap of these owners."""
        self._seed_commitments: dict[int, bytes] = {}
        self._packets: dict[int, bytes] = {}
        """By owner, the packets for its holders in rising order, as it sent them."""
        self._packet_signatures: dict[int, bytes] = {}
        self._complaints: dict[int, dict[int, bytes]] = {}
        """By holder and owner, the signatures of unanswered complaints."""
        self._accused: dict[int, tuple[int, ...]] = {}
        """The holders whose complaints a member was asked to answer."""
        self._answers: dict[int, dict[int, bytes]] = {}
        """By holder and owner, both shares."""
        self.masks = 0
        """Number of masks removed from the sum."""
        self._survivors: tuple[int, ...] = ()
        self._survivors_bitmap = b""
        self._signatures: dict[int, bytes] = {}
        self._returned: dict[int, Returned] = {}
        self._seeds: dict[int, bytes] = {}
        self._mask_keys: dict[int, AgreementKey] = {}

    def on_advertise_keys(self, heard: Heard[AdvertiseKeys], now: float) -> Step[ServerState]:
        member = self.agreement.places[heard.sender]
        advert, choices = check_advert(self.agreement, member, heard.message)
        refuse_equal_keys({member: advert})
        keys = {advert.channel_key, advert.mask_key}
        if self._taken_keys & keys:
            raise RemoteProtocolError(Code.KEYS, "it advertised a key that another client advertised before")

        def commit() -> None:
            self._adverts[member], self._choices[member] = advert, choices
            self._taken_keys.update(keys)

        return self._answered(member, commit)

    def close_keys(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        adverts = {member: advert for member, advert in sorted(self._adverts.items()) if member not in self.dropped}
        if shortage := self._shortage(len(adverts), "clients advertised keys"):
            return shortage
        advertised = tuple(adverts)
        digest = adverts_digest(agreement, adverts)
        choices = {member: self._choices[member] for member in advertised}
        neighbourhoods = Graph(agreement, adverts.keys(), digest, choices).each(advertised)
        everybody = encode_members(advertised, agreement.size)
        records = {member: advert.record for member, advert in adverts.items()}
        known = [neighbourhoods[member].known(member) for member in advertised]
        messages = {
            member: PeerKeys(
                advertised=everybody,
                digest=digest,
                included=included,
                adverts=b"".join([records[other] for other in others]),
            )
            for member, others, included in zip(advertised, known, encode_each(known, agreement.size), strict=True)
        }
        holders = encode_each([neighbourhoods[member].holders for member in advertised], agreement.size)

        def commit() -> None:
            self._adverts_digest, self._neighbourhoods = digest, neighbourhoods
            self._holders = dict(zip(advertised, holders, strict=True))
            self._begin_phase(advertised, now)

        stated = ((agreement.cohort[member], advert.spent) for member, advert in adverts.items())
        return self._next(ServerState.SHARE_KEYS, messages, commit, *seen_in(stated))

    def on_share_keys(self, heard: Heard[ShareKeys], now: float) -> Step[ServerState]:
        message = heard.message
        agreement = self.agreement
        member = agreement.places[heard.sender]
        holders = self._neighbourhoods[member].holders
        if message.holders != self._holders[member]:
            decode_members(message.holders, agreement.size)
            raise RemoteProtocolError(Code.MEMBERS, "it shared its secrets with other holders than its own")
        check_records(message.packets, packet_bytes(agreement), holders)
        check_records(message.signatures, agreement.signature_bytes, holders, Code.SIGNATURE)
        if agreement.active:
            signatures = agreement.split_signatures(message.signatures, holders)
            digest, packets = self._adverts_digest, split_records(message.packets, packet_bytes(agreement), holders)
            signed = [
                (member, signatures[h], packet_signed(agreement, digest, owner=member, holder=h, packet=packet))
                for h, packet in packets.items()
            ]
            agreement.check_signatures(SumLabel.SIGN_SHARES, signed)

        def commit() -> None:
            self._seed_commitments[member] = message.seed_commitment
            self._packets[member], self._packet_signatures[member] = message.packets, message.signatures

        return self._answered(member, commit)

    def close_shares(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        sharers = tuple(member for member in sorted(self._packets) if member not in self.dropped)
        if shortage := self._shortage(len(sharers), "clients shared their secrets"):
            return shortage
        everybody = encode_members(sharers, agreement.size)
        sharing = agreement.sharing_digest(self._adverts_digest, everybody)
        packets = {owner: self._packets[owner] for owner in sharers}
        around = self._neighbourhoods
        owners = {member: tuple(filter(packets.__contains__, around[member].owners)) for member in sharers}
        owned = dict(zip(sharers, encode_each(owners.values(), agreement.size), strict=True))
        holders = {owner: around[owner].holders for owner in sharers}
        packets_of, signatures_of = records_by_receiver(packets, holders, packet_bytes(agreement)), dict[int, bytes]()
        if agreement.active:
            signatures = {owner: self._packet_signatures[owner] for owner in sharers}
            signatures_of = records_by_receiver(signatures, holders, SIGNATURE_BYTES)

        messages = {
            member: PeerShares(
                sharers=everybody,
                owners=bitmap,
                packets=packets_of.get(member, b""),
                signatures=signatures_of.get(member, b""),
            )
            for member, bitmap in owned.items()
        }

        def commit() -> list[Output]:
            self._sharing, self._packets, self._owners, self._owned = sharing, packets, owners, owned
            self._begin_phase(sharers, now)
            return self._requests(self._vectors.invite(now))

        return self._next(ServerState.MASKED_INPUT, messages, commit)

    def on_masked_input(self, heard: Heard[MaskedInput], now: float) -> Step[ServerState]:
        agreement = self.agreement
        member = agreement.places[heard.sender]
        owners = decode_members(heard.message.complaints, agreement.size)
        if owners and not set(owners) <= set(self._owners[member]) - {member}:
            raise RemoteProtocolError(Code.MEMBERS, "it complains about shares that it was not given")
        complaints = agreement.split_signatures(heard.message.signatures, owners)
        for owner, signature in complaints.items():
            parts = complaint_signed(self._sharing, owner=owner, holder=member)
            agreement.check_signature(member, signature, SumLabel.SIGN_COMPLAINT, *parts)
        reports = [ComplaintReceived(by=heard.sender, against=agreement.cohort[owner]) for owner in owners]

        def store() -> None:
            self._complaints[member] = complaints

        taken = self._take_vector(heard, now, store, *reports)
        if not owners:
            return taken
        # More than the tolerated colluders: that is proof.
        before = {owner: sum(owner in others for others in self._complaints.values()) for owner in owners}
        detail = f"more than {agreement.most_complaints} holders say that its shares are not those it committed to"
        out = [
            self._drop(agreement.cohort[owner], Code.SHARES, detail, now, tell=True)
            for owner in owners
            if before[owner] == agreement.most_complaints
        ]

        def commit() -> list[Output]:
            return [said for step in (taken, *out) for said in step.commit() or ()]

        return replace(taken, outputs=tuple(said for step in (taken, *out) for said in step.outputs), commit=commit)

    def close_inputs(self, now: float) -> Step[ServerState]:
        agreement, present = self.agreement, self._present()
        if shortage := self._too_few_inputs():
            return shortage
        blamed = set().union(*(self._complaints[holder] for holder in present))
        accused = {
            owner: tuple(holder for holder in present if owner in self._complaints[holder])
            for owner in present
            if owner in blamed
        }
        if not accused:
            return self._announce_survivors(now)

        def commit() -> None:
            self._accused = accused
            self._begin_phase(tuple(accused), now)

        complaints = {
            owner: PeerComplaints(
                holders=encode_members(holders, agreement.size),
                signatures=b"".join(self._complaints[holder][owner] for holder in holders),
            )
            for owner, holders in accused.items()
        }
        return self._next(ServerState.ANSWER_COMPLAINTS, complaints, commit)

    def on_answer_complaints(self, heard: Heard[AnswerComplaints], now: float) -> Step[ServerState]:
        owner = self.agreement.places[heard.sender]
        answers = split_records(heard.message.shares, BOTH_BYTES, self._accused[owner])
        for holder, both in answers.items():
            read_shares(self.agreement, self._packet(owner, holder), both, owner=owner, holder=holder)

        def commit() -> None:
            for holder, both in answers.items():
                del self._complaints[holder][owner]
                self._answers.setdefault(holder, {})[owner] = both

        return self._answered(owner, commit)

    def close_complaints(self, now: float) -> Step[ServerState]:
        return self._too_few_inputs() or self._announce_survivors(now)

    def _present(self) -> tuple[int, ...]:
        """Present members whose vector arrived; also of excluded groups, who hold shares."""
        return tuple(member for member in sorted(self._complaints) if member not in self.dropped)

    def _too_few_inputs(self) -> Step[ServerState] | None:
        in_sum = "clients of whole groups sent a vector" if self.agreement.groups else "clients sent a vector"
        return self._shortage(len(self._present()), "clients sent a vector and are still there") or self._shortage(
            len(self._vectors.included), in_sum, self.agreement.fewest_summed
        )

    def _announce_survivors(self, now: float) -> Step[ServerState]:
        agreement, present = self.agreement, self._present()
        survivors, reachable = tuple(sorted(self._vectors.included)), set(present)
        disputed = set().union(*(self._complaints[holder] for holder in present))
        for owner in self._packets:
            holders = reachable.intersection(self._neighbourhoods[owner].holders)
            if owner in disputed:
                holders = {holder for holder in holders if owner not in self._complaints[holder]}
            if len(holders) < agreement.parameters.threshold:
                detail = f"only {len(holders)} holders have its shares; {agreement.parameters.threshold} are needed"
                # A member that did not answer may have lost its link.
                proven = owner in self.dropped and self.dropped[owner][1] is Code.SHARES
                culprit = agreement.cohort[owner] if proven else ""
                return self._aborted(Code.SHARES, f"{agreement.cohort[owner]}: {detail}", culprit)
        bitmap = encode_members(survivors, agreement.size)
        left_out = [agreement.cohort[member] for member in present if member not in self._vectors.included]
        reports = (GroupsExcluded(members=left_out),) if left_out else ()

        def commit() -> None:
            self._survivors, self._survivors_bitmap = survivors, bitmap
            self._begin_phase(present, now)

        if agreement.active:
            messages: dict[int, Message] = {member: Survivors(survivors=bitmap) for member in present}
            return self._next(ServerState.CONSISTENCY_CHECK, messages, commit, *reports)
        return self._next(ServerState.UNMASK, self._unmask_requests(present, bitmap), commit, *reports)

    def on_confirm_survivors(self, heard: Heard[ConfirmSurvivors], now: float) -> Step[ServerState]:
        member = self.agreement.places[heard.sender]
        parts = survivors_signed(self._sharing, member, self._survivors_bitmap)
        self.agreement.check_signature(member, heard.message.signature, SumLabel.SIGN_SURVIVORS, *parts)

        def commit() -> None:
            self._signatures[member] = heard.message.signature

        return self._answered(member, commit)

    def close_signatures(self, now: float) -> Step[ServerState]:
        present = tuple(member for member in sorted(self._signatures) if member not in self.dropped)
        if shortage := self._shortage(len(present), "clients signed the survivors"):
            return shortage

        def commit() -> None:
            self._begin_phase(present, now)

        return self._next(ServerState.UNMASK, self._unmask_requests(present, self._survivors_bitmap), commit)

    def _unmask_requests(self, members: tuple[int, ...], survivors: bytes) -> dict[int, UnmaskRequest]:
        # The client requires the threshold; more signatures only cost it time. Semi-honest clients get none.
        agreement, around, signatures = self.agreement, self._neighbourhoods, self._signatures
        holders = [around[member].holders if signatures else () for member in members]
        signers = [tuple(filter(signatures.__contains__, of))[: agreement.parameters.threshold] for of in holders]
        answers = [self._answers.get(member, {}) for member in members]
        bitmaps = zip(*(encode_each(sets, agreement.size) for sets in (signers, map(tuple, answers))), strict=True)
        return {
            member: UnmaskRequest(
                survivors=survivors,
                signers=signed,
                signatures=b"".join([signatures[signer] for signer in chosen]),
                answered=answered,
                answers=b"".join(both for _, both in sorted(given.items())),
            )
            for member, chosen, given, (signed, answered) in zip(members, signers, answers, bitmaps, strict=True)
        }

    def on_unmask_shares(self, heard: Heard[UnmaskShares], now: float) -> Step[ServerState]:
        message = heard.message
        agreement = self.agreement
        holder = agreement.places[heard.sender]
        owners, bitmap = self._owners[holder], self._owned[holder]
        if complaints := self._complaints[holder]:
            owners = tuple(owner for owner in owners if owner not in complaints)
            bitmap = encode_members(owners, agreement.size)
        if message.owners != bitmap:
            decode_members(message.owners, agreement.size)
            raise RemoteProtocolError(Code.SHARES, "it returned shares of other owners than those it holds")
        check_records(message.shares, SHARE_BYTES, owners)

        def commit() -> None:
            self._returned[holder] = Returned(owners, message.shares)

        return self._answered(holder, commit)

    def close_unmask(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        opened = open_secrets(agreement, self._returned)
        seeds, keys = dict(self._seeds), dict(self._mask_keys)
        refused: dict[int, RemoteProtocolError] = {}
        alive, threshold = set(self._survivors), agreement.parameters.threshold
        known = {*seeds, *keys}
        for owner in [owner for owner in self._packets if owner not in known]:
            if owner not in opened:
                count = sum(owner in returned.owners for returned in self._returned.values())
                return self._too_few(count, f"shares of {agreement.cohort[owner]} came back", threshold)
            try:
                if (secret := opened[owner]) is None:
                    raise RemoteProtocolError(Code.SECRET, "its shares do not reconstruct to a secret")
                if owner in alive:
                    seeds[owner] = check_seed(agreement, secret, self._seed_commitments[owner])
                else:
                    keys[owner] = check_mask_key(secret, self._adverts[owner].mask_key)
            except RemoteProtocolError as error:
                refused[owner] = error
        if refused:
            return self._blame(refused, seeds, keys, now)
        names = tuple(agreement.cohort[member] for member in self._survivors)

        def commit() -> None:
            self.masks = remove_masks(
                agreement,
                self._vectors.total,
                sharing=self._sharing,
                seeds=seeds,
                keys=keys,
                survivors=self._survivors,
                peers=lambda member: self._neighbourhoods[member].peers,
                public_keys=lambda member: self._adverts[member].mask_key,
            )

        return Step(ServerState.COMPLETED, (Summed(self._vectors.total, names),), commit)

    def _blame(
        self,
        refused: Mapping[int, RemoteProtocolError],
        seeds: dict[int, bytes],
        keys: dict[int, AgreementKey],
        now: float,
    ) -> Step[ServerState]:
        """Exclude every holder that returned another share of these owners than it received, and close again.

        If all returned the received shares, the owner is at fault. seeds, keys: the verified secrets."""
        agreement = self.agreement
        liars = [
            holder
            for holder, returned in sorted(self._returned.items())
            if any(owner in refused and not self._is_given(owner, holder, share) for owner, share in returned.each())
        ]
        if not liars:
            owner, error = next(iter(refused.items()))
            return self._aborted(error.code, error.detail, agreement.cohort[owner])
        detail = "it returned a share that is not the one committed to"
        drops = [self._drop(agreement.cohort[holder], Code.SHARES, detail, now, tell=True) for holder in liars]

        def commit() -> None:
            self._seeds, self._mask_keys = seeds, keys
            for holder, drop in zip(liars, drops, strict=True):
                del self._returned[holder]
                drop.commit()

        return Step(self.state, tuple(output for drop in drops for output in drop.outputs), commit)

    def _is_given(self, owner: int, holder: int, share: bytes) -> bool:
        label = SumLabel.SEED_SHARE if owner in self._vectors.included else SumLabel.KEY_SHARE
        return is_committed(label, self.agreement, self._packet(owner, holder), owner=owner, holder=holder, share=share)

    def _packet(self, owner: int, holder: int) -> bytes:
        place = self._neighbourhoods[owner].holders.index(holder)
        size = packet_bytes(self.agreement)
        return self._packets[owner][place * size : (place + 1) * size]


def _server_table(*, active: bool) -> Table[ServerState]:
    s = ServerState
    rows: list[tuple[ServerState, tuple[type[Message], ...], Handler, Handler]] = [
        (s.ADVERTISE_KEYS, (AdvertiseKeys,), AggregationServer.on_advertise_keys, AggregationServer.close_keys),
        (s.SHARE_KEYS, (ShareKeys,), AggregationServer.on_share_keys, AggregationServer.close_shares),
        (s.MASKED_INPUT, (MaskedInput, VectorChunk), AggregationServer.on_masked_input, AggregationServer.close_inputs),
        (
            s.ANSWER_COMPLAINTS,
            (AnswerComplaints,),
            AggregationServer.on_answer_complaints,
            AggregationServer.close_complaints,
        ),
        (
            s.CONSISTENCY_CHECK,
            (ConfirmSurvivors,),
            AggregationServer.on_confirm_survivors,
            AggregationServer.close_signatures,
        ),
        (s.UNMASK, (UnmaskShares,), AggregationServer.on_unmask_shares, AggregationServer.close_unmask),
    ]
    if not active:
        del rows[4]
    table: dict[Any, Any] = {(s.ADVERTISE_KEYS, Trigger.START): IGNORE}
    past: list[type[Message]] = []
    for position, (state, kinds, handler, close) in enumerate(rows):
        following = rows[position + 1][0] if position + 1 < len(rows) else s.COMPLETED
        table[state, kinds[0]] = Row(handler, (state,))
        table[state, Abort] = Row(AggregationServer.on_abort, (state,))
        table[state, Trigger.DROP] = Row(AggregationServer.on_drop, (state,))
        table[state, Trigger.EXPIRE] = Row(AggregationServer.on_expire, (state,))
        table[state, Trigger.COMPLETE] = Row(close, (following, s.ABORTED))
        table.update({(state, kind): IGNORE for kind in past})
        past += kinds
    # It is closed again without the malicious members.
    table[s.UNMASK, Trigger.COMPLETE] = Row(AggregationServer.close_unmask, (s.UNMASK, s.COMPLETED, s.ABORTED))
    # Without complaints there is nothing to answer.
    after = table[s.ANSWER_COMPLAINTS, Trigger.COMPLETE]
    table[s.MASKED_INPUT, Trigger.COMPLETE] = Row(AggregationServer.close_inputs, (s.ANSWER_COMPLAINTS, *after.to))
    table[s.MASKED_INPUT, VectorChunk] = Row(AggregationServer.on_vector_chunk, (s.MASKED_INPUT,))
    for state in (s.COMPLETED, s.ABORTED):
        table.update({(state, kind): IGNORE for kind in (*past, Abort, Trigger.DROP, Trigger.EXPIRE)})
    return table


SERVER_TABLES: Final = {"active": _server_table(active=True), "semi-honest": _server_table(active=False)}
