"""The sections [model], [data] and [training] of an experiment file, and quantities derived from them without torch.

The annotations carry the description and the bounds of every field: the reference documentation and the errors for a
bad file both come from here. Rules that join several fields stand in `__post_init__`, and also hold for structs made in
Python. Neither torch nor timm is imported, because reading a file must be quick.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from tacit.models.datasets import npz
from tacit.models.datasets.samples import require_folder

OWN_MODELS: Final = ("vit", "lenet", "convnet")
"""Values of model.name that are not timm's."""

SIZES: Final[dict[str, Any]] = {"patch_size": 8, "width": 128, "depth": 2, "heads": 4, "mlp_ratio": 2.0}
"""Sizes of "vit"; other architectures bring their own."""
_OWN: Final = '0: {} for "vit", and what the name of a timm model says for that.'

_FACTORY: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z]\w*", re.ASCII)
FactoryName = Annotated[str, Meta(max_length=256)]
Tuning = Literal["all", "head", "lora", "parallel"]


def _check_factory(key: str, name: str) -> None:
    if name and not _FACTORY.fullmatch(name):
        raise ValueError(f'{key} = "{name}": expected "package.module:function", of a module that all parties have')


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Network architecture without weights. Channels and classes follow from the data. ValueError if fields contradict.

    A server sends it to its clients, so no field may name a file or a network location.
    """

    name: Annotated[
        str,
        Meta(
            description='Architecture: "vit" (a vision transformer of the sizes below), "lenet" or "convnet" (small '
            'convolutional networks), or a timm model name such as "resnet18" or "vit_small_patch16_224", which '
            "brings its own sizes, some of which can be overridden.",
            min_length=1,
            max_length=128,
        ),
    ] = "vit"
    image_size: Annotated[
        int, Meta(description="Height and width, in pixels, to which all images are resized.", ge=8, le=1024)
    ] = 32
    patch_size: Annotated[
        int,
        Meta(
            description=f"Height and width of one patch in pixels; divides image_size. {_OWN.format(8)}", ge=0, le=256
        ),
    ] = 0
    width: Annotated[
        int, Meta(description=f"Length of a token; a multiple of heads. {_OWN.format(128)}", ge=0, le=8192)
    ] = 0
    depth: Annotated[int, Meta(description=f"Number of transformer blocks. {_OWN.format(2)}", ge=0, le=128)] = 0
    heads: Annotated[int, Meta(description=f"Attention heads in a block. {_OWN.format(4)}", ge=0, le=128)] = 0
    mlp_ratio: Annotated[
        float,
        Meta(description=f"Hidden width of a block's MLP, as a multiple of width. {_OWN.format(2.0)}", ge=0.0, le=16.0),
    ] = 0.0
    factory: Annotated[
        FactoryName,
        Meta(
            description='A custom model in place of name: "package.module:function", which every party has installed '
            'and policy.factories accepts; called without arguments, it returns an nn.Module. "": none.'
        ),
    ] = ""

    train: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=1024)], ...],
        Meta(
            description='Patterns of the trained and summed parameters, as in ["head.*", "*.lora_*"]; all others are '
            "fixed, and sent to each client once. Without this key: those that require a gradient, which in our own "
            "models and timm's are all.",
            max_length=1024,
        ),
    ] = ()
    tune: Annotated[
        Tuning,
        Meta(
            description='The trained and summed part of given weights: "all"; the "head" alone; "lora": the head, '
            'and low-rank products beside queries, keys and values of every block; "parallel": the head, and an '
            "adapter beside every block, through which no gradient enters the blocks (timm's vision transformers that "
            "classify a class token). The rest is fixed, and sent to each client once."
        ),
    ] = "all"
    rank: Annotated[int, Meta(description='Rank of "lora" and "parallel".', ge=1, le=1024)] = 8

    def __post_init__(self) -> None:
        _check_factory("model.factory", self.factory)
        if self.tune != "all" and (key := next((key for key in ("factory", "train") if getattr(self, key)), "")):
            raise ValueError(
                f'model.tune = "{self.tune}" and model.{key} both say what is trained; leave one of them out'
            )
        if self.name != "vit":
            if self.name in OWN_MODELS and (key := next((key for key in SIZES if getattr(self, key)), "")):
                raise ValueError(f'model.{key} = {getattr(self, key)}: "{self.name}" has its own sizes; leave it out')
            return
        for key, usual in SIZES.items():
            if not getattr(self, key):
                msgspec.structs.force_setattr(self, key, usual)
        if self.image_size % self.patch_size:
            raise ValueError(
                f"model.image_size {self.image_size} must be a multiple of model.patch_size {self.patch_size}"
            )
        if self.width % self.heads:
            raise ValueError(f"model.width {self.width} must be a multiple of model.heads {self.heads}")


class ModelConfiguration(Architecture, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[model]: the network, and the source of its initial weights. Raises ValueError if fields contradict."""

    pretrained: Annotated[
        bool, Meta(description="Start from the weights that timm downloads for this name; needs a network.")
    ] = False
    checkpoint: Annotated[
        str, Meta(description='Start from this local .safetensors file; "" starts from random weights.')
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factory and (self.pretrained or self.checkpoint):
            key = "pretrained" if self.pretrained else "checkpoint"
            raise ValueError(f"model.{key} is not used where model.factory makes the model; load the weights there")
        if self.pretrained and self.checkpoint:
            raise ValueError("model.pretrained and model.checkpoint exclude each other; remove one of the two")
        if self.pretrained and self.name in OWN_MODELS:
            raise ValueError(
                f'model.pretrained needs a timm model name: "{self.name}" has no published weights; '
                'set model.name, for example to "vit_small_patch16_224", or use model.checkpoint'
            )
        if self.tune != "all" and not (self.pretrained or self.checkpoint):
            raise ValueError(
                f'model.tune = "{self.tune}" leaves all other weights as they are, and they would be random; name a '
                'model.checkpoint, or set tune to "all"'
            )

    @property
    def architecture(self) -> Architecture:
        return Architecture(**{name: getattr(self, name) for name in Architecture.__struct_fields__})


MOST_SUMMED_CHANNELS: Final = 15
"""Channels whose statistics fit the metrics of one sum: a count, and two numbers for each."""

DIRECTORY_SOURCES: Final = (
    "cifar10", "cifar100", "mnist", "fashion-mnist", "svhn", "gtsrb", "tiny-imagenet", "fed-isic2019", "folder",
)  # fmt: skip
"""Values of data.source that are read from data.directory; "torchvision:NAME" is another one."""
TORCHVISION: Final = "torchvision:"


def in_directory(source: str) -> bool:
    """Whether this data.source is read from data.directory."""
    return source in DIRECTORY_SOURCES or source.startswith(TORCHVISION)


def images_at(path: Path) -> dict[str, Any]:
    """Return the keys of [data] for labelled images at a path: a folder with one folder per class, or an .npz file."""
    return {"source": "folder", "directory": str(path)} if path.is_dir() else {"source": str(path)}


class ImagesConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Location of labelled images. Raises ValueError if fields contradict."""

    source: Annotated[
        str,
        Meta(
            description='"digits" (the 1,797 images of scikit-learn, bundled); "cifar10", "cifar100", "mnist", '
            '"fashion-mnist", "svhn", "gtsrb", "tiny-imagenet", "fed-isic2019", "folder" (a folder of images for each '
            'class) or "torchvision:NAME" (a class of torchvision.datasets), all in directory; or the path of an .npz '
            "file with x_train, y_train, x_test and y_test, or MedMNIST's keys; images uint8, N x H x W or "
            "N x H x W x C.",
            min_length=1,
        ),
    ] = "digits"
    directory: Annotated[
        str,
        Meta(description='Local folder with the files of the source; "" for "digits" and .npz. Nothing is downloaded.'),
    ] = ""
    classes: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...],
        Meta(
            description="Names of all classes, in the order of their numbers; the images may lack some. Between "
            "hosts all parties must give the same list. Without this key: those of the images.",
            max_length=65_536,
        ),
    ] = ()
    centres: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=5)], ...],
        Meta(
            description="The only centres whose images are used for training and test (fed-isic2019 only); with "
            'partition = "centre" in the order of the clients. Without this key: all six.',
            max_length=6,
        ),
    ] = ()
    factory: Annotated[
        FactoryName,
        Meta(
            description='Custom data in place of source: "package.module:function", called with the client\'s number, '
            "from 0, and the number of clients; it returns images and labels (float32 [N, ...] and int64 [N]), or "
            'anything that training.factory takes. Only with model.factory. "": none.'
        ),
    ] = ""

    def __post_init__(self) -> None:
        _check_factory("data.factory", self.factory)
        if self.factory:
            if self.source != "digits" or self.directory or self.classes or self.centres:
                key = next((key for key in ("directory", "classes", "centres") if getattr(self, key)), "source")
                raise ValueError(f"data.{key} is not used where data.factory gives the data; leave it out")
            return
        if in_directory(self.source):
            if not self.directory:
                raise ValueError(
                    f'data.source "{self.source}" needs data.directory: the local folder that holds its files'
                )
        elif self.source != "digits" and not self.source.endswith(".npz"):
            raise ValueError(
                f'data.source "{self.source}" is unknown; give "digits", one of {", ".join(DIRECTORY_SOURCES)}, '
                f'"{TORCHVISION}NAME", or the path of an .npz file'
            )
        elif self.directory:
            raise ValueError(
                f'data.directory "{self.directory}" is not used by data.source "{self.source}"; remove it, or name one '
                f"of {', '.join(DIRECTORY_SOURCES)} as the source"
            )
        if self.centres and self.source != "fed-isic2019":
            raise ValueError(
                f'data.centres = {list(self.centres)}: data.source "{self.source}" does not say at which centre an '
                "image was taken; leave it out"
            )
        if len(set(self.centres)) < len(self.centres):
            raise ValueError(f"data.centres = {list(self.centres)} names a centre twice; name every centre once")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("data.classes names a class twice; name every class once")


class DataConfiguration(ImagesConfiguration, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[data]: the labelled images, their partition in a simulation, and the normalisation common to all parties. Raises
    ValueError if fields contradict."""

    partition: Annotated[
        Literal["dirichlet", "iid", "centre"],
        Meta(
            description='"dirichlet": every client has its own mixture of classes; "iid": all have the same; "centre": '
            "a client has the images of one or more of the centres where they were taken (fed-isic2019 only)."
        ),
    ] = "dirichlet"
    alpha: Annotated[
        float,
        Meta(
            description="Dirichlet concentration: small makes clients differ, large makes them alike.", gt=0.0, le=1e6
        ),
    ] = 1.0
    limit: Annotated[
        int, Meta(description="Most training images of a client in a simulation, drawn from its own; 0: all.", ge=0)
    ] = 0
    mean: Annotated[
        tuple[Annotated[float, Meta(ge=0.0, le=1.0)], ...],
        Meta(
            description="Mean of the pixels of every channel, as a fraction of 255, subtracted from all images. "
            "Without this key a simulation takes that of all training images; between hosts no party has them, and it "
            'must be given, or statistics = "sum".',
            max_length=256,
        ),
    ] = ()
    std: Annotated[
        tuple[Annotated[float, Meta(gt=0.0, le=1.0)], ...],
        Meta(
            description="Standard deviation of the pixels of every channel, which divides all images.", max_length=256
        ),
    ] = ()
    statistics: Annotated[
        Literal["given", "sum"],
        Meta(
            description='Source of mean and std: "given", as above; "sum", from a secure sum of the clients\' pixels '
            "and their squares before training."
        ),
    ] = "given"
    channels: Annotated[
        int,
        Meta(
            description='With statistics = "sum", the channels of the images: 1 for grey, 3 for coloured; coloured '
            "images become grey for 1. 0: those of the server's own images, which it then needs.",
            ge=0,
            le=MOST_SUMMED_CHANNELS,
        ),
    ] = 0

    def given(self, mean: tuple[float, ...], std: tuple[float, ...]) -> DataConfiguration:
        return msgspec.structs.replace(self, mean=mean, std=std, statistics="given", channels=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factory and (self.mean or self.std or self.statistics == "sum"):
            key = "statistics" if self.statistics == "sum" else "mean and data.std"
            raise ValueError(f"data.{key}: data.factory gives data that are normalised already; leave it out")
        if self.statistics == "sum" and (self.mean or self.std):
            raise ValueError(
                'data.statistics = "sum": the clients\' sums say what data.mean and data.std are; leave both out, or '
                "leave out data.statistics"
            )
        if self.statistics == "given" and self.channels:
            raise ValueError(
                f'data.channels = {self.channels} is used with data.statistics = "sum" alone; data.mean and data.std '
                "have a value for each channel"
            )
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"data.mean has {len(self.mean)} values and data.std {len(self.std)}: give both, one for each channel"
            )


class TrainingConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[training]: a client's computation in one round."""

    algorithm: Annotated[
        Literal["fedavg", "fedsgd"],
        Meta(description='"fedavg": clients train and send weights; "fedsgd": clients send one gradient.'),
    ] = "fedavg"
    epochs: Annotated[
        int, Meta(description="Passes over the client's own data in one round (fedavg only).", ge=1, le=1000)
    ] = 4
    fedsgd_images: Annotated[
        int,
        Meta(
            description="Images that a client draws anew in every round for its mean gradient; a client with fewer "
            "takes all of its own (fedsgd only). 0: all.",
            ge=0,
            le=2**31 - 1,
        ),
    ] = 0
    batch_size: Annotated[int, Meta(description="Images in one forward and backward pass.", ge=1, le=65536)] = 16
    learning_rate: Annotated[
        float, Meta(description="Step of the client's optimizer (fedavg) or of the server (fedsgd).", gt=0.0, le=100.0)
    ] = 1e-3
    momentum: Annotated[
        float,
        Meta(
            description='Momentum of SGD in a client\'s round (fedavg, with optimizer = "sgd"), or of the server from '
            "round to round (fedsgd), which keeps it over restarts. With [encryption] it is reset with every key.",
            ge=0.0,
            lt=1.0,
        ),
    ] = 0.0
    decay: Annotated[
        float,
        Meta(
            description="Factor of learning_rate at each of decay_rounds, cumulative. 1: no decay.",
            gt=0.0,
            le=1.0,
        ),
    ] = 1.0
    decay_rounds: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=100_000)], ...],
        Meta(
            description="Ascending round numbers, counted from 1 over the whole run; each is the first round with a "
            "smaller learning_rate.",
            max_length=100,
        ),
    ] = ()
    warmup_rounds: Annotated[
        int,
        Meta(
            description="Rounds in which learning_rate rises in equal steps, to its full value in the last.",
            ge=0,
            le=100_000,
        ),
    ] = 0
    cosine_rounds: Annotated[
        int,
        Meta(
            description="Rounds after warmup_rounds in which learning_rate falls by half a cosine to a hundredth; "
            "then it stays. 0: none.",
            ge=0,
            le=100_000,
        ),
    ] = 0
    proximal: Annotated[
        float,
        Meta(
            description="FedProx: half of this times the squared distance from the round's model is added to the "
            "loss (fedavg only). 0: FedAvg.",
            ge=0.0,
            le=1e4,
        ),
    ] = 0.0
    server_optimizer: Annotated[
        Literal["none", "momentum", "adam"],
        Meta(
            description='The server\'s optimizer, which takes the mean update: "none" adds it (FedAvg); "momentum" '
            '(FedAvgM) and "adam" (FedAdam) keep their state over restarts. Buffers are averaged in any case (fedavg '
            "only, without [encryption])."
        ),
    ] = "none"
    server_learning_rate: Annotated[
        float, Meta(description="Step of the server's optimizer; 0: 1 with momentum, 0.01 with adam.", ge=0.0, le=100.0)
    ] = 0.0
    server_momentum: Annotated[
        float, Meta(description='Momentum of the server\'s optimizer, or beta_1 of "adam".', ge=0.0, lt=1.0)
    ] = 0.9
    augment: Annotated[
        tuple[Literal["flip", "crop"], ...],
        Meta(
            description='Random augmentation of each training image: "flip" mirrors half of them; "crop" shifts them '
            "by up to an eighth of the edge (fedavg only).",
            max_length=2,
        ),
    ] = ()
    optimizer: Annotated[
        Literal["adamw", "sgd"], Meta(description="The client's optimizer, started anew in every round (fedavg only).")
    ] = "adamw"
    weight_decay: Annotated[
        float, Meta(description="Decoupled (adamw) or L2 (sgd) weight decay (fedavg only).", ge=0.0, le=10.0)
    ] = 0.05
    buffers: Annotated[
        Literal["average", "local"],
        Meta(
            description='Float32 buffers, such as the running statistics of batch normalisation: "average" sums them '
            'as part of the update; "local" keeps them at each client, so that only clients can evaluate (fedavg '
            "only)."
        ),
    ] = "average"
    held_out: Annotated[
        float,
        Meta(
            description="Fraction of its own images, rounded down, that each client keeps as a validation set: it "
            "never trains on them, and evaluates each round's initial model on them. The secure sum gives the "
            "accuracy over all clients. 0: none.",
            ge=0.0,
            le=0.5,
        ),
    ] = 0.0
    metrics: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,24}$")], ...],
        Meta(
            description="Names of the numbers that training.factory returns in a mapping; the secure sum gives their "
            "mean over the clients, weighted by their samples.",
            max_length=8,
        ),
    ] = ()
    factory: Annotated[
        FactoryName,
        Meta(
            description='A custom training step in place of the keys above: "package.module:function", which every '
            "party has installed and policy.factories accepts; called with the model and the client's data, it trains "
            'the model in place, or returns a trained model, or an update (fedavg only). "": none.'
        ),
    ] = ""

    def in_round(self, round: int) -> TrainingConfiguration:
        """Return the configuration with the learning rate of this round, and no further decay."""
        times = sum(first <= round for first in self.decay_rounds)
        rate = self.learning_rate * self.decay**times
        if round < self.warmup_rounds:
            rate *= round / self.warmup_rounds
        elif self.cosine_rounds:
            done = min(1.0, (round - max(1, self.warmup_rounds)) / self.cosine_rounds)
            rate *= _LEAST + (1 - _LEAST) * (1 + math.cos(math.pi * done)) / 2
        return msgspec.structs.replace(
            self, learning_rate=rate, decay=1.0, decay_rounds=(), warmup_rounds=0, cosine_rounds=0
        )

    @property
    def server_rate(self) -> float:
        return self.server_learning_rate or (0.01 if self.server_optimizer == "adam" else 1.0)

    @property
    def sends_gradients(self) -> bool:
        """Whether clients send one gradient each and the server steps against the mean; else they train, and send the
        difference of their models."""
        return self.algorithm == "fedsgd"

    def __post_init__(self) -> None:
        _check_factory("training.factory", self.factory)
        if self.momentum and self.algorithm == "fedavg" and self.optimizer != "sgd":
            raise ValueError(
                f'training.momentum = {self.momentum}: training.optimizer = "{self.optimizer}" has moments of its own; '
                'set it to "sgd", or momentum to 0'
            )
        if (self.decay != 1.0) != bool(self.decay_rounds):
            raise ValueError(
                f"training.decay = {self.decay} and training.decay_rounds = {list(self.decay_rounds)}: one says "
                "nothing without the other; set both, for example to 0.1 and [25, 40], or leave both out"
            )
        if list(self.decay_rounds) != sorted(set(self.decay_rounds)):
            raise ValueError(
                f"training.decay_rounds = {list(self.decay_rounds)}: expected every round once, in ascending order"
            )
        if self.algorithm == "fedsgd" and (
            key := next((key for key in ("proximal", "augment") if getattr(self, key)), "")
            or ("server_optimizer" if self.server_optimizer != "none" else "")
        ):
            raise ValueError(
                f'training.{key} = {getattr(self, key)}: with training.algorithm = "fedsgd" clients send one gradient, '
                'and the server steps against it; leave it out, or set algorithm to "fedavg"'
            )
        if self.server_learning_rate and self.server_optimizer == "none":
            raise ValueError(
                f'training.server_learning_rate = {self.server_learning_rate}: with training.server_optimizer = "none" '
                'the server adds the mean update; set it to "momentum" or "adam"'
            )
        if self.metrics and (not self.factory or len(set(self.metrics)) < len(self.metrics)):
            raise ValueError(
                f"training.metrics = {list(self.metrics)}: each names, once, a number that training.factory returns; "
                "set that too, or leave it out"
            )
        if self.factory and (self.proximal or self.augment):
            key = "proximal" if self.proximal else "augment"
            raise ValueError(f"training.{key} is not used where training.factory trains; leave it out")
        if self.factory and self.algorithm == "fedsgd":
            raise ValueError(
                'training.algorithm = "fedsgd": clients send one gradient, which training.factory does not compute; '
                'set it to "fedavg"'
            )
        if self.buffers == "local" and self.algorithm == "fedsgd":
            raise ValueError(
                'training.buffers = "local": with training.algorithm = "fedsgd" nothing changes a buffer; leave it out'
            )
        if self.fedsgd_images and self.algorithm != "fedsgd":
            raise ValueError(
                f'training.fedsgd_images = {self.fedsgd_images}: with training.algorithm = "{self.algorithm}" clients '
                'train on all of their images; set it to 0, or the algorithm to "fedsgd"'
            )


_LEAST: Final = 0.01
"""Final fraction of the learning rate under a cosine schedule."""
TRAINING_BYTES: Final = {"adamw": 28, "sgd": 20}
"""Bytes per parameter at a party that trains, in float32: the received and the trained model, the gradient, the update
before and after clipping; AdamW's two moments."""
KEEPING_BYTES: Final = 20
"""Bytes per parameter at the party that keeps the model: the model twice, the previous one, its change, and its
encoding for clients."""


def parameters(model: Architecture, *, classes: int, channels: int) -> int | None:
    """Count the parameters of our own vision transformer; None for other networks, which must be built first."""
    if model.name != "vit":
        return None
    width, hidden = model.width, int(model.width * model.mlp_ratio)
    patches = (model.image_size // model.patch_size) ** 2
    embedding = (channels * model.patch_size**2 + 1) * width + (patches + 2) * width
    attention, mlp = 4 * width * (width + 1), 2 * width * hidden + width + hidden
    # Two layer norms in a block, and one after the last.
    return embedding + model.depth * (attention + mlp + 4 * width) + 2 * width + (width + 1) * classes


def check_memory(model: ModelConfiguration, *, bytes_each: int, available: int | None) -> None:
    """Raise ValueError if a model with so many bytes per parameter alone exceeds the available memory."""
    # One class and one channel: the fewest that a model has.
    count = parameters(model, classes=1, channels=1)
    if count is not None and available is not None and (needed := count * bytes_each) > available:
        raise ValueError(
            f"model.width = {model.width}, model.depth = {model.depth}: {count / 1e6:,.0f} million parameters take at "
            f"least {gigabytes(needed)} of memory to be trained, and {gigabytes(available)} are available; take a "
            "smaller model, or a larger machine"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"


def at_home(section: Mapping[str, Any], names: Collection[str], folder: Path) -> dict[str, Any]:
    """Return a section with the paths of these names resolved: relative to the file's folder, and with ~ expanded."""
    found = {name: section[name] for name in names if isinstance(section.get(name), str) and section[name]}
    return {**section, **{name: str(folder / os.path.expanduser(path)) for name, path in found.items()}}


def image_paths(section: Mapping[str, Any]) -> tuple[str, ...]:
    source = section.get("source", "digits")
    known = isinstance(source, str) and (source == "digits" or in_directory(source))
    return ("directory", "indices") if known else ("source", "directory", "indices")


def place(configuration: ImagesConfiguration) -> Path | None:
    """Return the folder or file of the source; None for images that come with this package, or from a function.

    Raises FileNotFoundError if it is missing.
    """
    if configuration.source == "digits" or configuration.factory:
        return None
    if in_directory(configuration.source):
        return require_folder(Path(configuration.directory), purpose=f"data.directory with {configuration.source}")
    return npz.require(Path(configuration.source))
