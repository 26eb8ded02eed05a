"""All transcripts: runs of the worlds of the simulation, plays, and the parts of machines that refuse a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.results import MaterialKey
from tacit.simulate.conformance.transcripts import TranscriptFile
from tacit.simulate.world.adaptation import learning_terms, round_plan
from tacit.simulate.world.federation import small_configuration
from tacit.simulate.world.inference import DEALER, data_owner_names, small_terms
from tests.vectors_corpus import (
    adaptation_sessions,
    disputes,
    group_keys,
    groups,
    inference_faults,
    inference_sessions,
    lying_clients,
    lying_server,
    protected_sessions,
    rosters,
    rounds,
    session_faults,
    sessions,
    spoilt,
)
from tests.vectors_corpus.play import Play, together
from tests.vectors_corpus.recorder import RecordedAdaptation, RecordedFederation, RecordedInference, Recorder


@dataclass(frozen=True)
class Run:
    """A recorded run of a world. hidden: machines that are not in the transcript."""

    about: str
    recorder: Recorder
    hidden: set[str] = field(default_factory=set)

    @property
    def protocol(self) -> str:
        return self.recorder.protocol


def federation() -> Run:
    world = RecordedFederation(small_configuration(3, parameters=6), 3, rounds=2).run()
    return Run("Three clients take part in two rounds in active mode.", world.recorder)


def federation_restart() -> Run:
    world = RecordedFederation(small_configuration(3, parameters=6), 3, rounds=2)
    world.training_seconds = lambda: 2.0
    world.start()
    world.settle(until=1.0)
    world.start_client("client-1")
    world.settle()
    about = "A client is killed in the first of two rounds and starts again with its journal; too few are left."
    return Run(about, world.recorder)


def _inference() -> RecordedInference:
    inference_requests = dict.fromkeys(data_owner_names(1), InferenceRequest(images=2, batch=2, channels=1, side=4))
    return RecordedInference(inference_requests, terms=small_terms())


def inference() -> Run:
    about = "A data owner has two images classified in one pass; both owners and the dealer."
    return Run(about, _inference().run().recorder)


def inference_out_of_range() -> Run:
    world = _inference()
    world.out_of_range.add(("data-owner-0", 1))
    about = "A value of the only pass is out of range, so that nobody learns its result; without the dealer."
    return _without_dealer(about, world.run().recorder)


def inference_lost_dealer() -> Run:
    world = _inference()
    world.start()
    world.advance(lambda: bool(world.outcome(MaterialKey)))
    world.kill(DEALER)
    world.settle()
    return Run("The dealer is lost before anything is ordered.", world.recorder)


def adaptation() -> Run:
    names = data_owner_names(2)
    world = RecordedAdaptation(dict.fromkeys(names, round_plan(1, names)), terms=learning_terms(adapters=0)).run()
    about = "Two data owners learn in one round, and receive the model owner's sum; without the dealer."
    return _without_dealer(about, world.recorder)


def _without_dealer(about: str, recorder: Recorder) -> Run:
    return Run(about, recorder, {step.machine for step in recorder.steps if "dealer" in step.machine})


def parts(faults: Mapping[str, Any]) -> list[Callable[[], Play]]:
    """What makes the part of each machine that refuses a message."""
    return [fault.part for fault in faults.values()]


_RUNS: Final[Mapping[str, tuple[str, Iterable[Callable[[], Play | Run]]]]] = {
    "sum": ("Secure sums, with and without dropouts, in all modes.", rounds.HONEST),
    "sum_uploads": ("Vectors of several chunks.", rounds.UPLOADS),
    "sum_complaints": ("Secure sums in which holders complain of owners.", disputes.PLAYS),
    "sum_groups": ("Secure sums whose clients are in groups.", groups.PLAYS),
    "sum_spoilt": ("Secure sums that go on, or end, after a rule was broken.", spoilt.PLAYS),
    "sum_bad_client": ("A client breaks a rule of a secure sum: the server's part.", parts(lying_clients.FAULTS)),
    "sum_bad_server": (
        "The server breaks a rule of a secure sum: a client's part.",
        parts({**lying_server.FAULTS, **groups.FAULTS}),
    ),
    "group_key": ("Attempts at a group key, honest and spoilt.", group_keys.PLAYS),
    "group_key_bad": ("A message breaks a rule of the group key: the receiver's part.", parts(group_keys.FAULTS)),
    "federation": ("Sessions of a federation.", (federation, federation_restart, *sessions.PLAYS)),
    "federation_bad": (
        "A message breaks a rule of the session: the receiver's part.",
        (*session_faults.PLAYS, *parts(session_faults.FAULTS)),
    ),
    "federation_keys": ("Sessions with group keys, or without secure aggregation.", protected_sessions.PLAYS),
    "federation_keys_bad": (
        "A message breaks a rule of sessions with group keys, or without secure aggregation: the receiver's part.",
        parts(protected_sessions.FAULTS),
    ),
    "federation_groups": ("Sessions whose clients are in groups.", (groups.session_groups, rosters.session_waiting)),
    "federation_groups_bad": ("A message breaks a rule of groups: the client's part.", parts(groups.SESSION_FAULTS)),
    "federation_rosters": ("Versions of a roster, handed on and taken up.", rosters.PLAYS),
    "federation_rosters_bad": ("Rosters that a client does not take up.", parts(rosters.FAULTS)),
    "inference": (
        "Sessions of private inference.",
        (inference, inference_out_of_range, inference_lost_dealer, *inference_sessions.PLAYS),
    ),
    "inference_bad": ("What parties of private inference refuse.", inference_faults.PLAYS),
    "adaptation": ("Sessions of double-blind adaptation.", (adaptation, *adaptation_sessions.PLAYS)),
    "adaptation_bad": ("What parties of double-blind adaptation refuse.", adaptation_sessions.REFUSALS),
}
"""Title and runs of each file."""


def _making(about: str, runs: Iterable[Callable[[], Play | Run]]) -> Callable[[], TranscriptFile]:
    return lambda: together(about, [make() for make in runs])


TRANSCRIPTS: Final[Mapping[str, Callable[[], TranscriptFile]]] = {
    f"transcript_{name}.json": _making(about, runs) for name, (about, runs) in _RUNS.items()
}
"""What makes each file."""
