"""The experiment file of a distillation that takes seconds."""

from pathlib import Path

EXPERIMENT = """
name = "tiny"
[federation]
seed = 4
[data]
source = {source!r}
[model]
image_size = 8
patch_size = 4
width = 8
depth = 2
heads = 2
{model}
[training]
batch_size = 8
[distillation]
teacher_epochs = 6
layer_epochs = 2
prediction_epochs = 1
batch_size = 8
margin = 3.0
{more}
"""


def write(path: Path, images: Path, *, model: str = "", more: str = "") -> Path:
    path.write_text(EXPERIMENT.format(source=str(images), model=model, more=more))
    return path
