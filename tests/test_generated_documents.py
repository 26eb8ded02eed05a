"""The generated documents say what the code says."""

from pathlib import Path

import pytest

from tacit.simulate.documents import DOCUMENTS, write_documents

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == DOCUMENTS[name](), f"run `make docs`: docs/{name} is old"


def test_writing_makes_every_document(tmp_path: Path) -> None:
    write_documents(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(DOCUMENTS)
