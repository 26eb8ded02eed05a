"""Plays of private inference and double-blind adaptation: data owners, a model owner, a dealer, or some of them.

The machine of a data owner has its name. The model owner's and the dealer's machines for a data owner are made when it
says hello, and have the names `model/DATA-OWNER` and `dealer/DATA-OWNER`; an owner's machine towards the dealer is
`OWNER/dealer/DATA-OWNER`. Nothing is computed: what is opened, masked or dealt is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tacit.protocol.adaptation.kept import KeptRecord, Prefix
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.sums import OpeningPolicy, RoundSums
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Output
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Member, Role, Roster
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.inference.results import Agreed, Charged, InferenceEnded
from tacit.protocol.inference.service import DealerService, ModelOwnerService
from tests.vectors_corpus.play import Making, Parcel, Play
from tests.vectors_corpus.primitives import drawn

MODEL_OWNER: Final = "model"
DATA_OWNER: Final = "data"
DEALER: Final = "dealer"
PATIENCE: Final = 60.0
BROUGHT: Final[Prefix] = (1, drawn("chain"))
"""One image, that has passed the blocks in an earlier session."""


def roster(*data_owners: str) -> Roster:
    roles: dict[str, Role] = {MODEL_OWNER: "server", **dict.fromkeys(data_owners, "client"), DEALER: "dealer"}
    keys = {name: SigningKey(drawn(f"{name} signing")).public for name in roles}
    return Roster(
        tuple(
            Member(name=name, role=role, curve_public=drawn(f"{name} curve"), signing_public=keys[name])
            for name, role in roles.items()
        )
    )


def session_of(data_owner: str = DATA_OWNER, number: int = 0) -> bytes:
    """What a model owner calls its session of this number with a data owner."""
    return _draws(f"{MODEL_OWNER}/{data_owner}", number)[:32]


def _draws(name: str, number: int) -> bytes:
    """Random bytes of the machine of this name that is made after so many others."""
    return drawn(f"{name} entropy {number}", 128)


class InferencePlay(Play):
    def __init__(
        self,
        about: str,
        *names: str,
        terms: Any = None,
        quota: Quota | None = None,
        opening: OpeningPolicy | None = None,
        sums: Any = None,
        kept: bytes | None = None,
    ) -> None:
        """names: of the data owners in the roster. terms: of the model owner, where it is played; opening: its policy,
        in double-blind adaptation; sums: what it knows of sums that were disclosed before; kept: the digest of terms
        under which one image of each data owner has passed the blocks."""
        super().__init__("private inference" if opening is None else "double-blind adaptation", about)
        self.roster = roster(*names)
        self.spent: dict[tuple[str, str], Spent] = {}
        self._kept = kept
        self._terms, self._quota, self._count = terms, quota or Quota(), Counter[str]()
        if opening is not None:
            self.sums = self.make(f"{MODEL_OWNER}/sums", Making(RoundSums, {"policy": opening, **(sums or {})}))
        kinds = INFERENCE_MESSAGES if opening is None else ADAPTATION_MESSAGES
        self.services: dict[str, ModelOwnerService | DealerService] = {
            MODEL_OWNER: ModelOwnerService(self._serve, kinds),
            DEALER: DealerService(self.roster, self._deal_for),
        }

    def _new(self, name: str, kind: Any, /, **settings: Any) -> Any:
        number, self._count[name] = self._count[name], self._count[name] + 1
        return self.make(name, Making(kind, {"roster": self.roster, **settings}, _draws(name, number)))

    def join(
        self, kind: Any, name: str, *, request: InferenceRequest, policy: InferencePolicy | None = None, **more: Any
    ) -> None:
        spent = self.spent.get((name, MODEL_OWNER), Spent())
        given = {
            "name": name, "request": request, "policy": policy or InferencePolicy(), "patience": PATIENCE,
            "spent": spent, **more,
        }  # fmt: skip
        number, self._count[name] = self._count[name], self._count[name] + 1
        draws = _draws(name, number) if "count" in more else None
        self.make(name, Making(kind, {"roster": self.roster, **given}, draws))
        self.act(name, "start")

    def _serve(self, data_owner: str) -> Any:
        learns = self.protocol == "double-blind adaptation"
        kind: type[InferenceModelOwner] = LearningModelOwner if learns else InferenceModelOwner
        more = {"sums": self.sums, "kept": self.kept_of(MODEL_OWNER, data_owner)} if learns else {}
        return self._new(
            f"{MODEL_OWNER}/{data_owner}", kind, peer=data_owner, terms=self._terms, patience=PATIENCE,
            quota=self._quota, spent=self.spent.get((MODEL_OWNER, data_owner), Spent()), **more,
        )  # fmt: skip

    def kept_of(self, owner: str, data_owner: str) -> KeptRecord:
        name = f"{owner}/kept/{data_owner}"
        if name not in self.machines:
            brought = {} if self._kept is None else {"terms_digest": self._kept, "last": BROUGHT}
            self.make(name, Making(KeptRecord, brought))
        found: KeptRecord = self.machines[name]
        return found

    def _deal_for(self, data_owner: str, session: bytes, now: float) -> Any:
        return self._new(
            f"{DEALER}/{data_owner}", InferenceDealer, name=DEALER, data_owner=data_owner, session=session,
            patience=PATIENCE,
        )  # fmt: skip

    def come_to_dealer(self, owner: str, data_owner: str = DATA_OWNER) -> None:
        """An owner, which has agreed on terms, says hello to the dealer."""
        own = f"{MODEL_OWNER}/{data_owner}" if owner == MODEL_OWNER else owner
        agreed = [output for name, output in self.outputs if name == own and isinstance(output, Agreed)][-1]
        name = f"{owner}/{DEALER}/{data_owner}"
        self._new(name, MaterialOwner, name=owner, dealer=DEALER, agreed=agreed, patience=PATIENCE)
        self.act(name, "start")

    def drop(self, party: str, peer: str) -> None:
        """A party learns that its link to a peer is lost for good."""
        detail = "its link was lost"
        if party in self.services:
            self._named(party, self.services[party].drop(peer, detail, self.now))
        elif peer == DEALER:
            self.act(f"{party}/{DEALER}/{party}", "drop", detail=detail)
        else:
            self.act(party, "drop", detail=detail)

    def give_up(self, name: str, code: Code, culprit: str) -> None:
        """A machine ends its exchange for a reason that lies elsewhere."""
        self.act(name, "give_up", error=RemoteProtocolError(code, "it cannot go on", culprit=culprit))

    def answers(self, parcel: Parcel, frames: Sequence[bytes]) -> list[tuple[str, list[Output]]]:
        sender, receiver = parcel.sender, parcel.receiver
        if sender == DEALER:
            return [(name, self.feed(name, parcel, frames)) for name in self._meant(receiver, frames)]
        if receiver in (MODEL_OWNER, DEALER) and (self._terms is not None or receiver == DEALER):
            return self._named(receiver, self.services[receiver].feed(sender, list(frames), self.now), told=False)
        return super().answers(parcel, frames)

    def _named(self, party: str, answers: Any, *, told: bool = True) -> list[tuple[str, list[Output]]]:
        """The outputs of machines of a service, with the names of these."""
        found = []
        for machine, outputs in answers:
            name = next(name for name, made in self.machines.items() if made is machine)
            found.append((name, outputs))
            if told:
                self.sent(name, outputs)
        return found

    def _meant(self, party: str, frames: Sequence[bytes]) -> list[str]:
        """Whom a message of the dealer is for: the session says which; one that cannot be read is for all."""
        own = [name for name in self.machines if name.startswith(f"{party}/{DEALER}/")]
        with suppress(RemoteProtocolError):
            session = decode(frames, INFERENCE_MESSAGES).envelope.session
            return [name for name in own if self.machines[name].session == session]
        return own

    def sent(self, name: str, outputs: Any) -> None:
        for output in outputs:
            if isinstance(output, Charged):
                owner = MODEL_OWNER if name.startswith(f"{MODEL_OWNER}/") else name
                self.spent[owner, output.peer] = output.spent
        super().sent(name, outputs)

    def ended(self) -> list[tuple[str, str | None, str]]:
        """Machine, code and culprit of every session that is over, in order."""
        return [
            (name, None if output.code is None else output.code.name, output.culprit)
            for name, output in self.outputs
            if isinstance(output, InferenceEnded)
        ]
