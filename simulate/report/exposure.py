"""The view of each party of a run, in words, from the mode, the threshold and the completed rounds.

The sentences follow the rules of the protocol: secagg/graph.py gives the number of colluding clients behind a
threshold, protocol/sum/server.py and sum/client.py the messages that either side receives, and sum/plain_server.py and
sum/plain_client.py those without secure aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.state import RunState


@dataclass(frozen=True)
class Exposure:
    party: str
    sees: tuple[str, ...]
    hidden: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    """Sentences on the conditions."""


SEEN_BY_EVERY_SERVER: Final = (
    "the global model before and after every round",
    "who took part, who was lost, when; sizes and times of all messages",
)


OUTSIDER: Final = Exposure(
    "anybody on the network",
    ("addresses, sizes and times of packets, which are encrypted (CURVE)",),
    ("contents; a key that is not in the roster does not get beyond the handshake",),
)

OWNER_OF_ALL: Final = Exposure(
    "the owner of this machine",
    ("everything: in a simulation all parties are processes of one user",),
    (),
)

OWNER_OF_A_HOST: Final = Exposure(
    "the owner of a host",
    ("everything of the party that runs there, its keys and its images among it",),
    ("what the other parties see, and what is on their hosts",),
)


def exposure(state: RunState, experiment: Experiment) -> list[Exposure]:
    """Return the parties of a run, from the server to the outside world."""
    secure = experiment.aggregation.mode != "none"
    return [
        _server(state, experiment) if secure else _server_without_masks(state, experiment),
        _client(state, experiment),
        OUTSIDER,
        Exposure(
            "recipients of the final model",
            ("what the trained model itself reveals of its training data: no secure sum changes that",),
            ("everything else",),
        ),
        OWNER_OF_ALL if state.one_machine and state.clients else OWNER_OF_A_HOST,
    ]


def smallest_sum(state: RunState) -> int:
    return min((len(round.result.survivors) for round in state.completed if round.result), default=0)


def taking_part(state: RunState, experiment: Experiment) -> int:
    return (state.configured and state.configured.clients) or experiment.clients


def cohort_size(state: RunState, experiment: Experiment) -> int:
    return state.configured.cohort if state.configured else experiment.cohort


def _server(state: RunState, experiment: Experiment) -> Exposure:
    clients = taking_part(state, experiment)
    corrupt = state.configured.colluders if state.configured else experiment.terms(clients).colluders
    threshold = state.configured.threshold if state.configured else None
    disclosed = _disclosed(state, experiment, "server")
    if experiment.aggregation.mode == "active":
        trust = f"This holds even if the server lies, and up to {corrupt} of {clients} clients work together with it."
        if size := experiment.federation.group_size:
            trust += f" Sums that are compared with each other reveal groups of {size} clients or more, not of one."
        else:
            trust += (
                " It holds for every sum, not for two that are compared: without groups (federation.group_size) a "
                "server that lies can have one sum with a client and another one without it."
            )
    else:
        trust = (
            f"This holds if the server follows the protocol, even if up to {corrupt} of {clients} clients work with "
            "it. The semi-honest mode does not defend against a server that lies."
        )
    return Exposure(
        "server",
        (
            *_statistics(experiment, "all clients together"),
            _sums(state),
            *disclosed,
            *SEEN_BY_EVERY_SERVER,
            "public keys; masked updates, which look random; shares, which are encrypted for their receivers",
        ),
        (_hidden("any one client", disclosed),),
        (
            *((f"Nothing opens before {threshold} of {sharers(state, experiment)} help.",) if threshold else ()),
            trust,
        ),
    )


def _disclosed(state: RunState, experiment: Experiment, party: Literal["server", "client"]) -> tuple[str, ...]:
    clients = smallest_sum(state) or cohort_size(state, experiment)
    found = experiment.protection.disclosures(clients)
    return tuple(f"{one.what} ({one.condition})" for one in found if one.party == party)


def _hidden(whose: str, disclosed: Sequence[str]) -> str:
    """Describe the private values of a client; disclosed: part of its update that its protection reveals."""
    if not disclosed:
        return f"data, update, loss, accuracy or number of samples of {whose}"
    return f"data, loss, accuracy or number of samples of {whose}; of its update all but what is named here"


def _server_without_masks(state: RunState, experiment: Experiment) -> Exposure:
    scheme = experiment.protection.scheme
    left = "" if scheme == "none" else f", after the protection {scheme}"
    return Exposure(
        "server",
        (
            f"every update that a client sent, by itself: quantised, and times its weight{left}; with it the client's "
            "number of samples, correct answers, loss and clipped coordinates"
            + (", of images that it does not train on as well" if state.held_out else ""),
            *_statistics(experiment, "each client"),
            _sums(state),
            *SEEN_BY_EVERY_SERVER,
        ),
        ("the data of a client as such; but much of it can be worked out from an update that is not protected",),
        (
            'Secure aggregation was off (aggregation.mode = "none"): nothing stands between the server and the update '
            "of one client, and every client's policy allowed that.",
        ),
    )


def _statistics(experiment: Experiment, whose: str) -> tuple[str, ...]:
    what = f"how many pixels the images of {whose} have, their sum, and that of their squares, by channel"
    return (what,) if experiment.data.statistics == "sum" else ()


def _sums(state: RunState) -> str:
    sizes = [len(round.result.survivors) for round in state.completed if round.result]
    if not sizes:
        return "no sum: no round was completed"
    over = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    return (
        f"{len(sizes)} {'sum' if len(sizes) == 1 else 'sums'} over {over} clients: of their weighted updates, "
        "and of their numbers of samples, correct answers, losses and clipped coordinates"
        + ("; of images that they do not train on as well" if state.held_out else "")
    )


def _client(state: RunState, experiment: Experiment) -> Exposure:
    least = smallest_sum(state)
    if least > 2:
        others = f"a mixture of the updates of at least {least - 1} others"
    elif least == 2:
        others = "the update of the one other client, because a sum had only two"
    else:
        others = "what the others contributed together"
    mode = experiment.aggregation.mode
    model = (
        "the global model at the start of every round; the step from one to the next is the mean update, and "
        f"without its own part {others}"
    )
    disclosed = _disclosed(state, experiment, "client")
    unknown = _hidden("any one other client", disclosed)
    if mode == "none":
        return Exposure("each client", (model, *disclosed, "the roster; who is in a round"), (unknown,))
    neighbours = state.configured.neighbours if state.configured else cohort_size(state, experiment) - 1
    order = "the signed list of survivors" if mode == "active" else "the list of survivors"
    return Exposure(
        "each client",
        (
            model,
            *disclosed,
            f"the roster; who is in a round; {order}",
            f"public keys, and one encrypted share of each secret of its {neighbours} neighbours",
        ),
        (unknown, "the secrets behind the shares: too few shares reveal nothing"),
    )


def sharers(state: RunState, experiment: Experiment) -> str:
    """Name the set that the threshold refers to: "5 clients"; in a regular graph "6 neighbours of each client"."""
    clients = cohort_size(state, experiment)
    neighbours = state.configured.neighbours if state.configured else clients - 1
    return f"{clients} clients" if neighbours == clients - 1 else f"{neighbours} neighbours of each client"
