"""Recording: inputs go in, the real code performs them, and the file gets what came out."""

from __future__ import annotations

from typing import Any

from tacit.simulate.conformance.notation import MOST_OCTETS, plain
from tacit.simulate.conformance.operations import RefusedOperation, perform
from tacit.simulate.conformance.vectors import PROTOCOLS, Level, VectorFile, VectorStep


class Script:
    """One file in the making."""

    def __init__(self, protocol: str, level: Level, about: str) -> None:
        self.protocol = protocol
        self.level = level
        self.about = about
        self.steps: list[VectorStep] = []
        self._operations = PROTOCOLS[protocol]()

    def do(self, name: str, /, **inputs: Any) -> Any:
        """Perform an operation that has a result, and return it as the file has it."""
        given = plain(inputs, longest=MOST_OCTETS)
        result = perform(self._operations, name, given)
        self.steps.append(VectorStep(do=name, inputs=given, expect=result))
        return result

    def refuse(self, code: str, name: str, /, **inputs: Any) -> None:
        """Perform an operation that must be refused with this code."""
        given = plain(inputs, longest=MOST_OCTETS)
        try:
            result = perform(self._operations, name, given)
        except RefusedOperation as refused:
            if refused.code != code:
                raise
            self.steps.append(VectorStep(do=name, inputs=given, refused=code))
            return
        raise ValueError(f"{name} was to be refused with {code}, but returned {result}")

    def file(self) -> VectorFile:
        """What was recorded."""
        return VectorFile(protocol=self.protocol, level=self.level, about=self.about, operations=tuple(self.steps))
