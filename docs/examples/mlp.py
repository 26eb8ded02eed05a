"""Three clients train an MLP on an .npz file of images as MNIST has them, under secure aggregation.

    python mlp.py mnist.npz

The file has x_train and y_train, x_test and y_test: images uint8 [N, 28, 28], or of another size, and labels 0 to 9.
"""

import os
import sys
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tacit.simulate import Federation


@cache
def images(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    # Every process imports this script, and finds the file in the environment.
    with np.load(os.environ["IMAGES"]) as file:
        return torch.from_numpy(file[f"x_{part}"]).flatten(1) / 255, torch.from_numpy(file[f"y_{part}"]).long()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(images("train")[0].shape[1], 64), nn.ReLU(), nn.Linear(64, 10))


def share(client: int, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = images("train")
    return x[client::clients], y[client::clients]


def train(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for indices in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        cross_entropy(model(x[indices]), y[indices]).backward()
        optimizer.step()


if __name__ == "__main__":
    os.environ["IMAGES"] = os.path.abspath(sys.argv[1])
    # A client may have so many samples.
    limits = {"max_weight": 60_000}
    result = Federation(model=mlp, data=share, train=train, clients=3, rounds=5, aggregation=limits).run()
    x, y = images("test")
    print(f"accuracy {(result.model(x).argmax(1) == y).float().mean():.3f} after {result.completed} rounds")
    print(f"the report is {result.directory}/report.html")
