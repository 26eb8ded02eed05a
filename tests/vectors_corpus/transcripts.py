"""The transcripts: honest runs of every protocol, and runs in which a message was changed on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import Wish
from tacit.protocol.inference.results import MaterialKey
from tacit.simulate.conformance.transcripts import TranscriptFile, TranscriptStep
from tacit.simulate.world.adaptation import learning_terms, round_plan
from tacit.simulate.world.federation import GRACE, small_configuration
from tacit.simulate.world.inference import DEALER, data_owner_names, small_terms
from tacit.simulate.world.world import Parcel, altered
from tests.vectors_corpus.recorder import (
    RecordedAdaptation,
    RecordedFederation,
    RecordedGroupKey,
    RecordedInference,
    RecordedSum,
)
from tests.world.group_keys import memory_group_key
from tests.world.sums import memory_sum

Played = RecordedSum | RecordedGroupKey | RecordedFederation | RecordedInference | RecordedAdaptation


def _sum() -> RecordedSum:
    return RecordedSum(memory_sum(4, active=True))


def _group_key() -> RecordedGroupKey:
    return RecordedGroupKey(memory_group_key(3))


def _federation(**changes: Any) -> RecordedFederation:
    return RecordedFederation(small_configuration(3, parameters=6, **changes), 3, rounds=2)


def _inference() -> RecordedInference:
    wishes = dict.fromkeys(data_owner_names(1), Wish(images=2, batch=2, channels=1, side=4))
    return RecordedInference(wishes, terms=small_terms())


def _adaptation() -> RecordedAdaptation:
    names = data_owner_names(2)
    return RecordedAdaptation(dict.fromkeys(names, round_plan(1, names)), terms=learning_terms(adapters=0))


def sum_with_a_dropout() -> TranscriptFile:
    world = _sum().start()
    world.kill("c3")
    world.contribute()
    about = "A secure sum in active mode, in which one of four clients is lost after its keys are shared."
    return _ending(world.recorder.transcript(about), "sum")


def group_key() -> TranscriptFile:
    world = _group_key().run()
    return _ending(world.recorder.transcript("Three members agree on a group key."), "group key", "agreed")


def federation() -> TranscriptFile:
    world = _federation().run()
    return _ending(world.recorder.transcript("Three clients take part in two rounds in active mode."), "round done")


def federation_semi_honest() -> TranscriptFile:
    world = RecordedFederation(small_configuration(3, parameters=6, mode="semi-honest"), 3).run()
    return _ending(world.recorder.transcript("Three clients take part in a round in semi-honest mode."), "round done")


def federation_plain() -> TranscriptFile:
    world = RecordedFederation(small_configuration(3, parameters=6, mode="none"), 3).run()
    return _ending(world.recorder.transcript("Three clients take part in a round without masks."), "round done")


def federation_group_key() -> TranscriptFile:
    world = _federation(group_key=True, rekey_every=1, encrypted=True, initial_model="clients").run()
    about = "Two rounds under group keys, each under a key of its own, with a model that the clients encrypt."
    return _ending(world.recorder.transcript(about), "encrypt", "new model", "last model")


def federation_resumed() -> TranscriptFile:
    world = _federation()
    lost = iter((True,))

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.kind, parcel.receiver) == ("peer-shares", "client-1") and next(lost, False):
            world.at(world.now + GRACE / 2, lambda: world.restore_link("client-1"))
            world.lose_link("client-1")
            return []
        return [parcel]

    world.hook = hook
    world.run()
    about = "In the first of two rounds the link of a client breaks with a message under way, and is back in time."
    return _ending(world.recorder.transcript(about), "round done")


def federation_restart() -> TranscriptFile:
    world = _federation()
    world.training_seconds = lambda: 2.0
    world.start()
    world.settle(until=1.0)
    world.start_client("client-1")
    world.settle()
    about = "A client is killed in the first of two rounds and starts again with its journal; too few are left."
    return _ending(world.recorder.transcript(about), "dropped", "round done")


def inference() -> TranscriptFile:
    world = _inference().run()
    about = "A data owner has two images classified in one pass; both owners and the dealer."
    return _ending(world.recorder.transcript(about), "opened", "ended")


def inference_out_of_range() -> TranscriptFile:
    world = _inference()
    world.out_of_range.add(("data-owner-0", 1))
    world.run()
    about = "A value of the only pass is out of range, so that nobody learns its result; without the dealer."
    return _ending(world.recorder.transcript(about, _without_dealer(world.recorder.steps)), "pass refused")


def inference_lost_dealer() -> TranscriptFile:
    world = _inference()
    world.start()
    world.advance(lambda: bool(world.outcome(MaterialKey)))
    world.kill(DEALER)
    world.settle()
    return _ending(world.recorder.transcript("The dealer is lost before anything is ordered."), "ended")


def adaptation() -> TranscriptFile:
    world = _adaptation().run()
    about = "Two data owners learn in one round, and receive the model owner's sum; without the dealer."
    return _ending(world.recorder.transcript(about, _without_dealer(world.recorder.steps)), "sum told", "ended")


def _without_dealer(steps: Iterable[TranscriptStep]) -> list[TranscriptStep]:
    return [step for step in steps if "dealer" not in step.machine]


def _ending(transcript: TranscriptFile, *events: str) -> TranscriptFile:
    """Return the transcript. ValueError unless it has these events."""
    found = {event["event"] for step in transcript.steps for event in step.events}
    if not found.issuperset(events):
        raise ValueError(f"{transcript.about} {found}")
    return transcript


@dataclass(frozen=True)
class Corruption:
    """A message that is changed on its way, and the code with which the receiving machine refuses it."""

    make: Callable[[], Played]
    kind: str
    sender: str
    machine: str
    code: Code
    change: Callable[[Parcel], Parcel]
    about: str

    def transcript(self) -> TranscriptFile:
        """Record this machine up to its refusal. ValueError if that has another code."""
        world = self.make()
        party = self.machine.split("/")[0]

        def change(parcel: Parcel) -> list[Parcel]:
            return [self.change(parcel) if parcel.receiver == party else parcel]

        world.say_instead(self.kind, self.sender, change, at=None)
        world.run()
        steps: list[TranscriptStep] = []
        for step in world.recorder.steps:
            steps += [step] if step.machine in (self.machine, f"{party}/sums") else []
            codes = [event["code"] for event in step.events if event.get("code")]
            if codes and step.machine == self.machine:
                if step.do != "receive" or self.code.name not in codes:
                    raise ValueError(f"{self.about} {step}")
                return world.recorder.transcript(self.about, steps)
        raise ValueError(f"{self.about} There is no verdict.")


def _with(**changes: Callable[[Any], Any]) -> Callable[[Parcel], Parcel]:
    """Change these fields of the message."""

    def change(parcel: Parcel) -> Parcel:
        fields = {name: made(getattr(parcel.message, name)) for name, made in changes.items()}
        return altered(parcel, message=structs.replace(parcel.message, **fields))

    return change


def _flipped(data: bytes) -> bytes:
    """The bytes with another last bit."""
    return data[:-1] + bytes([data[-1] ^ 1])


def _shorter(parcel: Parcel) -> Parcel:
    """The message with a payload that lacks its last byte."""
    return altered(parcel, payload=bytes(parcel.packet.payload or b"")[:-1])


CORRUPTIONS: Final[Mapping[str, Corruption]] = {
    "sum_bad_signature": Corruption(
        _sum, "peer-keys", "server", "c1", Code.SIGNATURE, _with(adverts=_flipped),
        "The server changes the signature of a client under its keys.",
    ),
    "sum_bad_survivors": Corruption(
        _sum, "unmask-request", "server", "c1", Code.MEMBERS, _with(survivors=lambda _: b"\x07"),
        "The server names other survivors than a client has confirmed.",
    ),
    "sum_bad_vector": Corruption(
        _sum, "masked-input", "c2", "server", Code.VECTOR, _shorter,
        "A client sends too short a vector, and is excluded.",
    ),
    "group_key_bad_commit": Corruption(
        _group_key, "peer-key-commits", "server", "c1", Code.SIGNATURE, _with(commits=_flipped),
        "The server changes the signature of a member under its commitment.",
    ),
    "federation_bad_cohort": Corruption(
        _federation, "start-round", "server", "client-1", Code.MEMBERS, _with(cohort=lambda _: b"\x05"),
        "A client is asked to join a round that it was not selected for.",
    ),
    "federation_bad_sequence": Corruption(
        _federation, "advertise-keys", "client-2", "server", Code.SEQUENCE, lambda parcel: altered(parcel, sequence=9),
        "The message of a client has another number than the next, and the client is excluded.",
    ),
    "federation_bad_model": Corruption(
        _federation, "chunk", "server", "client-0", Code.MODEL, lambda parcel: altered(parcel, payload=bytes(24)),
        "A client fetches another model than was announced.",
    ),
    "inference_bad_weights": Corruption(
        _inference, "pass-started", "model-owner", "data-owner-0", Code.MODEL, _with(weights=_flipped),
        "The model owner computes with another model than was agreed on.",
    ),
    "inference_bad_order": Corruption(
        _inference, "order-material", "data-owner-0", "dealer/data-owner-0", Code.POLICY, _with(requests=_flipped),
        "The data owner orders other material than the model owner.",
    ),
    "adaptation_bad_round": Corruption(
        _adaptation, "keep-round", "data-owner-0", "model-owner/data-owner-0", Code.SESSION,
        _with(number=lambda number: number + 1),
        "A data owner ends a round that it has not begun.",
    ),
}  # fmt: skip
"""By the names of their files."""

TRANSCRIPTS: Final[Mapping[str, Callable[[], TranscriptFile]]] = {
    f"transcript_{name}.json": make
    for name, make in {
        "sum": sum_with_a_dropout,
        "group_key": group_key,
        "federation": federation,
        "federation_semi_honest": federation_semi_honest,
        "federation_plain": federation_plain,
        "federation_group_key": federation_group_key,
        "federation_resumed": federation_resumed,
        "federation_restart": federation_restart,
        "inference": inference,
        "inference_out_of_range": inference_out_of_range,
        "inference_lost_dealer": inference_lost_dealer,
        "adaptation": adaptation,
        **{name: corruption.transcript for name, corruption in CORRUPTIONS.items()},
    }.items()
}
"""What makes each file."""
