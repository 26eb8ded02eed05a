"""Recording of computations: inputs go in, the real code computes, and the file gets the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tacit.simulate.conformance.computations import COMPUTATIONS, Refusal, perform
from tacit.simulate.conformance.notation import plain
from tacit.simulate.conformance.vectors import Step, VectorFile


class Script:
    def __init__(self, protocol: str, about: str) -> None:
        self.protocol = protocol
        self.about = about
        self.steps: list[Step] = []

    def do(self, name: str, /, **inputs: Any) -> Any:
        """Perform a computation that has a result, and return it as the file has it."""
        given = plain(inputs)
        result = perform(COMPUTATIONS[self.protocol], name, given)
        self.steps.append(Step(do=name, inputs=given, expect=result))
        return result

    def refuse(self, code: str, name: str, /, **inputs: Any) -> None:
        """Perform a computation that must be refused with this code."""
        given = plain(inputs)
        try:
            result = perform(COMPUTATIONS[self.protocol], name, given)
        except Refusal as refused:
            if refused.code != code:
                raise
            self.steps.append(Step(do=name, inputs=given, refused=code))
            return
        raise ValueError(f"{name} was to be refused with {code}, but returned {result}")

    def file(self) -> VectorFile:
        return VectorFile(protocol=self.protocol, about=self.about, computations=tuple(self.steps))


SCRIPTS: Final[dict[str, Callable[[], Script]]] = {}
"""What makes each file of computations."""


def vectors_of(protocol: str) -> Callable[[str], Callable[[Callable[[Script], None]], Callable[[], Script]]]:
    """Make a decorator, given the purpose of a file: the decorated function fills the file of its name."""

    def vectors(about: str) -> Callable[[Callable[[Script], None]], Callable[[], Script]]:
        def register(fill: Callable[[Script], None]) -> Callable[[], Script]:
            def make() -> Script:
                script = Script(protocol, about)
                fill(script)
                return script

            SCRIPTS[f"{fill.__name__}.json"] = make
            return make

        return register

    return vectors
