"""What an audit confuses the images of clients with."""

from __future__ import annotations

from tacit.simulate.audit.arms import default_experiment, unprotected
from tacit.simulate.audit.subjects import AuditedRun


def test_every_round_has_images_of_its_own_whatever_the_seed() -> None:
    subject = AuditedRun.of(unprotected(default_experiment()).experiment, 2**63 - 1)
    first, second = subject.decoys(1), subject.decoys(2)
    assert first.shape == second.shape == (99, *subject.data.x_test.shape[1:])
    assert not first.equal(second)
