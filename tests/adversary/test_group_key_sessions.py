"""Group keys within a session: a server that lies about attempts, epochs and models, and members that cheat in one.

Whatever the server says, a client uses a key only with exactly those who agreed on it, only as often as agreed, and
none that was called off; a member that breaks a rule is named and barred, and the others get a key without it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tacit.protocol.core.blob import NO_BLOB, announce
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import CHUNK_BYTES, Abort, Blob, Chunk, Fetch, Message
from tacit.protocol.core.roster import encode_members
from tacit.protocol.group_key.agreement import PACKET_BYTES, SEALED_BYTES
from tacit.protocol.group_key.events import GroupKeyReceived, KeyAgreementFailed
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    EndKey,
    KeyAccepted,
    KeyCommit,
    KeyComplaint,
    KeyContribution,
    KeyedModel,
    PeerKeyCommits,
    PeerKeyConfirmations,
    ReencryptModel,
    StartKey,
)
from tacit.protocol.group_key.states import KeyLabel
from tacit.protocol.session.messages import MESSAGES, StartRound
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.messages import MaskedInput
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

CLIENT = "client-0"
"""The victim of the server, and the member that cheats; it is also the one that provides the model."""
CLIENTS = 4


def federation(rounds: int = 2, policies: Any = None, **changes: Any) -> MemoryFederation:
    settings = {"encrypted": True, "group_key": True, "initial_model": "clients"} | changes
    configuration = small_configuration(CLIENTS, **settings)
    return MemoryFederation(configuration, CLIENTS, rounds=rounds, policies=policies or {})


def remake(message: Message, **fields: Any) -> Any:
    return type(message)(**{name: getattr(message, name) for name in message.__struct_fields__} | fields)


def flip(data: bytes, at: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


def stopped_before(kind: type[Message], nth: int = 1, **changes: Any) -> MemoryFederation:
    """A federation in which nothing reaches the victim from its nth message of that kind on; chunks are those outside
    of rounds."""
    one = federation(**changes)
    held: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        packet = parcel.packet
        here = packet.kind is kind and not (kind in (Fetch, Chunk) and packet.envelope.round)
        if parcel.receiver != CLIENT or (not here and len(held) < nth):
            return [parcel]
        if here:
            held.append(parcel)
        return [parcel] if len(held) < nth else []

    one.hook = hook
    one.start()
    one.settle(until=1.0)
    assert len(held) >= nth
    return one


def refused(one: MemoryFederation, message: Message, code: Code, text: str, payload: Any = None) -> None:
    """The victim hears this, ends the session for that reason, says so and forgets its keys."""
    client = one.clients[CLIENT]
    holder: Any = client.holder
    transmitted, ended = one.put(one.forge(SERVER, CLIENT, message, round=0, payload=payload))
    assert isinstance(ended, Ended)
    assert ended.code is code, ended
    assert text in ended.detail
    abort = decode(transmitted.frames, MESSAGES).parse()
    assert isinstance(abort, Abort)
    assert (abort.code, abort.culprit) == (code, SERVER)
    assert (holder._keys, holder.attempt, client.next_deadline) == ({}, None, None)


START = {"epoch": 0, "members": bitmap(0, 1, 2, 3)}


@pytest.mark.threat("server/group-key-membership")
@cases(
    ("fields", "policy", "code", "text"),
    [
        ({"members": bitmap(1, 2, 3)}, Policy(), Code.MEMBERS, "not a member of the group"),
        ({"members": bitmap(0, 1)}, Policy(), Code.POLICY, "cohort = 2; this client's policy accepts 3 to 4 clients"),
        ({"members": bitmap(0, 1, 2)}, Policy(smallest_cohort=4), Code.POLICY, "cohort = 3"),
        ({"members": b"\xff"}, Policy(), Code.MEMBERS, "bits"),
        ({"members": b"\x0f\x00"}, Policy(), Code.MEMBERS, ""),
    ],
)
def test_a_group_below_the_policy_or_without_the_client_is_refused(
    fields: Any, policy: Policy, code: Code, text: str
) -> None:
    one = stopped_before(StartKey, policies={CLIENT: policy})
    refused(one, StartKey(**(START | fields)), code, text)
    assert KeyCommit not in {parcel.packet.kind for parcel in one.log if parcel.sender == CLIENT}


@pytest.mark.threat("server/group-key-reuse")
def test_an_epoch_is_begun_once_and_ends_when_it_is_called_off() -> None:
    # Also one that was called off.
    for ended in [False, True]:
        one = stopped_before(StartKey, nth=2, rekey_every=1)
        if ended:
            end = EndKey(epoch=0, code=Code.LEFT, detail="", culprit="")
            assert one.put(one.forge(SERVER, CLIENT, end, round=0)) == []
        refused(one, StartKey(**START), Code.SESSION, "epoch 0 of the group key is begun a second time")

    one = stopped_before(ReencryptModel, nth=2, rekey_every=1)
    holder: Any = one.clients[CLIENT].holder
    assert set(holder._keys) == {0, 1}
    assert one.put(one.forge(SERVER, CLIENT, EndKey(epoch=1, code=Code.LEFT, detail="", culprit=""), round=0)) == []
    assert set(holder._keys) == {0}

    for epoch in [1, 7]:
        one = stopped_before(StartKey, nth=2, rekey_every=1)
        end = EndKey(epoch=epoch, code=Code.LEFT, detail="", culprit="")
        refused(one, end, Code.SESSION, f"epoch {epoch} of the group key is not the latest one")


@pytest.mark.threat("server/group-key-reuse")
@cases(
    ("situation", "cohort", "text"),
    [
        ("no key yet", (0, 1, 2, 3), "have not agreed on a group key"),
        ("called off", (0, 1, 2, 3), "have not agreed on a group key"),
        ("being agreed on", (0, 1, 2, 3), "have not agreed on a group key"),
        ("to encrypt the model", (0, 1, 2, 3), "have not agreed on a group key"),
        ("other members", (0, 1, 2), "agreed with other members"),
        ("used up", (0, 1, 2, 3), "used in 1 rounds and must be renewed"),
    ],
)
def test_a_round_without_a_key_of_its_cohort_is_refused(situation: str, cohort: tuple[int, ...], text: str) -> None:
    one = {
        "no key yet": lambda: stopped_before(StartKey),
        "being agreed on": lambda: stopped_before(PeerKeyCommits),
        "to encrypt the model": lambda: stopped_before(Chunk, initial_model="server"),
        "called off": lambda: stopped_before(StartRound, nth=2),
        "other members": lambda: stopped_before(StartRound, nth=2),
        "used up": lambda: stopped_before(StartKey, nth=2, rekey_every=1),
    }[situation]()
    if situation == "called off":
        one.put(one.forge(SERVER, CLIENT, EndKey(epoch=0, code=Code.LEFT, detail="", culprit=""), round=0))
    client = one.clients[CLIENT]
    assert client.state is TrainingState.AWAIT_ROUND
    number, before = client.round + 1, len(one.outcome(Train, CLIENT))
    model = np.full(10, 0.5, "<f4").tobytes()
    start = StartRound(cohort=bitmap(*cohort), model=announce(model, SumLabel.MODEL))
    outputs = one.put(one.forge(SERVER, CLIENT, start, round=number))
    (over,) = [output for output in outputs if isinstance(output, RoundOver)]
    assert (over.round, over.code) == (number, Code.KEYS)
    assert text in over.detail
    one.settle(until=one.now + 1)
    assert len(one.outcome(Train, CLIENT)) == before
    inputs = [parcel for parcel in one.log if parcel.sender == CLIENT and parcel.packet.kind is MaskedInput]
    assert len(inputs) == client.round - (client.round == number)


OTHER = Blob(digest=bytes(32), size=40)
ORDER = {"epoch": 1, "source": "key", "former": 0, "model": OTHER, "round": 0}


@pytest.mark.threat("server/group-key-oracle")
def test_a_model_is_encrypted_only_as_agreed() -> None:
    # Least of all one that the server knows in the clear, where clients make the first.
    for fields, code, text in [
        ({"epoch": 0}, Code.MODEL, "for another key"),
        ({"epoch": 2}, Code.MODEL, "for another key"),
        ({"model": structs.replace(OTHER, size=0)}, Code.MODEL, "another length"),
        ({"model": structs.replace(OTHER, size=44)}, Code.MODEL, "another length"),
        ({"source": "clients"}, Code.MODEL, "another length"),
        ({"source": "remembered"}, Code.MODEL, "another length"),
        ({"former": 7}, Code.KEYS, "does not hold the key of epoch 7"),
        ({"source": "server"}, Code.MODEL, "the first model is to come from server"),
    ]:
        one = stopped_before(ReencryptModel, nth=2, rekey_every=1)
        refused(one, ReencryptModel(**(ORDER | fields)), code, text)

    for message in [ReencryptModel(**(ORDER | {"epoch": 0, "source": "server"})), KeyedModel(epoch=0, model=OTHER)]:
        one = stopped_before(StartRound, encrypted=False, initial_model="server")
        refused(one, message, Code.UNEXPECTED, "not encrypted")

    # Once a round has begun, no model under an older key is decrypted any more.
    one = stopped_before(ReencryptModel, nth=3, rekey_every=1, rounds=3)
    refused(one, ReencryptModel(**(ORDER | {"epoch": 2, "former": 0})), Code.KEYS, "not hold the key of epoch 0")


LONG = CHUNK_BYTES // 4 + 3
"""Parameters of a model of two chunks."""
SWAPS: dict[str, tuple[int, Callable[[bytes], bytes], str]] = {
    "another model": (0, lambda chunk: flip(chunk), "is not what was announced"),
    "a byte less": (0, lambda chunk: chunk[:-1], "does not have"),
    "out of order": (1, lambda chunk: chunk[:12], "where chunk 0 of 2 was due"),
    "beyond the end": (7, lambda chunk: chunk, "where chunk 0 of 2 was due"),
}


@pytest.mark.threat("server/keyed-model-swapped")
def test_a_model_other_than_announced_is_refused() -> None:
    # The one to encrypt anew, and the last one.
    for last in [False, True]:
        for swap in SWAPS:
            changes = {"initial_model": "clients" if last else "server", "parameters": LONG, "rounds": 1}
            one = stopped_before(Chunk, **changes)
            number, change, text = SWAPS[swap]
            size = CHUNK_BYTES if swap != "out of order" else 12
            payload = change(one.model[:size])
            before = list(one.outputs)
            if swap == "another model":  # It shows at the end.
                one.put(one.forge(SERVER, CLIENT, Chunk(chunk=0), round=0, payload=payload))
                number, payload = 1, one.model[CHUNK_BYTES:]
            code = Code.UNEXPECTED if "order" in swap or "beyond" in swap else Code.MODEL
            refused(one, Chunk(chunk=number), code, text, payload)
            assert all(isinstance(output, Ended | Event) for _, output in one.outputs[len(before) :])

    one = stopped_before(ReencryptModel, initial_model="server")
    model = np.full(10, np.nan, "<f4").tobytes()
    order = ReencryptModel(epoch=0, source="server", former=0, model=announce(model, SumLabel.MODEL), round=0)
    one.put(one.forge(SERVER, CLIENT, order, round=0))
    refused(one, Chunk(chunk=0), Code.MODEL, "not finite", model)

    for fields in [{"epoch": 1}, {"model": Blob(digest=bytes(32), size=36)}, {"model": NO_BLOB}]:
        one = stopped_before(KeyedModel, rounds=1)
        offer = {"epoch": 0, "model": OTHER} | fields
        refused(one, KeyedModel(**offer), Code.MODEL, "under another key, or has another length")


@pytest.mark.threat("server/keyed-model-swapped")
@cases("chunks", [(1,), (0, 0), (0, 2), (0, 1, 2)])
def test_every_chunk_of_a_provided_model_goes_out_once(chunks: tuple[int, ...]) -> None:
    one = stopped_before(Fetch, parameters=LONG)
    *right, wrong = chunks
    for chunk in right:
        (output,) = one.put(one.forge(SERVER, CLIENT, Fetch(chunk=chunk), round=0))
        assert decode(output.frames, MESSAGES).kind is Chunk
    text = "asks for chunk" if chunks != (0, 1, 2) else "not expected"
    refused(one, Fetch(chunk=wrong), Code.UNEXPECTED, text)


@pytest.mark.threat("server/group-key-split")
@cases(
    "lie",
    [{"epoch": 5}, {"members": bitmap(0, 1, 2)}, {"members": bitmap(0, 2, 3)}],
)
def test_members_that_were_told_other_members_or_epochs_send_no_contribution(lie: dict[str, Any]) -> None:
    """The server collects what all commit to, and passes it on to all as if they were in one group."""
    one = federation()
    commits: dict[str, KeyCommit] = {}

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver == CLIENT and isinstance(parcel.message, StartKey):
            return [altered(parcel, message=remake(parcel.message, **lie))]
        if isinstance(message := parcel.message, KeyCommit):
            commits[parcel.sender] = message
            return []
        return [parcel]

    one.hook = hook
    one.start()
    assert set(commits) == set(one.roster.clients)
    for name in one.roster.clients:
        group = lie.get("members", b"\x0f") if name == CLIENT else b"\x0f"
        members = [other for place, other in enumerate(one.roster.clients) if group[0] >> place & 1]
        records = [commits[m].channel_key + commits[m].commitment + commits[m].signature for m in members]
        one.put(one.forge(SERVER, name, PeerKeyCommits(commits=b"".join(records)), round=0))
    one.advance()
    assert [one.ended(name).code for name in one.roster.clients] == [Code.SIGNATURE] * CLIENTS  # type: ignore[union-attr]
    assert KeyContribution not in {parcel.packet.kind for parcel in one.log}
    assert one.outcome(GroupKeyReceived) == []


Cheat = Callable[[MemoryFederation, Parcel], Any]


def attempt_of(one: MemoryFederation) -> Any:
    return one.clients[CLIENT].holder.attempt  # type: ignore[union-attr]


def other_contribution(one: MemoryFederation, parcel: Parcel) -> Any:
    member = attempt_of(one)
    packet = member.data.transcript.packet(member.data.channel, one.signing[CLIENT], bytes(32), owner=0, holder=1)
    said: Any = parcel.message
    return remake(said, packets=packet + said.packets[PACKET_BYTES:])


def noise(one: MemoryFederation, parcel: Parcel) -> Any:
    place = [place.to_bytes(2, "little") for place in (0, 1)]
    sealed = bytes(SEALED_BYTES)
    signature = one.signing[CLIENT].sign(
        KeyLabel.SIGN_CONTRIBUTION, attempt_of(one).data.transcript.digest, *place, sealed
    )
    said: Any = parcel.message
    return remake(said, packets=sealed + signature + said.packets[PACKET_BYTES:])


def other_confirmation(one: MemoryFederation, parcel: Parcel) -> Any:
    record = attempt_of(one).data.transcript.confirmation(b"another", one.signing[CLIENT], 0)
    return ConfirmKey(epoch=0, tag=record[:32], signature=record[32:])


def complaint(accused: int, private: bytes | None = None) -> Cheat:
    def make(one: MemoryFederation, parcel: Parcel) -> Any:
        return KeyComplaint(epoch=0, accused=accused, channel_private=private or attempt_of(one).data.channel.private)

    return make


def said(**fields: Any) -> Cheat:
    return lambda one, parcel: remake(parcel.message, **{
        name: change(getattr(parcel.message, name)) if callable(change) else change for name, change in fields.items()
    })  # fmt: skip


def with_payload(change: Callable[[bytes], bytes]) -> Cheat:
    return lambda one, parcel: altered(parcel, payload=change(bytes(parcel.packet.payload)))  # type: ignore[arg-type]


CHEATS: dict[str, tuple[type[Message], Cheat, Code]] = {
    "commitment": (KeyCommit, said(commitment=flip), Code.SIGNATURE),
    "epoch to come": (KeyCommit, said(epoch=3), Code.SESSION),
    "accepted in an epoch to come": (KeyAccepted, said(epoch=1), Code.SESSION),
    "bent packet": (KeyContribution, said(packets=lambda p: flip(p, SEALED_BYTES)), Code.SIGNATURE),
    "packet less": (KeyContribution, said(packets=lambda p: p[PACKET_BYTES:]), Code.SHARES),
    "tag": (ConfirmKey, said(tag=flip), Code.SIGNATURE),
    "too early": (KeyCommit, lambda one, parcel: KeyAccepted(epoch=0), Code.UNEXPECTED),
    "contribution": (KeyContribution, other_contribution, Code.SECRET),
    "noise": (KeyContribution, noise, Code.SHARES),
    "confirmation": (ConfirmKey, other_confirmation, Code.SECRET),
    "complaint": (ConfirmKey, complaint(2), Code.SHARES),
    "unfounded": (KeyAccepted, complaint(2, b"\1" * 32), Code.KEYS),
    "complaint of itself": (ConfirmKey, complaint(0), Code.MEMBERS),
    "other key": (KeyedModel, said(epoch=1), Code.MODEL),
    "other length": (KeyedModel, said(model=lambda model: structs.replace(model, size=36)), Code.MODEL),
    "other model": (Chunk, with_payload(flip), Code.MODEL),
    "short chunk": (Chunk, with_payload(lambda chunk: chunk[:-4]), Code.MODEL),
    "other chunk": (Chunk, said(chunk=1), Code.UNEXPECTED),
    "chunk fetched out of turn": (Fetch, said(chunk=1), Code.UNEXPECTED),
}  # fmt: skip


def named_and_barred(one: MemoryFederation, code: Code) -> None:
    """The cheat is out with the reason and stays out; the others got another key, and their rounds are exact."""
    failed = [(event.epoch, event.code, event.by) for event in one.outcome(KeyAgreementFailed, SERVER)]
    assert failed == [(0, code.name, [CLIENT])]
    assert one.server.presence.barred == {CLIENT}
    ended = one.ended(CLIENT)
    assert ended is not None
    assert ended.code is code
    others = one.roster.clients[1:]
    done = one.outcome(RoundDone)
    assert [round.survivors for round in done] == [others] * 2
    for round in done:
        np.testing.assert_array_equal(round.total, one.plain_sum(round))
    keys = {train.key for train in one.outcome(Train)}
    assert [(key.epoch, key.members) for key in keys if key] == [(1, others)]


@pytest.mark.threat(
    "client/group-key-malformed",
    "client/group-key-contribution",
    "client/group-key-confirmation",
    "client/group-key-frames",
    "client/keyed-model",
)
@cases("case", CHEATS)
def test_a_member_that_cheats_is_named_and_the_others_get_a_key(case: str) -> None:
    kind, cheat, code = CHEATS[case]
    one = federation(initial_model="server")
    cheated: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        message: Any = parcel.message
        if cheat is other_confirmation and isinstance(message, PeerKeyConfirmations) and parcel.receiver == CLIENT:
            honest: Any = cheated[0].message  # What this client expects there.
            own = honest.tag + honest.signature
            return [altered(parcel, message=remake(message, confirmations=own + message.confirmations[len(own) :]))]
        in_round = kind in (Fetch, Chunk) and parcel.packet.envelope.round
        if (parcel.sender, parcel.packet.kind) != (CLIENT, kind) or cheated or in_round:
            return [parcel]
        cheated.append(parcel)
        lie = cheat(one, parcel)
        return [lie if isinstance(lie, Parcel) else altered(parcel, message=lie)]

    one.hook = hook
    one.run()
    assert cheated
    named_and_barred(one, code)


@pytest.mark.threat("client/keyed-model")
def test_a_provided_model_that_is_not_finite_is_refused() -> None:
    one = federation()
    one.idle = {CLIENT}
    one.start()
    model = np.full(10, np.inf, "<f4").tobytes()
    one.emit(CLIENT, one.clients[CLIENT].provide(0, model, one.now))
    one.settle()
    named_and_barred(one, Code.MODEL)


@pytest.mark.threat("client/group-key-malformed")
@cases("barred", [False, True])
def test_who_is_no_member_of_an_attempt_does_not_end_it(barred: bool) -> None:
    """One that joined too late for it: what it says is without effect; if it is no message, it is barred."""
    one = federation(rounds=1)
    commits: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.packet.kind) == ("client-1", KeyCommit) and not commits:
            commits.append(parcel)
            one.start_client(CLIENT)
            one.put(one.network.pull(CLIENT, SERVER))
            stray = one.forge(CLIENT, SERVER, parcel.message, round=0)
            one.put(replace(stray, frames=(stray.frames[0], b"\xc1")) if barred else stray)
        return [parcel]

    one.hook = hook
    one.start(*one.roster.clients[1:])
    one.settle()
    assert commits
    assert one.outcome(KeyAgreementFailed, SERVER) == []
    assert (CLIENT in one.server.presence.barred) == barred
    assert one.outcome(RoundDone)[0].survivors == one.roster.clients[1:]
