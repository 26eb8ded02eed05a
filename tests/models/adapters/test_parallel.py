"""The adapters against the paper: its table of parameters, its equations element by element, and where they begin."""

import pytest
import torch
from torch.nn.functional import layer_norm

from tacit.models.adapters.configuration import LinearProbeConfiguration, ParallelConfiguration
from tacit.models.adapters.parallel import (
    GELU,
    QUADRATIC_GELU,
    Activation,
    AdapterParameters,
    FinalNorm,
    each,
    initial,
    logits,
    mix,
)

ACTIVATIONS = [GELU, QUADRATIC_GELU]


@pytest.mark.parametrize(
    ("classes", "adapted", "probed"), [(10, 0.2536, 0.0073), (100, 0.3196, 0.0733), (8, 0.2522, 0.0059)]
)
def test_as_many_parameters_as_the_paper_counts(classes: int, adapted: float, probed: float) -> None:
    """Table 4, in units of 2^20, for ViT-B of 384 x 384 pixels: 12 blocks, 24 x 24 patches and the class token."""
    sizes = {"blocks": 12, "tokens": 577, "width": 768, "classes": classes, "seed": 0}
    assert round(initial(ParallelConfiguration(rank=8), **sizes).count / 2**20, 4) == adapted
    assert round(initial(LinearProbeConfiguration(), **sizes).count / 2**20, 4) == probed


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_slope_is_the_derivative(activation: Activation) -> None:
    x = torch.linspace(-6, 6, 201, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(activation.value(x).sum(), x)
    # Both are a few operations on numbers up to 6; a rounding is 1.1e-16 of each.
    assert (activation.slope(x.detach()) - derivative).abs().max() < 1e-14


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_adapter_mixes_channels_and_then_tokens(
    parameters: AdapterParameters, outputs: torch.Tensor, activation: Activation
) -> None:
    z, f = outputs[0], activation.value
    down, up = parameters.channel_down[1], parameters.channel_up[1]
    token_down, token_up = parameters.token_down[1], parameters.token_up[1]
    c = torch.einsum("dr,btr->btd", up, f(torch.einsum("rd,btd->btr", down, z)))
    t = torch.einsum("tr,brd->btd", token_up, f(torch.einsum("rs,bsd->brd", token_down, z + c)))
    # Sums of at most 8 terms, perhaps in another order, of numbers below 100.
    assert (mix(parameters, 1, z, activation).added - (c + t)).abs().max() < 1e-12


def test_the_recurrence_of_equations_5_and_7(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor
) -> None:
    hidden = [outputs[-1]]
    for block in range(len(outputs)):
        z = outputs[block] + hidden[-1]
        hidden.append(parameters.scale[block] * mix(parameters, block, z, QUADRATIC_GELU).added + hidden[-1])
    token = layer_norm(hidden[-1], hidden[-1].shape[-1:], norm.weight, norm.bias, norm.epsilon)[:, 0]
    expected = token @ parameters.head_weight.T + parameters.head_bias
    # Relative to the largest, since a sum may cancel; some 50 roundings of 1.1e-16 on the way.
    assert (logits(parameters, norm, outputs) - expected).abs().max() < 1e-13 * expected.abs().max()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["kaiming", "xavier"])
def test_at_first_it_is_linear_probing_bit_for_bit(
    outputs: torch.Tensor, norm: FinalNorm, parameters: AdapterParameters, kind: str, activation: Activation
) -> None:
    sizes = {"blocks": 3, "tokens": 5, "width": 8, "classes": 3, "seed": 4}
    configuration = ParallelConfiguration(rank=2, scale=0.5, initialisation=kind)  # type: ignore[arg-type]
    head = {"head_weight": parameters.head_weight, "head_bias": parameters.head_bias}
    adapted, probe = (
        AdapterParameters(**{**each(torch.Tensor.double, initial(chosen, **sizes)).tensors, **head})
        for chosen in (configuration, LinearProbeConfiguration())
    )
    assert torch.equal(
        logits(adapted, norm, outputs, activation=activation), logits(probe, norm, outputs, activation=activation)
    )
    assert torch.equal(
        logits(probe, norm, outputs), norm(outputs[-1][:, 0]) @ head["head_weight"].T + head["head_bias"]
    )


@pytest.mark.parametrize(("kind", "limit"), [("kaiming", (6 / 768) ** 0.5), ("xavier", (6 / (768 + 8)) ** 0.5)])
def test_what_begins_at_random(kind: str, limit: float) -> None:
    sizes = {"blocks": 2, "tokens": 768, "width": 768, "classes": 3}
    configuration = ParallelConfiguration(rank=8, scale=0.25, initialisation=kind)  # type: ignore[arg-type]
    first, again, other = (initial(configuration, **sizes, seed=seed) for seed in (1, 1, 2))
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, again.tensors[name])
        assert tensor.dtype == torch.float32
        if name in ("channel_down", "token_down"):
            assert not torch.equal(tensor, other.tensors[name])
            # 12,288 uniform numbers: that none is in the outer hundredth has probability 0.99^12288 < 1e-53.
            assert 0.99 * limit < tensor.abs().max() <= limit
        else:
            assert (tensor == (0.25 if name == "scale" else 0.0)).all()


def test_the_norm_is_layer_norm(norm: FinalNorm, outputs: torch.Tensor) -> None:
    tokens = outputs[0, :, 0]
    expected = layer_norm(tokens, tokens.shape[-1:], norm.weight, norm.bias, norm.epsilon)
    # About 20 roundings of 1.1e-16 of numbers below 10.
    assert (norm(tokens) - expected).abs().max() < 1e-13


@pytest.mark.parametrize("shape", [(2, 4, 5, 8), (3, 4, 6, 8), (3, 4, 5, 7), (4, 5, 8), (3, 4, 5), (0, 4, 5, 8)])
def test_outputs_of_another_backbone_are_refused(
    parameters: AdapterParameters, norm: FinalNorm, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"are for \[3, B, 5, 8\]; take the adapters of this backbone"):
        logits(parameters, norm, torch.zeros(shape, dtype=torch.float64))


def test_a_linear_probe_takes_any_number_of_blocks_and_tokens(norm: FinalNorm) -> None:
    probe = initial(LinearProbeConfiguration(), blocks=3, tokens=5, width=8, classes=3, seed=0)
    probe = each(torch.Tensor.double, probe)
    assert logits(probe, norm, torch.ones(1, 2, 7, 8, dtype=torch.float64)).shape == (2, 3)
    for shape in ((1, 2, 7, 9), (0, 2, 7, 8)):
        with pytest.raises(ValueError, match=r"are for \[L, B, T, 8\]"):
            logits(probe, norm, torch.ones(shape, dtype=torch.float64))
