"""The one error of a secure computation."""


class MpcError(Exception):
    """The computation cannot go on. The text names the party and the operation, and says what to do."""

    def __init__(self, party: str, operation: str, reason: str) -> None:
        super().__init__(f"{party!r}, {operation}: {reason}")
        self.party = party
        """Name of the party at fault, in the roster's spelling; several are separated by commas."""
        self.operation = operation
