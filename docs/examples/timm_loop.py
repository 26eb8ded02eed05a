"""A vision transformer of timm with a training loop of one's own: warm-up, label smoothing, mixed images, clipping.

    python timm_loop.py [ROUNDS]

The data are scikit-learn's digits, which need no download. A model of Hugging Face's transformers goes as well: any
nn.Module of float32 does.
"""

import sys

import timm
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from tacit.simulate import Federation

EPOCHS = 2


def vit() -> nn.Module:
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3}
    return timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **sizes)


def digits(part: str) -> TensorDataset:
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    x, y = (x_train, y_train) if part == "train" else (x_test, y_test)
    images = torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    return TensorDataset(interpolate(images, 16, mode="bilinear"), torch.tensor(y))


def loader(client: int, clients: int) -> DataLoader:
    x, y = digits("train").tensors
    return DataLoader(TensorDataset(x[client::clients], y[client::clients]), batch_size=32, shuffle=True)


def loop(model: nn.Module, batches: DataLoader) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm_up = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    for _ in range(EPOCHS):
        for x, y in batches:
            other, share = torch.randperm(len(x)), torch.rand(()).item() * 0.3
            logits = model((1 - share) * x + share * x[other])
            loss = (1 - share) * cross_entropy(logits, y, label_smoothing=0.05)
            loss = loss + share * cross_entropy(logits, y[other], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm_up.step()


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    result = Federation(model=vit, data=loader, train=loop, clients=4, rounds=rounds, seed=7).run(
        show=lambda event: print(event.text) if event.party == "server" and event.level != "debug" else None
    )
    x, y = digits("test").tensors
    with torch.inference_mode():
        accuracy = (result.model(x).argmax(1) == y).float().mean()
    print(f"accuracy {accuracy:.3f} after {result.completed} rounds")
