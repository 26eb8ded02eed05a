"""A client's local training in one round, the evaluation of a model, and the device and seeds of both.

`train` is the local work of FedAvg (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", Algorithm 1, ClientUpdate); `gradient` is that of FedSGD. The loss is the cross-entropy of the
logits. On the CPU with one thread the same arguments give the same bits; more threads, or CUDA, change the last ones.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tacit.models.configuration import TrainingConfiguration
from tacit.models.interruption import Proceed, to_the_end
from tacit.models.layout import Flat, Layout

CPU: Final = torch.device("cpu")


def resolve_device(name: str) -> torch.device:
    """Return the device called "cpu" or "cuda". Raises ValueError for another name, or without a CUDA device."""
    if name not in ("cpu", "cuda"):
        raise ValueError(f'unknown device {name!r}; use "cpu" or "cuda"')
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device here; use --device cpu")
    return torch.device(name)


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed torch's generators, on the device and the CPU, within the block; restore their state afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


EVALUATION_BATCH: Final = 256

_Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalStatistics:
    """Sums over a client's images, ready to be added up over clients."""

    samples: int
    loss_sum: float
    """Cross-entropy in nats, summed over the images."""
    correct: int
    own: tuple[float, ...] = ()
    """Metrics of a custom training step, which are no sums."""

    def __add__(self, other: "LocalStatistics") -> "LocalStatistics":
        return LocalStatistics(
            samples=self.samples + other.samples,
            loss_sum=self.loss_sum + other.loss_sum,
            correct=self.correct + other.correct,
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of a model on the test set."""

    accuracy: float
    """Fraction of correctly classified images, 0 to 1."""
    loss: float
    confusion: torch.Tensor = field(repr=False, compare=False)
    """Confusion matrix int64 [C, C]: images of class i predicted as class j."""

    @property
    def balanced_accuracy(self) -> float:
        """Return the mean recall over the classes that have images, 0 to 1: the accuracy if all classes were of equal
        size (Brodersen et al. 2010, "The Balanced Accuracy and Its Posterior Distribution")."""
        images = self.confusion.sum(dim=1)
        recalls = self.confusion.diagonal()[images > 0].double() / images[images > 0]
        return recalls.mean().item()


def train(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    configuration: TrainingConfiguration,
    *,
    seed: int,
    device: torch.device,
    penalty: Callable[[torch.Tensor], torch.Tensor] | None = None,
    proceed: Proceed = to_the_end,
) -> LocalStatistics:
    """Train `model` in place on x, float32 [N, C, S, S], and y, int64 [N]; it is left on `device`.

    The optimizer starts without state from earlier rounds. `seed` decides the order of the batches and the model's own
    random draws (dropout); PyTorch's global generators stay unchanged. penalty: extra loss term of a batch, called with
    its labels after the model has computed its logits. The statistics are those of the last epoch without it, each
    batch measured just before its step. A last batch of one image is skipped where the model cannot train on it, as
    batch normalisation cannot. Raises ValueError for no images; FloatingPointError as soon as a loss is not finite.
    """
    _check(x, y)
    model.to(device).train()
    optimizer = _optimizer([parameter for parameter in model.parameters() if parameter.requires_grad], configuration)
    order = torch.Generator().manual_seed(seed)
    proximal, started = configuration.proximal, list[torch.Tensor]()
    if proximal:
        started = [parameter.detach().clone() for group in optimizer.param_groups for parameter in group["params"]]
    augmented = _augmentation(configuration.augment, x.shape[-1])
    statistics = NOTHING
    with seeded(seed, device):
        for epoch in range(configuration.epochs):
            statistics = NOTHING
            for inputs, labels in shuffled(x, y, configuration.batch_size, order, device, augmented):
                proceed(epoch * len(x) + statistics.samples, configuration.epochs * len(x))
                try:
                    logits = model(inputs)
                except ValueError:
                    if len(inputs) > 1 or len(x) == 1:
                        raise
                    continue
                if not epoch and not statistics.samples and int(y.max()) >= logits.shape[1]:
                    raise ValueError(
                        f"labels go up to {int(y.max())}, and the model has {logits.shape[1]} outputs; number the "
                        "classes from 0, or give the model more"
                    )
                loss = cross_entropy(logits, labels)
                batch = _statistics(logits, labels, loss * len(labels))
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss if penalty is None else loss + penalty(labels))
                if proximal:
                    _pull(optimizer, started, proximal)
                optimizer.step()
                statistics += batch
    # The last gradient is as large as the model, which may be kept for long.
    model.zero_grad(set_to_none=True)
    return statistics


def gradient(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    batch_size: int,
    device: torch.device,
    proceed: Proceed = to_the_end,
) -> tuple[Flat, LocalStatistics]:
    """Return the gradient of the mean loss over x, float32 [N, C, S, S], and y, int64 [N]: float32 [size], for the
    layout of the trained parameters.

    Computed in evaluation mode, so that it is the gradient of one function and, but for rounding, independent of
    `batch_size`. Raises as `train` does.
    """
    _check(x, y)
    model.to(device).eval()
    model.zero_grad(set_to_none=True)
    statistics = NOTHING
    for inputs, labels in _batches(x, y, batch_size, device):
        proceed(statistics.samples, len(x))
        logits = model(inputs)
        loss_sum = cross_entropy(logits, labels, reduction="sum")
        statistics += _statistics(logits, labels, loss_sum)
        torch.autograd.backward(loss_sum / len(x))
    parameters = model.named_parameters(remove_duplicate=False)
    gradients = {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}
    flat = Layout.summed(model, buffers="fixed").concatenate(
        {name: value.cpu().numpy() for name, value in gradients.items()}
    )
    model.zero_grad(set_to_none=True)
    return flat, statistics


def drawn(x: torch.Tensor, y: torch.Tensor, images: int, seed: int) -> _Batch:
    """Draw `images` different ones of x [N, ...] with their labels y [N] by the seed; return all unchanged for 0, or if
    there are no more."""
    if not 0 < images < len(x):
        return x, y
    indices = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:images]
    return x[indices], y[indices]


@torch.inference_mode()
def judge(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    batch_size: int,
    device: torch.device,
    proceed: Proceed = to_the_end,
    see: Callable[[torch.Tensor], None] = lambda logits: None,
) -> LocalStatistics:
    """Return the statistics of the model on x, float32 [N, C, S, S], and y, int64 [N], as sums; N may be 0. see:
    receives the logits of every batch. Raises FloatingPointError as `train` does."""
    model.to(device).eval()
    statistics = NOTHING
    for inputs, labels in _batches(x, y, batch_size, device):
        proceed()
        logits = model(inputs)
        see(logits)
        statistics += _statistics(logits, labels, cross_entropy(logits, labels, reduction="sum"))
    return statistics


def evaluate(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, batch_size: int, device: torch.device
) -> Evaluation:
    """Return accuracy, mean loss and confusion on x, float32 [N, C, S, S], and y, int64 [N]. Raises as `train` does."""
    _check(x, y)
    seen: list[torch.Tensor] = []
    sums = judge(model, x, y, batch_size=batch_size, device=device, see=seen.append)
    logits = torch.cat(seen).cpu()
    classes = logits.shape[1]
    pairs = torch.bincount(y.cpu() * classes + logits.argmax(dim=1), minlength=classes**2)
    confusion = pairs.reshape(classes, classes)
    return Evaluation(accuracy=sums.correct / sums.samples, loss=sums.loss_sum / sums.samples, confusion=confusion)


NOTHING: Final = LocalStatistics(samples=0, loss_sum=0.0, correct=0)


def shuffled(
    x: torch.Tensor,
    y: torch.Tensor,
    batch_size: int,
    order: torch.Generator,
    device: torch.device,
    augmented: Callable[[torch.Tensor], torch.Tensor] = lambda images: images,
) -> Iterator[_Batch]:
    """Yield all images and labels once, in batches on the device. augmented: transform of a batch's images."""
    for indices in torch.split(torch.randperm(len(x), generator=order), batch_size):
        yield augmented(x[indices]).to(device), y[indices].to(device)


def pass_bytes(model: nn.Module, images: torch.Tensor) -> tuple[int, int]:
    """Return the bytes that a pass of these images keeps for its gradients, and those that its widest module reads and
    writes. With both on the device "meta" nothing is computed; (0, 0) if such a pass fails."""
    own = {tensor.untyped_storage()._cdata for tensor in chain(model.parameters(), model.buffers())}
    kept, widest = dict[int, int](), [0]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = 0 if storage._cdata in own else storage.nbytes()
        return tensor

    def look(_: nn.Module, given: tuple[object, ...], made: object) -> None:
        widest.append(sum(each.nbytes for each in (*given, made) if isinstance(each, torch.Tensor)))

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            # Keep it alive, so that storages retain distinct ids.
            _passed = model(images)
    except RuntimeError:
        return 0, 0
    finally:
        for hook in hooks:
            hook.remove()
    return sum(kept.values()), max(widest)


def _augmentation(names: Sequence[str], size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return torchvision transforms that draw anew for each image of a batch."""
    if not names:
        return lambda images: images
    # Imported here because torchvision takes a second to import.
    from torchvision.transforms import v2

    known = {
        "flip": v2.RandomHorizontalFlip(),
        "crop": v2.RandomCrop(size, padding=max(1, size // 8), padding_mode="reflect"),
    }
    chosen = v2.Compose([known[name] for name in dict.fromkeys(names)])
    return lambda images: torch.stack([chosen(image) for image in images])


def _pull(optimizer: torch.optim.Optimizer, started: Sequence[torch.Tensor], strength: float) -> None:
    """Add the gradient of FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Equation 2)."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter, start in zip(parameters, started, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=strength)


def _optimizer(parameters: list[nn.Parameter], configuration: TrainingConfiguration) -> torch.optim.Optimizer:
    rate, weight_decay = configuration.learning_rate, configuration.weight_decay
    if configuration.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=configuration.momentum, weight_decay=weight_decay)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay)


def _check(x: torch.Tensor, y: torch.Tensor) -> None:
    if len(x) == 0 or len(x) != len(y):
        raise ValueError(f"{len(x)} images and {len(y)} labels; at least one image, and one label for each, is needed")


def _batches(x: torch.Tensor, y: torch.Tensor, batch_size: int, device: torch.device) -> Iterator[_Batch]:
    for inputs, labels in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
        yield inputs.to(device), labels.to(device)


def _statistics(logits: torch.Tensor, labels: torch.Tensor, loss_sum: torch.Tensor) -> LocalStatistics:
    loss = loss_sum.item()
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss of a batch is {loss}; training diverged, take a smaller learning_rate")
    correct = int((logits.argmax(dim=1) == labels).sum().item())
    return LocalStatistics(samples=len(labels), loss_sum=loss, correct=correct)
