from pathlib import Path

import pytest

from tacit.models.datasets.samples import lines, require_checksum, require_file, require_folder, table, whole_number


def rows(path: Path, *, header: bool = True) -> list[tuple[str, dict[str, str]]]:
    return list(table(path, purpose="a table", columns=("a", "b"), delimiter=";", header=header))


def test_what_is_missing_is_named_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "y").mkdir()
    (tmp_path / "x").write_text("", encoding="utf-8")
    with pytest.raises(
        FileNotFoundError, match=rf"{tmp_path}/a/b is no folder; expected cats; {tmp_path} holds x, y/$"
    ):
        require_folder(tmp_path / "a" / "b", purpose="cats")
    with pytest.raises(FileNotFoundError, match="x is no folder"):
        require_folder(tmp_path / "x", purpose="cats")
    with pytest.raises(FileNotFoundError, match="y is no file; expected cats"):
        require_file(tmp_path / "y", purpose="cats")


def test_only_the_published_file_passes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")  # MD5 from RFC 1321, appendix A.5
    require_checksum(path, md5="900150983cd24fb0d6963f7d28e17f72", purpose="letters")
    path.write_bytes(b"abd")
    with pytest.raises(
        ValueError, match="x has MD5 checksum 4911e516e5aa21d327512e0c8b197616, the published file has 9"
    ):
        require_checksum(path, md5="900150983cd24fb0d6963f7d28e17f72", purpose="letters")


def test_lines_that_are_blank_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a b \r\n\n c\n\n")
    assert lines(path, purpose="names") == ["a b", "c"]
    path.write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match="x is not UTF-8 text at byte 2; expected names"):
        lines(path, purpose="names")


def test_rows_come_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("\ufeffb;c;a\n1; 2;3\n4;5;6\n", encoding="utf-8")
    assert rows(path) == [
        (f"{path} line 2", {"b": "1", "c": "2", "a": "3"}),
        (f"{path} line 3", {"b": "4", "c": "5", "a": "6"}),
    ]
    path.write_text("1;2\n", encoding="utf-8")
    assert rows(path, header=False) == [(f"{path} line 1", {"a": "1", "b": "2"})]


REFUSED = [
    (b"", r"x\.csv has no column a, b; it has $"),
    (b"a;c\n1;2\n", r"x\.csv has no column b; it has a, c"),
    (b"a;b\n1;2\n3\n", r"x\.csv line 3 has nothing in column b"),
    (b"a;b\n;2\n", r"x\.csv line 2 has nothing in column a"),
    (b"a;b\n1;\xff\n", r"x\.csv is not a readable table: .*; expected a table"),
    (b"a;b\n1;" + b"2" * 200_000 + b"\n", r"x\.csv is not a readable table: field larger"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=range(len(REFUSED)))
def test_bad_tables_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        rows(tmp_path / "x.csv")


def test_whole_numbers() -> None:
    assert [whole_number(text, below=10, place="p", column="c") for text in ("0", "9", "07")] == [0, 9, 7]
    for text in ("10", "-1", "1.0", "", "x", "²", "٣"):
        with pytest.raises(ValueError, match=f"p: c is '{text}', expected 0 to 9"):
            whole_number(text, below=10, place="p", column="c")
