"""`verify=` and `trusted=` reach the codec of a table from every surface that opens one: the list is `SURFACES`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_assets.spark as functions
from lance_assets import LanceIOManager, LanceResource, SparkCompact, SparkSessionResource, lance_fleet, lance_table
from lance_assets.cli.main import main as run_cli
from lance_assets.components.source_position import SourcePosition
from lance_assets.components.values import STORAGE
from lance_core import InvalidInput, Table
from lance_core.__main__ import main as run_core_cli
from lance_core.datafiles.checksums import Verify
from lance_core.tasks.driver import TableRef
from lance_core.versions import location as locations

MODES: Mapping[str, Any] = {"verify": "read", "trusted": False}
OPTIONS = {"verify": "read", "trusted": "false"}
STORAGE_OF = LanceResource(verify="read", trusted=False)
ROWS = pa.table({"id": pa.array(range(40), pa.int64()), "text": [f"row {n}" for n in range(40)]})


@dataclass(frozen=True)
class Place:
    """A table for one surface, and what surfaces need to open it."""

    uri: str
    spark: SparkSession
    directory: Path

    def frame(self) -> Any:
        return self.spark.createDataFrame(ROWS.slice(0, 3).to_pandas())

    def run(self, assets: list[Any], **resources: Any) -> None:
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        with dg.DagsterInstance.ephemeral() as instance:
            assert dg.materialize(assets, resources=resources, instance=instance, run_config=quiet).success


def _run_io_manager(place: Place) -> None:
    @dg.asset(key="written")
    def written() -> pa.Table:
        return ROWS

    @dg.asset
    def loaded(written: pa.Table) -> None:
        assert written.num_rows == 40

    storage = LanceResource(root=str(place.directory), verify="read", trusted=False)
    place.run([written, loaded], io_manager=LanceIOManager(storage=storage))


def _run_write(place: Place) -> None:
    table = lance_table("orders", uri=place.uri, writes=[SparkCompact("tidy")], storage=STORAGE_OF, profile=False)
    writes = [each for each in table.defs.assets or () if isinstance(each, dg.AssetsDefinition)]
    place.run(writes, spark=SparkSessionResource())


def _open_of_yaml(place: Place) -> None:
    position = SourcePosition(dg.ResolutionContext.default())
    storage: Any = STORAGE.read({"verify": "read", "trusted": False}, position)
    storage.open(place.uri)


def _fleet(place: Place) -> None:
    fleet = lance_fleet("lake", prefix=str(place.directory), storage=STORAGE_OF)
    place.run([*(fleet.defs.assets or ())], spark=SparkSessionResource())


def _source(place: Place, **more: str) -> functions.LanceDataSource:
    return functions.LanceDataSource({"path": place.uri, **OPTIONS, **more})


def _stream_writer(place: Place, overwrite: bool) -> None:
    source = _source(place, checkpoint_location=str(place.directory))
    source.streamWriter(_source(place).schema(), overwrite)


def _nearest_join(place: Place) -> None:
    """Join with a table without vectors, which is refused after the table was opened."""
    queries = place.spark.createDataFrame([([1.0, 2.0],)], "v array<double>")
    with pytest.raises(InvalidInput, match="vector"):
        functions.nearest_join(queries, place.uri, column="id", vector="v", **MODES)


def _text_search(place: Place) -> None:
    queries = place.spark.createDataFrame([("nothing",)], "query string")
    found = functions.text_search(place.spark, place.uri, queries, query="query", columns="text", exact=True, **MODES)
    assert found.collect() == []


def _explain_nearest_join(place: Place) -> None:
    with pytest.raises(InvalidInput, match="vector"):
        functions.explain_nearest_join(place.spark, place.uri, column="id", **MODES)


SURFACES: Mapping[str, Callable[[Place], object]] = {
    "Table.open": lambda place: Table.open(place.uri, **MODES),
    "LanceResource.open": lambda place: STORAGE_OF.open(place.uri),
    "lance_table": lambda place: lance_table("orders", uri=place.uri, storage=STORAGE_OF).ledger.open(),
    "writes of lance_table": _run_write,
    "IO manager": _run_io_manager,
    "YAML": _open_of_yaml,
    "lance_fleet": _fleet,
    "spark.read": lambda place: functions.read(place.spark, place.uri, **MODES).collect(),
    "spark.read_changes": lambda place: functions.read_changes(place.spark, place.uri, 1, **MODES).collect(),
    "spark.export": lambda place: functions.export(place.spark, place.uri, str(place.directory / "out"), **MODES),
    "spark.nearest_join": _nearest_join,
    "spark.text_search": _text_search,
    "spark.explain_nearest_join": _explain_nearest_join,
    "spark.count_rows": lambda place: functions.count_rows(place.spark, place.uri, "id > 3", **MODES),
    "spark.aggregate": lambda place: functions.aggregate(
        place.spark, place.uri, "select count(*) from dataset where id > 3", **MODES
    ),
    "spark.append": lambda place: functions.append(place.frame(), place.uri, **MODES),
    "spark.overwrite": lambda place: functions.overwrite(place.frame(), place.uri, **MODES),
    "spark.overwrite where": lambda place: functions.overwrite(place.frame(), place.uri, where="id < 3", **MODES),
    "spark.upsert": lambda place: functions.upsert(place.frame(), place.uri, "id", **MODES),
    "spark.upsert_batches": lambda place: functions.upsert_batches(place.uri, "id", query_id="q", **MODES)(
        place.frame(), 0
    ),
    "spark.merge_columns": lambda place: functions.merge_columns(
        place.frame().selectExpr("id", "id * 2 as twice"), place.uri, on="id", **MODES
    ),
    "spark.map_columns": lambda place: functions.map_columns(
        place.spark,
        place.uri,
        lambda batch: batch.select(["id"]).rename_columns(["same"]),
        read_columns=["id"],
        schema=pa.schema([("same", pa.int64())]),
        **MODES,
    ),
    "spark.compute_columns": lambda place: functions.compute_columns(
        place.spark, place.uri, functions.ComputedColumn("double", pa.int64(), sql="id * 2"), **MODES
    ),
    "spark.refresh_view": lambda place: functions.refresh_view(
        place.spark, str(place.directory / "view.lance"), of=place.uri, **MODES
    ),
    "spark.delete": lambda place: functions.delete(place.spark, place.uri, "id = 3", **MODES),
    "spark.update": lambda place: functions.update(place.spark, place.uri, {"text": "'x'"}, "id = 3", **MODES),
    "spark.compact": lambda place: functions.compact(place.spark, place.uri, **MODES),
    "spark.build_index": lambda place: functions.build_index(place.spark, place.uri, "id", "BTREE", **MODES),
    "spark.optimize_indices": lambda place: functions.optimize_indices(place.spark, place.uri, **MODES),
    "spark.ingest": lambda place: functions.ingest(place.spark, str(_csv(place)), place.uri, **MODES),
    "format: batch read": lambda place: _source(place).reader(_source(place).schema()),
    "format: append": lambda place: _source(place).writer(_source(place).schema(), False),
    "format: overwrite": lambda place: _source(place).writer(_source(place).schema(), True),
    "format: stream read": lambda place: _source(place).streamReader(_source(place).schema()),
    "format: stream append": lambda place: _stream_writer(place, False),
    "format: stream overwrite": lambda place: _stream_writer(place, True),
    "lance-assets show": lambda place: run_cli(["show", place.uri, "--verify", "read", "--untrusted"]),
    "lance-assets lineage": lambda place: run_cli(["lineage", place.uri, "--verify", "read", "--untrusted"]),
    "python -m lance_core fsck": lambda place: run_core_cli(["fsck", place.uri, "--verify", "read", "--untrusted"]),
    "tasks.TableRef": lambda place: TableRef(place.uri, **MODES).newest(),
}


def _csv(place: Place) -> Path:
    file = place.directory / "more.csv"
    file.write_text("id,text\n100,x\n")
    return file


@dataclass(frozen=True)
class OtherCodec:
    """Codec that was opened with other modes. Locations are opened so to ask whether a table exists, and no file may be
    read through them."""

    codec: Any
    modes: tuple[Verify, bool]
    opened: list[tuple[Verify, bool]]

    def open(self, path: str, columns: Any = (), **recorded: Any) -> Any:
        self.opened.append(self.modes)
        return self.codec.open(path, columns, **recorded)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.codec, name)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Verify, bool]]:
    """Record the modes of every codec that this process opens."""
    modes: list[tuple[Verify, bool]] = []
    open_codec = locations.open_codec

    def record(store: Any, verify: Verify, trusted: bool) -> Any:
        codec = open_codec(store, verify, trusted)
        if (verify, trusted) != (Verify.READ, False):
            return OtherCodec(codec, (verify, trusted), modes)
        modes.append((verify, trusted))
        return codec

    monkeypatch.setattr(locations, "open_codec", record)
    return modes


@pytest.mark.parametrize("surface", SURFACES)
def test_the_modes_reach_every_codec(
    surface: str, tmp_path: Path, spark: SparkSession, opened: list[tuple[Verify, bool]]
) -> None:
    uri = str(tmp_path / "orders.lance")
    Table.create(uri, ROWS.slice(0, 20), stable_row_ids=True, durable=False).append(ROWS.slice(20))
    opened.clear()
    SURFACES[surface](Place(uri, spark, tmp_path))
    assert set(opened) == {(Verify.READ, False)}


def test_every_spark_function_is_a_surface() -> None:
    named = {name.removeprefix("spark.").partition(" ")[0] for name in SURFACES if name.startswith("spark.")}
    opening = {
        name for name in functions.__all__ if "manifest_store" in inspect.signature(getattr(functions, name)).parameters
    }
    assert opening - named == {"verify_files"}  # it decodes nothing, and compares every file
    for name in named:
        assert {"verify", "trusted"} <= set(inspect.signature(getattr(functions, name)).parameters)
