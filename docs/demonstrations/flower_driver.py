"""The server's side of Flower's SecAgg+, stage by stage and without scruples, against clients that run Flower's mod.

Every client is `secaggplus_mod`, unchanged, around a small app, with a Context of its own. The server speaks to it in
Flower's messages; each stage may be given other contents than the honest ones. Used by flower_secagg.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, bytes_to_ndarray, ndarrays_to_parameters
from flwr.common import parameters_to_ndarrays as decode_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key
from flwr.supercore.task_identity import TaskIdentity

# Flower sets these in each of its processes; messages cannot be made without.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

CLIP, TARGET, MODULUS, LENGTH, VICTIM, OTHERS = 8.0, 1 << 22, 1 << 32, 64, 1, (2, 3, 4, 5)
EVERYBODY = (VICTIM, *OTHERS)
STEP = 2 * CLIP / TARGET
"""Quantisation step: the mod rounds stochastically, so a recovered value may be off by one step."""


class Refused(Exception):
    """The mod raised, and how."""


class NotRecovered(Exception):
    """The trick went through and did not give what it was for."""


@dataclass
class Client:
    """Flower's mod around an app that returns the model plus its secret update; ten samples, one metric."""

    node: int
    context: Context = field(init=False)
    update: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.context = Context(1, self.node, {}, RecordDict(), {})
        self.update = np.random.default_rng(self.node).normal(0, 1, LENGTH)

    def app(self, message: Message, context: Context) -> Message:
        """Train."""
        model = decode_parameters(compat.recorddict_to_fitins(message.content, keep_input=True).parameters)[0]
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([model + self.update]), 10, {"loss": 0.125})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)

    def ask(self, stage: str, configs: dict[str, Any], model: Parameters | None = None) -> RecordDict:
        """One message through the mod."""
        content = RecordDict() if model is None else compat.fitins_to_recorddict(FitIns(model, {}), keep_input=True)
        content.config_records[RECORD_KEY_CONFIGS] = ConfigRecord({**configs, Key.STAGE: stage})
        message = Message(content, dst_node_id=self.node, message_type="train")
        try:
            return secaggplus_mod(message, self.context, self.app).content
        except Exception as error:  # Whatever the mod raises is its refusal.
            raise Refused(f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]) from error


class Server:
    """Speaks the protocol, stage by stage; a trick calls the stages with what it likes."""

    def __init__(self, nodes: tuple[int, ...] = EVERYBODY, threshold: int = 3, shares: int | None = None) -> None:
        self.clients = {node: Client(node) for node in nodes}
        self.settings: dict[str, Any] = {
            Key.SAMPLE_NUMBER: len(nodes),
            Key.SHARE_NUMBER: shares or len(nodes),
            Key.THRESHOLD: threshold,
            Key.CLIPPING_RANGE: CLIP,
            Key.TARGET_RANGE: TARGET,
            Key.MOD_RANGE: MODULUS,
            Key.MAX_WEIGHT: 10.0,
        }
        self.threshold = threshold
        self.keys: dict[int, list[bytes]] = {}
        self.sealed: dict[int, dict[int, bytes]] = {}
        self.vectors: dict[int, list[np.ndarray]] = {}
        self.replies: dict[int, RecordDict] = {}

    def setup(self, node: int, **changes: Any) -> None:
        """Collect public keys."""
        reply = configs_of(self.clients[node].ask(Stage.SETUP, {**self.settings, **changes}))
        self.keys[node] = [reply[Key.PUBLIC_KEY_1], reply[Key.PUBLIC_KEY_2]]

    def share(self, node: int, keys: dict[int, list[bytes]] | None = None) -> None:
        """Hand out public keys, collect sealed shares: self.sealed[receiver][owner]."""
        listed = {str(other): pair for other, pair in (keys or self.keys).items()}
        reply = configs_of(self.clients[node].ask(Stage.SHARE_KEYS, listed))
        for receiver, sealed in zip(reply[Key.DESTINATION_LIST], reply[Key.CIPHERTEXT_LIST], strict=True):
            self.sealed.setdefault(receiver, {})[node] = sealed

    def collect(self, node: int, model: Parameters | None = None, sealed: dict[int, bytes] | None = None) -> None:
        """Hand out sealed shares, collect the masked vector."""
        inbox = self.sealed.get(node, {}) if sealed is None else sealed
        configs = {Key.SOURCE_LIST: list(inbox), Key.CIPHERTEXT_LIST: list(inbox.values())}
        zeros = ndarrays_to_parameters([np.zeros(LENGTH)])
        reply = self.clients[node].ask(Stage.COLLECT_MASKED_VECTORS, configs, zeros if model is None else model)
        self.replies[node] = reply
        self.vectors[node] = [bytes_to_ndarray(part) for part in configs_of(reply)[Key.MASKED_PARAMETERS]]

    def unmask(self, node: int, active: list[int], dead: list[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """The shares that a client gives away: of seeds for the active, of mask keys for the dead."""
        configs = {Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead}
        reply = configs_of(self.clients[node].ask(Stage.UNMASK, configs))
        shares = reply[Key.SHARE_LIST]
        seeds, keys = shares[: len(active)], shares[len(active) :]
        return dict(zip(active, seeds, strict=True)), dict(zip(dead, keys, strict=True))

    def masked_inputs(self) -> None:
        """The honest round up to the masked vectors."""
        for stage in (self.setup, self.share, self.collect):
            for node in self.clients:
                stage(node)

    def total(self, active: list[int], asked: list[int] | None = None) -> np.ndarray:
        """Unmask honestly and return the sum of quantised vectors [1 + LENGTH], the factor first."""
        collected = [self.unmask(node, active, []) for node in asked or active]
        total = np.sum([flat(self.vectors[node]) for node in active], axis=0)
        for node in active:
            total = total - self_mask(self.combine([seeds[node] for seeds, _ in collected]))
        return total % MODULUS

    def combine(self, shares: list[bytes]) -> bytes:
        """A secret from as many shares as are needed."""
        return combine_shares(shares[: self.threshold])

    def strip(self, seed: bytes, key: bytes) -> np.ndarray:
        """The victim's vector without its masks, from its self-mask seed and its private mask key."""
        masked = flat(self.vectors[VICTIM]) - self_mask(seed)
        for peer in self.sealed[VICTIM]:
            masked = masked - (1 if peer < VICTIM else -1) * pair_mask(key, self.keys[peer][0])
        return masked % MODULUS


def configs_of(content: RecordDict) -> Any:
    """The record in which the mod answers."""
    return content.config_records[RECORD_KEY_CONFIGS]


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    """Factor and vector in a row."""
    return np.concatenate([np.ravel(array) for array in arrays]).astype(np.int64)


def self_mask(seed: bytes) -> np.ndarray:
    """The mask [1 + LENGTH] of a seed."""
    return flat(pseudo_rand_gen(seed, MODULUS, [(1,), (LENGTH,)]))


def pair_mask(private: bytes, public: bytes) -> np.ndarray:
    """The pairwise mask [1 + LENGTH]."""
    return self_mask(generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public)))


def recovered(vector: np.ndarray, client: Client, *, rounded: int = 1) -> str:
    """Compare quantised values, factor first, with the client's update; NotRecovered if they differ.

    rounded: how many stochastic roundings are in every value, each off by less than a step.
    """
    error = np.abs(dequantize([vector[1:]], CLIP, TARGET)[0] - client.update).max()
    if error > (rounded + 0.01) * STEP:
        raise NotRecovered(f"largest difference {error:.3g}")
    return f"the victim's update, all {LENGTH} values within {error / STEP:.2f} quantisation steps"
