"""Which node of Flower is which member of the roster.

Flower authenticates nodes, by keys of its own, and says of every reply which node it came from. The roster knows names
and keys. What binds the two is said once in a run by every node that is asked to train: its name, with a signature by
the member's key of the roster over the name, the roster, the run, the node's number and a number that was never used
before. From then on a name is that node: another node that claims it is refused, for as long as the run takes.
"""

from __future__ import annotations

from os import urandom

from tacit.parties.flower.exchange import Exchange
from tacit.parties.flower.records import STEP, WHO, node_signed, taken
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.primitives import KEY_BYTES, SIGNATURE_BYTES, Label, verify
from tacit.protocol.core.roster import Roster


class Nodes:
    """The nodes of a run, as far as they are known."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._names: dict[int, str] = {}

    def learn(self, exchange: Exchange, run: int) -> dict[str, int]:
        """The nodes of this exchange by their names; who is not known yet is asked. Others are lost to it."""
        nonces = {node: urandom(KEY_BYTES) for node in exchange.nodes if node not in self._names}
        answers = exchange.ask({node: {STEP: WHO, "nonce": nonce} for node, nonce in nonces.items()}) if nonces else {}
        for node, record in answers.items():
            try:
                name, signature = taken(record, "name", str), taken(record, "signature", bytes)
                self._check(name, signature, node, run, nonces[node])
            except (RemoteProtocolError, ValueError, LookupError) as error:
                exchange.lost[node] = str(error)
            else:
                self._names[node] = name
        return {self._names[node]: node for node in exchange.nodes if node in self._names}

    def _check(self, name: str, signature: bytes, node: int, run: int, nonce: bytes) -> None:
        self._roster.index(name)
        if len(signature) != SIGNATURE_BYTES:
            raise ValueError(f"node {node} says that it is {name!r}, without a signature")
        signed = node_signed(name=name, roster=self._roster.hash, run=run, node=node, nonce=nonce)
        verify(self._roster.member(name).signing_public, signature, Label.SIGN_NODE, *signed)
        for other, known in self._names.items():
            if known == name:
                raise ValueError(f"node {node} says that it is {name!r}, which is node {other} in this run")
