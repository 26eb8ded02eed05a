"""A model prepared by its owner for private inference: its public part, its weights, and a commitment to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol, TypeVar

import msgspec
import torch
from msgspec import Meta

from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.model import (
    PRINTABLE,
    EmbeddingScales,
    IntegerWeight,
    Interface,
    PublicModel,
    fitted_model,
    integer_model,
    weight_octets,
)
from tacit.parties.inference.ranking import check
from tacit.protocol.core.primitives import KEY_BYTES, digest
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.schedule import LOGITS, Results, Sizes
from tacit.protocol.inference.states import InferenceLabel

NO_CLASSES: Final = "labels were asked for, and this model has features instead of classes: leave them out"


Stated = TypeVar("Stated")


class AskedModel(Protocol):
    """Public part of a model, for any protocol."""

    @property
    def sizes(self) -> Sizes: ...

    @property
    def embedding(self) -> EmbeddingScales: ...

    @property
    def interface(self) -> Interface | None: ...


class OwnedModel(Protocol):
    """A model at its owner, for any protocol."""

    @property
    def public(self) -> AskedModel: ...

    @property
    def weights(self) -> Mapping[str, IntegerWeight]: ...

    @property
    def commitment(self) -> bytes: ...

    def terms(self, *, most_images: int, most_batch: int, results: Results, audited: int) -> Terms:
        """Terms that the owner offers to data owners. ValueError for a number below one, and results that cannot be
        revealed."""
        ...


@dataclass(frozen=True)
class PrivateModel:
    public: PublicModel
    weights: Mapping[str, IntegerWeight] = field(repr=False)
    commitment: bytes
    """32 bytes, binding to every word of the weights, and hiding because of a secret salt."""

    def terms(self, *, most_images: int, most_batch: int, results: Results = LOGITS, audited: int = 0) -> Terms:
        """See OwnedModel; a model with features cannot reveal labels."""
        _check_results(self.public, results)
        return offered(self, most_images, most_batch, results, audited)


def offered(model: OwnedModel, most_images: int, most_batch: int, results: Results, audited: int) -> Terms:
    """Terms of a model. ValueError for a number below one."""
    return msgspec.convert(
        {
            "sizes": model.public.sizes,
            "results": results,
            "weights": model.commitment,
            "most_images": most_images,
            "most_batch": most_batch,
            "audited": audited,
            "arithmetic": msgspec.msgpack.encode(model.public),
        },
        Terms,
    )


def prepared_model(
    transformer: FriendlyTransformer,
    images: torch.Tensor,
    *,
    margin: float,
    interface: Interface | None = None,
    salt: bytes | None = None,
) -> PrivateModel:
    """Calibrate a model: its scales follow from typical images [N, C, S, S], their bounds widened by the margin.

    salt: KEY_BYTES secret random bytes of the commitment; the same model with the same salt has the same commitment.
    None: fresh ones. Raises as fitted_model does."""
    found = fitted_model(transformer, images, margin=margin)
    public = msgspec.structs.replace(found.public, interface=interface)
    weights = integer_model(transformer, public, found.balances)
    salt = os.urandom(KEY_BYTES) if salt is None else salt
    return PrivateModel(public, weights, digest(InferenceLabel.WEIGHTS, salt, *weight_octets(weights)))


class _ProtocolTag(msgspec.Struct):
    protocol: Annotated[str, Meta(max_length=32, pattern=PRINTABLE)] = "tacit"


def stated_protocol(terms: Terms) -> str:
    """Protocol stated by the model owner; empty if unreadable."""
    try:
        return stated(terms, _ProtocolTag).protocol
    except ValueError:
        return ""


def stated(terms: Terms, kind: type[Stated]) -> Stated:
    """The arithmetic in a model owner's terms, of this type. ValueError for other content."""
    try:
        return msgspec.msgpack.decode(terms.arithmetic, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def public_of(terms: Terms) -> PublicModel:
    """The model owner's description of its model. ValueError if it does not fit its terms."""
    public = stated(terms, PublicModel)
    if public.sizes != terms.sizes:
        raise ValueError(f"scales for {public.sizes} come with terms for {terms.sizes}")
    _check_results(public, terms.results)
    return public


def _check_results(public: PublicModel, results: Results) -> None:
    """ValueError for results that cannot be revealed of this model. Both owners check: neither trusts the other."""
    if results.labels and (interface := public.interface) is not None and not interface.classes:
        raise ValueError(NO_CLASSES)
    check(public.head.logits, public.sizes.classes, results)
