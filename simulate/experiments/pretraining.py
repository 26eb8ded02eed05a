"""A model that is trained centrally before a small twin begins, in the place of one that was trained on ImageNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.simulate.federation.child import Control


async def pretrain(
    control: Control,
    *,
    data: DataConfiguration,
    model: ModelConfiguration,
    training: TrainingConfiguration,
    checkpoints: dict[int, Path],
    device: str,
) -> dict[str, Any]:
    """Runs in a process of its own: writes a model for every seed in `checkpoints`, and tells how accurate it is."""
    import torch

    from tacit.models import checkpoint
    from tacit.models import data as images
    from tacit.models.device import resolve_device
    from tacit.models.layout import Layout
    from tacit.models.training import evaluate, train
    from tacit.models.vision_transformer import build

    torch.set_num_threads(1)
    chosen = resolve_device(device)
    loaded = images.load(data, image_size=model.image_size)
    for seed, path in checkpoints.items():
        # The federation's own initial weights come from the bare seed: the two starts are to be independent.
        network = build(model, classes=loaded.classes, channels=loaded.channels, seed=seed + 1_000_000)
        train(network, loaded.x_train, loaded.y_train, training, seed=seed, device=chosen)
        judged = evaluate(network, loaded.x_test, loaded.y_test, batch_size=256, device=chosen)
        layout = Layout.of(network)
        metadata = {"accuracy": f"{judged.accuracy:.4f}"}
        checkpoint.save(path, layout=layout, flat=layout.flatten(network), metadata=metadata)
        control.send({"event": "pretrained", "seed": seed, "accuracy": judged.accuracy})
    return {"status": 0}
