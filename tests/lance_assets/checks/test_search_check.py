"""Search check: searches of a labelled set are measured, and a version below the bar is not published."""

from math import log2
from pathlib import Path

import pytest

from lance_assets import SearchCheck
from lance_assets.checks.evaluate import context_at
from lance_assets.writes.audit import Audit
from lance_core import AuditFailed, InvalidInput, Table

SEARCHES = {"lance": [0, 3], "table format": [1]}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    texts = ["lance", "a table format", "knight", "knight with a lance", "table"]
    created = Table.create(tmp_path / "t", {"id": list(range(5)), "body": texts}, durable=False)
    return created.create_index("body", "INVERTED").table


def test_ndcg_and_recall_are_means_over_the_queries(table: Table) -> None:
    result = SearchCheck(SEARCHES, columns=["body"], at_least=1.0).judge(context_at(table))
    assert result.passed, result.description
    assert result.metadata["lance/ndcg"].value == 1.0
    first_is_wrong = {"lance": [3], "format": [2]}
    result = SearchCheck(lambda _table: first_is_wrong, columns=["body"], k=3).judge(context_at(table))
    assert not result.passed
    assert result.metadata["lance/ndcg"].value == round(1 / log2(3) / 2, 4)
    assert result.metadata["lance/recall"].value == 0.5
    assert "the worst query is 'format' with 0.000" in result.description
    assert SearchCheck(first_is_wrong, columns=["body"], measure="recall", at_least=0.5).judge(context_at(table)).passed
    repeated = table.append({"id": [1], "body": ["a table format"]}).table
    result = SearchCheck({"table format": [1]}, columns=["body"]).judge(context_at(repeated))
    assert result.metadata["lance/ndcg"].value == 1.0


def test_an_audit_keeps_a_worse_version_unpublished(table: Table) -> None:
    check = SearchCheck(SEARCHES, columns=["body"], k=2, at_least=1.0)
    audit = Audit([check])
    table = table.append({"id": [5], "body": ["knight"]}, audit=audit).table
    (result,) = audit.asset_check_results("Not evaluated.", table.version)
    assert (result.passed, result.metadata["lance/ndcg"].value) == (True, 1.0)
    with pytest.raises(AuditFailed, match="search"):
        table.append({"id": [9, 10], "body": ["lance lance", "lance lance"]}, audit=Audit([check]))
    assert Table.open(table.uri).version == table.version


@pytest.mark.parametrize(
    "options",
    [{"queries": {}}, {"queries": {"x": []}}, {"queries": {"x": "7"}}, {"k": 0}, {"at_least": 2}, {"measure": "map"}],
)
def test_wrong_declarations_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"SearchCheck\('search'\)"):
        SearchCheck(**{"queries": SEARCHES, **options})  # type: ignore[arg-type]
