"""Words from tables, for people: harmless to a terminal and to markdown, and cut to size."""

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
def test_words_are_cut_by_their_cells(text: str, most: int, expected: str) -> None:
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
def test_nothing_steers_a_terminal(text: str, expected: str) -> None:
    assert plain(text) == expected


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_whatever_it_is_can_be_printed(text: str) -> None:
    shown = plain(text)
    assert shown.encode().decode() == shown
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/lake/orders.lance", "/lake/orders\\.lance"),
        ("a|b`c`", "a\\|b\\`c\\`"),
        ("<img src=x onerror=y>", "\\<img src\\=x onerror\\=y\\>"),
        ("![x](y)\n# z", "\\!\\[x\\]\\(y\\)�\\# z"),
    ],
)
def test_nothing_is_markup(text: str, expected: str) -> None:
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
