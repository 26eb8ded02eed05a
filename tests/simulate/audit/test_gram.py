"""Ciphertexts of model encryption alone re-identify an image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit.models.layout import Layout
from tacit.models.model_encryption import Matrix, ModelKey, random_bytes
from tacit.models.training import gradient
from tacit.simulate.audit.arms import default_experiment, unprotected
from tacit.simulate.audit.attacks import ATTACKS, Budget
from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.audit.views import UPLOAD, UpdateView

Hits = Callable[[Matrix, int], int]


@pytest.fixture(scope="module")
def hits() -> Hits:
    """hits(matrix, images): how many of these are picked among 99 others by their gradients under keys of that kind."""
    subject = AuditedRun.of(unprotected(default_experiment()).experiment, 3)
    model = subject.task.build(0)
    layout = Layout.of(model)

    def count(matrix: Matrix, images: int) -> int:
        found, random = 0, np.random.default_rng(5)
        for round in range(1, images + 1):
            x, y = subject.true_images("client-1", round), subject.true_labels("client-1", round)
            flat, _ = gradient(model, x, y, batch_size=1, device=torch.device("cpu"))
            flat = ModelKey.draw(layout, random.bytes(random_bytes(layout)), matrix=matrix).encrypt(flat)
            view = UpdateView(
                round=round,
                kind=UPLOAD,
                clients=("client-1",),
                model=layout.flatten(model),
                first=None,
                mean=flat.astype(np.float64),
                known=np.ones(len(flat), np.bool_),
            )
            pick = ATTACKS["gram"].run(subject.attack_input(view), Budget(full=False, seed=1))
            assert not isinstance(pick, torch.Tensor)
            found += pick(torch.cat([subject.decoys(round), x])) == len(subject.decoys(round))
        return found

    return count


@pytest.mark.parametrize(
    ("matrix", "images", "least"),
    [("orthogonal", 4, 4), pytest.param("gaussian", 10, 1, marks=pytest.mark.exhaustive)],
)
def test_an_image_is_picked_by_what_a_key_keeps(hits: Hits, matrix: Matrix, images: int, least: int) -> None:
    """An orthogonal key keeps all; a Gaussian one about, so that by chance one of ten such tests fails by none."""
    assert hits(matrix, images) >= least
