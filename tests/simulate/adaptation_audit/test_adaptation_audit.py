"""What owners of an adaptation make of recordings: here of outputs in the clear, put into secret orders, and of pixels
under masks, as parties would have left them (tests/cli/test_adaptation_audit.py has these)."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tacit.models.adapters.configuration import AdaptationConfiguration, ParallelConfiguration
from tacit.models.adapters.federated import Features, FullBatches, federated
from tacit.models.adapters.parallel import FinalNorm, block_outputs
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.parties.adaptation import standing
from tacit.parties.inference.ring import packed
from tacit.parties.inference.stages import input_share
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import FederationSection
from tacit.protocol.adaptation.messages import ADAPTATION_VERSION
from tacit.protocol.core.codec import Envelope, encode
from tacit.protocol.core.messages import Message
from tacit.protocol.inference.messages import Opening, StartPass
from tacit.protocol.inference.schedule import STREAM
from tacit.simulate.adaptation.plan import MODEL_OWNER, Folder, owner_names
from tacit.simulate.adaptation.recording import OwnerRecording
from tacit.simulate.adaptation.run import make_folder, prepare
from tacit.simulate.adaptation.setting import BACKBONE
from tacit.simulate.adaptation_audit.copies import AuditedAdaptation, centred
from tacit.simulate.adaptation_audit.extraction import COPIED_BLOCKS, IMITATION, ModelAttack
from tacit.simulate.adaptation_audit.openings import clear_words, fitted_words, read_words, received_words
from tacit.simulate.adaptation_audit.run import adaptation_audit_plan
from tacit.simulate.audit.results import NOT_ATTACKED, RECONSTRUCTED
from tacit.simulate.federation.recording import HeardMessage, ToldOutputs, place, read
from tests.simulate.audit.few_images import write_few

SEED = 3
OWNER = owner_names(3)[0]
EXPERIMENT = AdaptationExperiment(
    federation=FederationSection(clients=3, rounds=4, seed=SEED),
    model=ModelConfiguration(image_size=8, patch_size=2, width=16, depth=2, heads=2),
    data=DataConfiguration(partition="iid"),
    training=TrainingConfiguration(batch_size=32, learning_rate=2e-3),
    adapter=ParallelConfiguration(rank=2),
    adaptation=AdaptationConfiguration(batch=32, backbone_epochs=3),
)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedAdaptation]:
    """As parties leave it, after the same rounds in the clear."""
    before = torch.get_num_threads()
    folder = Folder(tmp_path_factory.mktemp("audited") / "run")
    make_folder(EXPERIMENT, folder)
    found, plan = prepare(EXPERIMENT, folder, seed=SEED, device="cpu", show=lambda event: None)
    learning, victim = plan.learning, found.served.transformer
    norm = FinalNorm.plain(learning.public.sizes.width, learning.epsilon)
    clients = [
        Features(outputs=centred(block_outputs(victim, own.images).double()), labels=own.labels)
        for own in map(found.of_owner, range(len(found.owners)))
    ]
    *_, last = federated(learning.initial(), norm, clients, learning.schedule, FullBatches(32, 1), seed=SEED)
    folder.files.state(OWNER).make()
    standing.save(folder.of_owner(OWNER), last, round=4)
    yield AuditedAdaptation.of(EXPERIMENT, folder, SEED)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recordings(subject: AuditedAdaptation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the first data owner, who received all outputs, and of the model owner."""
    folder, generator = tmp_path_factory.mktemp("recordings"), np.random.default_rng(1)
    received, heard = OwnerRecording(folder, OWNER), OwnerRecording(folder, MODEL_OWNER)
    own = subject.images_of(OWNER)
    outputs = centred(block_outputs(subject.setting.served.transformer, own.images))
    for batch in subject.batches(OWNER):
        orders = [generator.permutation(batch) for _ in outputs]
        rows = {block: outputs[block, order].numpy() for block, order in enumerate(orders)}
        patches = input_share(subject.learning.public, len(batch), own.images[batch])
        received.keep(ToldOutputs(rows, own.labels[orders[-1]].numpy(), patches.numpy()))
    for owner in owner_names(3):
        for number, batch in enumerate(subject.batches(owner), 1):
            pixels = input_share(subject.learning.public, len(batch), subject.images_of(owner).images[batch])
            mask = torch.from_numpy(generator.integers(0, 1 << 62, tuple(pixels.shape)))
            octets = packed(pixels - mask, STREAM).tobytes()
            half = len(octets) // 2
            say(heard, owner, number, StartPass(weights=bytes(32)))
            say(heard, owner, number, Opening(step=0, chunk=0), octets[:half])
            say(heard, owner, number, Opening(step=0, chunk=1), octets[half:])
            say(heard, owner, number, Opening(step=1, chunk=0), bytes(100))
    heard.heard("dealer", (memoryview(b"private inference"),))
    return folder


def say(recording: OwnerRecording, owner: str, number: int, message: Message, payload: bytes | None = None) -> None:
    envelope = Envelope(
        version=ADAPTATION_VERSION,
        session=owner.encode().ljust(32, b"."),
        round=number,
        type=type(message).TYPE,
        sender=owner,
        sequence=1,
    )
    recording.heard(owner, [memoryview(frame) for frame in encode(message, envelope, payload)])


def test_of_a_pass_the_first_step_is_kept_and_nothing_of_the_dealer(recordings: Path) -> None:
    kept = [record for record in read(recordings, MODEL_OWNER) if isinstance(record, HeardMessage)]
    assert {record.sender for record in kept} == {*owner_names(3)}
    # Of each of 12 passes its beginning, and two chunks of its pixels.
    assert len(kept) == 36
    assert stat.S_IMODE(place(recordings, MODEL_OWNER).stat().st_mode) == 0o600


def test_images_are_confused_with_others_whatever_the_seed(subject: AuditedAdaptation) -> None:
    assert len(replace(subject, seed=2**63 - 1).candidates(OWNER, 1)) == 99


def test_received_outputs_are_named_by_outputs_in_the_clear(subject: AuditedAdaptation, recordings: Path) -> None:
    labels = subject.images_of(OWNER).labels
    for received, batch in zip(subject.received(recordings, OWNER), subject.batches(OWNER), strict=True):
        assert received.own.tolist() == batch.tolist()
        for rows in received.rows.values():
            assert sorted(rows.images.tolist()) == sorted(batch.tolist())
        assert torch.equal(labels[received.rows[1].images], received.labels)


@pytest.mark.exhaustive
@pytest.mark.parametrize("attack", [COPIED_BLOCKS, IMITATION])
def test_the_model_comes_back_from_outputs_in_secret_orders(
    subject: AuditedAdaptation, recordings: Path, attack: str
) -> None:
    passes = list(subject.received(recordings, OWNER))
    row = ModelAttack(subject, OWNER).run(attack, ("reveal-all", "all"), "outputs", passes, in_order=False)
    assert row.received_outputs == 4 * 32 * 2
    assert row.verdict == RECONSTRUCTED, row
    assert row.metrics is not None
    assert row.metrics.matching_accuracy is not None
    assert row.metrics.matching_accuracy > 0.9


def test_without_outputs_there_is_nothing_to_copy(subject: AuditedAdaptation, recordings: Path) -> None:
    attack = ModelAttack(subject, OWNER)
    row = attack.run(COPIED_BLOCKS, ("reveal-none", "none"), "nothing", [], in_order=False)
    assert (row.verdict, row.metrics) == (NOT_ATTACKED, None)
    assert "there is nothing to copy" in row.reason
    last = [SimpleNamespace(**{**vars(one), "rows": {1: one.rows[1]}}) for one in subject.received(recordings, OWNER)]
    row = attack.run(COPIED_BLOCKS, ("reveal-sampled", "sampled"), "the last ones", last, in_order=False)
    assert "outputs of one block alone were revealed" in row.reason


def test_masks_hide_pixels_that_are_read_without_them(subject: AuditedAdaptation, recordings: Path) -> None:
    public = subject.learning.public
    images = {
        owner: [subject.images_of(owner).images[batch] for batch in subject.batches(owner)] for owner in owner_names(3)
    }
    masked = received_words(recordings, images, public)
    assert [each.owner for each in masked] == [owner for owner in owner_names(3) for _ in range(4)]
    for words, close in ((clear_words(masked, public), True), (masked, False)):
        victim, others = words[0], [each for each in words if each.owner != OWNER]
        for reader in (read_words, fitted_words):
            found = reader(victim, others, public)
            error = (found - victim.images).square().mean() / victim.images.var()
            assert bool(error < 1e-6) is close, (reader, error)
            assert close or error > 0.9


def test_a_session_that_was_lost_is_no_whole_run(subject: AuditedAdaptation, tmp_path: Path) -> None:
    recording = OwnerRecording(tmp_path, MODEL_OWNER)
    for session in (b"one", b"other"):
        envelope = Envelope(
            version=ADAPTATION_VERSION,
            session=session.ljust(32, b"."),
            round=1,
            type=Opening.TYPE,
            sender=OWNER,
            sequence=1,
        )
        message = Opening(step=0, chunk=0)
        recording.heard(OWNER, [memoryview(frame) for frame in encode(message, envelope, bytes(8))])
    with pytest.raises(ValueError, match="has lost its session"):
        received_words(tmp_path, {OWNER: []}, subject.learning.public)


@pytest.mark.parametrize("others", [False, True])
def test_the_model_of_a_run_is_attacked_with_the_images_that_it_was_trained_for(tmp_path: Path, others: bool) -> None:
    run, images = tmp_path / "run", tmp_path / "images.npz"
    make_folder(EXPERIMENT, Folder(run))
    (run / BACKBONE).mkdir()
    write_few(images, 5)
    plan = adaptation_audit_plan(
        Folder(run).run.experiment,
        run,
        adversaries=(),
        attacks=(),
        images=2,
        data=images if others else None,
        full=False,
        seed=None,
        out=tmp_path / "out",
    )
    assert plan.backbone == (None if others else run / BACKBONE)
