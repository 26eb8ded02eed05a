"""The documents that are generated: `python -m docs.generate.documents DIRECTORY` writes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs.generate.choosing import choosing_page
from docs.generate.configuration import adaptation_markdown, party_markdown, reference_markdown
from docs.generate.diagrams import page
from docs.generate.events import events_page
from docs.generate.metrics import metrics_page
from docs.generate.outputs import outputs_page
from docs.generate.security import security_page
from docs.generate.specification import constants_page, errors_page, messages_page, one_sum_page, states_page
from docs.generate.specification_examples import examples_page
from docs.generate.threats import with_table

DOCUMENTS: Final[dict[str, Callable[[], str]]] = {
    "state-machines.md": page,
    "configuration.md": reference_markdown,
    "adaptation-file.md": adaptation_markdown,
    "party-file.md": party_markdown,
    "events.md": events_page,
    "metrics.md": metrics_page,
    "outputs.md": outputs_page,
    "security.md": security_page,
    "choosing.md": choosing_page,
    "spec/messages.md": messages_page,
    "spec/states.md": states_page,
    "spec/errors.md": errors_page,
    "spec/constants.md": constants_page,
    "spec/examples.md": examples_page,
    "spec/one-sum.md": one_sum_page,
}
"""File name and what makes its text."""


def write_documents(directory: Path) -> None:
    """Write all of them, and the table within the page of the threat model if the directory has that page."""
    for name, make in DOCUMENTS.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(make(), encoding="utf-8")
    page = directory / "threat-model.md"
    if page.exists():
        tests = directory.parent / "tests" / "adversary"
        page.write_text(with_table(page.read_text(encoding="utf-8"), tests), encoding="utf-8")


if __name__ == "__main__":
    write_documents(Path(sys.argv[1]))
