"""Every row of the threat model is shown by a test, and every test of this folder shows a row."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from docs.generate.threats import BEGIN, END, read_tests, read_threats, with_table
from tests.cases import cases

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
THREATS = read_threats(HERE)
TESTS = [test for test in read_tests(HERE) if test.file != Path(__file__).name]


def test_every_row_has_a_test_and_every_test_shows_rows() -> None:
    for identifier in [threat.id for threat in THREATS]:
        assert any(identifier in test.threats for test in TESTS)

    known = {threat.id for threat in THREATS}
    for test in TESTS:
        assert test.threats, f"{test.file}: {test.name} bears no threat marker"
        assert set(test.threats) <= known, f"{test.file}: {test.name} names a row that does not exist"

    assert set(Counter(threat.id for threat in THREATS).values()) == {1}
    for threat in THREATS:
        assert threat.modules
        for module in threat.modules:
            assert (ROOT / module).is_file(), f"{threat.id}: {module}"


SOURCE = """
import pytest

pytestmark = pytest.mark.threat("of/module")

@pytest.mark.threat("of/function", "second")
async def test_function(): ...

@pytest.mark.threat("of/class")
class TestClass:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.threat("of/parameter"))])
    def test_method(self, x): ...
    def helper(self): ...

def helper(): ...
def test_plain(): ...
"""


def test_markers_are_read_from_module_class_function_and_parameter(tmp_path: Path) -> None:
    (tmp_path / "test_cheats.py").write_text(SOURCE, encoding="utf-8")
    assert {test.name: test.threats for test in read_tests(tmp_path)} == {
        "test_function": ("of/module", "of/function", "second"),
        "test_method": ("of/module", "of/class", "of/parameter"),
        "test_plain": ("of/module",),
    }


ROW = """
[[threat]]
id = "server/lies"
who = "server"
attempt = "lies"
outcome = "nothing"
rule = "none"
modules = ["protocol/core/link.py"]
"""


def test_the_table_stands_between_its_comments_and_links_to_the_tests(tmp_path: Path) -> None:
    (tmp_path / "threats.toml").write_text(ROW + "active_only = true\n", encoding="utf-8")
    cheat = 'import pytest\n@pytest.mark.threat("server/lies")\ndef test_it(): ...\n'
    (tmp_path / "test_cheats.py").write_text(cheat, encoding="utf-8")
    page = with_table(f"before\n{BEGIN}old\n{END}after\n", tmp_path)
    assert page.startswith(f"before\n{BEGIN}")
    assert page.endswith(f"{END}after\n")
    assert "old" not in page
    link = f"[test_it](../tests/{tmp_path.name}/test_cheats.py)"
    rule = "none: [link.py](../protocol/core/link.py)"
    assert f"| lies | nothing *(active mode)* | {rule} | {link} |" in page
    assert with_table(page, tmp_path) == page


@cases("page", ["", BEGIN, END, END + BEGIN])
def test_a_page_without_its_comments_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="must have the lines"):
        with_table(page, HERE)


@cases("change", [("who", "whom"), ('"server"', '"nobody"'), ("rule", "rules")])
def test_a_row_with_other_fields_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    (tmp_path / "threats.toml").write_text(ROW.replace(*change), encoding="utf-8")
    with pytest.raises(msgspec.ValidationError):
        read_threats(tmp_path)
