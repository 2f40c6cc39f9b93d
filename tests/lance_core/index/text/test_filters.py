"""Ordinary filters with a full-text index: the rows of a scan, whatever the analyzer drops or changes."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_core import Table

WORDS = ["lance", "Lances", "the", "table", "straße", "naïve", "x" * 45, "3.14", "a_b", "%", "\\", "Σας", "été", "fo"]
CONDITIONS = (
    "body = {}",
    "body IN ({}, 'lance table')",
    "contains(body, {})",
    "starts_with(body, {})",
    "ends_with(body, {})",
)
ANALYZERS: list[dict[str, Any]] = [
    {},
    {"stem": False, "remove_stop_words": False, "max_token_length": None},
    {"base_tokenizer": "whitespace", "lower_case": False, "ascii_folding": False},
    {"base_tokenizer": "raw", "stem": False},
    {"base_tokenizer": "ngram"},
    {"base_tokenizer": "ngram", "prefix_only": True, "max_ngram_length": 5},
    {"custom_stop_words": ["lance"], "language": "French"},
]


def make_text(generator: random.Random, longest: int) -> str:
    return generator.choice([" ", " ", ", "]).join(generator.choices(WORDS, k=generator.randrange(longest)))


def make_condition(generator: random.Random, texts: list[str]) -> str:
    """Return a condition with a text of the table, or a part of one, or another text."""
    text = generator.choice([*texts, make_text(generator, 4)])
    start = generator.randrange(len(text) + 1)
    piece = generator.choice([text, text[start:], text[:start], text[start : start + 12]])
    if generator.random() < 0.5:
        return generator.choice(CONDITIONS).format(_quoted(piece))
    escaped = piece.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    at = generator.randrange(len(escaped) + 1)
    patterns = (f"%{escaped}%", f"{escaped}%", f"%{escaped}", f"{escaped[:at]}%{escaped[at:]}", f"%{escaped[1:]}_%")
    return f"body LIKE {_quoted(generator.choice(patterns))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.mark.parametrize("analyzer", ANALYZERS, ids=str)
def test_the_rows_are_those_of_a_scan(tmp_path: Path, analyzer: dict[str, Any]) -> None:
    generator = random.Random(str(analyzer))
    texts = [make_text(generator, 7) for _ in range(120)]
    rows = pa.table({"id": range(120), "body": [None if n % 11 == 3 else text for n, text in enumerate(texts)]})
    scanned = Table.create(tmp_path / "t", rows, max_rows_per_file=50, durable=False)
    scanned = scanned.delete("id % 7 = 2").table.update({"body": "'the lance'"}, where="id % 13 = 1").table
    indexed = scanned.create_index("body", "INVERTED", **analyzer).table
    used = 0
    for _ in range(60):
        condition = make_condition(generator, texts)
        found, expected = (
            sorted(table.to_table(columns=["id"], filter=condition)["id"].to_pylist()) for table in (indexed, scanned)
        )
        assert found == expected, condition
        used += "at most" in indexed.explain(filter=condition)
    assert used > 5


def test_a_rare_text_is_found_without_reading_all_texts(tmp_path: Path) -> None:
    rows = pa.table({"id": range(500), "body": [f"row w{n} of the table" for n in range(500)]})
    table = Table.create(tmp_path / "t", rows, durable=False).create_index("body", "INVERTED").table
    for condition in ("body = 'row w77 of the table'", "body LIKE '%row w77 of%'", "contains(body, ' w77 ')"):
        assert "(INVERTED) answers" in table.explain(filter=condition), condition
        assert table.to_table(columns=["id"], filter=condition)["id"].to_pylist() == [77]
    for condition in ("body LIKE '%w77%'", "body = 'of the'", "body != 'row w77 of the table'", "body ILIKE '% w77 %'"):
        assert "does not answer" in table.explain(filter=condition), condition
