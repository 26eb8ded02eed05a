"""Operations: the functions that a vector calls by name, and how their inputs are read.

An operation is a function with typed keyword parameters; its docstring says what it computes. What it returns, in the
notation of vectors, is the expected outcome. A protocol is a factory that gives its operations by name, fresh for every
file, so that those which play machines can keep them between them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, get_type_hints

import msgspec

from tacit.protocol.core.errors import LocalProtocolError, RemoteProtocolError
from tacit.simulate.conformance.notation import VectorError, octets_hook, plain

Operation = Callable[..., Any]
Operations = Mapping[str, Operation]
Protocol = Callable[[], Operations]

INVALID: Final = "INVALID"
"""What is refused by its caller, so that it never has a code on the wire."""


class RefusedOperation(Exception):
    """An operation that has no result: `code` is the wire code's name, or INVALID."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


def parameters_of(operation: Operation) -> type[msgspec.Struct]:
    """The structure of an operation's inputs."""
    return _parameters(getattr(operation, "__func__", operation))


def perform(operations: Operations, name: str, inputs: Mapping[str, Any]) -> Any:
    """What the operation returns for these inputs, all in the notation of vectors.

    RefusedOperation where it has no result; VectorError where the inputs are not such as it takes.
    """
    operation = operations.get(name)
    if operation is None:
        raise VectorError(f"there is no operation {name!r}")
    try:
        read = msgspec.convert(inputs, parameters_of(operation), dec_hook=octets_hook)
    except msgspec.ValidationError as error:
        raise VectorError(f"inputs of {name}: {error}") from None
    try:
        result = operation(**{field: getattr(read, field) for field in read.__struct_fields__})
    except VectorError:
        raise
    except RemoteProtocolError as error:
        raise RefusedOperation(error.code.name, error.detail) from None
    except (ValueError, LocalProtocolError) as error:
        raise RefusedOperation(INVALID, str(error)) from None
    return plain(result)


@cache
def _parameters(function: Operation) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in hints:
            default = () if parameter.default is parameter.empty else (parameter.default,)
            fields.append((name, hints[name], *default))
    return msgspec.defstruct(f"Inputs of {function.__qualname__}", fields, kw_only=True, forbid_unknown_fields=True)
