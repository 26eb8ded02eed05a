"""A model, data and training steps of one's own, as a user writes them: other processes find them by their names."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

Data = tuple[torch.Tensor, torch.Tensor]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2))


def share(client: int, clients: int) -> Data:
    x = torch.randn(10 + 5 * client, 4, generator=torch.Generator().manual_seed(client))
    return x, (x.sum(1) > 0).long()


def step(model: nn.Module, data: Data) -> None:
    x, y = data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(x), y))
        optimizer.step()


def failing(model: nn.Module, data: Data) -> None:
    dict(model.named_parameters())["head"].detach()


def broken() -> nn.Module:
    return nn.Linear(4, "2")  # type: ignore[arg-type]
