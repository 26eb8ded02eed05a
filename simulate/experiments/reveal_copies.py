"""What a data owner is told of outputs of blocks, derived from outputs in the clear, and its copies, judged by the
victim itself; simulate/adaptation_audit/copies.py makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from timm.models.vision_transformer import Block

from tacit.models.adapters.configuration import Reveal
from tacit.models.adapters.federated import Order
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.simulate.adaptation_audit.copies import ToldPass, ToldRows, copied_blocks
from tacit.simulate.experiments.tastan_reveal import CopyFigures
from tacit.simulate.insecure.revealed_outputs import revealed_blocks

_SESSION_BYTES: Final = 32


def told_passes(outputs: torch.Tensor, batches: Sequence[Order], reveal: Reveal, *, seed: int) -> list[ToldPass]:
    """What a session tells of these batches.

    outputs: of all blocks for all images [L, N, T, D]; seed: of the orders, and of the session that the told blocks
    follow from.
    """
    generator = np.random.default_rng([seed, 1])
    session, blocks = generator.bytes(_SESSION_BYTES), len(outputs)
    found: list[ToldPass] = []
    for number, batch in enumerate(batches, start=1):
        told = revealed_blocks(reveal, blocks, session=session, number=number)
        orders = {block: torch.from_numpy(generator.permutation(batch)) for block in range(blocks) if told[block]}
        found.append({block: ToldRows(rows=outputs[block, at], images=at) for block, at in orders.items()})
    return found


def copies(
    passes: Sequence[ToldPass],
    victim: FriendlyTransformer,
    judged: torch.Tensor,
    sizes: ModelConfiguration,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
) -> CopyFigures:
    """Match, copy, and judge by the victim itself. judged: outputs of all its blocks for other images [L, N, T, D],
    centred. ValueError as `copied_blocks`."""

    def block() -> Block:
        return Block(sizes.width, sizes.heads, qkv_bias=True)

    found = copied_blocks(passes, block, epochs=epochs, learning_rate=learning_rate, seed=seed)
    first, last = judged[found.known[0]], judged[found.known[-1]]
    with torch.no_grad():
        theirs, ours, none = (
            victim.classify(tokens).argmax(dim=1) for tokens in (last, found.outputs(first)[-1], first)
        )
    return CopyFigures(
        told=found.told,
        ordered=found.ordered,
        errors=list(found.errors),
        agreement=(ours == theirs).double().mean().item(),
        without=(none == theirs).double().mean().item(),
    )
