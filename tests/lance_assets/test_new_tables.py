"""New tables: `stable_row_ids=` and `storage_version=` reach the table from every surface that creates one, as pylance
reads it: the list is `SURFACES`. Tests of Dagster's remote writes are in `test_remote_writes.py`.

`make test` writes to existing tables through one surface of each module, `make clusters` through all.
"""

import inspect
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lance_assets.spark as functions
from lance_assets import (
    LanceIOManager,
    LanceResource,
    SparkAppend,
    SparkIngest,
    SparkOverwrite,
    SparkSessionResource,
    lance_table,
)
from lance_assets.components import LanceTableComponent
from lance_assets.writes import Write
from lance_core import InvalidInput, Table

ROWS = pa.table({"id": pa.array(range(4), pa.int64()), "day": ["mon", "mon", "mon", "mon"]})
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class Place:
    """Directory in which one surface creates a table, and the options of that table."""

    spark: SparkSession
    directory: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return str(self.directory / "orders.lance")

    def frame(self) -> DataFrame:
        return self.spark.createDataFrame(ROWS.to_pylist(), "id bigint, day string").coalesce(1)

    def csv(self) -> str:
        file = self.directory / "orders.csv"
        file.write_text("id,day\n0,mon\n1,mon\n2,mon\n3,mon\n")
        return str(file)

    def written_by_format(self, mode: str) -> None:
        options = {name: str(value) for name, value in self.options.items()}
        self.frame().write.format("lance").options(**options).mode(mode).save(self.uri)

    def refreshed_view(self) -> None:
        source = Table.create(str(self.directory / "source.lance"), ROWS, stable_row_ids=True, durable=False)
        functions.refresh_view(self.spark, self.uri, of=source.uri, **self.options)

    def streamed(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=self.directory))
        source = Table.create(str(folder / "source"), ROWS, stable_row_ids=True, durable=False)
        frame = self.spark.readStream.format("lance").load(source.uri)
        options = {name: str(value) for name, value in self.options.items()}
        writer = frame.writeStream.format("lance").options(**options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start(self.uri).awaitTermination(120)

    def write(self, write: Write) -> None:
        table = lance_table("orders", uri=self.uri, writes=[write], profile=False, discover=False, **self.options)
        self.materialize(table.defs)

    def component(self) -> None:
        write = {"op": "ingest", "name": "first", "files": self.csv()}
        attributes = {"name": "orders", "uri": self.uri, "profile": False, "discover": False, "writes": [write]}
        model = LanceTableComponent.model()(**attributes, **self.options)
        component = LanceTableComponent.resolve_from_model(dg.ResolutionContext.default(), model)
        self.materialize(component.table.defs)

    def materialize(self, defs: dg.Definitions) -> None:
        assets = [each for each in defs.assets or () if isinstance(each, dg.AssetsDefinition)]
        self.run(assets, spark=SparkSessionResource())

    def manage(self, rows: pa.Table | DataFrame, **options: Any) -> None:
        """Store `rows` by an I/O manager, as an asset with these options."""

        @dg.asset(key="orders", **options)
        def orders() -> Any:
            return rows

        storage = LanceResource(root=str(self.directory))
        partition = "mon" if options.get("partitions_def") else None
        self.run([orders], partition, io_manager=LanceIOManager(storage=storage, **self.options))

    def run(self, assets: list[Any], partition: str | None = None, **resources: Any) -> None:
        with dg.DagsterInstance.ephemeral() as instance:
            done = dg.materialize(
                assets, resources=resources, instance=instance, run_config=QUIET, partition_key=partition
            )
            assert done.success


def frame_of(place: Place) -> Callable[..., DataFrame]:
    return lambda spark, ctx: place.frame()


DAILY: Mapping[str, Any] = {
    "partitions_def": dg.StaticPartitionsDefinition(["mon", "tue"]),
    "metadata": {"partition_expr": "day"},
}
SURFACES: Mapping[str, Callable[[Place], object]] = {
    "Table.create": lambda place: Table.create(place.uri, ROWS, **place.options),
    "spark.append": lambda place: functions.append(place.frame(), place.uri, **place.options),
    "spark.overwrite": lambda place: functions.overwrite(place.frame(), place.uri, **place.options),
    "spark.overwrite where": lambda place: functions.overwrite(
        place.frame(), place.uri, where="day = 'mon'", **place.options
    ),
    "spark.ingest": lambda place: functions.ingest(place.spark, place.csv(), place.uri, **place.options),
    "spark.refresh_view": lambda place: place.refreshed_view(),
    "format: append": lambda place: place.written_by_format("append"),
    "format: overwrite": lambda place: place.written_by_format("overwrite"),
    "format: stream": lambda place: place.streamed(),
    "lance_table: SparkAppend": lambda place: place.write(SparkAppend("first", frame_of(place))),
    "lance_table: SparkOverwrite": lambda place: place.write(SparkOverwrite("first", frame_of(place))),
    "lance_table: SparkIngest": lambda place: place.write(SparkIngest("first", place.csv())),
    "YAML": lambda place: place.component(),
    "IO manager": lambda place: place.manage(ROWS),
    "IO manager: append": lambda place: place.manage(ROWS, metadata={"mode": "append"}),
    "IO manager: partition": lambda place: place.manage(ROWS, **DAILY),
    "IO manager: DataFrame": lambda place: place.manage(place.frame()),
    "IO manager: DataFrame of a partition": lambda place: place.manage(place.frame(), **DAILY),
}
DECLARING = ("lance_table", "YAML", "IO manager")
"""Surfaces that declare how a table is created, long before it is written. An existing table keeps what it has."""


EXISTING = [each for each in SURFACES if each not in ("Table.create", "spark.refresh_view")]
if os.environ.get("CLUSTERS") != "all":
    EXISTING = ["spark.append", "spark.ingest", "format: append", "lance_table: SparkAppend", "YAML", "IO manager"]


def declares(surface: str) -> bool:
    return surface.startswith(DECLARING)


def as_pylance_reads(uri: str) -> tuple[bool, str]:
    dataset = lance.dataset(uri)
    assert dataset.count_rows() == ROWS.num_rows
    return dataset.has_stable_row_ids, dataset.data_storage_version


@pytest.mark.parametrize("surface", SURFACES)
def test_the_options_reach_the_new_table(surface: str, tmp_path: Path, spark: SparkSession) -> None:
    """The values differ from the defaults of the surface."""
    stable = not declares(surface)
    place = Place(spark, tmp_path, {"stable_row_ids": stable, "storage_version": "2.1"})
    SURFACES[surface](place)
    assert as_pylance_reads(place.uri) == (stable, "2.1")


@pytest.mark.parametrize(
    ("surface", "stable"),
    [("Table.create", False), ("spark.append", False), ("lance_table: SparkAppend", True), ("IO manager", True)],
)
def test_defaults(surface: str, stable: bool, tmp_path: Path, spark: SparkSession) -> None:
    place = Place(spark, tmp_path)
    SURFACES[surface](place)
    assert as_pylance_reads(place.uri) == (stable, "2.2")


@pytest.mark.parametrize("surface", EXISTING)
def test_an_existing_table_keeps_what_it_has(surface: str, tmp_path: Path, spark: SparkSession) -> None:
    """A write that requests something else is refused; a declaration is for new tables only."""
    place = Place(spark, tmp_path, {"stable_row_ids": True})
    table = Table.create(place.uri, ROWS.slice(0, 0), durable=False)
    if declares(surface):
        SURFACES[surface](place)
        assert as_pylance_reads(place.uri) == (False, "2.2")
        return
    with pytest.raises((InvalidInput, PySparkException), match="stable_row_ids=True was requested, but the table has"):
        SURFACES[surface](place)
    other = Place(spark, tmp_path, {"stable_row_ids": False, "storage_version": "2.0"})
    with pytest.raises((InvalidInput, PySparkException), match=r"but the table has storage version 2\.2, which never"):
        SURFACES[surface](other)
    assert table.refresh().version == 1


def test_every_creating_function_of_spark_is_a_surface() -> None:
    named = {name.removeprefix("spark.").partition(" ")[0] for name in SURFACES if name.startswith("spark.")}
    creating = {
        name
        for name in functions.__all__
        if "storage_version" in inspect.signature(getattr(functions, name)).parameters
    }
    assert creating == named == {"append", "ingest", "overwrite", "refresh_view"}


def test_wrong_values_are_refused_at_declaration(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the Lance table 'orders': '2' is not a storage version"):
        lance_table("orders", uri=str(tmp_path / "t"), storage_version="2")
    with pytest.raises(InvalidInput, match="is not a storage version"):
        LanceIOManager(storage_version="two")


def test_a_table_below_a_relative_root_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = lance_table("orders", uri="orders.lance", storage=LanceResource(root="lake"))
    assert table.ledger.creation() == {"stable_row_ids": True, "storage_version": None}
    assert not table.ledger.exists()
    Table.create("lake/orders.lance", ROWS, durable=False)
    assert table.ledger.exists()
    assert table.ledger.creation() == {}
