"""The bytes of the decision record on fresh keys are those that the protocol declares."""

from pathlib import Path

from docs.generate.traffic import Degrees, declared_bytes
from tacit.protocol.core.messages import Phase
from tacit.secagg.graph import complete_parameters
from tests.world.sums import memory_sum

RECORD = Path(__file__).parents[2] / "docs" / "decisions" / "017-fresh-keys.md"


def test_bytes_by_phase() -> None:
    rows = {phase: [phase.name] for phase in declared(5)}
    for clients in (5, 100):
        for phase, (sent, received) in declared(clients).items():
            rows[phase] += [f"{sent:,}", f"{received:,}"]
    text = RECORD.read_text()
    assert len(rows) == 5
    for cells in rows.values():
        assert f"| {' | '.join(cells)} |" in text


def declared(clients: int) -> dict[Phase, tuple[int, int]]:
    """Sent and received by one client in a complete graph in active mode that bears a twentieth of corrupt members."""
    run = memory_sum(clients, active=True, length=0)
    threshold = complete_parameters(clients, active=True, corrupt=0.05).threshold
    degrees = Degrees(holders=clients, owners=clients, known=clients, signers=threshold)
    moved = declared_bytes(run.agreement, "c0", degrees)
    return {phase: (octets.sent, octets.received) for phase, octets in moved.items()}
