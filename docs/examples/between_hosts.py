"""The same model, data and training between hosts: keys, roster and addresses are made as docs/hosts.md says.

python between_hosts.py server server.toml      # on one host
python between_hosts.py client client-1.toml    # on every other, with own.npz: x float32 [N, 4], y int64 [N]
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tacit.parties import Client, Server

Data = tuple[torch.Tensor, torch.Tensor]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def own(client: int, clients: int) -> Data:
    with np.load("own.npz") as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


def train(model: nn.Module, data: Data) -> None:
    x, y = data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    role, party = sys.argv[1:]
    if role == "server":
        result = Server(party, model=net, data=own, train=train, clients=3, rounds=2).run()
        print(f"{result.completed} rounds, in {result.directory}")
    else:
        print(Client(party, model=net, data=own, train=train).run())
