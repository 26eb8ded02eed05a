"""LoRA of peft on a vision transformer of timm, in a loop of one's own: stopped, resumed, loaded into plain timm."""

import timm
import torch
from peft import LoraConfig, get_peft_model
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy, interpolate

from tacit.simulate import Federation

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3, "in_chans": 1, "num_classes": 10}


def vit():
    base = timm.create_model("vit_tiny_patch16_224", **SIZES)  # with pretrained=True, or weights of your own
    return get_peft_model(base, LoraConfig(r=8, target_modules=["qkv", "proj", "fc1", "fc2"], modules_to_save=["head"]))


def digits(client, clients):
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    return interpolate(x.float().reshape(-1, 1, 8, 8) / 8 - 1, 16)[client::clients], y[client::clients]


def loop(model, data, context):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in torch.randperm(len(data[1]), generator=context.generator).split(32):
        loss = cross_entropy(model(data[0][batch]), data[1][batch])
        optimizer.zero_grad(), loss.backward(), optimizer.step()
    return {"loss": loss.item()}


if __name__ == "__main__":
    run = {"model": vit, "data": digits, "train": loop, "clients": 3, "rounds": 5, "training": {"metrics": ["loss"]}}
    Federation(**run, directory="runs/lora").run(on_round=lambda round: round.number == 2)  # True stops it
    federation = Federation(**run, directory="runs/lora", resume=True)
    result = federation.run(on_round=lambda round: print(round.number, round.metrics))
    plain, (x, y) = timm.create_model("vit_tiny_patch16_224", **SIZES).eval(), digits(0, 1)
    plain.load_state_dict(result.model.merge_and_unload().state_dict())
    print(f"accuracy {(plain(x).argmax(1) == y).float().mean():.3f} after {result.completed} rounds")
