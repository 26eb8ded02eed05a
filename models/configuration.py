"""The sections [model], [data], [training] and [protection] of an experiment file.

Each section is one frozen msgspec struct. The annotations carry the description and the bounds of every field, so that
the reference documentation and the refusals of a bad file both come from here. msgspec checks types and bounds when it
decodes a file (`msgspec.convert`, `msgspec.toml.decode`); rules that join several fields stand in `__post_init__` and
hold for structs made in Python too. This module imports neither torch nor timm: reading a file must be quick.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

OWN_MODELS: Final = ("vit", "lenet", "convnet")
"""The values of model.name that are not timm's."""


class ModelConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[model]: the network. Channels and classes follow from the data. Raises ValueError if fields contradict."""

    name: Annotated[
        str,
        Meta(
            description='Architecture: "vit" (a vision transformer of the sizes below), "lenet" or "convnet" (small '
            'convolutional networks), or a timm model name such as "resnet18" or "vit_small_patch16_224", which brings '
            "its own sizes.",
            min_length=1,
            max_length=128,
        ),
    ] = "vit"
    image_size: Annotated[
        int, Meta(description="Height and width, in pixels, to which all images are resized.", ge=8, le=1024)
    ] = 32
    patch_size: Annotated[
        int, Meta(description='Height and width of one patch in pixels; divides image_size ("vit" only).', ge=1, le=256)
    ] = 8
    width: Annotated[int, Meta(description='Length of a token; a multiple of heads ("vit" only).', ge=1, le=8192)] = 128
    depth: Annotated[int, Meta(description='Number of transformer blocks ("vit" only).', ge=1, le=128)] = 2
    heads: Annotated[int, Meta(description='Attention heads in a block ("vit" only).', ge=1, le=128)] = 4
    mlp_ratio: Annotated[
        float, Meta(description='Hidden width of a block\'s MLP, as a multiple of width ("vit" only).', gt=0.0, le=16.0)
    ] = 2.0
    pretrained: Annotated[
        bool, Meta(description="Start from the weights that timm downloads for this name; needs a network.")
    ] = False
    checkpoint: Annotated[
        str, Meta(description='Start from this local .safetensors file; "" starts from random weights.')
    ] = ""

    def __post_init__(self) -> None:
        if self.pretrained and self.checkpoint:
            raise ValueError("model.pretrained and model.checkpoint exclude each other; remove one of the two")
        if self.pretrained and self.name in OWN_MODELS:
            raise ValueError(
                f'model.pretrained needs a timm model name: "{self.name}" has no published weights; '
                'set model.name, for example to "vit_small_patch16_224", or use model.checkpoint'
            )
        if self.name != "vit":
            return
        if self.image_size % self.patch_size:
            raise ValueError(
                f"model.image_size {self.image_size} must be a multiple of model.patch_size {self.patch_size}"
            )
        if self.width % self.heads:
            raise ValueError(f"model.width {self.width} must be a multiple of model.heads {self.heads}")


DIRECTORY_SOURCES: Final = ("cifar10", "cifar100", "svhn", "gtsrb", "tiny-imagenet", "fed-isic2019", "folder")
"""The values of data.source that are read from data.directory."""


class DataConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[data]: the labelled images and how a simulation divides them. Raises ValueError if fields contradict."""

    source: Annotated[
        str,
        Meta(
            description='"digits" (1,797 images that come with scikit-learn); "cifar10", "cifar100", "svhn", "gtsrb", '
            '"tiny-imagenet", "fed-isic2019" or "folder" (a folder of images for each class), all in directory; or the '
            "path of an .npz file with x_train, y_train, x_test and y_test; images uint8, N x H x W or N x H x W x C.",
            min_length=1,
        ),
    ] = "digits"
    directory: Annotated[
        str,
        Meta(description='Local folder with the files of the source; "" for "digits" and .npz. Nothing is downloaded.'),
    ] = ""
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

    def __post_init__(self) -> None:
        if self.source in DIRECTORY_SOURCES:
            if not self.directory:
                raise ValueError(
                    f'data.source "{self.source}" needs data.directory: the local folder that holds its files'
                )
        elif self.source != "digits" and not self.source.endswith(".npz"):
            raise ValueError(
                f'data.source "{self.source}" is unknown; give "digits", one of {", ".join(DIRECTORY_SOURCES)}, or the '
                "path of an .npz file"
            )
        elif self.directory:
            raise ValueError(
                f'data.directory "{self.directory}" is not used by data.source "{self.source}"; remove it, or name one '
                f"of {', '.join(DIRECTORY_SOURCES)} as the source"
            )


class TrainingConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[training]: what a client computes in one round."""

    algorithm: Annotated[
        Literal["fedavg", "fedsgd"],
        Meta(description='"fedavg": clients train and send weights; "fedsgd": clients send one gradient.'),
    ] = "fedavg"
    epochs: Annotated[
        int, Meta(description="Passes over the client's own data in one round (fedavg only).", ge=1, le=1000)
    ] = 4
    batch_size: Annotated[int, Meta(description="Images in one forward and backward pass.", ge=1, le=65536)] = 16
    learning_rate: Annotated[
        float,
        Meta(description="Step of the client's optimizer (fedavg) or of the server (fedsgd).", gt=0.0, le=100.0),
    ] = 1e-3
    optimizer: Annotated[
        Literal["adamw", "sgd"],
        Meta(description="The client's optimizer, started anew in every round (fedavg only)."),
    ] = "adamw"
    weight_decay: Annotated[
        float, Meta(description="Decoupled (adamw) or L2 (sgd) weight decay (fedavg only).", ge=0.0, le=10.0)
    ] = 0.05


Probability = Annotated[float, Meta(ge=0.0, lt=1.0)]


Scheme = Literal[
    "none",
    "fixed-position",
    "binary-weights",
    "locked-binary-weights",
    "model-encryption",
    "model-encryption+fixed-position",
    "model-encryption+binary-weights",
    "model-encryption+locked-binary-weights",
    "fedrsm",
    "fedsplit",
    "fedcg",
    "dp-gaussian",
]


class ProtectionConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[protection]: what a client does to its update before it is summed. Raises ValueError if fields contradict."""

    scheme: Annotated[
        Scheme,
        Meta(
            description='"none"; "fixed-position": the position embedding is never updated; "binary-weights": every '
            'client zeroes random coordinates, others in every round; "locked-binary-weights": the same ones always; '
            '"model-encryption": the server holds and updates a model whose embeddings are encrypted under a key of '
            'the clients, alone or with one of the others, as in "model-encryption+binary-weights"; "fedrsm": every '
            'client keeps back the layers that training changed most; "fedsplit": the first half of the model never '
            'leaves a client, which has its own; "fedcg": the same, and clients share a generator of what comes out of '
            'that half, without secure aggregation only; "dp-gaussian": Gaussian noise is added to every update.'
        ),
    ] = "none"
    zero_probability: Annotated[
        Probability, Meta(description="Probability that a client zeroes a coordinate (binary weights only).")
    ] = 0.5
    layers: Annotated[
        dict[str, Probability],
        Meta(
            description="Other probabilities for the tensors whose names match these patterns, as in "
            '{"patch_embed.*" = 0.8, "pos_embed" = 0.9}; the last match counts (binary weights only).'
        ),
    ] = {}
    min_contributors: Annotated[
        int,
        Meta(
            description="A coordinate moves only if at least so many clients contributed to it (binary weights and "
            "fedrsm only).",
            ge=1,
            le=1000,
        ),
    ] = 1
    enforce: Annotated[
        Literal["server", "clients"],
        Meta(
            description='Who sees to min_contributors: "server", which protects those who receive the model; '
            '"clients": told the counts, which are summed securely first, they send no coordinate below it '
            "(binary weights only)."
        ),
    ] = "server"
    masks: Annotated[
        Literal["independent", "coordinated"],
        Meta(
            description='"independent": every client draws its binary weights alone; "coordinated": all draw them '
            "under a common key, so that no coordinate has fewer contributors than min_contributors and the tolerated "
            "dropouts (aggregation.dropout) together, but for those that have none (binary weights only)."
        ),
    ] = "independent"
    matrix: Annotated[
        Literal["orthogonal", "gaussian"],
        Meta(
            description='What encrypts the patch embedding: "orthogonal" keeps lengths and angles, "gaussian" does not '
            "and loses precision (model encryption only)."
        ),
    ] = "orthogonal"
    initial_model: Annotated[
        Literal["clients", "server"],
        Meta(
            description='Who makes the first model: "clients", from their key; "server", which then knows the plain '
            "model beside the encrypted one and can compute the key (model encryption only)."
        ),
    ] = "clients"
    accept_known_plaintext: Annotated[
        bool,
        Meta(
            description='Allow initial_model = "server" without secure aggregation, although the encryption then hides '
            "nothing from the server."
        ),
    ] = False
    rekey_every: Annotated[
        int,
        Meta(
            description="Rounds after which the clients agree on a new key; 0: only when the membership changes "
            "(model encryption and coordinated masks only).",
            ge=0,
            le=100_000,
        ),
    ] = 0
    granularity: Annotated[
        Literal["layer", "block"],
        Meta(
            description='What is kept back as a whole: "layer", a convolution or linear map with the normalisation '
            'that follows; "block", a residual block of a ResNet or a block of a vision transformer (fedrsm only).'
        ),
    ] = "layer"
    mask: Annotated[
        Literal["highest", "lowest"],
        Meta(description="Whether layers that training changed most or least are kept back (fedrsm only)."),
    ] = "highest"
    masked_layers: Annotated[
        int,
        Meta(description="How many layers a client keeps back in a round; 0 sends all (fedrsm only).", ge=0, le=10_000),
    ] = 1
    skip_masked_layers: Annotated[
        bool,
        Meta(
            description="Leave what is kept back out of the message instead of sending zeros: with aggregation.mode = "
            '"none" only, where the server sees the zeros as well; under secure aggregation it would tell what the '
            "masks hide (schemes that keep whole tensors back only)."
        ),
    ] = False
    split: Annotated[
        str,
        Meta(
            description='Name of the first module that is shared; "" takes the middle of the model (fedsplit and fedcg '
            "only).",
            max_length=128,
        ),
    ] = ""
    distillation_steps: Annotated[
        int,
        Meta(
            description="Steps in which the server trains generator and classifier in a round, each with a batch of "
            "training.batch_size (fedcg only).",
            ge=1,
            le=1_000_000,
        ),
    ] = 2000
    dp_clip: Annotated[
        float,
        Meta(
            description="Largest Euclidean norm of an update, to which longer ones are shortened; 0: any, which "
            "guarantees nothing (dp-gaussian only).",
            ge=0.0,
            le=1e6,
        ),
    ] = 1.0
    dp_noise: Annotated[
        float,
        Meta(
            description="Standard deviation of the noise of a coordinate, as a multiple of dp_clip; with dp_clip = 0 "
            "the standard deviation itself (dp-gaussian only).",
            gt=0.0,
            le=1e6,
        ),
    ] = 1.0
    dp_delta: Annotated[
        float,
        Meta(description="The delta for which the summary states epsilon (dp-gaussian only).", gt=0.0, lt=1.0),
    ] = 1e-5

    def __post_init__(self) -> None:
        for purpose, used, names in (
            ("binary weights", self.binary, ("zero_probability", "layers", "enforce", "masks")),
            ("binary weights and fedrsm", self.binary or self.masks_layers, ("min_contributors",)),
            ("fedrsm", self.masks_layers, ("granularity", "mask", "masked_layers")),
            ("schemes that keep whole tensors back", self.by_tensor, ("skip_masked_layers",)),
            ("fedsplit and fedcg", self.splits, ("split",)),
            ("fedcg", self.distils, ("distillation_steps",)),
            ("dp-gaussian", self.noisy, ("dp_clip", "dp_noise", "dp_delta")),
            ("model encryption", self.encrypted, ("matrix", "initial_model", "accept_known_plaintext")),
            ("a group key", self.group_key, ("rekey_every",)),
        ):
            for name in () if used else names:
                if getattr(self, name) != _DEFAULTS[name]:
                    raise ValueError(
                        f'protection.{name} is used with {purpose} only; protection.scheme is "{self.scheme}"'
                    )
        if self.masks == "coordinated" and self.locked:
            raise ValueError('protection.masks = "coordinated" needs fresh weights in every round; scheme is locked')
        if self.masks == "coordinated" and self.enforce == "clients":
            raise ValueError(
                'protection.masks = "coordinated" makes sure of min_contributors by itself; set enforce = "server"'
            )
        if self.enforce == "clients" and self.min_contributors < 2:
            raise ValueError('protection.enforce = "clients" has nothing to enforce; set min_contributors to 2 or more')

    @property
    def binary(self) -> bool:
        """Whether clients multiply their updates by random binary weights."""
        return self.scheme.endswith("binary-weights")

    @property
    def locked(self) -> bool:
        """Whether these are the same in every round."""
        return self.scheme.endswith("locked-binary-weights")

    @property
    def fixed_position(self) -> bool:
        """Whether the position embedding is never updated."""
        return self.scheme.endswith("fixed-position")

    @property
    def masks_layers(self) -> bool:
        """Whether clients keep back whole layers, which they choose anew in every round."""
        return self.scheme == "fedrsm"

    @property
    def splits(self) -> bool:
        """Whether a part of the model never leaves its client."""
        return self.scheme in ("fedsplit", "fedcg")

    @property
    def distils(self) -> bool:
        """Whether the server distils a generator and a classifier from those of all clients."""
        return self.scheme == "fedcg"

    @property
    def noisy(self) -> bool:
        """Whether clients add noise to their updates."""
        return self.scheme == "dp-gaussian"

    @property
    def by_tensor(self) -> bool:
        """Whether clients keep back whole tensors."""
        return self.fixed_position or self.masks_layers or self.splits

    @property
    def alike(self) -> bool:
        """Whether clients count alike, whatever the number of their samples."""
        return self.binary or self.noisy

    @property
    def remembers(self) -> bool:
        """Whether a client keeps something in memory from one round to the next."""
        return self.encrypted or self.masks_layers or self.splits

    @property
    def encrypted(self) -> bool:
        """Whether the server holds the model under a key of the clients."""
        return self.scheme.startswith("model-encryption")

    @property
    def group_key(self) -> bool:
        """Whether the clients need a common key."""
        return self.encrypted or self.masks == "coordinated"


_DEFAULTS: Final[dict[str, Any]] = {
    field.name: {} if field.name == "layers" else field.default
    for field in msgspec.structs.fields(ProtectionConfiguration)
}
