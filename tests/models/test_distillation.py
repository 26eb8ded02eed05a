"""What the student learns from, stage by stage, and how it is judged."""

import math
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax, softmax

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly import distillation
from tacit.models.friendly.calibration import calibrate, fix_intervals, intervals
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.models.friendly.distillation import (
    RANGE_WEIGHT,
    Trace,
    distill,
    judge,
    layer_losses,
    prediction_loss,
    range_loss,
    traced,
)
from tacit.models.friendly.metrics import DistillationEpoch
from tacit.models.friendly.polynomials import Interval, lowest_argument
from tacit.models.friendly.transformer import Approximation, convert
from tacit.models.networks import build

CPU = torch.device("cpu")
SETTINGS = DistillationConfiguration(layer_epochs=2, prediction_epochs=1, batch_size=8)
LABELS = torch.arange(40) % 3
EVERYTHING = Interval(-1e6, 1e6)


@pytest.fixture
def teacher() -> nn.Module:
    model = build(
        ModelConfiguration(image_size=8, patch_size=4, width=16, depth=2, heads=2), classes=3, channels=1, seed=1
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("qkv.weight"):
                parameter.mul_(8)
    return model.eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_a_trace_holds_what_timm_computes(teacher: Any, images: torch.Tensor) -> None:
    with traced(teacher) as trace:
        teacher(images)
    tokens = teacher._pos_embed(teacher.patch_embed(images))
    assert torch.equal(trace.embedding, tokens)
    assert len(trace.attention) == len(trace.hidden) == 2
    attention = teacher.blocks[0].attn
    normed = teacher.blocks[0].norm1(tokens)
    for head in range(2):
        query, key = (
            normed @ attention.qkv.weight[rows].T + attention.qkv.bias[rows]
            for start in (0, 16)
            for rows in [slice(start + 8 * head, start + 8 * (head + 1))]
        )
        scores = query @ key.transpose(1, 2) / math.sqrt(8)
        # Each row is centred, which no softmax notices.
        assert torch.allclose(trace.attention[0][:, head], scores - scores.mean(-1, keepdim=True), atol=1e-5)
    assert torch.allclose(trace.hidden[1], teacher.blocks(tokens), atol=1e-6)
    teacher(images[:3])
    assert len(trace.hidden[0]) == 40, "nothing is recorded after the block"


def test_a_student_that_computes_the_same_has_no_layer_loss(teacher: nn.Module, images: torch.Tensor) -> None:
    exact = convert(teacher, Approximation(softmax_degree=None, inverse_steps=None)).eval()
    with traced(teacher) as theirs, traced(exact) as ours:
        teacher(images)
        exact(images)
    losses = layer_losses(ours, theirs, EVERYTHING)
    assert losses["embedding"] < 1e-10
    # GELU comes after the first attention, so the first matrices are equal and the rest is not.
    assert (ours.attention[0] - theirs.attention[0]).abs().max() < 1e-4
    assert losses["attention"] > 1e-4
    assert losses["hidden"] > 1e-4


def test_layer_losses_are_mean_squares_added_over_blocks() -> None:
    shape = torch.zeros(2, 1, 3, 3)
    ours = Trace(embedding=torch.zeros(4), attention=[shape, shape + 1], hidden=[torch.ones(5), torch.ones(5)])
    theirs = Trace(embedding=torch.full((4,), 3.0), attention=[shape + 9, shape - 9], hidden=[torch.zeros(5)] * 2)
    losses = layer_losses(ours, theirs, Interval(-2, 5))
    assert {name: loss.item() for name, loss in losses.items()} == {"embedding": 9, "attention": 25 + 9, "hidden": 2}
    assert range_loss(ours, Interval(-2, 0.5)).item() == 0.25
    assert range_loss(theirs, Interval(-2, 5)).item() == 16 + 49


def test_the_gradient_of_the_prediction_loss_is_that_of_the_divergence() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, wanted = (torch.randn(6, 4, generator=generator, dtype=torch.float64) * 5 for _ in range(2))
    gradients = []
    for divergence in (False, True):
        student = logits.clone().requires_grad_()
        if divergence:
            loss = kl_div(log_softmax(student / 5, 1), softmax(wanted / 5, 1), reduction="batchmean")
        else:
            loss = prediction_loss(student, wanted, 5.0)
        gradients.append(torch.autograd.grad(loss, student)[0])
    assert torch.allclose(*gradients, atol=1e-15)
    entropy = -(softmax(wanted / 5, 1) * log_softmax(wanted / 5, 1)).sum(1).mean()
    assert prediction_loss(wanted, wanted, 5.0).item() == pytest.approx(entropy.item())


def test_with_labels_stage_2_steps_against_both_losses(teacher: nn.Module, images: torch.Tensor) -> None:
    """One step of Adam with everything in one batch, against the divergence and the cross-entropy written out."""
    student, expected = (convert(teacher, Approximation()).train() for _ in range(2))
    settings = DistillationConfiguration(prediction_epochs=1, batch_size=40, labels=True)
    test = images[:10], LABELS[:10]
    (epoch,) = distill(teacher, student, images, LABELS, test, settings, seed=3, device=CPU, stages=("predictions",))
    within = Interval(lowest_argument(6), 5.0)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.Adam(expected.parameters(), lr=1e-4)
    with traced(expected) as trace:
        logits = expected(images[order])
        labels = -log_softmax(logits, 1)[range(40), LABELS[order]].mean()
        wanted = softmax(teacher(images[order]).detach() / 5, 1)
        divergence = kl_div(log_softmax(logits / 5, 1), wanted, reduction="batchmean")
        torch.autograd.backward(labels + divergence + RANGE_WEIGHT * range_loss(trace, within))
    optimizer.step()
    assert set(epoch.losses) == {"prediction", "labels", "range"}
    assert epoch.losses["labels"] == pytest.approx(labels.item(), rel=1e-5)
    # A first step of Adam is 1e-4 g / (|g| + 1e-8), so that it magnifies what is off in small gradients.
    gradients = [parameter.grad for parameter in expected.parameters()]
    for ours, theirs, gradient in zip(student.parameters(), expected.parameters(), gradients, strict=True):
        assert gradient is not None
        sure = gradient.abs() > 1e-4
        torch.testing.assert_close(ours[sure], theirs[sure], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("decay_epochs", "rates"), [((), (8, 8, 4)), ((2,), (8, 0.8, 0.4)), ((1, 3), (0.8, 0.8, 0.04))]
)
def test_the_step_decays_at_its_epochs_over_both_stages(
    teacher: nn.Module, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch, decay_epochs: tuple[int, ...], rates: Any
) -> None:
    seen: list[float] = []

    class Watched(torch.optim.Adam):
        def step(self, *arguments: Any, **options: Any) -> Any:
            seen.append(self.param_groups[0]["lr"])
            return super().step(*arguments, **options)

    monkeypatch.setattr(torch.optim, "Adam", Watched)
    rate = {"layer_learning_rate": 8e-5, "prediction_learning_rate": 4e-5}
    run(teacher, images, decay_epochs=decay_epochs, batch_size=40, **rate)
    assert seen == pytest.approx([1e-5 * rate for rate in rates])


def run(
    teacher: nn.Module, images: torch.Tensor, **options: Any
) -> tuple[list[DistillationEpoch], dict[str, torch.Tensor]]:
    student = convert(teacher, Approximation())
    settings = msgspec.structs.replace(SETTINGS, **options)
    seen: list[DistillationEpoch] = []
    test = images[:10], torch.arange(10) % 3
    epochs = distill(teacher, student, images, LABELS, test, settings, seed=3, device=CPU, progress=seen.append)
    assert seen == epochs
    return epochs, student.state_dict()


def test_both_stages_learn_and_the_same_seed_gives_the_same_student(teacher: nn.Module, images: torch.Tensor) -> None:
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    epochs, student = run(teacher, images, layer_epochs=4, prediction_epochs=2, prediction_learning_rate=1e-2)
    assert [(epoch.number, epoch.stage) for epoch in epochs] == [
        *((number, "layers") for number in range(1, 5)),
        *((number, "predictions") for number in range(5, 7)),
    ]
    first, last = epochs[0].losses, epochs[3].losses
    assert set(first) == {"embedding", "attention", "hidden", "range"}
    assert last["attention"] + last["hidden"] < 0.7 * (first["attention"] + first["hidden"])
    assert set(epochs[4].losses) == {"prediction", "range"}
    assert epochs[-1].losses["prediction"] < epochs[4].losses["prediction"]
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    again, same = run(teacher, images, layer_epochs=4, prediction_epochs=2, prediction_learning_rate=1e-2)
    assert again == epochs
    assert all(torch.equal(value, same[name]) for name, value in student.items())


def test_scores_are_drawn_into_their_interval(teacher: nn.Module, images: torch.Tensor) -> None:
    epochs, _ = run(teacher, images, largest_score=0.05, layer_epochs=4, layer_learning_rate=1e-2)
    assert 0 < epochs[3].losses["range"] < 0.5 * epochs[0].losses["range"]


def test_each_stage_has_its_own_steps(teacher: nn.Module, images: torch.Tensor) -> None:
    """With steps of nothing a stage changes nothing, and leaves the other to it."""
    nothing, one = 1e-30, {"layer_epochs": 1, "prediction_epochs": 1}
    _, untouched = run(teacher, images, **one, layer_learning_rate=nothing, prediction_learning_rate=nothing)
    for name, value in convert(teacher, Approximation()).state_dict().items():
        assert torch.allclose(value, untouched[name], atol=1e-20)
    for stage in ("layer_learning_rate", "prediction_learning_rate"):
        rates = {"layer_learning_rate": nothing, "prediction_learning_rate": nothing, stage: 1e-2}
        student = run(teacher, images, **one, **rates)[1]
        assert any(not torch.equal(value, untouched[name]) for name, value in student.items())
        first = run(teacher, images, **one, layer_learning_rate=1e-2, prediction_learning_rate=1e-2)[1]
        assert any(not torch.equal(value, first[name]) for name, value in student.items())


def test_a_training_that_diverges_says_so(teacher: nn.Module, images: torch.Tensor) -> None:
    student, test = convert(teacher, Approximation()), (images[:1], torch.zeros(1, dtype=torch.int64))
    with torch.no_grad():
        teacher.get_parameter("blocks.1.mlp.fc2.weight").mul_(1e25)
    with pytest.raises(FloatingPointError, match="the loss of a batch is inf; take a smaller learning rate"):
        distill(teacher, student, images, LABELS, test, SETTINGS, seed=3, device=CPU)


def test_images_beyond_the_intervals_are_counted_as_refused_and_wrong(
    teacher: nn.Module, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "EVALUATION_BATCH", 16)
    student = convert(teacher, Approximation())
    calibrate(student, images, margin=1.5)
    labels = student(images).argmax(dim=1)
    agreement = (labels == teacher(images).argmax(dim=1)).double().mean().item()
    sound = judge(student, teacher, images, labels, device=CPU)
    assert (sound.accuracy, sound.refused, sound.agreement) == (1.0, 0, agreement)
    # A limit between the images: those beyond it are refused, and no others.
    largest: list[torch.Tensor] = []
    gauge = student.get_submodule("norm.variance")
    hook = gauge.register_forward_pre_hook(lambda part, inputs: largest.append(inputs[0].square().mean(-1).detach()))
    student(images)
    hook.remove()
    values = largest[0].flatten().sort().values
    limit = (values[-4] + values[-3]).item() / 2
    interval = intervals(student)["norm.variance"]
    fix_intervals(student, {"norm.variance": replace_high(interval, limit)})
    judged = judge(student, teacher, images, labels, device=CPU)
    assert judged == msgspec.structs.replace(judged, accuracy=37 / 40, refused=3)


def replace_high(interval: Interval, high: float) -> Interval:
    return interval._replace(high=high)
