"""An app of Flower as it is deployed, whose training is adding a number: client n adds n to every parameter. The server
writes the result into a file that its configuration names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from tacit.parties.flower import Policy, SecureGrid, secure_sum_mod

client = ClientApp(mods=[secure_sum_mod("{tacit}", policy=Policy(largest_clip=10.0))])
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    arrays = [array + context.node_config["number"] for array in message.content["arrays"].to_numpy_ndarrays()]
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    place, nodes = Path(str(context.run_config["place"])), int(context.run_config["nodes"])
    grid = SecureGrid(grid, place / "roster.toml", clip=10.0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    model = ArrayRecord([np.zeros(1000, np.float32)])
    result = strategy.start(grid=grid, initial_arrays=model, num_rounds=1, timeout=90)
    written = place / "written"
    np.save(written, result.arrays.to_numpy_ndarrays()[0])
    written.with_suffix(".npy").rename(place / "result.npy")
