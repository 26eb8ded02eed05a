"""The generated documents say what the code says."""

from pathlib import Path

import timm

from docs.generate import inference_models
from docs.generate.documents import DOCUMENTS, write_documents
from docs.generate.threats import with_table
from tests.cases import cases

DOCS = Path(__file__).parent.parent / "docs"
ADVERSARY = Path(__file__).parent / "adversary"


@cases("name", DOCUMENTS)
def test_document_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == DOCUMENTS[name](), f"run `make docs`: docs/{name} is old"


def test_writing_makes_every_document(tmp_path: Path) -> None:
    write_documents(tmp_path)
    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")]
    assert sorted(written) == sorted(DOCUMENTS)


def test_table_of_the_threat_model_is_up_to_date() -> None:
    page = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    assert page == with_table(page, ADVERSARY), "run `make docs`: the table of docs/threat-model.md is old"


def test_writing_renews_the_table_of_the_threat_model(tmp_path: Path) -> None:
    page = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "adversary").symlink_to(ADVERSARY)
    (tmp_path / "docs").mkdir()
    old = tmp_path / "docs" / "threat-model.md"
    old.write_text(page.replace("| attempt |", "| old |"), encoding="utf-8")
    write_documents(tmp_path / "docs")
    assert old.read_text(encoding="utf-8") == with_table(page, ADVERSARY)


def test_page_of_models_says_which_are_accepted() -> None:
    """Of the installed timm, unless it is another than that of the page; a few of its architectures."""
    page = (DOCS / inference_models.PAGE).read_text(encoding="utf-8")
    accepted, refused = page.split("## Accepted")[1].split("## Refused")
    if f"timm {timm.__version__}," not in page:
        return
    for name in (
        "test_vit",
        "test_vit2",
        "test_vit3",
        "deit3_small_patch16_224",
        "vit_base_patch16_rpn_224",
        "pit_ti_224",
    ):
        fits = not inference_models.reason(name)
        assert (f"`{name}`" in accepted, f"`{name}`" in refused) == (fits, not fits)
