"""What a client knows of the rounds before, and what of it holds for the model that comes next.

A client is not told what became of a round that it lost sight of, nor does it have to be: whether the round was applied
is seen from the next model. If that is another one, what was learnt from the last is kept. If it is the same again, its
round is repeated, and what the client knew before that round is what holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tacit.models.layout import Flat
from tacit.parties.protections.sides import Memory, TaskError


class SetBackError(TaskError):
    """The server has gone back to before what a client remembers."""


@dataclass(frozen=True)
class Remembered:
    """The memory of a protection, after the last round that the client contributed to and before."""

    before: Memory = field(repr=False)
    after: Memory = field(repr=False)
    round: int = 0
    """Of the last contribution; 0 before the first."""
    model: bytes = b""
    """The digest of the model that the round began with."""
    plain: Flat | None = field(default=None, repr=False)
    """The last model of the server in the clear, where that is encrypted, float32 [D]."""
    plain_round: int = 0
    """After which round it was the server's."""

    def at(self, model: bytes) -> Memory:
        """What holds for training from the model of this digest."""
        return self.before if model == self.model else self.after

    def then(self, round: int, model: bytes, memory: Memory) -> Remembered:
        """After another contribution, to a round that began with the model of this digest."""
        return replace(self, before=self.at(model), after=memory, round=round, model=model)

    def check_round(self, round: int, model: bytes) -> None:
        """Raise SetBackError if the server has gone back to before what is remembered."""
        if round <= self.round and model != self.model:
            raise SetBackError(
                f"this client remembers round {self.round}, and the server begins round {round} with another model "
                "than was there then: it was set back"
            )

    def check_form(self, form: Memory, plain: Flat | None) -> None:
        """Raise TaskError unless these arrays have the form of those that the protection remembers.

        plain: a model of the server, where it is encrypted.
        """
        if self.plain is not None and not fits(self.plain, plain):
            raise TaskError("it holds a model that is not one of this experiment")
        for memory in (self.before, self.after):
            for name, array in memory.items():
                if not fits(array, form.get(name)):
                    raise TaskError(f"it holds {name!r}, which is not what this protection remembers of this model")
        # Before its first round a client may remember less.
        if missing := sorted(form.keys() - (self.after if self.round else form).keys()):
            raise TaskError(f"it lacks {missing[0]!r}")


def fits(array: np.ndarray[Any, Any], form: np.ndarray[Any, Any] | None) -> bool:
    """Whether an array has shape and kind of another one, and finite values."""
    return (
        form is not None and (array.shape, array.dtype) == (form.shape, form.dtype) and bool(np.isfinite(array).all())
    )
