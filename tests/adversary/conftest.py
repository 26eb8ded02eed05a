"""What the cheats of this folder are played with: fixtures of other folders, and a deceived federation."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import AgreementKey, Label, derive
from tacit.protocol.core.roster import encode_members
from tacit.protocol.session.rounds import RoundDone, RoundOver
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.agreement import pairwise_mask
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskedInput,
    PeerKeys,
    PeerShares,
    Survivors,
    UnmaskRequest,
)
from tacit.protocol.sum.sharing import Returned, open_secrets
from tacit.protocol.sum.states import ClientState, SumLabel
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.simulate.world.federation import PATIENCE, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.parties import conftest as _parties
from tests.protocol import conftest as _protocol
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

# Members with keys, and a whole small federation, on real sockets.
keys, roster, until = _parties.keys, _parties.roster, _parties.until
federation, protected = _parties.federation, _parties.protected

# What every secure sum must satisfy, whoever cheats.
audit, summed, opened, spoil = _protocol.audit, _protocol.summed, _protocol.opened, _protocol.spoil
listed, opened_shares = _protocol.listed, _protocol.opened_shares
plain_message = _protocol.plain_message

VICTIM = "client-0"


class DeceivedFederation(MemoryFederation):
    """A federation whose server says something else than the protocol in its first round, to client-0 or to all."""

    def tell(
        self,
        kind: type[Message],
        *,
        to: Sequence[str] = (VICTIM,),
        message: Callable[[Any], Message] | None = None,
        payload: bytes | None = None,
        **fields: Any,
    ) -> Self:
        """Replace every message of that kind: by what `message` makes of it, or with other fields or another payload.

        May be called several times for several lies.
        """
        said_so_far = self.hook

        def change(said: Message) -> Message:
            return type(said)(**{name: getattr(said, name) for name in said.__struct_fields__} | fields)

        def hook(parcel: Parcel) -> list[Parcel]:
            return [
                altered(said, message=(message or change)(said.message), payload=payload)
                if said.receiver in to and said.packet.kind is kind
                else said
                for said in said_so_far(parcel)
            ]

        self.hook = hook
        return self

    def deceive(self) -> Self:
        """Run the first round with the lies, short of where the clients lose their patience with the server."""
        self.paused = True
        self.start()
        return self.settle(until=PATIENCE / 2)

    @property
    def victim_over(self) -> RoundOver:
        """How the one round that the victim was asked to join ended for it."""
        (over,) = self.outcome(RoundOver, VICTIM)
        return over

    @property
    def victim_ended(self) -> Ended:
        found = self.ended(VICTIM)
        assert found is not None
        return found

    def restart(self) -> None:
        """The server loses everything but the model and starts again; the clients are started with their journals."""
        self.hook = lambda parcel: [parcel]
        self.start_server()
        self.start()

    def check_honest_round(self) -> None:
        """The server returns to the protocol: a round is run with everybody, and its sum is exact.

        It is the next but one: whoever refused the last is left out of the next.

        Clients that left, or were told of another configuration, are started again by their operators; so are all, and
        the server, where it lied so much that it did not understand an honest answer and barred its sender.
        """
        self.hook = lambda parcel: [parcel]
        if self.outcome(MessageRefused, SERVER) or self.server.presence.barred:
            self.restart()
        for name, client in list(self.clients.items()):
            if client.state is TrainingState.ENDED or client.configuration != self.configuration:
                self.start_client(name)
        self.advance()
        self.paused, self.rounds_left = False, 3
        self.settle()
        done = self.outcome(RoundDone)[-1]
        assert done.survivors == self.roster.clients
        np.testing.assert_array_equal(done.total, self.plain_sum(done))
        assert self.ended(SERVER) == Ended(None, "all rounds are done")


@pytest.fixture
def deceived() -> Callable[..., DeceivedFederation]:
    """deceived(clients=5, policies=..., **configuration): a federation to be lied to."""

    def make(clients: int = 5, policies: Any = None, **configuration: Any) -> DeceivedFederation:
        return DeceivedFederation(small_configuration(clients, **configuration), clients, policies=policies or {})

    return make


class Touch:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._path,)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[bytes]:
    """A pickle that creates a file; checked afterwards that nobody had unpickled it, and that it would have worked."""
    created = tmp_path / "created"
    pickled = pickle.dumps(Touch(created))
    yield pickled
    assert not created.exists()
    pickle.loads(pickled)
    assert created.exists()


class LyingServer:
    """Speaks to the clients of a secure sum in the place of its server, and keeps everything that they say to it."""

    def __init__(self, run: MemorySum) -> None:
        """Takes over when every client has sent its masked vector."""
        run.start()
        states = (ClientState.AWAIT_SURVIVORS, ClientState.ABORTED)
        assert run.advance(lambda: all(client.state in states for client in run.clients.values()))
        self.run = run
        self._heard: list[Message] = []
        run.hook = self._keep
        run.advance()

    def _keep(self, delivery: Delivery) -> list[Delivery]:
        if delivery.receiver != self.run.agreement.server:
            return [delivery]
        self.run.log.append(delivery)
        self._heard.append(delivery.message)
        return []

    def say(self, name: str, message: Message) -> list[Message]:
        self._heard = []
        self.run.deliver(Delivery(self.run.agreement.server, name, message, None))
        self.run.advance()
        return self._heard

    def split(self, told: Mapping[str, bytes]) -> None:
        """Tell clients who survived (a bitmap by client), and pass on to each every signature that fits.

        In active mode all sign what they were told, and are then asked to unmask it by those of their neighbours who
        were told the same.
        """
        agreement, signatures = self.run.agreement, dict[int, bytes]()
        if agreement.active:
            for name, survivors in told.items():
                for answer in self.say(name, Survivors(survivors=survivors)):
                    if isinstance(answer, ConfirmSurvivors):
                        signatures[agreement.places[name]] = answer.signature
        for name, survivors in told.items():
            known, alive = (listed(bitmap, agreement.size) for bitmap in (self._keys_told(name).included, survivors))
            signers = [
                member
                for member, signature in sorted(signatures.items())
                if member in known and member in alive and told[agreement.cohort[member]] == survivors
            ]
            self.say(
                name,
                UnmaskRequest(
                    survivors=survivors,
                    signers=encode_members(signers, agreement.size),
                    signatures=b"".join(signatures[signer] for signer in signers),
                    answered=encode_members((), agreement.size),
                    answers=b"",
                ),
            )

    def _keys_told(self, name: str) -> PeerKeys:
        return next(d.message for d in self.run.log if d.receiver == name and isinstance(d.message, PeerKeys))


def opened_secrets(run: MemorySum, label: Label) -> dict[int, bytes]:
    """Secrets of a kind of which the threshold of shares left their holders, by owner."""
    shares = {owner: kinds[label] for owner, kinds in opened_shares(run).items()}
    returned = by_holder(shares)
    return {owner: secret for owner, secret in open_secrets(run.agreement, returned).items() if secret is not None}


def by_holder(shares: Mapping[int, Mapping[int, bytes]]) -> dict[int, Returned]:
    """Shares by owner and holder, as their holders return them."""
    given: dict[int, dict[int, bytes]] = {}
    for owner in sorted(shares):
        for holder, share in shares[owner].items():
            given.setdefault(holder, {})[owner] = share
    return {holder: Returned(tuple(own), b"".join(own.values())) for holder, own in given.items()}


def unmasked_vectors(run: MemorySum, mask_keys: Mapping[int, bytes] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Every client's vector without the masks that the server can take off, knowing all that was said in the sum.

    The server reconstructs every secret of which the threshold of shares left their holders. A self mask falls with its
    seed, a mask between two clients with the mask key of either. mask_keys: private ones that it has from elsewhere, by
    owner.
    """
    agreement, seeds = run.agreement, opened_secrets(run, SumLabel.SEED_SHARE)
    private = {**opened_secrets(run, SumLabel.KEY_SHARE), **(mask_keys or {})}
    keys = {owner: AgreementKey(secret) for owner, secret in private.items()}
    public = {agreement.places[d.sender]: d.message.mask_key for d in run.log if isinstance(d.message, AdvertiseKeys)}
    told: dict[str, dict[type[Message], Any]] = {name: {} for name in agreement.cohort}
    for delivery in run.log:
        if delivery.receiver in told:
            told[delivery.receiver].setdefault(type(delivery.message), delivery.message)
    vectors = {}
    for delivery in run.log:
        if not isinstance(delivery.message, MaskedInput) or delivery.payload is None:
            continue
        name, member = delivery.sender, agreement.places[delivery.sender]
        keys_told, shares_told = told[name][PeerKeys], told[name][PeerShares]
        salt = run.clients[name].agreement.sharing_digest(keys_told.digest, shares_told.sharers)
        masks = []
        if member in seeds:
            masks.append(Mask(derive(seeds[member], SumLabel.SELF_SEED, salt=salt), Usage.SELF_MASK, 1))
        for peer in set(listed(keys_told.included, agreement.size)) & set(listed(shares_told.sharers, agreement.size)):
            if peer != member and (member in keys or peer in keys):
                key, other = (keys[member], public[peer]) if member in keys else (keys[peer], public[member])
                masks.append(pairwise_mask(key, other, salt, member, peer))
        words = agreement.ring.unpack(delivery.payload).copy()
        apply_masks(
            words, [Mask(mask.seed, mask.usage, 1 if mask.sign == -1 else -1) for mask in masks], agreement.ring
        )
        vectors[name] = words
    return vectors


def revealed(run: MemorySum) -> list[tuple[str, ...]]:
    """The sets of clients whose plain sum the server can compute; every set of a small cohort is tried."""
    vectors = unmasked_vectors(run)
    found = []
    for size in range(1, len(vectors) + 1):
        for names in combinations(vectors, size):
            total = np.zeros(run.agreement.length, run.agreement.ring.word)
            for name in names:
                run.agreement.ring.add_into(total, vectors[name])
            if np.array_equal(total, run.plain_sum(names)):
                found.append(tuple(sorted(names)))
    return found


def next_round(run: MemorySum) -> MemorySum:
    """The following round of the same members, run honestly to its end."""
    agreement = replace(run.agreement, round=run.agreement.round + 1)
    following = MemorySum(agreement, run.signing, run.vectors, run.streams)
    following.run()
    return following


def check_next_round(run: MemorySum) -> None:
    """After the lie an honest round with the same members, hence new keys, is exact and includes everybody."""
    following = next_round(run)
    (outcome,) = following.outcome(Summed)
    assert outcome.survivors == run.agreement.cohort
    np.testing.assert_array_equal(outcome.total, following.plain_sum(outcome.survivors))


class Sums:
    """Secure sums whose server lies, and what it gets from them."""

    Server = LyingServer
    unmasked_vectors = staticmethod(unmasked_vectors)
    revealed = staticmethod(revealed)
    next_round = staticmethod(next_round)
    check_next_round = staticmethod(check_next_round)

    @staticmethod
    def refused(
        kind: type[Message],
        change: Callable[[MemorySum, Any], Message],
        code: Code,
        text: str,
        modes: Sequence[bool] = (True, False),
        gone: str = "",
    ) -> None:
        """c0 of five is told `change` of the server's honest message: it ends the round and says no more.

        The others lose nothing. modes: active or not; gone: c4 drops out before it sends a message of that type.
        """
        for active in modes:
            run = memory_sum(5, active=active, seed=b"lies")
            hook = _Lie(run, kind, change, gone)
            run.hook = hook
            run.run()
            assert hook.told
            (aborted,) = run.outcome(ClientAborted, "c0")
            assert aborted.code is code
            assert text in aborted.detail
            assert aborted.culprit == "server"
            position = next(i for i, d in enumerate(run.log) if d.receiver == "c0" and isinstance(d.message, kind))
            assert [delivery.kind for delivery in run.log[position:] if delivery.sender == "c0"] == ["abort"]
            # With c4 gone too, an active sum of five has one client too few.
            outcome = _protocol.check(run)
            assert isinstance(outcome, ServerAborted if gone and active else Summed)
            assert revealed(run) == ([outcome.survivors] if isinstance(outcome, Summed) else [])
            check_next_round(run)


@dataclass
class _Lie:
    run: MemorySum
    kind: type[Message]
    change: Callable[[MemorySum, Any], Message]
    gone: str
    told: bool = False

    def __call__(self, delivery: Delivery) -> list[Delivery]:
        if delivery.sender == "c4" and delivery.kind == self.gone:
            self.run.kill("c4")
            return []
        if delivery.receiver != "c0" or not isinstance(delivery.message, self.kind):
            return [delivery]
        message = self.change(self.run, delivery.message)
        assert message != delivery.message
        self.told = True
        return [replace(delivery, message=message)]


@pytest.fixture(scope="session")
def sums() -> type[Sums]:
    return Sums


class Cheats:
    """Secure sums among c0 to c4 in which c1, or others too, say something else than the protocol."""

    @staticmethod
    def play(
        active: bool, kind: type[Message], change: Callable[[MemorySum, Any], Any], by: Sequence[str] = ("c1",)
    ) -> MemorySum:
        """A finished sum in which these clients sent `change` of their honest message of that type.

        change: returns a message, or a whole list of deliveries in its place.
        """
        run = memory_sum(5, active=active, seed=b"cheats")

        def hook(delivery: Delivery) -> list[Delivery]:
            if delivery.sender not in by or not isinstance(delivery.message, kind):
                return [delivery]
            said = change(run, delivery.message)
            return said if isinstance(said, list) else [replace(delivery, message=said)]

        run.hook = hook
        run.run()
        return run

    @staticmethod
    def caught(run: MemorySum, phase: str, code: Code, *members: str) -> None:
        """These members, by default c1, were excluded, named and told so; the next honest round is exact."""
        members = members or ("c1",)
        assert [(drop.member, drop.phase, drop.code) for drop in run.server.drops] == [
            (member, phase, code) for member in members
        ]
        told: dict[str, Any] = {d.receiver: d.message for d in run.log if (d.sender, d.kind) == ("server", "abort")}
        assert all((told[member].code, told[member].culprit) == (code, member) for member in members)
        check_next_round(run)


@pytest.fixture(scope="session")
def cheats() -> type[Cheats]:
    return Cheats
