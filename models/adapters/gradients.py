"""One step of gradient descent on adapters and head, forwards and backwards, every product written out.

It avoids autograd: computations limited to products and sums, such as those on secret shares, follow it step by step.
The loss is the mean cross-entropy of B images with labels y. In the notation of parallel.py, with the arguments
p = z C_d^T and q = T_d u of the activation f, u = z + c, and e the derivative of the loss by h_l, adapter l computes

    forwards                                        backwards
    p  = z C_d^T        [B T, D] [D, r]             s      = alpha e             B T D
    c  = f(p) C_u^T     [B T, r] [r, D]             dalpha = <e, c + t>          B T D
    q  = T_d u          [r, T] [T, D], B times      dT_u   = s f(q)^T            [T, D] [D, r], B times
    t  = T_u f(q)       [T, r] [r, D], B times      dq     = f'(q) * T_u^T s     [r, T] [T, D], B times
    h += alpha (c + t)  B T D                       dT_d   = dq u^T              [r, D] [D, T], B times
                                                    dc     = s + T_d^T dq        [T, r] [r, D], B times
                                                    dC_u   = dc^T f(p)           [D, B T] [B T, r]
                                                    dp     = f'(p) * dc C_u      [B T, D] [D, r]
                                                    dC_d   = dp^T z              [r, B T] [B T, D]
                                                    e     += T_d^T dq + dp C_d   [B T, r] [r, D]

where T_d^T dq is the derivative by u, and counts for c and z alike, and e goes on to adapter l - 1 because z = b_l +
h_{l-1}. These are 12 B T D r products of elements of matrices for each adapter, 4 forwards and 8 backwards, and 3 B T D
products with alpha and e; f and f' each take B r (T + D) arguments, and as many products with f'. Nobody needs the e
that adapter 1 hands on, and that which adapter L gets is zero but for the class token. The head takes 3 B C D products,
the norm a few B D: for x the class token of h_L, x^ = (x - mean) / d and y = gamma x^ + beta,

    dlogits = (softmax(logits) - one-hot labels) / B,   dW = dlogits^T y,   db = its sum over the images,
    dx^ = gamma * dlogits W,   dx = (dx^ - mean(dx^) - x^ mean(dx^ x^)) / d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn.functional import one_hot

from tacit.models.adapters.parallel import (
    QUADRATIC_GELU,
    Activation,
    AdapterParameters,
    FinalNorm,
    Mixed,
    check,
    each,
    mix,
)


@dataclass(frozen=True, kw_only=True)
class Descent:
    loss: float
    """Mean cross-entropy in nats."""
    correct: int
    gradient: AdapterParameters = field(repr=False, compare=False)


class Note(Protocol):
    def __call__(self, name: str, rows: torch.Tensor) -> None:
        """Note values of one name [..., n]; the norms over the last dimension are their range."""


def unnoted(name: str, rows: torch.Tensor) -> None:
    """Note nothing."""


def note_parameters(parameters: AdapterParameters, note: Note) -> None:
    """Note all parameters under their names, one adapter's at a time."""
    for name, tensor in parameters.tensors.items():
        for part in [tensor] if name.startswith("head") else tensor:
            note(name, part.flatten())


@torch.no_grad()
def descent(
    parameters: AdapterParameters,
    norm: FinalNorm,
    outputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    activation: Activation = QUADRATIC_GELU,
    note: Note = unnoted,
) -> Descent:
    """Return loss and gradient for outputs of all blocks [L, B, T, D] and labels int64 [B], all in one floating-point
    type. ValueError for outputs or labels that do not fit the parameters, and for no images.

    note: receives, beside all parameters under their names, one adapter's at a time,

    | name | rows |
    |---|---|
    | `outputs` | tokens of the blocks' outputs |
    | `inputs` | tokens of z |
    | `channels` | p of every token |
    | `tokens` | q of every image, row by row |
    | `derivatives` | e of every image, of the sum of the images' losses |
    | `deviations` | class tokens x of h_L less their mean, over sqrt(D): their norms are the roots of variances |
    | `logits` | each alone, less the mean of its image |
    """
    check(parameters, outputs)
    classes = len(parameters.head_bias)
    if len(labels) == 0 or len(labels) != outputs.shape[1] or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"{len(labels)} labels {sorted(set(labels.tolist()))} for {outputs.shape[1]} images; each image needs one "
            f"of 0 to {classes - 1}, which the head knows, and there has to be an image"
        )
    note_parameters(parameters, note)
    note("outputs", outputs)
    hidden = outputs[-1]
    seen: list[tuple[torch.Tensor, Mixed]] = []
    for block, scale in enumerate(parameters.scale):
        z = outputs[block] + hidden
        mixed = mix(parameters, block, z, activation)
        hidden = hidden + scale * mixed.added
        seen.append((z, mixed))
        note("inputs", z)
        note("channels", mixed.channels)
        note("tokens", mixed.tokens)
    class_token = hidden[:, 0]
    note("deviations", (class_token - class_token.mean(-1, keepdim=True)) / math.sqrt(class_token.shape[-1]))
    standardised, inverse = norm.standardised(class_token)
    token = standardised * norm.weight + norm.bias
    logits = token @ parameters.head_weight.T + parameters.head_bias
    note("logits", (logits - logits.mean(-1, keepdim=True))[..., None])
    log_probabilities = logits.log_softmax(-1)
    wanted = one_hot(labels, classes).to(logits.dtype)

    by_logits = (log_probabilities.exp() - wanted) / len(labels)
    by_token = norm.weight * (by_logits @ parameters.head_weight)
    along = (by_token * standardised).mean(-1, keepdim=True)
    by_hidden = torch.zeros_like(hidden)
    by_hidden[:, 0] = inverse * (by_token - by_token.mean(-1, keepdim=True) - standardised * along)
    gradient = each(torch.zeros_like, parameters)
    gradient.head_weight.copy_(by_logits.T @ token)
    gradient.head_bias.copy_(by_logits.sum(0))
    for block, (z, mixed) in reversed(list(enumerate(seen))):
        note("derivatives", by_hidden.flatten(1) * len(labels))
        by_hidden = by_hidden + _backwards(parameters, gradient, block, z, mixed, by_hidden, activation)
    return Descent(
        loss=-(log_probabilities * wanted).sum().item() / len(labels),
        correct=int((logits.argmax(-1) == labels).sum().item()),
        gradient=gradient,
    )


def _backwards(
    parameters: AdapterParameters,
    gradient: AdapterParameters,
    block: int,
    z: torch.Tensor,
    mixed: Mixed,
    by_hidden: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:
    """Write the gradient of an adapter; return the derivative by its input z [B, T, D]."""
    by_added = parameters.scale[block] * by_hidden
    gradient.scale[block] = (by_hidden * mixed.added).sum()
    gradient.token_up[block] = (by_added @ mixed.activated_tokens.mT).sum(0)
    by_tokens = activation.slope(mixed.tokens) * (parameters.token_up[block].T @ by_added)
    gradient.token_down[block] = (by_tokens @ mixed.middle.mT).sum(0)
    by_middle = parameters.token_down[block].T @ by_tokens
    by_channel_output = (by_added + by_middle).flatten(0, 1)
    gradient.channel_up[block] = by_channel_output.T @ mixed.activated_channels.flatten(0, 1)
    by_channels = activation.slope(mixed.channels).flatten(0, 1) * (by_channel_output @ parameters.channel_up[block])
    gradient.channel_down[block] = by_channels.T @ z.flatten(0, 1)
    return by_middle + (by_channels @ parameters.channel_down[block]).view_as(z)


def stepped(parameters: AdapterParameters, gradient: AdapterParameters, learning_rate: float) -> AdapterParameters:
    return each(lambda value, derivative: value - learning_rate * derivative, parameters, gradient)
