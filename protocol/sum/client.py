"""The client of one secure sum (Bonawitz et al. 2017; regular graphs of Bell et al. 2020).

Every rule that limits a malicious server to the sum is checked here, before anything that depends on it is sent; a
broken rule ends the round in ABORTED with a code, and the secrets are erased. One bitmap of survivors decides which of
a client's two secrets is opened, so that a request cannot ask for both; states, signatures over the survivors and the
threshold keep a server from asking twice. The owner answers a holder's complaint about its packet with the holder's
shares again: only a malicious holder complains about an honest owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy.typing as npt

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Heard, Row, Step, Table, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import (
    KEY_BYTES,
    AgreementKey,
    Label,
    SigningKey,
    agree_all,
    derive,
    digest,
)
from tacit.protocol.core.roster import Members, decode_members, encode_members, split_records
from tacit.protocol.sum.agreement import (
    Advert,
    Agreement,
    Graph,
    Neighbourhood,
    adverts_digest,
    check_advert,
    choose_holders,
    complaint_signed,
    packet_signed,
    pairwise_mask,
    refuse_equal_keys,
    sign_advert,
    split_adverts,
    survivors_signed,
)
from tacit.protocol.sum.events import ComplaintSent
from tacit.protocol.sum.exchange import Contributed, Own, Participant
from tacit.protocol.sum.messages import (
    AnswerComplaints,
    ConfirmSurvivors,
    FetchVector,
    MaskedInput,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.protocol.sum.sharing import BOTH_BYTES, HeldShares, open_packet, packet_bytes, read_shares, seal_shares
from tacit.protocol.sum.spending import SpendingSeen, seen_in
from tacit.protocol.sum.states import ClientState, SumLabel, SumTrigger
from tacit.secagg.keystream import Mask, Usage, apply_masks


@dataclass(frozen=True, kw_only=True)
class _AdvertData(Own):
    """Data of a client that has advertised its keys."""

    channel: AgreementKey
    mask_key: AgreementKey
    advert: Advert


@dataclass(frozen=True, kw_only=True)
class _SharingData(Own):
    """Data of a client that has shared its secrets."""

    channel: AgreementKey
    mask_key: AgreementKey
    seed: bytes = field(repr=False)
    given: Mapping[int, HeldShares] = field(repr=False)
    adverts: Mapping[int, Advert]
    digest: bytes
    advertised: Members
    neighbourhood: Neighbourhood


@dataclass(frozen=True, kw_only=True)
class _MaskingData(Own):
    """Data of a client that has its masks.

    given: by holder, the shares that a complaint may still request; disputed: by owner, the packets that it complains
    about; announcement: the message before its vector; survivors: those that it has signed."""

    neighbourhood: Neighbourhood
    given: Mapping[int, HeldShares] = field(repr=False)
    held: Mapping[int, HeldShares] = field(repr=False)
    disputed: Mapping[int, bytes]
    masks: Sequence[Mask] = field(repr=False)
    announcement: MaskedInput
    sharers: Members
    sharing: bytes
    survivors: Members | None = None


class AggregationClient(Participant):
    """One client in one secure sum.

    spent, known: with statements, that of its spending, and those of other clients by name."""

    def __init__(
        self,
        agreement: Agreement,
        name: str,
        *,
        signing: SigningKey,
        entropy: Entropy,
        spent: bytes = b"",
        known: Mapping[str, bytes] | None = None,
    ) -> None:
        table = CLIENT_TABLES["active" if agreement.active else "semi-honest"]
        super().__init__(table, agreement, name, signing=signing, entropy=entropy)
        self._spent, self._known = spent or bytes(agreement.statement_bytes), known or {}
        self.masks = 0
        """Number of masks on its vector."""

    def on_start(self, now: float) -> Step[ClientState]:
        agreement = self.agreement
        channel, mask_key = AgreementKey(self._entropy(KEY_BYTES)), AgreementKey(self._entropy(KEY_BYTES))
        advert = sign_advert(
            agreement,
            self.member,
            self._signing,
            channel_key=channel.public,
            mask_key=mask_key.public,
            choices=choose_holders(agreement, self.member, self._entropy),
            spent=self._spent,
        )
        return Step(
            ClientState.AWAIT_PEER_KEYS,
            (self._send(advert.message()),),
            data=_AdvertData(channel=channel, mask_key=mask_key, advert=advert),
            deadline=now + 2 * agreement.phase_seconds,
        )

    def on_peer_keys(self, heard: Heard[PeerKeys], now: float) -> Step[ClientState]:
        message = heard.message
        agreement, me, own = self.agreement, self.member, self.at(_AdvertData)
        advertised = Members(message.advertised, agreement.size)
        included = Members(message.included, agreement.size)
        if me not in included or not included <= advertised:
            raise RemoteProtocolError(
                Code.MEMBERS, "the list of keys lacks this client, or has keys of somebody absent"
            )
        adverts = split_adverts(agreement, message.adverts, tuple(included))
        if adverts[me] != own.advert:
            raise RemoteProtocolError(Code.KEYS, "the list of keys has other keys for this client than it advertised")
        refuse_equal_keys(adverts)
        choices = {}
        for member, advert in adverts.items():
            try:
                _, choices[member] = check_advert(agreement, member, advert.message())
            except RemoteProtocolError as error:
                raise RemoteProtocolError(error.code, f"advert of {agreement.cohort[member]}: {error.detail}") from None
        if not agreement.regular and adverts_digest(agreement, adverts) != message.digest:
            raise RemoteProtocolError(Code.KEYS, "the digest is not that of the list of keys")
        neighbourhood = Graph(agreement, advertised, message.digest, choices).of(me)
        if tuple(included) != neighbourhood.known(me):
            raise RemoteProtocolError(Code.MEMBERS, "the list of keys is not that of this client's neighbours")
        # Holders have advertised, so that these too are at least the threshold.
        self._require(len(neighbourhood.holders), "clients advertised keys and would hold this client's shares")
        seed = self._entropy(KEY_BYTES)
        packets, given = seal_shares(
            agreement,
            message.digest,
            owner=me,
            channel=own.channel,
            secrets=(own.mask_key.private, seed),
            holders={holder: adverts[holder].channel_key for holder in neighbourhood.holders},
            entropy=self._entropy,
            known={agreement.places[name]: said for name, said in self._known.items()},
        )
        seed_commitment = digest(SumLabel.SEED, agreement.context, seed)
        signatures = [
            self._signing.sign(
                SumLabel.SIGN_SHARES, *packet_signed(agreement, message.digest, owner=me, holder=holder, packet=packet)
            )
            for holder, packet in split_records(packets, packet_bytes(agreement), neighbourhood.holders).items()
            if agreement.active
        ]
        share_keys = ShareKeys(
            seed_commitment=seed_commitment,
            holders=encode_members(neighbourhood.holders, agreement.size),
            packets=packets,
            signatures=b"".join(signatures),
        )
        seen = self._seen((member, advert.spent) for member, advert in adverts.items() if member != me)
        return Step(
            ClientState.AWAIT_PEER_SHARES,
            (self._send(share_keys), *seen),
            data=_SharingData(
                vector=own.vector,
                channel=own.channel,
                mask_key=own.mask_key,
                seed=seed,
                given=given,
                adverts=adverts,
                digest=message.digest,
                advertised=advertised,
                neighbourhood=neighbourhood,
            ),
            deadline=now + 2 * agreement.phase_seconds,
        )

    def on_peer_shares(self, heard: Heard[PeerShares], now: float) -> Step[ClientState]:
        message = heard.message
        agreement, me, own = self.agreement, self.member, self.at(_SharingData)
        sharers = Members(message.sharers, agreement.size)
        if me not in sharers or not sharers <= own.advertised:
            raise RemoteProtocolError(
                Code.MEMBERS, "the sharers lack this client, or were not among those who advertised"
            )
        owners = decode_members(message.owners, agreement.size)
        if owners != tuple(owner for owner in own.neighbourhood.owners if owner in sharers):
            raise RemoteProtocolError(Code.SHARES, "the shares are not those of the owners whom this client holds for")
        packets = split_records(message.packets, packet_bytes(agreement), owners)
        signatures = agreement.split_signatures(message.signatures, owners)
        holding = sum(holder in sharers for holder in own.neighbourhood.holders)
        self._require(holding, "clients shared their secrets and hold this client's shares")
        if agreement.active:
            # The server made a packet without its owner's signature, and no secret may be revealed because of it.
            signed = [
                (owner, signatures[owner], packet_signed(agreement, own.digest, owner=owner, holder=me, packet=packet))
                for owner, packet in packets.items()
            ]
            agreement.check_signatures(SumLabel.SIGN_SHARES, signed)
        masked_with = [own.adverts[peer].mask_key for peer in own.neighbourhood.peers if peer in sharers]
        owner_keys = {owner: own.adverts[owner].channel_key for owner in owners}
        agree_all([(own.mask_key, key) for key in masked_with] + [(own.channel, key) for key in owner_keys.values()])
        held, disputed, statements = {}, {}, []
        for owner, packet in packets.items():
            try:
                held[owner], statement = open_packet(
                    agreement,
                    own.digest,
                    packet,
                    owner=owner,
                    holder=me,
                    channel=own.channel,
                    owner_key=owner_keys[owner],
                )
            except RemoteProtocolError:
                disputed[owner] = packet
            else:
                statements.append((me, statement))
        if me in disputed:
            raise RemoteProtocolError(Code.SHARES, "this client's own shares came back altered")
        sharing = agreement.sharing_digest(own.digest, sharers.bitmap)
        masks = self._derive_masks(own, sharing, sharers)
        complaints = [
            self._sign(SumLabel.SIGN_COMPLAINT, *complaint_signed(sharing, owner=owner, holder=me))
            for owner in disputed
        ]
        announcement = MaskedInput(complaints=encode_members(disputed, agreement.size), signatures=b"".join(complaints))
        given = {holder: shares for holder, shares in own.given.items() if holder in sharers and holder != me}

        def commit() -> None:
            self.masks = len(masks)

        against = [agreement.cohort[owner] for owner in disputed]
        complained = (ComplaintSent(against=against),) if against else ()
        return Step(
            ClientState.AWAIT_VECTOR,
            (*complained, *self._seen(statements)),
            commit,
            data=_MaskingData(
                vector=own.vector,
                neighbourhood=own.neighbourhood,
                given=given,
                held=held,
                disputed=disputed,
                masks=masks,
                announcement=announcement,
                sharers=sharers,
                sharing=sharing,
            ),
        )

    def on_vector(self, now: float) -> Step[ClientState]:
        agreement, own = self.agreement, self.at(_MaskingData)
        return Step(
            ClientState.AWAIT_SURVIVORS,
            self._announced(own, own.announcement),
            data=own,
            # The server waits for clients that still train.
            deadline=now + agreement.train_seconds + agreement.input_seconds + 2 * agreement.phase_seconds,
        )

    def on_peer_complaints(self, heard: Heard[PeerComplaints], now: float) -> Step[ClientState]:
        agreement, message, own = self.agreement, heard.message, self.at(_MaskingData)
        holders = decode_members(message.holders, agreement.size)
        if not own.given.keys() >= set(holders):
            raise RemoteProtocolError(Code.MEMBERS, "complaints of members without a share of this client, or again")
        if len(holders) > agreement.most_complaints:
            raise RemoteProtocolError(
                Code.THRESHOLD, f"{len(holders)} members complain; at most {agreement.most_complaints} are answered"
            )
        for holder, signature in agreement.split_signatures(message.signatures, holders).items():
            parts = complaint_signed(own.sharing, owner=self.member, holder=holder)
            agreement.check_signature(holder, signature, SumLabel.SIGN_COMPLAINT, *parts)
        answer = AnswerComplaints(shares=b"".join(own.given[holder].both for holder in holders))
        return Step(ClientState.AWAIT_SURVIVORS, (self._send(answer),), data=replace(own, given={}))

    def on_survivors(self, heard: Heard[Survivors], now: float) -> Step[ClientState]:
        own = self.at(_MaskingData)
        survivors = self._checked_survivors(own, heard.message.survivors)
        signed = survivors_signed(own.sharing, self.member, heard.message.survivors)
        signature = self._signing.sign(SumLabel.SIGN_SURVIVORS, *signed)

        return Step(
            ClientState.AWAIT_UNMASK_REQUEST,
            (self._send(ConfirmSurvivors(signature=signature)),),
            data=replace(own, given={}, survivors=survivors),
            deadline=now + 2 * self.agreement.phase_seconds,
        )

    def on_unmask_request(self, heard: Heard[UnmaskRequest], now: float) -> Step[ClientState]:
        agreement, message, own = self.agreement, heard.message, self.at(_MaskingData)
        survivors = self._checked_survivors(own, message.survivors)
        signers = decode_members(message.signers, agreement.size)
        if agreement.active:
            if survivors != own.survivors:
                raise RemoteProtocolError(Code.MEMBERS, "the survivors are not those that this client signed")
            self._check_signatures(own, survivors, signers, message.signatures)
        elif signers or message.signatures:
            raise RemoteProtocolError(Code.SIGNATURE, "signatures in semi-honest mode")
        held = {**own.held, **self._answered(own, message)}
        shares = [(owner, both.seed if owner in survivors else both.key) for owner, both in sorted(held.items())]

        reply = UnmaskShares(
            owners=encode_members([owner for owner, _ in shares], agreement.size),
            shares=b"".join(share for _, share in shares),
        )
        done = Contributed(tuple(agreement.cohort[member] for member in survivors))
        return Step(ClientState.DONE, (self._send(reply), done))

    def _seen(self, statements: Iterable[tuple[int, bytes]]) -> tuple[SpendingSeen, ...]:
        return seen_in((self.agreement.cohort[member], said) for member, said in statements)

    def _sign(self, label: Label, *parts: bytes) -> bytes:
        """A signature in active mode, nothing otherwise."""
        return self._signing.sign(label, *parts) if self.agreement.active else b""

    def _answered(self, own: _MaskingData, message: UnmaskRequest) -> dict[int, HeldShares]:
        owners = decode_members(message.answered, self.agreement.size)
        if not own.disputed.keys() >= set(owners):
            raise RemoteProtocolError(Code.MEMBERS, "answers to complaints that this client did not make")
        return {
            owner: read_shares(self.agreement, own.disputed[owner], both, owner=owner, holder=self.member)
            for owner, both in split_records(message.answers, BOTH_BYTES, owners).items()
        }

    def _require(self, count: int, what: str, needed: int | None = None) -> None:
        needed = self.agreement.parameters.threshold if needed is None else needed
        if count < needed:
            raise RemoteProtocolError(Code.THRESHOLD, f"only {count} {what}; {needed} are needed")

    def _checked_survivors(self, own: _MaskingData, bitmap: bytes) -> Members:
        survivors = Members(bitmap, self.agreement.size)
        if not survivors <= own.sharers:
            raise RemoteProtocolError(Code.MEMBERS, "there are survivors who never shared their secrets")
        self.agreement.check_whole(survivors)
        # With groups a present client may be excluded with its own, and helps to open the sum all the same.
        if self.member not in survivors and not self.agreement.groups:
            raise RemoteProtocolError(Code.MEMBERS, "the server counts this client as dropped")
        self._require(len(survivors), "clients survived", self.agreement.fewest_summed)
        return survivors

    def _check_signatures(
        self, own: _MaskingData, survivors: Members, signers: tuple[int, ...], signatures: bytes
    ) -> None:
        agreement = self.agreement
        # Holders only, not every neighbour: an answering client knows that t of its k holders have the same list, and
        # 2t > k, so that t others never open its mask key under another list. Its mask towards members whose seed it
        # opens stays on.
        holders = set(own.neighbourhood.holders)
        if not holders.issuperset(signers):
            raise RemoteProtocolError(Code.MEMBERS, "there are signers who are no holders of this client")
        signed = agreement.split_signatures(signatures, signers)
        self._require(len(signers), "clients signed the survivors")
        for member, signature in signed.items():
            parts = survivors_signed(own.sharing, member, survivors.bitmap)
            agreement.check_signature(member, signature, SumLabel.SIGN_SURVIVORS, *parts)

    def _derive_masks(self, own: _SharingData, sharing: bytes, sharers: Members) -> list[Mask]:
        masks = [Mask(derive(own.seed, SumLabel.SELF_SEED, salt=sharing), Usage.SELF_MASK, 1)]
        masks += [
            pairwise_mask(own.mask_key, own.adverts[peer].mask_key, sharing, self.member, peer)
            for peer in own.neighbourhood.peers
            if peer in sharers
        ]
        return masks

    def _packed(self, words: npt.NDArray[Any], start: int) -> Frame:
        apply_masks(words, self.at(_MaskingData).masks, self.agreement.ring, start=start)
        return self.agreement.ring.pack(words)


def _client_table(*, active: bool) -> Table[ClientState]:
    s = ClientState
    table: dict[Any, Any] = {
        (s.READY, Trigger.START): Row(AggregationClient.on_start, (s.AWAIT_PEER_KEYS,)),
        (s.AWAIT_PEER_KEYS, PeerKeys): Row(AggregationClient.on_peer_keys, (s.AWAIT_PEER_SHARES,)),
        (s.AWAIT_PEER_SHARES, PeerShares): Row(AggregationClient.on_peer_shares, (s.AWAIT_VECTOR,)),
        (s.AWAIT_VECTOR, Trigger.COMPLETE): Row(AggregationClient.on_vector, (s.AWAIT_SURVIVORS,)),
        **{
            (state, FetchVector): Row(AggregationClient.on_fetch_vector, (state,))
            for state in (s.AWAIT_VECTOR, s.AWAIT_SURVIVORS)
        },
        (s.AWAIT_SURVIVORS, PeerComplaints): Row(AggregationClient.on_peer_complaints, (s.AWAIT_SURVIVORS,)),
    }
    if active:
        table[s.AWAIT_SURVIVORS, Survivors] = Row(AggregationClient.on_survivors, (s.AWAIT_UNMASK_REQUEST,))
        table[s.AWAIT_UNMASK_REQUEST, UnmaskRequest] = Row(AggregationClient.on_unmask_request, (s.DONE,))
    else:
        table[s.AWAIT_SURVIVORS, UnmaskRequest] = Row(AggregationClient.on_unmask_request, (s.DONE,))
    without_vector = [s.AWAIT_PEER_KEYS, s.AWAIT_PEER_SHARES, s.AWAIT_VECTOR]
    for state in without_vector:
        table[state, SumTrigger.CONTRIBUTE] = Row(AggregationClient.on_contribute, (state,))
    for state in [*without_vector, s.AWAIT_SURVIVORS] + [s.AWAIT_UNMASK_REQUEST] * active:
        table[state, Abort] = Row(AggregationClient.on_abort, (s.ABORTED,))
        table[state, Trigger.DROP] = Row(AggregationClient.on_drop, (s.ABORTED,))
        if state is not s.AWAIT_VECTOR:
            table[state, Trigger.EXPIRE] = Row(AggregationClient.on_expire, (s.ABORTED,))
    table[s.READY, Trigger.DROP] = Row(AggregationClient.on_drop, (s.ABORTED,))
    return table


CLIENT_TABLES: Final = {"active": _client_table(active=True), "semi-honest": _client_table(active=False)}
