"""Text formatting: text from tables is escaped for terminals and markdown, and truncated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_assets.common.text import cell_width, escape_markdown, format_bytes, format_count, truncate
from lance_core.shell import plain


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("orders", 6, "orders"),
        ("orders", 5, "orde…"),
        ("表表表", 6, "表表表"),
        ("表表表", 5, "表表…"),
        ("表表表", 4, "表…"),
        ("ab", 1, "…"),
        ("ab", 0, ""),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
    ],
)
def test_text_is_truncated_by_terminal_cells(text: str, most: int, expected: str) -> None:
    assert truncate(text, most) == expected
    assert cell_width(expected) <= most


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", "orders"),
        ("größer 表 ✓", "größer 表 ✓"),
        ("\x1b[31mred\x1b[0m", "�[31mred�[0m"),
        ("a\nb\tc\r", "a�b�c�"),
        ("evil\u202etxt\ud800\u2028", "evil�txt��"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert plain(text) == expected


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_value_is_printable(text: str) -> None:
    printable = plain(text)
    assert printable.encode().decode() == printable
    assert printable.isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/lake/orders.lance", "/lake/orders\\.lance"),
        ("a|b`c`", "a\\|b\\`c\\`"),
        ("<img src=x onerror=y>", "\\<img src\\=x onerror\\=y\\>"),
        ("![x](y)\n# z", "\\!\\[x\\]\\(y\\)�\\# z"),
    ],
)
def test_markdown_is_escaped(text: str, expected: str) -> None:
    assert escape_markdown(text) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1234567, "1.2 MB"), (10**18, "1,000.0 PB"), (None, "")],
)
def test_sizes(number: int | None, expected: str) -> None:
    assert format_bytes(number) == expected


def test_counts() -> None:
    counts = (format_count(1, "row"), format_count(0, "row"), format_count(12345, "row"))
    assert (*counts, format_count(2, "index", "indices")) == (
        "1 row", "0 rows", "12,345 rows", "2 indices",
    )  # fmt: skip
