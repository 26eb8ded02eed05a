"""An app of Flower in the form of its PyTorch example: the same network, functions, records and strategy. Its data set
is scikit-learn's digits, as images of the size that the network is for. What the secure sum changes are two lines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from tacit.parties.flower import SecureGrid, secure_sum_mod

CLASSES = 10
HELD_OUT = 297


class LeNet(nn.Module):
    """The network of the example: 62,006 parameters, for images of 3 x 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for layer in (self.conv1, self.conv2):
            images = functional.max_pool2d(functional.relu(layer(images)), 2)
        hidden = functional.relu(self.fc1(images.flatten(1)))
        return self.fc3(functional.relu(self.fc2(hidden)))


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images, float32 [n, 3, 32, 32], and their classes."""
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    images = functional.interpolate(images, size=32, mode="bilinear")
    return images.expand(-1, 3, -1, -1).contiguous(), torch.tensor(found.target)


def accuracy(arrays: ArrayRecord) -> float:
    model = LeNet()
    model.load_state_dict(arrays.to_torch_state_dict())
    images, classes = digits()
    with torch.no_grad():
        return (model(images[-HELD_OUT:]).argmax(1) == classes[-HELD_OUT:]).float().mean().item()


def train(message: Message, context: Context) -> Message:
    torch.manual_seed(int(context.node_config["partition-id"]))
    model = LeNet()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number, of = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, classes = (part[:-HELD_OUT][number::of] for part in digits())
    optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"], momentum=0.9)
    for batch in torch.randperm(len(images)).split(16):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[batch]), classes[batch])
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(images)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"accuracy": accuracy(message.content["arrays"]), "num-examples": HELD_OUT})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def client_app(mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def secure_client_app(folders: Path, outside: Sequence[Any] = (), inside: Sequence[Any] = ()) -> ClientApp:
    """The same with the secure sum, which is the first of the two lines; and with mods around it, and within."""
    return client_app([*outside, secure_sum_mod(f"{folders}/{{partition-id}}"), *inside])


def initial() -> ArrayRecord:
    torch.manual_seed(0)
    return ArrayRecord(LeNet().state_dict())


def run(grid: Grid, *, rounds: int = 1, evaluate: float = 0.0) -> Any:
    strategy = FedAvg(fraction_evaluate=evaluate)
    config = ConfigRecord({"lr": 0.02})
    return strategy.start(grid=grid, initial_arrays=initial(), train_config=config, num_rounds=rounds)


def secure_server_app(roster: Path, results: list[Any], *, rounds: int) -> ServerApp:
    """The app of the server; what it found is put into a list."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        grid = SecureGrid(grid, roster)  # The second line.
        results.append(run(grid, rounds=rounds, evaluate=1.0))

    return app
