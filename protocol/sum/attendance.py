"""What the server of a secure sum does alike in every phase: wait for members, let them go, go on, give up.

A phase waits for a set of members and ends when nobody is waited for any more: each has answered or is out. Whoever
breaks a rule, gives up, is late or loses its link is out for the rest of the sum, and recorded with the phase and the
reason. Whether its vector is in the sum is the only thing about it that still matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.machine import Machine, Output, Report, Send, Step, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.messages import FetchVector
from tacit.protocol.sum.results import Dropped, ServerAborted
from tacit.protocol.sum.tables import SERVER_TABLES, ServerState
from tacit.protocol.sum.vector_sum import VectorSum


class Attendance(Machine[ServerState]):
    """The members of one secure sum. All are waited for from the start; `now` starts the first deadline."""

    def __init__(self, agreement: Agreement, now: float) -> None:
        super().__init__(SERVER_TABLES["active" if agreement.active else "semi-honest"], ServerState.ADVERTISE_KEYS)
        self.agreement = agreement
        self.deadline = now + agreement.train_seconds + agreement.phase_seconds
        self.waiting = set(range(agreement.size))
        """Members that this phase still waits for."""
        self.dropped: dict[int, tuple[str, Code, str]] = {}
        """Phase, code and reason, by member."""
        self._phase_began = now
        self._vectors = VectorSum(agreement)

    def drop(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """A member is gone."""
        if member not in self.agreement.cohort:
            return []
        return self.trigger(Trigger.DROP, now, member, code, detail)

    @property
    def answered(self) -> int:
        """How many members have answered in this phase."""
        return self.agreement.size - len(self.waiting) - len(self.dropped)

    @property
    def drops(self) -> list[Dropped]:
        """Everybody who is out, in the order of the cohort."""
        return [
            Dropped(self.agreement.cohort[member], phase, code, detail, member in self._vectors.included)
            for member, (phase, code, detail) in sorted(self.dropped.items())
        ]

    def complete(self) -> bool:
        return not self.waiting

    def on_abort(self, sender: str, message: Abort, payload: None, now: float) -> Step[ServerState]:
        # The code is what the client holds against others; it is no fault of its own.
        return self._drop(sender, Code.LEFT, f"it gave up: {message.detail}", tell=False)

    def on_drop(self, member: str, code: Code, detail: str, now: float) -> Step[ServerState]:
        return self._drop(member, code, detail, tell=False)

    def on_expire(self, now: float) -> Step[ServerState]:
        detail = f"it did not answer in time in {self.state.value}"
        steps = [
            self._drop(self.agreement.cohort[member], Code.TIMEOUT, detail, tell=True)
            for member in sorted(self.waiting)
        ]

        def commit() -> None:
            # Whoever waited to upload is dropped too, so that nobody is left to be asked for a chunk.
            for step in steps:
                step.commit()

        return Step(self.state, tuple(output for step in steps for output in step.outputs), commit)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[ServerState]:
        return self._drop(sender, error.code, error.detail, tell=True)

    def _drop(self, name: str, code: Code, detail: str, *, tell: bool) -> Step[ServerState]:
        member = self.agreement.places[name]
        if member in self.dropped or self.state in (ServerState.COMPLETED, ServerState.ABORTED):
            return Step(self.state)
        phase = self.state.value
        report = Report("dropped", {"member": name, "phase": phase, "code": code.name, "detail": detail})
        told = (Send(name, Abort(code=code, detail=detail, culprit=name)),) if tell else ()

        def commit() -> list[Output]:
            self.dropped[member] = (phase, code, detail)
            self.waiting.discard(member)
            return self._requests(self._vectors.discard(member))

        return Step(self.state, (report, *told), commit)

    def _requests(self, requests: list[tuple[int, int]]) -> list[Output]:
        return [Send(self.agreement.cohort[member], FetchVector(chunk=chunk)) for member, chunk in requests]

    def _answered(self, member: int, store: Callable[[], None], *outputs: Output) -> Step[ServerState]:
        def commit() -> None:
            store()
            self.waiting.discard(member)

        return Step(self.state, outputs, commit)

    def _begin_phase(self, members: tuple[int, ...], now: float) -> None:
        self.waiting = set(members)
        self._phase_began = now
        self.deadline = now + self.agreement.phase_seconds

    def _next(
        self, state: ServerState, messages: Mapping[int, Message], commit: Callable[[], None]
    ) -> Step[ServerState]:
        report = Report("opened", {"phase": state.value, "members": len(messages)})
        sends = [Send(self.agreement.cohort[member], message) for member, message in messages.items()]
        return Step(state, (report, *sends), commit)

    def _shortage(self, count: int, what: str, least: int = 0) -> Step[ServerState] | None:
        needed = max(self.agreement.parameters.threshold, least)
        if count >= needed:
            return None
        reasons = [f"; {self.agreement.cohort[member]}: {detail}" for member, (_, _, detail) in self.dropped.items()]
        return self._aborted(Code.THRESHOLD, f"only {count} {what}; {needed} are needed{''.join(reasons[:1])}", "")

    def _aborted(self, code: Code, detail: str, culprit: str) -> Step[ServerState]:
        abort = Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit=culprit)
        sends = [Send(name, abort) for member, name in enumerate(self.agreement.cohort) if member not in self.dropped]

        def commit() -> None:
            self.deadline = None
            self.waiting = set()

        return Step(ServerState.ABORTED, (*sends, ServerAborted(code, detail, culprit)), commit)
