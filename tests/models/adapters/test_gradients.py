"""The explicit backward pass against torch.autograd, and its products against a counter of torch."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tacit.models.adapters.configuration import LinearProbeConfiguration
from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import (
    GELU,
    QUADRATIC_GELU,
    Activation,
    AdapterParameters,
    FinalNorm,
    each,
    initial,
    logits,
)

PROBE = each(torch.Tensor.double, initial(LinearProbeConfiguration(), blocks=3, tokens=5, width=8, classes=3, seed=0))


def by_autograd(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor, activation: Activation
) -> tuple[float, AdapterParameters]:
    leaves = each(lambda one: one.clone().requires_grad_(), parameters)
    loss = cross_entropy(logits(leaves, norm, outputs, activation=activation), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), each(lambda one: torch.zeros_like(one) if one.grad is None else one.grad, leaves)


@pytest.mark.parametrize("activation", [GELU, QUADRATIC_GELU])
@pytest.mark.parametrize("adapters", [0, 1, 2, 3])
def test_every_gradient_is_that_of_autograd(
    parameters: AdapterParameters,
    norm: FinalNorm,
    outputs: torch.Tensor,
    labels: torch.Tensor,
    adapters: int,
    activation: Activation,
) -> None:
    head = ("head_weight", "head_bias")
    parameters = AdapterParameters(
        **{name: one if name in head else one[:adapters] for name, one in parameters.tensors.items()}
    )
    outputs = outputs[-max(adapters, 1) :]
    found = descent(parameters, norm, outputs, labels, activation=activation)
    loss, expected = by_autograd(parameters, norm, outputs, labels, activation)
    assert found.loss == pytest.approx(loss, rel=1e-12)
    for name, derivative in found.gradient.tensors.items():
        wanted = expected.tensors[name]
        assert derivative.shape == wanted.shape
        # Chains of some 100 roundings of 1.1e-16, through quadratic terms that enlarge values to some 1e3.
        assert torch.allclose(derivative, wanted, rtol=1e-10, atol=1e-10), name
    moving = {name for name, derivative in found.gradient.tensors.items() if derivative.any()}
    assert moving == {name for name, one in parameters.tensors.items() if one.numel()}


def test_the_first_step_is_that_of_linear_probing_and_the_second_moves_the_adapters(
    start: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> None:
    start = each(torch.Tensor.double, start)
    first, probe = descent(start, norm, outputs, labels), descent(PROBE, norm, outputs, labels)
    assert first == probe
    for name, derivative in first.gradient.tensors.items():
        if name.startswith("head"):
            assert torch.equal(derivative, probe.gradient.tensors[name])
        else:
            assert not derivative.any()
    second = descent(stepped(start, first.gradient, 0.1), norm, outputs, labels)
    assert second.loss < first.loss
    # What expands moves before what it multiplies.
    assert {name for name, one in second.gradient.tensors.items() if not one.any()} == {
        "channel_down",
        "token_down",
        "scale",
    }


def test_loss_and_correct_answers(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> None:
    found = descent(parameters, norm, outputs, labels)
    predicted = logits(parameters, norm, outputs).argmax(-1)
    assert found.correct == int((predicted == labels).sum())
    assert descent(parameters, norm, outputs, predicted).correct == len(labels)


def test_of_the_last_adapter_only_the_row_of_the_class_token_is_trained(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> None:
    gradient = descent(parameters, norm, outputs, labels).gradient.token_up
    assert gradient[-1, 0].any()
    assert not gradient[-1, 1:].any()
    assert gradient[:-1].any(dim=-1).all()


def test_no_gradient_goes_into_the_backbone(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> None:
    found = descent(parameters, norm, outputs.requires_grad_(), labels)
    assert not any(one.requires_grad for one in found.gradient.tensors.values())


@pytest.mark.parametrize("wrong", [[0, 2, 1, 3], [0, 2, 1, -1], [0, 2, 1], []])
def test_labels_that_do_not_fit_are_refused(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, wrong: list[int]
) -> None:
    labels = torch.tensor(wrong, dtype=torch.int64)
    with pytest.raises(ValueError, match=rf"{len(wrong)} labels .* for 4 images; each image needs one of 0 to 2"):
        descent(parameters, norm, outputs, labels)


def test_no_images_are_refused(parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="there has to be an image"):
        descent(parameters, norm, outputs[:, :0], torch.zeros(0, dtype=torch.int64))
