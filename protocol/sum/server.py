"""The server of one secure sum: relay keys and shares, add masked vectors, take the masks off.

In every phase the server waits for the members that are left in it (sum/attendance.py). Whoever breaks a rule
is excluded and named, whoever is gone or late is dropped, which for the sum is the same. With fewer members than the
threshold the round ends in ABORTED, and nothing is revealed. Late and repeated messages are counted and ignored.
"""

from __future__ import annotations

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Heard, Report, Step
from tacit.protocol.core.members import decode_members, encode_members
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import Label
from tacit.protocol.sum.adverts import Advert, adverts_digest, check_advert, refuse_equal_keys
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.attendance import Attendance
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskedInput,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.protocol.sum.neighbourhood import Graph, Neighbourhood
from tacit.protocol.sum.results import Summed
from tacit.protocol.sum.sharing import PACKET_BYTES, check_share
from tacit.protocol.sum.tables import SERVER_TABLES, ServerState
from tacit.protocol.sum.transcript import shares_signed, survivors_signed
from tacit.protocol.sum.unmasking import check_mask_key, check_seed, open_secrets, remove_masks
from tacit.secagg.shamir import SHARE_BYTES


class AggregationServer(Attendance, tables=SERVER_TABLES.values()):
    """The server of one secure sum. Members are waited for from the start; `now` starts the first deadline."""

    def __init__(self, agreement: Agreement, now: float) -> None:
        table = SERVER_TABLES["active" if agreement.active else "semi-honest"]
        super().__init__(table, ServerState.ADVERTISE_KEYS, agreement, now)
        self._adverts: dict[int, Advert] = {}
        self._taken_keys: set[bytes] = set()
        self._choices: dict[int, tuple[int, ...]] = {}
        self._adverts_digest = b""
        self._sharing = b""
        self._neighbourhoods: dict[int, Neighbourhood] = {}
        self._seed_commitments: dict[int, bytes] = {}
        self._packets: dict[int, dict[int, bytes]] = {}
        self._complaints: dict[int, tuple[int, ...]] = {}
        self.masks = 0
        """How many masks it took off the sum."""
        self._survivors: tuple[int, ...] = ()
        self._survivors_bitmap = b""
        self._signatures: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, bytes]] = {}

    @property
    def training(self) -> bool:
        return self.state is ServerState.ADVERTISE_KEYS and not self.answered

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
        graph = Graph(agreement, adverts.keys(), digest, choices)
        neighbourhoods = {member: graph.of(member) for member in advertised}
        everybody = encode_members(advertised, agreement.size)

        def peer_keys(member: int) -> PeerKeys:
            known = neighbourhoods[member].known(member)
            return PeerKeys(
                advertised=everybody,
                digest=digest,
                included=encode_members(known, agreement.size),
                adverts=b"".join(adverts[other].record for other in known),
            )

        def commit() -> None:
            self._adverts_digest, self._neighbourhoods = digest, neighbourhoods
            self._begin_phase(advertised, now)

        return self._next(ServerState.SHARE_KEYS, {member: peer_keys(member) for member in advertised}, commit)

    def on_share_keys(self, heard: Heard[ShareKeys], now: float) -> Step[ServerState]:
        message = heard.message
        agreement = self.agreement
        member = agreement.places[heard.sender]
        holders = self._neighbourhoods[member].holders
        if decode_members(message.holders, agreement.size) != holders:
            raise RemoteProtocolError(Code.MEMBERS, "it shared its secrets with other holders than its own")
        if len(message.packets) != PACKET_BYTES * len(holders):
            raise RemoteProtocolError(Code.SHARES, f"{len(holders)} packets do not have {len(message.packets)} bytes")
        parts = shares_signed(
            agreement,
            self._adverts_digest,
            member,
            message.seed_commitment,
            message.holders,
            message.packets,
        )
        agreement.check_signature(member, message.signature, Label.SIGN_SHARES, *parts)

        def commit() -> None:
            self._seed_commitments[member] = message.seed_commitment
            self._packets[member] = {
                holder: message.packets[position * PACKET_BYTES : (position + 1) * PACKET_BYTES]
                for position, holder in enumerate(holders)
            }

        return self._answered(member, commit)

    def close_shares(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        sharers = tuple(member for member in sorted(self._packets) if member not in self.dropped)
        if shortage := self._shortage(len(sharers), "clients shared their secrets"):
            return shortage
        everybody = encode_members(sharers, agreement.size)
        sharing = agreement.sharing_digest(self._adverts_digest, everybody)
        present = set(sharers)
        packets = {owner: self._packets[owner] for owner in sharers}

        def peer_shares(member: int) -> PeerShares:
            owners = tuple(owner for owner in self._neighbourhoods[member].owners if owner in present)
            return PeerShares(
                sharers=everybody,
                owners=encode_members(owners, agreement.size),
                packets=b"".join(packets[owner][member] for owner in owners),
            )

        def commit() -> None:
            self._sharing, self._packets = sharing, packets
            self._begin_phase(sharers, now)

        return self._next(ServerState.MASKED_INPUT, {member: peer_shares(member) for member in sharers}, commit)

    def on_masked_input(self, heard: Heard[MaskedInput], now: float) -> Step[ServerState]:
        agreement = self.agreement
        member = agreement.places[heard.sender]
        complaints = decode_members(heard.message.complaints, agreement.size)
        if not set(complaints) <= set(self._owners(member)):
            raise RemoteProtocolError(Code.MEMBERS, "it complains about shares that it was not given")
        reports = tuple(
            Report("complaint", {"by": heard.sender, "against": agreement.cohort[owner]}) for owner in complaints
        )

        def store() -> None:
            self._complaints[member] = complaints

        return self._take_vector(heard, now, store, *reports)

    def close_inputs(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        survivors = tuple(sorted(self._vectors.included))
        # Also members of groups that are left out: they hold shares, and answer.
        present = tuple(member for member in sorted(self._complaints) if member not in self.dropped)
        if shortage := self._shortage(len(present), "clients sent a vector and are still there"):
            return shortage
        in_sum = "clients of whole groups sent a vector" if agreement.groups else "clients sent a vector"
        if shortage := self._shortage(len(survivors), in_sum, agreement.fewest_summed):
            return shortage
        reachable = set(present)
        for owner in self._packets:
            holders = [
                holder
                for holder in self._neighbourhoods[owner].holders
                if holder in reachable and owner not in self._complaints[holder]
            ]
            if len(holders) < agreement.parameters.threshold:
                detail = f"only {len(holders)} holders have its shares; {agreement.parameters.threshold} are needed"
                culprit = agreement.cohort[owner] if any(owner in c for c in self._complaints.values()) else ""
                return self._aborted(Code.SHARES, f"{agreement.cohort[owner]}: {detail}", culprit)
        bitmap = encode_members(survivors, agreement.size)
        left_out = [agreement.cohort[member] for member in present if member not in self._vectors.included]
        reports = (Report("left-out", {"members": left_out}),) if left_out else ()

        def commit() -> None:
            self._survivors, self._survivors_bitmap = survivors, bitmap
            self._begin_phase(present, now)

        if agreement.active:
            messages: dict[int, Message] = {member: Survivors(survivors=bitmap) for member in present}
            return self._next(ServerState.CONSISTENCY_CHECK, messages, commit, *reports)
        request = UnmaskRequest(survivors=bitmap, signers=encode_members((), agreement.size), signatures=b"")
        return self._next(ServerState.UNMASK, dict.fromkeys(present, request), commit, *reports)

    def on_confirm_survivors(self, heard: Heard[ConfirmSurvivors], now: float) -> Step[ServerState]:
        member = self.agreement.places[heard.sender]
        parts = survivors_signed(self._sharing, member, self._survivors_bitmap)
        self.agreement.check_signature(member, heard.message.signature, Label.SIGN_SURVIVORS, *parts)

        def commit() -> None:
            self._signatures[member] = heard.message.signature

        return self._answered(member, commit)

    def close_signatures(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        present = tuple(member for member in sorted(self._signatures) if member not in self.dropped)
        if shortage := self._shortage(len(present), "clients signed the survivors"):
            return shortage

        def unmask_request(member: int) -> UnmaskRequest:
            # The threshold is what the client asks for; more signatures only cost it time.
            holders = self._neighbourhoods[member].holders
            signers = [holder for holder in holders if holder in self._signatures][: agreement.parameters.threshold]
            return UnmaskRequest(
                survivors=self._survivors_bitmap,
                signers=encode_members(signers, agreement.size),
                signatures=b"".join(self._signatures[signer] for signer in signers),
            )

        def commit() -> None:
            self._begin_phase(present, now)

        return self._next(ServerState.UNMASK, {member: unmask_request(member) for member in present}, commit)

    def on_unmask_shares(self, heard: Heard[UnmaskShares], now: float) -> Step[ServerState]:
        message = heard.message
        agreement = self.agreement
        holder = agreement.places[heard.sender]
        complaints = self._complaints[holder]
        owners = tuple(owner for owner in self._owners(holder) if owner not in complaints)
        if decode_members(message.owners, agreement.size) != owners:
            raise RemoteProtocolError(Code.SHARES, "it returned shares of other owners than those it holds")
        if len(message.shares) != SHARE_BYTES * len(owners):
            raise RemoteProtocolError(Code.SHARES, f"{len(owners)} shares do not have {len(message.shares)} bytes")
        shares = {
            owner: message.shares[position * SHARE_BYTES : (position + 1) * SHARE_BYTES]
            for position, owner in enumerate(owners)
        }
        for owner, share in shares.items():
            label = Label.SEED_SHARE if owner in self._vectors.included else Label.KEY_SHARE
            check_share(label, agreement, self._packets[owner][holder], owner=owner, holder=holder, share=share)

        def commit() -> None:
            for owner, share in shares.items():
                self._shares.setdefault(owner, {})[holder] = share

        return self._answered(holder, commit)

    def close_unmask(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        for owner in self._packets:
            returned = len(self._shares.get(owner, ()))
            if shortage := self._shortage(returned, f"shares of {agreement.cohort[owner]} came back"):
                return shortage
        alive = set(self._survivors)
        seeds: dict[int, bytes] = {}
        keys = {}
        try:
            for owner, secret in open_secrets(agreement, self._shares).items():
                if owner in alive:
                    check_seed(agreement, owner, secret, self._seed_commitments[owner])
                    seeds[owner] = secret
                else:
                    keys[owner] = check_mask_key(agreement, owner, secret, self._adverts[owner].mask_key)
        except RemoteProtocolError as error:
            return self._aborted(error.code, error.detail, error.culprit or "")
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

    def _owners(self, holder: int) -> tuple[int, ...]:
        return tuple(owner for owner in self._neighbourhoods[holder].owners if owner in self._packets)
