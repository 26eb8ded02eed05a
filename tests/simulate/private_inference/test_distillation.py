"""The default recipe on digits, and all of its test images on shares. Minutes: `make exhaustive`."""

from pathlib import Path

import pytest

from tacit.parties.runs.distillation import DistillationExperiment
from tacit.parties.runs.experiment import FederationSection
from tacit.simulate.private_inference.distillation import distil
from tacit.simulate.private_inference.inference_request import InferenceRequest
from tacit.simulate.private_inference.private_images import infer


@pytest.mark.exhaustive
def test_the_student_of_digits_is_as_good_as_its_teacher_and_the_same_on_shares(tmp_path: Path) -> None:
    experiment = DistillationExperiment(federation=FederationSection(seed=0))
    found = distil(experiment, device="cpu", out=tmp_path, progress=lambda progress: None)
    assert found.test_images == 360
    assert abs(found.student.accuracy - found.teacher.accuracy) <= 0.02
    assert found.student.refused == 0
    request = InferenceRequest(model=tmp_path, protocol="crypten")
    shared = infer(request, input="shared", batch=60, data_owners=1, device="cpu", labels=0, progress=lambda text: None)
    assert len(shared.images) == 360
    assert shared.agreement is not None
    assert shared.agreement >= 0.995
