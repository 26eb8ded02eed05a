"""The client of one secure sum (Bonawitz et al. 2017; regular graphs of Bell et al. 2020).

The client advertises fresh keys, shares its secrets among its holders, sends its vector under masks, and, once it is
told who survived, opens for every other client either the seed of its self mask or the key of its pairwise masks:
never both, and once only. Every rule that keeps a lying server from more than the sum is checked here, before anything
that depends on it is sent; a broken rule ends the round in ABORTED with a code, and the secrets are forgotten.

Who is asked for which share follows from one bitmap of survivors, so a server cannot ask for both kinds in one request;
that it cannot ask twice, or tell two halves of the clients different things, is what the states, the signatures over
the survivors, and the threshold are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Machine, Output, Report, Send, Step, Trigger
from tacit.protocol.core.members import Members, decode_members, encode_members
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    AgreementKey,
    Label,
    SigningKey,
    derive,
    digest,
)
from tacit.protocol.sum.adverts import (
    Advert,
    adverts_digest,
    check_advert,
    refuse_equal_keys,
    sign_advert,
    split_records,
)
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.messages import (
    ConfirmSurvivors,
    FetchVector,
    MaskedInput,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    VectorChunk,
)
from tacit.protocol.sum.neighbourhood import Graph, Neighbourhood, choose_holders
from tacit.protocol.sum.results import ClientAborted, Contribution, Journal
from tacit.protocol.sum.sharing import PACKET_BYTES, HeldShares, open_packet, seal_shares
from tacit.protocol.sum.tables import CLIENT_TABLES, ClientState
from tacit.protocol.sum.transcript import pairwise_mask, shares_signed, survivors_signed
from tacit.secagg.keystream import Mask, Usage, apply_masks


class AggregationClient(Machine[ClientState]):
    """One client in one secure sum. `vector`: ring words of the agreement's length; not modified."""

    def __init__(
        self,
        agreement: Agreement,
        name: str,
        *,
        signing: SigningKey,
        vector: npt.NDArray[Any],
        entropy: Entropy,
    ) -> None:
        super().__init__(CLIENT_TABLES["active" if agreement.active else "semi-honest"], ClientState.READY)
        if vector.shape != (agreement.length,) or vector.dtype != agreement.ring.word:
            raise LocalProtocolError(
                f"the vector is {vector.dtype}{list(vector.shape)}, not {agreement.length} ring words"
            )
        self.agreement = agreement
        self.name = name
        self.member = agreement.places[name]
        self._signing = signing
        self._vector = vector
        self._entropy = entropy
        self._advert: Advert
        self._channel: AgreementKey
        self._mask_key: AgreementKey
        self._seed: bytes
        self._adverts: dict[int, Advert] = {}
        self._adverts_digest = b""
        self._advertised: Members
        self._neighbourhood: Neighbourhood
        self._contribution: Contribution
        self._held: dict[int, HeldShares] = {}
        self._masks: list[Mask] = []
        self.masks = 0
        """How many masks its vector got."""
        self._sharers: Members
        self._sharing = b""
        self._survivors: Members
        self.opened: tuple[str, ...] = ()
        """Whose sum this client helped to open, when it is done."""

    def start(self, now: float) -> list[Output]:
        """Advertise keys."""
        return self.trigger(Trigger.START, now)

    def on_start(self, now: float) -> Step[ClientState]:
        channel, mask_key = AgreementKey(self._entropy(KEY_BYTES)), AgreementKey(self._entropy(KEY_BYTES))
        advert = sign_advert(
            self.agreement,
            self.member,
            self._signing,
            channel_key=channel.public,
            mask_key=mask_key.public,
            choices=choose_holders(self.agreement, self.member, self._entropy),
        )

        def commit() -> None:
            self._channel, self._mask_key, self._advert = channel, mask_key, advert
            # The server waits for clients that still train.
            self.deadline = now + self.agreement.train_seconds + 2 * self.agreement.phase_seconds

        return Step(ClientState.AWAIT_PEER_KEYS, (self._send(advert.message()),), commit)

    def on_peer_keys(self, sender: str, message: PeerKeys, payload: None, now: float) -> Step[ClientState]:
        agreement, me = self.agreement, self.member
        advertised = Members(message.advertised, agreement.size)
        included = Members(message.included, agreement.size)
        if me not in included or not included <= advertised:
            raise RemoteProtocolError(
                Code.MEMBERS, "the list of keys lacks this client, or has keys of somebody absent"
            )
        adverts = split_records(agreement, message.adverts, tuple(included))
        if adverts[me] != self._advert:
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
        # Holders are among those who advertised, so that these too are at least the threshold.
        self._require(len(neighbourhood.holders), "clients advertised keys and would hold this client's shares")
        seed = self._entropy(KEY_BYTES)
        packets = seal_shares(
            agreement,
            message.digest,
            owner=me,
            channel=self._channel,
            secrets=(self._mask_key.private, seed),
            holders={holder: adverts[holder].channel_key for holder in neighbourhood.holders},
            entropy=self._entropy,
        )
        seed_commitment = digest(Label.SEED, agreement.context, seed)
        holders = encode_members(neighbourhood.holders, agreement.size)
        signature = b""
        if agreement.active:
            signature = self._signing.sign(
                Label.SIGN_SHARES, *shares_signed(agreement, message.digest, me, seed_commitment, holders, packets)
            )

        def commit() -> None:
            self._advertised, self._adverts, self._adverts_digest = advertised, adverts, message.digest
            self._neighbourhood, self._seed = neighbourhood, seed
            self.deadline = now + 2 * agreement.phase_seconds

        share_keys = ShareKeys(seed_commitment=seed_commitment, holders=holders, packets=packets, signature=signature)
        return Step(ClientState.AWAIT_PEER_SHARES, (self._send(share_keys),), commit)

    def on_peer_shares(self, sender: str, message: PeerShares, payload: None, now: float) -> Step[ClientState]:
        agreement, me = self.agreement, self.member
        sharers = Members(message.sharers, agreement.size)
        if me not in sharers or not sharers <= self._advertised:
            raise RemoteProtocolError(
                Code.MEMBERS, "the sharers lack this client, or were not among those who advertised"
            )
        owners = decode_members(message.owners, agreement.size)
        if owners != tuple(owner for owner in self._neighbourhood.owners if owner in sharers):
            raise RemoteProtocolError(Code.SHARES, "the shares are not those of the owners whom this client holds for")
        if len(message.packets) != PACKET_BYTES * len(owners):
            raise RemoteProtocolError(Code.SHARES, f"{len(owners)} packets do not have {len(message.packets)} bytes")
        holding = sum(holder in sharers for holder in self._neighbourhood.holders)
        self._require(holding, "clients shared their secrets and hold this client's shares")
        held, complaints = {}, []
        for position, owner in enumerate(owners):
            packet = message.packets[position * PACKET_BYTES : (position + 1) * PACKET_BYTES]
            try:
                held[owner] = open_packet(
                    agreement,
                    self._adverts_digest,
                    packet,
                    owner=owner,
                    holder=me,
                    channel=self._channel,
                    owner_key=self._adverts[owner].channel_key,
                )
            except RemoteProtocolError:
                complaints.append(owner)
        if me in complaints:
            raise RemoteProtocolError(Code.SHARES, "this client's own shares came back altered")
        sharing = agreement.sharing_digest(self._adverts_digest, sharers.bitmap)
        masks = self._derive_masks(sharing, sharers)
        contribution = Contribution(
            session=agreement.session,
            round=agreement.round,
            model=agreement.model,
            sharers=tuple(agreement.cohort[member] for member in sharers),
            threshold=agreement.parameters.threshold,
            corrupt=agreement.corrupt,
            unmasked=False,
        )
        masked = MaskedInput(complaints=encode_members(complaints, agreement.size))

        def commit() -> None:
            self._sharers, self._sharing, self._contribution = sharers, sharing, contribution
            self._held, self._masks = held, masks
            self.masks = len(masks)
            self.deadline = now + agreement.input_seconds + agreement.phase_seconds

        outputs: list[Output] = [Journal(contribution)] if agreement.journalled else []
        if complaints:
            outputs.append(Report("complaint", {"against": [agreement.cohort[owner] for owner in complaints]}))
        payload_now = self._masked_chunk(0, masks) if agreement.chunks == 1 else None
        outputs.append(self._send(masked, payload_now))
        return Step(ClientState.AWAIT_SURVIVORS, tuple(outputs), commit)

    def on_fetch_vector(self, sender: str, message: FetchVector, payload: None, now: float) -> Step[ClientState]:
        agreement = self.agreement
        if agreement.chunks == 1 or message.chunk >= agreement.chunks:
            raise RemoteProtocolError(
                Code.VECTOR, f"chunk {message.chunk} of a vector of {agreement.chunks} was asked for"
            )
        chunk = self._send(VectorChunk(chunk=message.chunk), self._masked_chunk(message.chunk, self._masks))
        return Step(ClientState.AWAIT_SURVIVORS, (chunk,))

    def on_survivors(self, sender: str, message: Survivors, payload: None, now: float) -> Step[ClientState]:
        survivors = self._checked_survivors(message.survivors)
        signed = survivors_signed(self._sharing, self.member, message.survivors)
        signature = self._signing.sign(Label.SIGN_SURVIVORS, *signed)

        def commit() -> None:
            self._survivors = survivors
            self.deadline = now + 2 * self.agreement.phase_seconds

        return Step(ClientState.AWAIT_UNMASK_REQUEST, (self._send(ConfirmSurvivors(signature=signature)),), commit)

    def on_unmask_request(self, sender: str, message: UnmaskRequest, payload: None, now: float) -> Step[ClientState]:
        agreement = self.agreement
        survivors = self._checked_survivors(message.survivors)
        signers = decode_members(message.signers, agreement.size)
        if agreement.active:
            if survivors != self._survivors:
                raise RemoteProtocolError(Code.MEMBERS, "the survivors are not those that this client signed")
            self._check_signatures(signers, message.signatures)
        elif signers or message.signatures:
            raise RemoteProtocolError(Code.SIGNATURE, "signatures in semi-honest mode")
        shares = [(owner, held.seed if owner in survivors else held.key) for owner, held in sorted(self._held.items())]

        reply = UnmaskShares(
            owners=encode_members([owner for owner, _ in shares], agreement.size),
            shares=b"".join(share for _, share in shares),
        )
        opened = Journal(structs.replace(self._contribution, unmasked=True))
        journal = (opened,) if agreement.journalled else ()

        def commit() -> None:
            self.opened = tuple(agreement.cohort[member] for member in survivors)
            self.forget()

        return Step(ClientState.DONE, (*journal, self._send(reply)), commit)

    def on_abort(self, sender: str, message: Abort, payload: None, now: float) -> Step[ClientState]:
        return self._aborted(ClientAborted(message.code, message.detail, message.culprit))

    def on_expire(self, now: float) -> Step[ClientState]:
        detail = f"no word from {self.agreement.server}: still to {self.state.value}"
        return self._aborted(ClientAborted(Code.TIMEOUT, detail, self.agreement.server))

    def on_drop(self, detail: str, now: float) -> Step[ClientState]:
        return self._aborted(ClientAborted(Code.LEFT, detail, self.agreement.server))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[ClientState]:
        if self.state in (ClientState.DONE, ClientState.ABORTED):
            return Step(
                self.state, (Report("refused", {"from": sender, "code": error.code.name, "detail": error.detail}),)
            )
        abort = Abort(code=error.code, detail=error.detail, culprit=error.culprit or sender)
        aborted = self._aborted(ClientAborted(error.code, error.detail, error.culprit or sender))
        return Step(aborted.state, (self._send(abort), *aborted.outputs), aborted.commit)

    def forget(self) -> None:
        """Drop every secret of this sum, the vector among them."""
        self.deadline = None
        self._held, self._masks = {}, []
        for name in ("_channel", "_mask_key", "_seed", "_vector"):
            self.__dict__.pop(name, None)

    def _aborted(self, outcome: ClientAborted) -> Step[ClientState]:
        return Step(ClientState.ABORTED, (outcome,), self.forget)

    def _send(self, message: Any, payload: Frame | None = None) -> Send:
        return Send(self.agreement.server, message, payload)

    def _require(self, count: int, what: str, least: int = 0) -> None:
        needed = max(self.agreement.parameters.threshold, least)
        if count < needed:
            raise RemoteProtocolError(Code.THRESHOLD, f"only {count} {what}; {needed} are needed")

    def _checked_survivors(self, bitmap: bytes) -> Members:
        survivors = Members(bitmap, self.agreement.size)
        if not survivors <= self._sharers:
            raise RemoteProtocolError(Code.MEMBERS, "there are survivors who never shared their secrets")
        if self.member not in survivors:
            raise RemoteProtocolError(Code.MEMBERS, "the server counts this client as dropped")
        self._require(len(survivors), "clients survived", self.agreement.fewest_survivors)
        return survivors

    def _check_signatures(self, signers: tuple[int, ...], signatures: bytes) -> None:
        agreement = self.agreement
        # Holders only, not every neighbour: who answers was told the same as t of its k holders, and 2t > k, so that t
        # others never open its mask key under another list. Its mask towards those whose seed it opens stays on.
        holders = set(self._neighbourhood.holders)
        if not all(signer in self._survivors and signer in holders for signer in signers):
            raise RemoteProtocolError(Code.MEMBERS, "there are signers who are no surviving holders of this client")
        if len(signatures) != SIGNATURE_BYTES * len(signers):
            raise RemoteProtocolError(Code.SIGNATURE, f"{len(signers)} signatures do not have {len(signatures)} bytes")
        self._require(len(signers), "clients signed the survivors")
        for position, member in enumerate(signers):
            signature = signatures[position * SIGNATURE_BYTES : (position + 1) * SIGNATURE_BYTES]
            parts = survivors_signed(self._sharing, member, self._survivors.bitmap)
            agreement.check_signature(member, signature, Label.SIGN_SURVIVORS, *parts)

    def _derive_masks(self, sharing: bytes, sharers: Members) -> list[Mask]:
        masks = [Mask(derive(self._seed, Label.SELF_SEED, salt=sharing), Usage.SELF_MASK, 1)]
        masks += [
            pairwise_mask(self._mask_key, self._adverts[peer].mask_key, sharing, self.member, peer)
            for peer in self._neighbourhood.peers
            if peer in sharers
        ]
        return masks

    def _masked_chunk(self, chunk: int, masks: list[Mask]) -> Frame:
        span = self.agreement.chunk_span(chunk)
        words = np.array(self._vector[span])
        apply_masks(words, masks, self.agreement.ring, start=span.start)
        return self.agreement.ring.pack(words)
