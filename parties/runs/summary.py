"""summary.json: the figures of a run, made from nothing but its event logs.

Keys, stable: `name`, `final_accuracy`, `final_balanced_accuracy`, `final_loss`, `wall_seconds`, `protocol_share` (of
the rounds), `rounds` (each with `round`, `status`, `accuracy`, `balanced_accuracy`, `loss`, `absent` (who was not in
its cohort, and why), `dropped`, `seconds`, `bytes_sent` per party, `local` per client: layers and coordinates that it
kept back, seconds of training and of choosing them; and what the secure sum carried), `statistics` (mean and deviation
of the pixels, where a first sum yielded them), `test_classes` (see classes.py), `incidents` (in words, with `session`,
`round` and `what`: see incidents.py), `parties` (each with `role` and, per phase, `seconds`, `bytes_sent`,
`bytes_received`), `privacy` (of runs with noise), `aggregation` (ring, vector, threshold), `configuration` (the
experiment), `seed` and `sessions` (by which command, versions and machine: see directory.py), `ended` (how, in words),
`verified` (with --verify).

The server cannot evaluate a model that is encrypted under a key of the clients, nor one of which every client has a
part of its own. A client that has the result of a round evaluates it, and its `evaluated` event says so; these results
complete the server's `round-done` of that round, several of them by their mean.

`privacy` is the guarantee of `dp-gaussian`: epsilon for the delta of the experiment. The unit is all data of one
client: two federations are neighbours if one client has other data in one of them. Its updates then differ by at most 2
dp_clip in Euclidean norm, and each carries noise of dp_noise * dp_clip, so that a round is a Gaussian mechanism of
noise multiplier dp_noise / 2, and the rounds together one whose inverse square is the sum of theirs (Dong, Roth and Su
2022, "Gaussian Differential Privacy"). Epsilon is as in Balle and Wang 2018, exact.

`update` holds towards whoever sees the client's updates one by one: the server without secure aggregation. `sum` holds
towards whoever sees nothing but the sums: the noise of those in the sum adds up, without that of clients who collude,
and where it is cut or rounded away, without that of anybody else. Both are of the client with the least protection.
Every round that a client takes part in counts in full, also where the server draws its cohort: nothing is made of
amplification by sampling, because the server knows its draws. An update for a round that was never closed, as when the
server was killed, counts as one more.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final, cast

import msgspec

from tacit.parties.protections.protection import Noise
from tacit.parties.runs import classes
from tacit.parties.runs.directory import RunDirectory, told
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.incidents import incidents
from tacit.parties.runs.outputs import PartyFigures, PhaseFigures, PrivacyFigures, Summary
from tacit.parties.session.event_log import read
from tacit.protocol.core.messages import Phase

FIGURES: Final = ("accuracy", "balanced_accuracy", "loss")
"""What they find."""


def complete(logs: Mapping[str, list[dict[str, Any]]]) -> None:
    """Add these figures to the rounds that lack them. logs: the events of every party, changed in place."""
    found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name, events in logs.items():
        for event in events:
            if event["event"] == "evaluated":
                found[event["round"]][name] = event
    for events in logs.values():
        for event in events:
            if event["event"] == "round-done" and event.get("accuracy", 0.0) is None and event["round"] in found:
                judged = found[event["round"]].values()
                # Runs that were begun by an earlier version lack some.
                known = [figure for figure in FIGURES if all(figure in one for one in judged)]
                event.update({figure: mean(one[figure] for one in judged) for figure in known})


MOST_EPSILON: Final = 10.0
"""Above it a guarantee is next to none: what is seen may change an adversary's odds by a factor of exp(10), 22,000."""


def guarantee(
    experiment: Experiment, rounds: Sequence[dict[str, Any]], updates: Mapping[str, int], *, colluders: int
) -> dict[str, Any] | None:
    """`delta`, `epsilon_update` and `epsilon_sum`; None without noise. rounds: those of summary.json; updates: how many
    each client made, where that is known; colluders: clients whose noise does not count.

    An epsilon of None stands for infinity: without dp_clip noise of any size guarantees nothing. So does that of sums
    without secure aggregation, where nobody sees the sums alone.
    """
    noise, aggregation = experiment.protection.noise(), experiment.aggregation
    if noise is None:
        return None
    result: dict[str, Any] = {"delta": noise.delta, "epsilon_update": None, "epsilon_sum": None}
    cohorts = [frozenset(entry["cohort"] or ()) for entry in rounds]
    # A round that was aborted opened no sum, but is counted as the least that it could have.
    honest = [max(1, len(entry["survivors"]) - colluders) for entry in rounds]
    if not _arrives_whole(experiment, noise):
        honest = [1] * len(rounds)
    seen = {
        name: [count for count, cohort in zip(honest, cohorts, strict=True) if name in cohort]
        for name in frozenset(updates).union(*cohorts)
    }
    held = [counts + [1] * (updates.get(name, 0) - len(counts)) for name, counts in seen.items()]
    if not noise.norm or not any(held):
        return result
    multiplier = noise.multiplier / 2
    result["epsilon_update"] = epsilon_of(noise.delta, max(map(len, held)) / multiplier**2)
    if aggregation.mode != "none":
        worst = max(sum(1 / count for count in counts) for counts in held)
        result["epsilon_sum"] = epsilon_of(noise.delta, worst / multiplier**2)
    return result


def _arrives_whole(experiment: Experiment, noise: Noise) -> bool:
    """Whether clipping and rounding leave the noise of the other clients in the sum."""
    # Sampled at steps of half a standard deviation a Gaussian is one, but for a share of exp(-2 (2 pi)^2).
    step = experiment.packing(tensor_sizes=(1,), metrics=()).step
    return experiment.clip >= noise.norm + noise.room and step <= noise.deviation / 2


def epsilon_of(delta: float, inverse_square: float) -> float:
    """Of Gaussian mechanisms of which the inverse squares of the noise multipliers add up to this."""
    # Imported here: it takes seconds to load, and only runs with noise need it.
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / math.sqrt(inverse_square), delta))


SECURE_SUM = (
    Phase.MASKED_INPUT,
    Phase.ANSWER_COMPLAINTS,
    Phase.CONSISTENCY_CHECK,
    Phase.UNMASK,
)
"""The phases in which the server waits for nobody's training any more."""
ROUND_KEYS = (
    "round", "status", "code", "detail", "culprit", "accuracy", "balanced_accuracy", "loss", "train_accuracy",
    "train_loss", "samples", "clipped", "held_out", "cohort", "absent", "repeated", "survivors", "dropped", "seconds",
)  # fmt: skip

LOCAL_KEYS = ("kept", "layers", "training_seconds", "choosing_seconds")


MOST_CLIPPED: Final = 0.01
"""The part of all coordinates that a round may clip without a warning."""
CLIPPING_REMEDY: Final = (
    "raise aggregation.clip and policy.largest_clip, or lower training.learning_rate or the noise of the protection"
)


def clipped_part(clipped: int | None, *, survivors: int, parameters: int) -> float:
    """The part of the coordinates of all updates in a sum that was clipped."""
    return (clipped or 0) / max(1, survivors * parameters)


def natural(name: str) -> list[tuple[str, int]]:
    """A key by which client-2 comes before client-10."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]


def _order(path: Path) -> list[tuple[str, int]]:
    return natural(path.stem)


def summarise(run: RunDirectory, experiment: Experiment, *, wall_seconds: float) -> dict[str, Any]:
    """The summary of all sessions of a run. `wall_seconds` is that of the present command."""
    logs = {path.stem: list(read(path)) for path in sorted((run.path / "events").glob("*.jsonl"), key=_order)}
    complete(logs)
    server = next((events for events in logs.values() if _is_server(events)), [])
    rounds = {event["round"]: event for event in server if event["event"] == "round-done"}
    sent = {name: _bytes_by_round(events, "sent") for name, events in logs.items()}
    local = {name: _local_work(events) for name, events in logs.items() if not _is_server(events)}
    parties = {name: _party(events) for name, events in logs.items()}
    updates = {name: sum(event["event"] == "update" for event in events) for name, events in logs.items()}
    of_server: dict[str, PhaseFigures] = next(
        (party["phases"] for party in parties.values() if party["role"] == "server"), {}
    )
    seconds = {Phase(phase): spent["seconds"] for phase, spent in of_server.items()}
    listed: list[Any] = [
        # Runs that were begun by an earlier version lack some.
        {key: event.get(key) for key in ROUND_KEYS}
        | {"bytes_sent": {name: counts[number] for name, counts in sent.items()}}
        | {"local": {name: done[number] for name, done in local.items() if number in done}}
        for number, event in sorted(rounds.items())
    ]
    sessions, seed = msgspec.to_builtins(told(server))
    configuration: Any = next((event for event in reversed(server) if event["event"] == "configuration"), {})
    proposed: Any = {name: value for name, value in configuration.items() if name not in ("time", "party", "event")}
    colluders = configuration.get("colluders", experiment.terms().colluders)
    summary: Summary = {
        "name": experiment.name,
        "final_accuracy": listed[-1]["accuracy"] if listed else None,
        "final_balanced_accuracy": listed[-1]["balanced_accuracy"] if listed else None,
        "final_loss": listed[-1]["loss"] if listed else None,
        "wall_seconds": wall_seconds,
        # Without secure aggregation the vectors come while others still train.
        "protocol_share": protocol_share(seconds) if experiment.aggregation.mode != "none" else None,
        "test_classes": msgspec.to_builtins(classes.told(server)),
        "rounds": listed,
        "statistics": msgspec.to_builtins(run.kept_statistics()),
        "incidents": msgspec.to_builtins(incidents(logs)),
        "parties": parties,
        "privacy": cast("PrivacyFigures | None", guarantee(experiment, listed, updates, colluders=colluders)),
        "aggregation": proposed,
        "configuration": msgspec.to_builtins(experiment),
        "seed": seed,
        "sessions": sessions,
    }
    return {**summary}


def protocol_share(seconds: Mapping[Phase, float]) -> float | None:
    """The fraction of its rounds that the server spent in the secure sum; seconds: its time in each phase."""
    rounds = sum(spent for phase, spent in seconds.items() if phase is not Phase.SESSION)
    return sum(seconds.get(phase, 0.0) for phase in SECURE_SUM) / rounds if rounds else None


def _is_server(events: list[dict[str, Any]]) -> bool:
    return any(event["event"] == "listening" for event in events)


def _bytes_by_round(events: list[dict[str, Any]], direction: str) -> Counter[int]:
    counts: Counter[int] = Counter()
    for event in events:
        if event["event"] == "traffic":
            counts[event["round"]] += event[direction]
    return counts


def _local_work(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a client's log says of its updates, by round."""
    return {event["round"]: {key: event[key] for key in LOCAL_KEYS} for event in events if event["event"] == "update"}


def phases(events: list[dict[str, Any]]) -> dict[str, PhaseFigures]:
    """What a party's log says of its seconds and bytes in each phase of the sums."""
    found: dict[str, PhaseFigures] = defaultdict(lambda: {"seconds": 0.0, "bytes_sent": 0, "bytes_received": 0})
    for event in events:
        if event["event"] == "phase":
            found[event["phase"]]["seconds"] += event["seconds"]
        elif event["event"] == "traffic":
            found[event["phase"]]["bytes_sent"] += event["sent"]
            found[event["phase"]]["bytes_received"] += event["received"]
    return dict(found)


def _party(events: list[dict[str, Any]]) -> PartyFigures:
    return {"role": "server" if _is_server(events) else "client", "phases": phases(events)}
