"""An app of Flower with the secure sum, in a simulation of 100 nodes.

    tacit keys new --simulation 100 --out keys
    python docs/examples/flower_app.py

The training adds 0.01 times the number of the partition to every parameter. So the new
model is known: every parameter is 0.495.
"""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tacit.parties.flower import SecureGrid, secure_sum_mod

NODES = 100
KEYS = Path("keys").absolute()

client = ClientApp(mods=[secure_sum_mod(KEYS / "{partition-id}")])
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    trained = ArrayRecord([weights + np.float32(0.01 * int(context.node_config["partition-id"]))])
    content = {"arrays": trained, "metrics": MetricRecord({"num-examples": 10})}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    model = ArrayRecord([np.zeros(1000, np.float32)])
    result = strategy.start(grid=SecureGrid(grid, KEYS / "roster.toml"), initial_arrays=model, num_rounds=1)
    (weights,) = result.arrays.to_numpy_ndarrays()
    print(f"every parameter is {weights.mean():.4f}")


if __name__ == "__main__":
    run_simulation(server_app=server, client_app=client, num_supernodes=NODES)
