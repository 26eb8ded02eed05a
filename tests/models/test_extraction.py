"""Orders that are known are found, a block whose weights are known is copied, and what is refused."""

import pytest
import torch
from torch import nn

from tacit.models.extraction import copied_block, matched_images, matched_outputs, relative_error

IMAGES, TOKENS, WIDTH = 12, 5, 8


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.fixture
def outputs(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(IMAGES, TOKENS, WIDTH, generator=generator)


@pytest.fixture
def secret(generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(IMAGES, generator=generator)


class Residual(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.added = nn.Linear(WIDTH, WIDTH, bias=False)
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed))
        self.added.weight = nn.Parameter(weight / WIDTH**0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.added(tokens)
        return tokens + added


def test_the_order_brings_one_batch_to_the_other(outputs: torch.Tensor, secret: torch.Tensor) -> None:
    assert torch.equal(matched_outputs(outputs, outputs[secret]), secret)
    assert torch.equal(outputs[secret][matched_outputs(outputs[secret], outputs)], outputs)


def test_what_all_images_have_in_common_does_not_count(outputs: torch.Tensor, secret: torch.Tensor) -> None:
    common = 1000 * outputs[:1]
    assert torch.equal(matched_outputs(outputs, outputs[secret] + common), secret)
    assert torch.equal(matched_outputs(outputs - common, 1e-3 * outputs[secret]), secret)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_images_are_matched_in_other_coordinates(
    generator: torch.Generator, outputs: torch.Tensor, secret: torch.Tensor, others: int
) -> None:
    """An embedding without distortion, one large vector in all tokens, and tokens in front that have no patch."""
    turned, _ = torch.linalg.qr(torch.randn(2 * WIDTH, WIDTH, generator=generator))
    embedded = outputs[secret] @ turned.T + 100 * torch.randn(2 * WIDTH, generator=generator)
    in_front = torch.randn(IMAGES, others, 2 * WIDTH, generator=generator)
    assert torch.equal(matched_images(outputs, torch.cat([in_front, embedded], dim=1)), secret)


def test_a_block_is_copied(generator: torch.Generator) -> None:
    victim, like = Residual(2).requires_grad_(False), Residual(3)
    before = like.added.weight.clone()
    inputs = torch.randn(200, TOKENS, WIDTH, generator=generator)
    torch.manual_seed(4)
    copies = [copied_block(inputs, victim(inputs), like, epochs=60, learning_rate=3e-2, seed=5) for _ in range(2)]
    drawn = torch.rand(1)
    assert [copy.error for copy in copies] == [copies[0].error] * 2
    # A linear map that 900 tokens determine; what remains is the optimizer's, on the way to none.
    assert copies[0].error < 0.01
    assert relative_error(copies[0].block, inputs, victim(inputs)) < 0.01
    assert not copies[0].block.training
    assert not any(parameter.requires_grad for parameter in copies[0].block.parameters())
    assert torch.equal(like.added.weight, before)
    torch.manual_seed(4)
    assert torch.equal(torch.rand(1), drawn)


def test_what_is_held_out_is_not_learnt_by_heart(generator: torch.Generator) -> None:
    """Outputs that have nothing to do with the inputs: of two pairs one is learnt, and the other is not."""
    inputs, outputs = torch.randn(2, 2, 1, WIDTH, generator=generator)
    copied = copied_block(inputs, outputs, Residual(3), epochs=200, learning_rate=3e-2, seed=5)
    each = sorted(relative_error(copied.block, inputs[[row]], outputs[[row]]) for row in range(2))
    assert copied.error == each[1] > 0.5
    assert each[0] < 0.1


def test_the_error_is_measured_by_what_a_block_adds(outputs: torch.Tensor) -> None:
    nothing, twice = Residual(0), Residual(0)
    nothing.added.weight.data.zero_()
    twice.added.weight.data.copy_(torch.eye(WIDTH))
    assert relative_error(nothing, outputs, 1.01 * outputs) == pytest.approx(1)
    assert relative_error(twice, outputs, 2 * outputs) == 0
    assert relative_error(twice, outputs, 1.5 * outputs) == pytest.approx(1)
