"""Result of `tacit models show`: the contents of a model file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from tacit.models.description import ModelDescription, header_of, read_description
from tacit.parties.runs.directory import progress_of
from tacit.parties.runs.results import Column, Result, Table, prose

_TRAINED = {
    "all": "all parameters",
    "head": "the head",
    "lora": "low-rank products of rank {rank} beside queries, keys and values, and the head",
    "parallel": "parallel adapters of rank {rank}, and the head",
    "patterns": "the parameters {patterns}",
}
_MOST_CLASSES = 20


class ModelFile(Result, frozen=True, kw_only=True, tag="tacit.model.1"):
    """A model file: its tensors, and its description of the model."""

    file: str
    tensors: int
    parameters: int
    """Numbers in all tensors."""
    description: ModelDescription | None
    """None in a file that Tacit has not written."""
    round: int | None
    """The last finished round of the run that wrote it; 0 before the first; None outside a run."""

    @classmethod
    def of(cls, path: Path) -> ModelFile:
        """Read the header of a file. FileNotFoundError; ValueError if it is no model."""
        metadata, shapes = header_of(path)
        progress = progress_of(metadata)
        return cls(
            file=str(path),
            tensors=len(shapes),
            parameters=sum(map(math.prod, shapes.values())),
            description=read_description(metadata, path),
            round=None if progress is None else progress.round,
        )

    def view(self) -> Iterator[Table | str]:
        """A line of sizes, and the description."""
        yield f"{self.file}: {self.parameters:,} numbers in {self.tensors} tensors"
        if self.description is None:
            yield "it has no description, since Tacit has not written it"
            return
        rows = list(self._rows(self.description))
        yield Table(columns=[Column("model"), Column("", prose)], rows=rows)

    def _rows(self, found: ModelDescription) -> Iterator[tuple[str, str]]:
        yield "architecture", found.architecture
        if found.arguments:
            yield "arguments", ", ".join(f"{name}={value}" for name, value in found.arguments.items())
        yield "images", f"{found.image_size} x {found.image_size}, channels: {found.channels}"
        if found.mean:
            yield "mean", ", ".join(f"{value:.6g}" for value in found.mean)
            yield "std", ", ".join(f"{value:.6g}" for value in found.std)
        if found.classes:
            more = ", ..." * (len(found.classes) > _MOST_CLASSES)
            yield f"classes: {len(found.classes)}", ", ".join(found.classes[:_MOST_CLASSES]) + more
        trained = _TRAINED[found.trained].format(rank=found.rank, patterns=", ".join(found.patterns))
        yield "trained", f"{trained}: {found.trained_values:,} numbers" + ", merged" * found.merged
        if self.round is not None:
            yield "round", str(self.round)
        if found.encrypted:
            yield "encrypted", "its embeddings are under a key of the clients"
