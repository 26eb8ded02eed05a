"""Tricks of a cheating server, tried on the client side of Flower's SecAgg+ (`secaggplus_mod`).

Each trick is one function that returns what the server got; where that is an update, it counts only if it equals the
victim's within quantisation, otherwise the trick counts if no client refused. An honest round comes first, and shows
that the driver itself speaks the protocol right. In an environment of its own:

    pip install "flwr==1.41.*" && python docs/demonstrations/flower_secagg.py

The identifiers are those of the rows in tests/adversary/threats.toml.
"""

from __future__ import annotations

import logging
import pickle
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from flower_driver import (
    CLIP,
    EVERYBODY,
    LENGTH,
    MODULUS,
    OTHERS,
    STEP,
    TARGET,
    VICTIM,
    NotRecovered,
    Refused,
    Server,
    flat,
    pair_mask,
    recovered,
    self_mask,
)
from flwr.common import Parameters, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, generate_key_pairs, public_key_to_bytes

Trick = Callable[[], str]


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
    np.seterr(invalid="ignore")  # One trick sends NaN.
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
