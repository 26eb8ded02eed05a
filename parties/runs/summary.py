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
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from tacit.parties.protections.protection import Noise
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.incidents import incidents
from tacit.parties.runs.outputs import AggregationFigures, PhaseFigures, PrivacyFigures, Summary
from tacit.parties.runs.reading import natural, read_state
from tacit.parties.runs.state import PartyState
from tacit.protocol.core.messages import Phase

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


LOCAL_KEYS: Final = ("kept", "layers", "training_seconds", "choosing_seconds")
"""Fields of an update that its client's local work is reported by."""
AGGREGATION_KEYS: Final = tuple(AggregationFigures.__annotations__)
"""Fields of the server's proposal that the summary has."""
SECURE_SUM = (
    Phase.MASKED_INPUT,
    Phase.ANSWER_COMPLAINTS,
    Phase.CONSISTENCY_CHECK,
    Phase.UNMASK,
)
"""The phases in which the server waits for nobody's training any more."""


def summarise(run: RunDirectory, experiment: Experiment) -> dict[str, Any]:
    """The summary of all sessions of a run."""
    state = read_state(run.path / "events")
    parties = {name: state.parties[name] for name in sorted(state.parties, key=natural)}
    results = {round.number: round.result for round in state.rounds if round.result}
    listed: list[Any] = [
        {
            **_unstamped(msgspec.to_builtins(results[number])),
            "bytes_sent": {name: party.sent_in[number] for name, party in parties.items()},
            "local": {
                name: {key: getattr(party.updates[number], key) for key in LOCAL_KEYS}
                for name, party in parties.items()
                if number in party.updates
            },
        }
        for number in sorted(results)
    ]
    seconds = parties[state.server].seconds if state.server else {}
    proposed = {} if state.configured is None else {name: getattr(state.configured, name) for name in AGGREGATION_KEYS}
    colluders = experiment.terms().colluders if state.configured is None else state.configured.colluders
    updates = {name: party.updated for name, party in parties.items()}
    summary: Summary = {
        "name": experiment.name,
        "final_accuracy": listed[-1]["accuracy"] if listed else None,
        "final_balanced_accuracy": listed[-1]["balanced_accuracy"] if listed else None,
        "final_loss": listed[-1]["loss"] if listed else None,
        "wall_seconds": state.wall_seconds,
        # Without secure aggregation the vectors come while others still train.
        "protocol_share": protocol_share(seconds) if experiment.aggregation.mode != "none" else None,
        "test_classes": msgspec.to_builtins(state.classes),
        "rounds": listed,
        "statistics": msgspec.to_builtins(run.kept_statistics()),
        "incidents": msgspec.to_builtins(incidents(state)),
        "parties": {
            name: {
                "role": "server" if name == state.server else "client",
                "training_seconds": party.activities["training"],
                "protocol_seconds": party.activities["computing the protocol"],
                "waiting_seconds": party.activities["waiting"],
                "phases": phases(party),
            }
            for name, party in parties.items()
        },
        "privacy": cast("PrivacyFigures | None", guarantee(experiment, listed, updates, colluders=colluders)),
        "aggregation": cast("AggregationFigures", proposed),
        "configuration": msgspec.to_builtins(experiment),
        "seed": msgspec.to_builtins(state.seed),
        "sessions": msgspec.to_builtins(state.origins),
    }
    return {**summary}


def _unstamped(event: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event that are its own."""
    return {name: value for name, value in event.items() if name not in ("event", "time", "party")}


def protocol_share(seconds: Mapping[Phase, float]) -> float | None:
    """The fraction of its rounds that the server spent in the secure sum; seconds: its time in each phase."""
    rounds = sum(spent for phase, spent in seconds.items() if phase is not Phase.SESSION)
    return sum(seconds.get(phase, 0.0) for phase in SECURE_SUM) / rounds if rounds else None


def phases(party: PartyState) -> dict[str, PhaseFigures]:
    """Seconds and bytes of a party in each phase of the sums."""
    return {
        phase.value: {
            "seconds": party.seconds.get(phase, 0.0),
            "bytes_sent": party.sent[phase],
            "bytes_received": party.received[phase],
        }
        for phase in Phase
        if phase in party.seconds or phase in party.sent
    }
