"""A server that cheats, played against the client side of Flower's SecAgg+ (`secaggplus_mod`), unchanged.

Every client is the mod around a small app, with a Context of its own; the server of this file speaks to it in Flower's
messages and may send anything. Each trick is one function that returns what it got; where that is an update, it counts
only if it equals the victim's within quantisation, otherwise the trick counts if no client refused. The honest round comes first, and shows that the driver itself speaks the protocol right.

    pip install flwr && python docs/demonstrations/flower_secagg.py

The identifiers are those of the rows in docs/threat-model.md.
"""

from __future__ import annotations

import logging
import pickle
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, bytes_to_ndarray, ndarrays_to_parameters
from flwr.common import parameters_to_ndarrays as decode_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    public_key_to_bytes,
)
from flwr.supercore.task_identity import TaskIdentity

CLIP, TARGET, MODULUS, LENGTH, VICTIM, OTHERS = 8.0, 1 << 22, 1 << 32, 64, 1, (2, 3, 4, 5)
EVERYBODY = (VICTIM, *OTHERS)
STEP = 2 * CLIP / TARGET
"""Quantisation step: the mod rounds stochastically, so a recovered value may be off by one step."""
Trick = Callable[[], str]


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


def honest() -> str:
    """The sum over all clients, as a check of this driver."""
    server = Server()
    server.masked_inputs()
    total = server.total(list(EVERYBODY))
    mean = total[1:] * STEP / len(EVERYBODY) - CLIP
    error = np.abs(mean - np.mean([client.update for client in server.clients.values()], axis=0)).max()
    if error > STEP:
        raise NotRecovered(f"largest difference {error:.3g}")
    return f"the mean, within {error / STEP:.2f} quantisation steps"


def alive_and_dropped() -> str:
    server = Server()
    server.masked_inputs()
    answers = [server.unmask(node, list(EVERYBODY), [VICTIM]) for node in OTHERS]
    seed, key = (server.combine([answer[kind][VICTIM] for answer in answers]) for kind in (0, 1))
    return recovered(server.strip(seed, key), server.clients[VICTIM])


def asks_twice() -> str:
    server = Server()
    server.masked_inputs()
    server.unmask(2, list(EVERYBODY), [])
    server.unmask(2, list(OTHERS), [VICTIM])
    return "a second answer"


def foreign_survivors() -> str:
    server = Server()
    server.masked_inputs()
    server.unmask(2, [*EVERYBODY, 99], [])
    return "an answer for a node that never took part"


def suppresses_clients() -> str:
    """Says that the victim alone is left, as many times as the threshold asks for survivors."""
    server = Server()
    server.masked_inputs()
    answers = [server.unmask(node, [VICTIM] * server.threshold, list(OTHERS)) for node in EVERYBODY]
    vector = flat(server.vectors[VICTIM]) - self_mask(server.combine([answer[0][VICTIM] for answer in answers]))
    for peer in OTHERS:
        # The peer's mask towards the victim is the opposite of the victim's towards the peer.
        key = server.combine([answer[1][peer] for answer in answers])
        vector = vector - (1 if peer < VICTIM else -1) * pair_mask(key, server.keys[VICTIM][0])
    return recovered(vector % MODULUS, server.clients[VICTIM])


def threshold_below_floor() -> str:
    """Threshold 1: the one holder whom the server controls has every secret of the victim."""
    server = Server(threshold=1)
    server.masked_inputs()
    seeds, keys = server.unmask(2, list(EVERYBODY), [VICTIM])
    return recovered(server.strip(combine_shares([seeds[VICTIM]]), combine_shares([keys[VICTIM]])), server.clients[1])


def small_cohort() -> str:
    server = Server(nodes=(VICTIM,), threshold=1)
    server.masked_inputs()
    return recovered(server.total([VICTIM]), server.clients[VICTIM])


def splits_survivors() -> str:
    """One half is told that the victim survived, the other that it did not; no list is false in itself."""
    nodes = (1, 2, 3, 4, 5, 6)
    server = Server(nodes=nodes)
    server.masked_inputs()
    alive = [server.unmask(node, list(nodes), [])[0][VICTIM] for node in (1, 2, 3)]
    gone = [server.unmask(node, list(nodes[1:]), [VICTIM])[1][VICTIM] for node in (4, 5, 6)]
    return recovered(server.strip(server.combine(alive), server.combine(gone)), server.clients[VICTIM])


def surrounds_victim() -> str:
    """Lists four neighbours that the server made up, with keys of its own."""
    server = Server(nodes=(VICTIM,), threshold=3, shares=5)
    made_up = {node: (generate_key_pairs(), generate_key_pairs()) for node in OTHERS}
    server.setup(VICTIM)
    for node, pairs in made_up.items():
        server.keys[node] = [public_key_to_bytes(public) for _, public in pairs]
    server.share(VICTIM)
    shares = opened_shares(server, {node: pairs[1][0] for node, pairs in made_up.items()})
    for node in OTHERS:
        server.sealed.setdefault(VICTIM, {})[node] = seal_anything(server, made_up[node][1][0], node)
    server.collect(VICTIM)
    seed, key = (server.combine([share[kind] for share in shares]) for kind in (0, 1))
    return recovered(server.strip(seed, key), server.clients[VICTIM])


def opened_shares(server: Server, private: dict[int, Any]) -> list[tuple[bytes, bytes]]:
    """The victim's shares of seed and mask key, opened with the receivers' channel keys."""
    shares = []
    for node, key in private.items():
        channel = generate_shared_key(key, bytes_to_public_key(server.keys[VICTIM][1]))
        shares.append(share_keys_plaintext_separate(decrypt(channel, server.sealed[node][VICTIM]))[2:])
    return shares


def seal_anything(server: Server, private: Any, node: int) -> bytes:
    """A packet from a made-up node to the victim, so that the victim masks towards it."""
    channel = generate_shared_key(private, bytes_to_public_key(server.keys[VICTIM][1]))
    return encrypt(channel, share_keys_plaintext_concat(node, VICTIM, b"", b""))


def replaces_key() -> str:
    """Real neighbours, but the channel keys that the victim sees for them are the server's."""
    server = Server()
    for node in EVERYBODY:
        server.setup(node)
    own = {node: generate_key_pairs() for node in OTHERS}
    seen = {node: [server.keys[node][0], public_key_to_bytes(own[node][1])] for node in OTHERS}
    server.share(VICTIM, {VICTIM: server.keys[VICTIM], **seen})
    shares = opened_shares(server, {node: pair[0] for node, pair in own.items()})
    server.sealed[VICTIM] = {node: seal_anything(server, own[node][0], node) for node in OTHERS}
    server.collect(VICTIM)
    seed, key = (server.combine([share[kind] for share in shares]) for kind in (0, 1))
    return recovered(server.strip(seed, key), server.clients[VICTIM])


def replaces_own_key() -> str:
    server = Server()
    for node in EVERYBODY:
        server.setup(node)
    server.share(VICTIM, {**server.keys, VICTIM: [public_key_to_bytes(generate_key_pairs()[1]) for _ in range(2)]})
    return "shares under keys that are not the client's own"


def drops_key() -> str:
    """One client is not told of another, who is told of it."""
    server = Server()
    for node in EVERYBODY:
        server.setup(node)
    for node in EVERYBODY:
        left_out = 3 if node == 2 else 0
        server.share(node, {other: keys for other, keys in server.keys.items() if other != left_out})
    del server.sealed[2][3]
    for node in EVERYBODY:
        server.collect(node)
    return "all masked vectors, with no mask between the two"


def replays_adverts() -> str:
    server = Server()
    for node in EVERYBODY:
        server.setup(node)
    former = dict(server.keys)
    for node in EVERYBODY:
        server.setup(node)
    server.share(VICTIM, {**former, VICTIM: server.keys[VICTIM]})
    return "shares sealed to keys of a former round"


def replays_shares() -> str:
    server = Server()
    for stage in (server.setup, server.share):
        for node in EVERYBODY:
            stage(node)
    former = dict(server.sealed[VICTIM])
    for stage in (server.setup, server.share):
        for node in EVERYBODY:
            stage(node)
    server.collect(VICTIM, sealed=former)
    return "a vector after shares of a former round"


def bends_shares() -> str:
    server = Server()
    for stage in (server.setup, server.share):
        for node in EVERYBODY:
            stage(node)
    sealed = server.sealed[VICTIM][2]
    server.collect(VICTIM, sealed={**server.sealed[VICTIM], 2: sealed[:-8] + b"AAAAAAA="})
    return "a vector after a bent share"


def restarts_midway() -> str:
    server = Server()
    server.masked_inputs()
    server.setup(VICTIM)
    return "new keys in the middle of the round"


def subtraction() -> str:
    """The round with everybody, then from the same model the round without the victim."""
    first, second = Server(), Server(nodes=OTHERS)
    first.masked_inputs()
    total = first.total(list(EVERYBODY))
    second.clients = {node: first.clients[node] for node in OTHERS}
    second.masked_inputs()
    return recovered((total - second.total(list(OTHERS))) % MODULUS, first.clients[VICTIM], rounded=len(EVERYBODY))


def splits_models() -> str:
    """Different models: the masks cancel as if they were one, so the sum is of updates to different models."""
    server = Server()
    for stage in (server.setup, server.share):
        for node in EVERYBODY:
            stage(node)
    for node in EVERYBODY:
        server.collect(node, ndarrays_to_parameters([np.full(LENGTH, 0.0 if node == VICTIM else -CLIP * 100)]))
    # Everybody else's values are clipped to the lower end, which is quantised to zero.
    return recovered(server.total(list(EVERYBODY)), server.clients[VICTIM])


def splits_configurations() -> str:
    """The others are told a largest weight that makes their factor zero, and their vectors known constants."""
    server = Server()
    for node in EVERYBODY:
        server.setup(node, **({} if node == VICTIM else {Key.MAX_WEIGHT: 1e12}))
    for stage in (server.share, server.collect):
        for node in EVERYBODY:
            stage(node)
    total = server.total(list(EVERYBODY))
    return recovered(total - len(OTHERS) * TARGET // 2, server.clients[VICTIM])


def asks_for_metrics() -> str:
    server = Server()
    server.masked_inputs()
    result = compat.recorddict_to_fitres(server.replies[VICTIM], keep_input=True)
    return f"in the clear, beside the masked vector: num_examples = {result.num_examples}, metrics = {result.metrics}"


def bad_model() -> str:
    server = Server()
    for stage in (server.setup, server.share):
        for node in EVERYBODY:
            stage(node)
    server.collect(VICTIM, ndarrays_to_parameters([np.full(LENGTH, np.nan)]))
    return "a vector trained from NaN"


def pickled_model() -> str:
    server = Server()
    for stage in (server.setup, server.share):
        for node in EVERYBODY:
            stage(node)
    server.collect(VICTIM, Parameters([pickle.dumps(np.zeros(LENGTH))], "numpy.ndarray"))
    return "a pickle was loaded"


def folded_seeds() -> str:
    """No trick: what a mask depends on."""
    seeds = bytes(32), bytes([1, 2, 3, 4] * 2) + bytes(24)
    same = np.array_equal(self_mask(seeds[0]), self_mask(seeds[1]))
    if not same:
        raise NotRecovered("two seeds, two masks")
    began, tries = time.perf_counter(), 20_000
    for candidate in range(tries):
        np.random.RandomState(candidate).randint(0, MODULUS - 1, 1)
    rate = tries / (time.perf_counter() - began)
    hours = 2**32 / rate / 3600
    return f"equal masks of different 32-byte seeds; one core tries all 2^32 in about {hours:.0f} h of plain NumPy"


TRICKS: dict[str, Trick] = {
    "server/alive-and-dropped": alive_and_dropped,
    "server/asks-twice": asks_twice,
    "server/foreign-survivors": foreign_survivors,
    "server/below-threshold, server/suppresses-clients": suppresses_clients,
    "server/threshold-below-floor": threshold_below_floor,
    "server/small-cohort": small_cohort,
    "server/surrounds-victim, server/adds-key": surrounds_victim,
    "server/splits-models": splits_models,
    "server/splits-configurations": splits_configurations,
    "server/splits-survivors": splits_survivors,
    "server/drops-key": drops_key,
    "server/replaces-key (another's)": replaces_key,
    "server/replaces-key (the client's own)": replaces_own_key,
    "server/replays-adverts": replays_adverts,
    "server/replays-shares": replays_shares,
    "server/restarts-midway": restarts_midway,
    "server/subtraction": subtraction,
    "server/asks-for-metrics": asks_for_metrics,
    "server/bad-model": bad_model,
    "server/pickle": pickled_model,
    "server/bends-shares": bends_shares,
    "server/curious-log": folded_seeds,
}


def main() -> None:
    """Print one row of a Markdown table per trick."""
    logging.disable(logging.CRITICAL)
    # Flower sets these in each of its processes; messages cannot be made without.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    print(f"flwr {version('flwr')}, Python {platform.python_version()}; an honest round gives {honest()}\n")
    print("| attempt | succeeds | what the server got, or why it was refused |\n|---|---|---|")
    for name, trick in TRICKS.items():
        try:
            verdict, got = "yes", trick()
        except (Refused, NotRecovered) as reason:
            verdict, got = "no", str(reason)
        print(f"| {name} | {verdict} | {got} |")


if __name__ == "__main__":
    main()
