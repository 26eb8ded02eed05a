"""A server that lies about sets of members: who shared, who survived, who signed; and that asks more than once."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.exchange import ClientAborted, Summed
from tacit.protocol.sum.messages import PeerKeys, PeerShares, Survivors, UnmaskRequest, UnmaskShares
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import ClientState, SumLabel
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Change = Callable[[MemorySum, Any], Message]
ExactSum = Callable[[MemorySum], Summed]
CLIENTS = 5
VICTIM = "c0"
ACTIVE, SEMI_HONEST = (True,), (False,)
EVERYBODY = (0, 1, 2, 3, 4)
modes = cases("active", [True, False])


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


def says(**values: bytes) -> Change:
    return lambda run, message: msgspec.structs.replace(message, **values)


def longer(field: str) -> Change:
    return lambda run, message: msgspec.structs.replace(message, **{field: getattr(message, field) + b"\0"})


def sharing(*members: int) -> Change:
    def change(run: MemorySum, message: PeerShares) -> PeerShares:
        packets = [message.packets[member * PACKET_BYTES : (member + 1) * PACKET_BYTES] for member in members]
        signed = run.agreement.split_signatures(message.signatures, decode_members(message.owners, CLIENTS))
        return PeerShares(
            sharers=bitmap(*members),
            owners=bitmap(*members),
            packets=b"".join(packets),
            signatures=b"".join(signed[member] for member in members),
        )

    return change


def withheld(run: MemorySum, message: PeerShares) -> Message:
    return msgspec.structs.replace(sharing(0, 1, 2, 3)(run, message), sharers=message.sharers)


def signed_by(*members: int) -> Change:
    def change(run: MemorySum, message: UnmaskRequest) -> UnmaskRequest:
        signatures = [message.signatures[64 * member : 64 * member + 64] for member in members]
        return msgspec.structs.replace(message, signers=bitmap(*members), signatures=b"".join(signatures))

    return change


def for_survivors(*row: Any) -> dict[str, tuple[Any, ...]]:
    """The same lie in the message that first names the survivors: Survivors in active mode, else UnmaskRequest."""
    change, code, text, *gone = row
    return {
        "to sign": (Survivors, change, code, text, ACTIVE, *gone),
        "to unmask": (UnmaskRequest, change, code, text, SEMI_HONEST, *gone),
    }


FOREIGN: dict[str, tuple[Any, ...]] = {
    "sharers who never advertised": (
        PeerShares, says(sharers=bitmap(*EVERYBODY)), Code.MEMBERS, "not among those who advertised", (True, False),
        "advertise-keys",
    ),
    "no sharer itself": (PeerShares, sharing(1, 2, 3, 4), Code.MEMBERS, "lack this client"),
    "owner without a packet": (PeerShares, withheld, Code.SHARES, "not those of the owners"),
    "packet without a sharer": (PeerShares, says(sharers=bitmap(0, 1, 2, 3)), Code.SHARES, "not those of"),
    "sharers too long": (PeerShares, longer("sharers"), Code.MEMBERS, "bytes"),
    **{
        f"{name}, {when}": row
        for name, rows in {
            "survivors who never shared": for_survivors(
                says(survivors=bitmap(*EVERYBODY)), Code.MEMBERS, "never shared", "share-keys"
            ),
            "itself dropped": for_survivors(says(survivors=bitmap(1, 2, 3, 4)), Code.MEMBERS, "as dropped"),
            "survivors too long": for_survivors(longer("survivors"), Code.MEMBERS, "bytes"),
            "survivors beyond the cohort": for_survivors(says(survivors=b"\x3f"), Code.MEMBERS, "beyond the 5"),
        }.items()
        for when, row in rows.items()
    },
    "other survivors than signed": (
        UnmaskRequest, says(survivors=bitmap(0, 1, 2, 3)), Code.MEMBERS, "not those that this client signed", ACTIVE,
    ),
    "signers who did not survive, and signed nothing": (
        UnmaskRequest, says(signers=bitmap(0, 1, 2, 4)), Code.SIGNATURE, "signature", ACTIVE, "masked-input",
    ),
    "signers in semi-honest mode": (
        UnmaskRequest, says(signers=bitmap(1)), Code.SIGNATURE, "in semi-honest mode", SEMI_HONEST,
    ),
    "signatures in semi-honest mode": (
        UnmaskRequest, says(signatures=bytes(64)), Code.SIGNATURE, "in semi-honest mode", SEMI_HONEST,
    ),
}  # fmt: skip


@pytest.mark.threat("server/foreign-survivors")
@pytest.mark.threat("server/below-threshold")
@pytest.mark.threat("server/suppresses-clients")
def test_lists_of_others_than_those_of_the_phase_before(sums: Any) -> None:
    for name in FOREIGN:
        sums.refused(*FOREIGN[name])

    for name in BELOW:
        sums.refused(*BELOW[name])

    for name in SUPPRESSING:
        sums.refused(*SUPPRESSING[name])


BELOW: dict[str, tuple[Any, ...]] = {
    "sharers, active": (PeerShares, sharing(0, 1, 2), Code.THRESHOLD, "only 3", ACTIVE),
    "sharers": (PeerShares, sharing(0, 1), Code.THRESHOLD, "only 2", SEMI_HONEST),
    "survivors, active": (
        Survivors,
        says(survivors=bitmap(0, 1, 2)),
        Code.THRESHOLD,
        "only 3 clients survived",
        ACTIVE,
    ),
    "survivors": (UnmaskRequest, says(survivors=bitmap(0, 1)), Code.THRESHOLD, "only 2", SEMI_HONEST),
    "signatures": (UnmaskRequest, signed_by(0, 1, 2), Code.THRESHOLD, "only 3 clients signed", ACTIVE),
    "no signatures": (UnmaskRequest, signed_by(), Code.THRESHOLD, "only 0 clients signed", ACTIVE),
}


SUPPRESSING: dict[str, tuple[Any, ...]] = {
    "no other sharer": (PeerShares, sharing(0), Code.THRESHOLD, "only 1"),
    **for_survivors(says(survivors=bitmap(0)), Code.THRESHOLD, "only 1 clients survived"),
}


@modes
@pytest.mark.threat("server/suppresses-clients")
@cases("survivors", [(0,), (0, 1), (0, 1, 2)])
def test_everybody_is_told_that_few_survived(survivors: tuple[int, ...], active: bool, sums: Any) -> None:
    # Those who count as dropped refuse as well, so that nobody is left to open a seed or a key.
    run = memory_sum(CLIENTS, active=active, seed=b"lies")
    server = sums.Server(run)
    server.split(dict.fromkeys(run.agreement.cohort, bitmap(*survivors)))
    enough = len(survivors) >= run.agreement.parameters.threshold
    assert sums.revealed(run) == ([("c0", "c1", "c2")] if enough else [])
    ended = {name for name, client in run.clients.items() if client.state is ClientState.ABORTED}
    assert ended == set(run.agreement.cohort[3 if enough else 0 :])
    sums.check_next_round(run)


def check_every_message_comes_twice(kind: str, active: bool, summed: ExactSum, sums: Any) -> None:
    # Where the client has more to say, the repetition ends the round for it; after its end it changes nothing.
    run = memory_sum(CLIENTS, active=active, seed=b"lies")
    run.hook = lambda d: [d, d] if (d.receiver, d.kind) == (VICTIM, kind) else [d]
    run.run()
    aborted = run.outcome(ClientAborted, VICTIM)
    if kind == "unmask-request" or (kind == "survivors" and not active):
        assert not aborted
    else:
        assert [(end.code, end.culprit) for end in aborted] == [(Code.UNEXPECTED, "server")]
    assert sums.revealed(run) == [summed(run).survivors]
    sums.check_next_round(run)


@pytest.mark.threat("server/asks-twice")
def test_nothing_is_answered_twice(summed: ExactSum, sums: Any) -> None:
    for active in [True, False]:
        run = memory_sum(CLIENTS, active=active, seed=b"lies")
        run.run()
        outcome = summed(run)
        again = next(d.message for d in run.log if d.receiver == VICTIM and isinstance(d.message, UnmaskRequest))
        for members in product((0, 1), repeat=CLIENTS):
            survivors = bitmap(*(member for member in EVERYBODY if members[member]))
            run.deliver(Delivery("server", VICTIM, msgspec.structs.replace(again, survivors=survivors), None))
            who, last = run.outputs[-1]
            assert who == VICTIM
            assert isinstance(last, MessageRefused)
        assert not run.advance()
        assert run.clients[VICTIM].state is ClientState.DONE
        assert sums.revealed(run) == [outcome.survivors]
        sums.check_next_round(run)

    for active in [True, False]:
        for kind in ["peer-keys", "peer-shares", "survivors", "unmask-request"]:
            check_every_message_comes_twice(kind, active, summed, sums)


class Interrogation:
    """One client with keys of its own, which can be brought to the point after masking again and again.

    The other three of four sign whatever the server likes: here they are its accomplices.
    """

    def __init__(self, active: bool) -> None:
        self.run = memory_sum(4, active=active, seed=b"lies")
        self.run.clients[VICTIM] = self.client = self._fresh()
        self.run.run()
        self._told = [d for d in self.run.log if d.receiver == VICTIM and isinstance(d.message, (PeerKeys, PeerShares))]
        self._log = [d for d in self.run.log if d.sender != VICTIM or not isinstance(d.message, UnmaskShares)]
        keys, shares = (delivery.message for delivery in self._told)
        self._salt = self.run.agreement.sharing_digest(keys.digest, shares.sharers)  # type: ignore[attr-defined]

    def _fresh(self) -> AggregationClient:
        run = self.run
        return AggregationClient(
            run.agreement,
            VICTIM,
            signing=run.signing[VICTIM],
            entropy=Streams(VICTIM.encode()).of(""),
        )

    def again(self) -> MemorySum:
        """The client after it masked its vector, everybody else silent."""
        run = MemorySum(self.run.agreement, self.run.signing, self.run.vectors, self.run.streams)
        run.clients[VICTIM] = self._fresh()
        run.clients[VICTIM].start(0.0)
        run.clients[VICTIM].contribute(run.vectors[VICTIM], 0.0)
        for delivery in self._told:
            run.deliver(delivery)
        run.log = [d for d in self._log if not isinstance(d.message, UnmaskShares)]
        run.hook = lambda d: run.log.append(d) or [] if d.receiver == "server" else [d]  # type: ignore[func-returns-value]
        run.advance()
        assert run.clients[VICTIM].state is ClientState.AWAIT_SURVIVORS
        return run

    def vocabulary(self) -> Iterator[Message]:
        """Everything that the server can say about survivors: every bitmap, signed by everybody where that helps."""
        agreement = self.run.agreement
        for value in range(2**agreement.size):
            survivors = bytes([value])
            signers = [member for member in range(agreement.size) if value >> member & 1 and agreement.active]
            signatures = [
                self.run.signing[f"c{member}"].sign(
                    SumLabel.SIGN_SURVIVORS, self._salt, member.to_bytes(2, "little"), survivors
                )
                for member in signers
            ]
            yield Survivors(survivors=survivors)
            yield UnmaskRequest(
                survivors=survivors,
                signers=encode_members(signers, agreement.size),
                signatures=b"".join(signatures),
                answered=encode_members((), agreement.size),
                answers=b"",
            )


@modes
@pytest.mark.threat("server/alive-and-dropped")
@pytest.mark.threat("server/asks-twice")
def test_no_sequence_of_messages_releases_both_shares_of_anybody(active: bool, opened: Any) -> None:
    # Every sequence over the whole vocabulary: while the client listens each message is tried after each prefix, and
    # where it has ended the whole vocabulary is tried on it, which leaves it as it was.
    interrogation = Interrogation(active)
    vocabulary = list(interrogation.vocabulary())
    prefixes: list[tuple[Message, ...]] = [()]
    released = set()
    sequences = 0
    while prefixes:
        prefix = prefixes.pop()
        for message in vocabulary:
            run = interrogation.again()
            for said in (*prefix, message):
                run.deliver(Delivery("server", VICTIM, said, None))
            client = run.clients[VICTIM]
            if client.state not in (ClientState.DONE, ClientState.ABORTED):
                prefixes.append((*prefix, message))
                continue
            sequences += 1
            run.advance()
            spoken = len(run.log)
            for said in vocabulary:
                run.deliver(Delivery("server", VICTIM, said, None))
            run.advance()
            assert [d.sender for d in run.log[spoken:]] == ["server"] * len(vocabulary)
            shares = opened(run)
            for kinds in shares.values():
                assert [len(kinds[label]) for label in (SumLabel.SEED_SHARE, SumLabel.KEY_SHARE)] in ([0, 1], [1, 0])
            if shares:
                assert client.state is ClientState.DONE
                released.add(tuple(sorted(owner for owner, kinds in shares.items() if kinds[SumLabel.SEED_SHARE])))
    # The sets of at least three of four with the client in it, and nothing else.
    assert released == {(0, 1, 2, 3), (0, 1, 2), (0, 1, 3), (0, 2, 3)}
    assert sequences == (28 + 4 * 32 if active else 32)
