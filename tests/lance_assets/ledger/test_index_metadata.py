"""Index assets: from the materialization to the ledger, with check and metadata, and invalid declarations."""

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from lance_assets import (
    IndexCoverage,
    LanceTable,
    SparkBuildIndex,
    SparkOptimizeIndices,
    SparkSessionResource,
    lance_table,
)
from lance_assets.profiles.profile import Profile, profile_version
from lance_assets.profiles.profile_metadata import metadata_of
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import events, metadata_values, partitions, run, tags
from tests.lance_core.index.index_differential import (
    FILTER_BY_COLUMN,
    check_answers,
    covered_fragments,
    is_used,
    rows,
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def words(folder: Path, *writes: SparkBuildIndex | SparkOptimizeIndices, **more: object) -> LanceTable:
    return lance_table("words", uri=str(folder / "words.lance"), writes=writes, **more)  # type: ignore[arg-type]


def last(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, object]:
    return {name.removeprefix("lance/"): value for name, value in metadata_values(events(instance, key)[-1][1]).items()}


def test_index_asset_builds_and_maintains_the_index(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    by_id = SparkBuildIndex("id", "BTREE")
    table = words(
        tmp_path,
        by_id,
        SparkBuildIndex("at.x", "zonemap", index="zones", name="zoned", params={"rows_per_zone": 16}),
        SparkOptimizeIndices("kept_up"),
        key_prefix="lake",
        checks=[IndexCoverage(at_least=0.95)],
    )
    key = table.write_key("words_index_id")
    Table.create(table.uri, rows(0, 80), max_rows_per_file=40, durable=False).delete("id = 3")
    resource = SparkSessionResource()

    # The index is built, committed, recorded and checked.
    ran = run(table, "words_index_id", instance, resource)
    head = Table.open(table.uri)
    (index,) = head.index_statistics()
    metadata = last(instance, key)
    figures = {
        "version": 3, "operation": "CreateIndex", "index": "id_idx", "index_kind": "BTREE", "index_column": "id",
        "index_coverage": 1.0, "index_fragments_covered": 2, "index_fragments_uncovered": 0, "index_rows_covered": 79,
        "index_rows_uncovered": 0, "index_segments": 1, "index_bytes": index.bytes, "rows_added": 0,
        "landed_before": False,
    }  # fmt: skip
    assert {name: metadata[name] for name in figures} == figures
    assert is_used(head, FILTER_BY_COLUMN["id"])
    _, _, (run_id, event) = events(instance, table.key)  # after the events of the versions of other writers
    assert (run_id, event.partition, tags(event)["lance/op"]) == (ran.run_id, "v0000000003", "CreateIndex")
    assert head.version_info().properties["dagster.run_id"] == ran.run_id
    *_, check = ran.get_asset_check_evaluations()
    assert (check.passed, check.description) == (
        True,
        "1 index covered; the lowest is 'id_idx', with 100.00% of the rows",
    )

    # A second run has nothing to do: no version, unchanged metadata.
    run(table, "words_index_id", instance, resource)
    assert Table.open(table.uri).version == 3
    assert {name: last(instance, key)[name] for name in ("version", "index", "index_coverage", "rows_added")} == {
        "version": 3, "index": "id_idx", "index_coverage": 1.0, "rows_added": 0,
    }  # fmt: skip
    assert partitions(instance, table) == ["v0000000001", "v0000000002", "v0000000003"]

    # New rows arrive; the second index finds that the first one lags behind.
    head.append(rows(80, 20))
    ran = run(table, "zoned", instance, resource)
    *_, check = ran.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(check.description).startswith("'id_idx' on id covers 79.80% of the rows, less than the required 95.00%")
    assert last(instance, table.write_key("zoned"))["index"] == "zones"
    run(table, "words_index_id", instance, resource)
    assert last(instance, key)["index_fragments_covered"] == 3
    assert covered_fragments(Table.open(table.uri), "id_idx") == [[0, 1, 2]]

    # All indices.
    Table.open(table.uri).append(rows(100, 20))
    ran = run(table, "kept_up", instance, resource)
    head = Table.open(table.uri)
    assert [each.live_coverage for each in head.index_statistics()] == [1.0, 1.0]
    assert ran.get_asset_check_evaluations()[-1].passed  # after the evaluation on the append
    check_answers(head)

    # With other options the index is rebuilt.
    changed = words(tmp_path, SparkBuildIndex("id", "BITMAP"), key_prefix="lake")
    run(changed, "words_index_id", instance, resource)
    metadata = last(instance, key)
    assert (metadata["index"], metadata["index_kind"], metadata["index_fragments_covered"]) == ("id_idx", "BITMAP", 4)
    check_answers(Table.open(table.uri))
    assert Table.open(table.uri).fsck().is_sound


def test_profile_describes_indices(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 40), durable=False)
    how = Profile(columns=[], pictures=False)
    without = metadata_of(profile_version(table, how), pictures=False)
    assert without["lance/indices"].value == 0
    assert not [name for name in without if name.startswith("lance/ind") and name != "lance/indices"]
    table = table.create_index("id", "BTREE").table.append(rows(40, 40)).table.create_index("word", "BITMAP").table
    metadata = metadata_of(profile_version(table, how), pictures=False)
    by_id, by_word = table.index_statistics()
    figures = {
        "indices": 2,
        "index_coverage/id_idx": 0.5,
        "index_segments/id_idx": 1,
        "index_bytes/id_idx": by_id.bytes,
        "index_coverage/word_idx": 1.0,
    }
    assert {name: metadata[f"lance/{name}"].value for name in figures} == figures
    shown_table = metadata["lance/indices_profile"]
    assert isinstance(shown_table, dg.TableMetadataValue)
    first, second = (dict(record.data) for record in shown_table.records)
    assert (first["index"], first["kind"], first["column"], first["covered"]) == ("id_idx", "BTREE", "id", "50.00%")
    assert (first["rows not covered"], first["segments"], second["rows not covered"]) == ("40", "1", "0")
    assert str(first["age"]).endswith(" s")
    assert by_word.bytes is not None
    assert str(second["bytes"]).split()[1] in ("B", "kB")


BAD: list[tuple[str, Callable[[], object]]] = [
    ("SparkBuildIndex('id'): kind='TREE' is not an index type; use one of", lambda: SparkBuildIndex("id", "TREE")),
    ("SparkBuildIndex('id'): ", lambda: SparkBuildIndex("id", "BTREE", params={"color": 1})),
    ("SparkBuildIndex('x'): column= must be the path", lambda: SparkBuildIndex("", "BTREE", name="x")),
    ("SparkBuildIndex('id'): name=''", lambda: SparkBuildIndex("id", "BTREE", index="")),
    ("SparkBuildIndex('id'): params= must be a", lambda: SparkBuildIndex("id", "BTREE", params=[1])),  # type: ignore[arg-type]
    ("'a-b' is not a valid name", lambda: SparkBuildIndex("id", "BTREE", name="a-b")),
    ("indices='id_idx' is a text", lambda: SparkOptimizeIndices("x", "id_idx")),
    ("merge must be 'small', 'all' or 'none'", lambda: SparkOptimizeIndices("x", merge="some")),  # type: ignore[arg-type]
    ("audit= needs a write that commits one version", lambda: SparkOptimizeIndices("x", audit=[IndexCoverage()])),
    ("at_least= must be a share", lambda: IndexCoverage(at_least=0)),
    ("at_least= must be a share", lambda: IndexCoverage(at_least=True)),
    ("indices= must be a list", lambda: IndexCoverage(indices="id_idx")),
    (
        "2 writes are called 'words_index_id'; give each its own name",
        lambda: words(Path(), SparkBuildIndex("id", "BTREE"), SparkBuildIndex("id", "BITMAP")),
    ),
    (
        "'words_index_id' and 'x' both build the index 'id_idx', and each would undo the other",
        lambda: words(Path(), SparkBuildIndex("id", "BTREE"), SparkBuildIndex("id", "BITMAP", name="x")),
    ),
]


@pytest.mark.parametrize(("message", "declare"), BAD, ids=[message for message, _ in BAD])
def test_invalid_declarations(message: str, declare: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare()
    assert message in str(refused.value)


def test_default_index_name(tmp_path: Path) -> None:
    table = words(
        tmp_path,
        SparkBuildIndex("address.`post code`", "BTREE"),
        SparkBuildIndex("id", "BTREE"),
        SparkBuildIndex("id", "BITMAP", name="of_each", index="id_bits"),
        key_prefix="lake",
    )
    assert [write.name for write in table.writes] == ["words_index_address_post_code", "words_index_id", "of_each"]
    assert table.write_key("words_index_id") == dg.AssetKey(["lake", "words_index_id"])
