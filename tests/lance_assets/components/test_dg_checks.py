"""Command line `dg` with our components: it lists them, and its checks report mistakes. Each command takes seconds, so
only `make dagster-proofs` runs these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lance_assets.components.dg_project import TYPE, copied_shop, run_dg


@pytest.fixture(scope="module")
def shop() -> Iterator[Path]:
    with copied_shop() as project:
        yield project


def test_components_are_listed(shop: Path) -> None:
    code, output = run_dg(shop, "list", "components", "--json")
    assert code == 0, output
    assert f'"{TYPE}"' in output
    assert '"lance_assets.components.SparkSessionComponent"' in output


def test_mistakes_are_found_by_both_checks(shop: Path) -> None:
    file = shop / "bookshop/defs/books/defs.yaml"
    right = file.read_text()
    wrong = right.replace("predicate: ", "predicat: ")
    line = 1 + wrong[: wrong.index("predicat: ")].count("\n")
    file.write_text(wrong)
    try:
        code, output = run_dg(shop, "check", "yaml")
        assert code == 1
        assert f"{file}:{line} - " in output
        assert "Additional properties are not allowed ('predicat' was unexpected)" in output
        code, output = run_dg(shop, "check", "defs", "--no-check-yaml")
        assert code == 1
        assert (
            f"{file}:{line}: writes[2].predicat: the op delete has no 'predicat' (did you mean 'predicate'?)" in output
        )
    finally:
        file.write_text(right)
