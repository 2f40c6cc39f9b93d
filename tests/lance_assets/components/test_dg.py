"""Command line `dg` with our components: a table is scaffolded, checked and loaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lance_assets.components.dg_project import TYPE, copied_shop, run_dg


@pytest.fixture(scope="module")
def shop() -> Iterator[Path]:
    with copied_shop() as project:
        yield project


def test_scaffolded_table_is_checked_and_loaded(shop: Path) -> None:
    code, output = run_dg(
        shop, "scaffold", "defs", TYPE, "authors", "--uri", "/lake/authors.lance", "--files", "in/*.csv"
    )
    assert code == 0, output
    written = (shop / "bookshop/defs/authors/defs.yaml").read_text()
    assert f"type: {TYPE}\n" in written
    assert 'uri: "/lake/authors.lance"' in written
    assert 'files: "in/*.csv"' in written
    code, output = run_dg(shop, "check", "yaml")
    assert (code, "All component YAML validated successfully." in output) == (0, True), output
    code, output = run_dg(shop, "list", "defs", "--json")  # this command loads the definitions
    assert code == 0, output
    for key in ("authors", "authors_ingest", "authors_compact", "shop/books_sale", "shop/reviews_forget"):
        assert f'"{key}"' in output
