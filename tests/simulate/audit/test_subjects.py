"""The candidates of a run, and rounds on the same images that are attacked as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tacit.models.configuration import DataConfiguration, TrainingConfiguration
from tacit.models.layout import Layout
from tacit.models.networks import LeNet
from tacit.models.training import gradient
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.simulate.audit.arms import default_experiment, unprotected
from tacit.simulate.audit.attacks import ATTACKS, Budget
from tacit.simulate.audit.scores import score
from tacit.simulate.audit.subjects import AttackInput, AuditedRun, pooled
from tacit.simulate.audit.views import MEAN_OF_UPLOADS, UPLOAD, UpdateView
from tests.simulate.audit.few_images import write_few

Audited = Callable[..., AuditedRun]
QUICK = Budget(full=False, seed=1)


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    """audited(images=5, drawn=1): a run of five clients that share so many images and draw some of theirs a round."""

    def make(*, images: int, drawn: int = 1) -> AuditedRun:
        write_few(tmp_path / "few.npz", images)
        experiment = unprotected(default_experiment()).experiment
        return AuditedRun.of(
            msgspec.structs.replace(
                experiment,
                data=DataConfiguration(source=str(tmp_path / "few.npz")),
                training=TrainingConfiguration(algorithm="fedsgd", fedsgd_images=drawn),
                protection=BinaryWeights(zero_probability=0.2),
            ),
            4,
        )

    return make


def view(client: str, round: int, *others: str) -> UpdateView:
    kind, nothing = MEAN_OF_UPLOADS if others else UPLOAD, np.zeros(0, np.float32)
    return UpdateView(
        round=round,
        kind=kind,
        clients=(client, *others),
        model=nothing,
        first=None,
        mean=nothing.astype(np.float64),
        known=nothing.astype(np.bool_),
    )


def test_clients_with_one_image_each_show_it_in_every_round(audited: Audited) -> None:
    views = [view(client, round) for round in (1, 2, 3) for client in ("client-1", "client-2")]
    found = pooled(audited(images=5), views)
    assert (found.about, found.reason) == ("3 rounds pooled", "")
    assert [(one.clients, one.round) for one in found.views] == [(("client-1",), 3), (("client-2",), 3)]
    assert [[other.round for other in one.others] for one in found.views] == [[1, 2], [1, 2]]
    assert all(other.clients == one.clients for one in found.views for other in one.others)


def test_only_rounds_on_the_same_images_are_pooled(audited: Audited) -> None:
    subject = audited(images=15)
    rounds = range(1, 9)
    found = pooled(subject, [view("client-3", round) for round in rounds])
    groups = [{other.round for other in (one, *one.others)} for one in found.views]
    sizes = sorted(map(len, groups))
    assert found.about == f"{sizes[0]} to {sizes[-1]} rounds pooled"
    for group in groups:
        images = [subject.true_images("client-3", round) for round in rounds if round in group]
        rest = [subject.true_images("client-3", round) for round in rounds if round not in group]
        assert all(torch.equal(one, images[0]) for one in images)
        assert not any(torch.equal(one, images[0]) for one in rest)


def test_a_batch_in_another_order_is_the_same_and_that_of_another_client_is_not(audited: Audited) -> None:
    # Three images of three, and a mean in which one of two clients changes.
    whole = audited(images=15, drawn=3)
    assert pooled(whole, [view("client-1", 1), view("client-1", 2)]).about == "2 rounds pooled"
    mixed = [view("client-1", 1, "client-2"), view("client-1", 2, "client-3")]
    assert pooled(whole, mixed).reason == "in 2 rounds no client trained on the same images again"


def test_rounds_of_other_images_are_not_pooled(audited: Audited) -> None:
    found = pooled(audited(images=60), [view("client-1", round) for round in (1, 2)])
    assert (found.about, found.views) == ("rounds pooled", [])
    assert found.reason == "in 2 rounds no client trained on the same images again"


def test_pooled_rounds_fill_what_binary_weights_masked(audited: Audited) -> None:
    """A model at rest: 12 rounds leave nothing masked in all of them, of what 0.2 of each round is."""
    subject = audited(images=5)
    model = subject.task.build(0).eval()
    x, y = subject.true_images("client-1", 1), subject.true_labels("client-1", 1)
    flat, _ = gradient(model, x, y, batch_size=1, device=torch.device("cpu"))
    random = np.random.default_rng(3)

    def seen(round: int) -> UpdateView:
        known = random.random(len(flat)) >= 0.2
        return replace(
            view("client-1", round),
            model=Layout.of(model).flatten(model),
            mean=np.where(known, flat, 0.0).astype(np.float64),
            known=known,
        )

    (together,) = pooled(subject, [seen(round) for round in range(1, 13)]).views
    found = {}
    for name, one in (("single", replace(together, others=())), ("pooled", together)):
        image = ATTACKS["masked-closed-form"].run(subject.attack_input(one), QUICK)
        found[name] = score("client-1", 1, subject.pixels(image)[0], subject.pixels(x)[0], subject.candidates(1))
    assert found["single"].psnr < 20
    assert found["pooled"].psnr > 60
    assert found["pooled"].re_identified


def test_rounds_that_keep_back_other_layers_show_what_one_hides() -> None:
    """Each of three rounds sends one layer: the last one, with the label of another, is not enough; all three are."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model, x = LeNet(channels=1, image_size=8, classes=10).eval(), torch.rand(1, 1, 8, 8)
    parameters = dict(model.named_parameters())
    gradients = dict(
        zip(
            parameters,
            torch.autograd.grad(cross_entropy(model(x), torch.tensor([3])), [*parameters.values()]),
            strict=True,
        )
    )

    def sent(layer: str) -> AttackInput:
        return AttackInput(
            model=model,
            gradients={name: one for name, one in gradients.items() if name.startswith(layer)},
            plain=None,
            first={},
            encrypted=False,
            key=None,
            former=None,
            shape=(1, 1, 8, 8),
            mean=(0.0,),
            std=(1.0,),
        )

    def error(given: AttackInput) -> float:
        found = ATTACKS["dlg"].run(given, QUICK)
        assert isinstance(found, torch.Tensor)
        return float((found - x).square().mean())

    last, labelled, first = sent("conv3"), sent("fc"), sent("conv1")
    with pytest.raises(ValueError, match=r"gradient of 'fc\.weight' is missing"):
        error(last)
    assert error(replace(last, others=(labelled,))) > 0.1
    assert error(replace(last, others=(labelled, first))) < 1e-4


def test_every_round_has_images_of_its_own_whatever_the_seed() -> None:
    subject = AuditedRun.of(unprotected(default_experiment()).experiment, 2**63 - 1)
    first, second = subject.decoys(1), subject.decoys(2)
    assert first.shape == second.shape == (99, *subject.data.x_test.shape[1:])
    assert not first.equal(second)
