"""Recording of computations: inputs go in, the real code computes, and the file gets the results."""

from __future__ import annotations

from typing import Any

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
