"""Canaries: secrets under every option name, through every surface, appear in nothing that is stored, shown or logged.

A secret that the code contains is refused when a definition is constructed, and the refusal does not repeat it. A
secret that is referenced is used, and appears neither in what Dagster stores and serves nor in what Spark shows and
stores. One Dagster instance and one Spark session serve all names, and everything is searched at the end. The pages of
a whole deployment are searched in `test_deployment.py`, and those of the same project in `ui/test_secret_pages.py`.
"""

import argparse
import itertools
import json
import logging
import os
import re
import sqlite3
import traceback
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_shared.serdes import serialize_value
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructType

from lance_assets import (
    LanceIOManager,
    LanceResource,
    SparkIngest,
    SparkSessionResource,
    lance_fleet,
    lance_table,
)
from lance_assets.components import LanceTableComponent, SparkSessionComponent
from lance_assets.spark import read
from lance_assets.spark.source import LanceDataSource
from lance_core import InvalidInput, LanceError, Table, shell
from lance_core.storage.option_names import SECRET_NAMES, SUPPORTED
from lance_core.tasks.credentials import SPARK_REDACTS
from tests.lance_assets.canary_project import CANARY, NAMES, UNKNOWN, VARIABLE, definitions
from tests.lance_assets.instances import instance_in

IDS = StructType().add("id", LongType())
Options = Mapping[str, str]


def secret_values(name: str) -> list[str]:
    """Return values that make the option a secret."""
    in_urls = [f"http://me:{CANARY}@host", f"https://host/x?sv=2022-11-02&sig={CANARY}"]
    return [CANARY, *in_urls] if name in SECRET_NAMES or name in UNKNOWN else in_urls


def in_yaml(options: Options, where: str) -> str:
    lines = "".join(f"    {name}: {json.dumps(value)}\n" for name, value in options.items())
    return f"name: t\nuri: /lake/t.lance\n{where}\n{lines}"


def on_command_line(options: Options) -> object:
    parser = argparse.ArgumentParser()
    shell.add_access(parser)
    given = [text for name, value in options.items() for text in ("--storage-option", f"{name}={value}")]
    return shell.access(parser.parse_args(given), {})


SURFACES: dict[str, Callable[[Options], object]] = {
    "resource": lambda given: LanceResource(storage_options=dict(given)),
    "arguments of the resource": lambda given: LanceResource(**given),
    "options that are no mapping": lambda given: LanceResource(storage_options=list(given.items())),
    "I/O manager": lambda given: LanceIOManager(storage=LanceResource(storage_options=dict(given))),
    "arguments of the I/O manager": lambda given: LanceIOManager(storage_options=dict(given)),
    "table": lambda given: lance_table("t", uri="/lake/t.lance", storage_options=given),
    "fleet": lambda given: lance_fleet("lake", prefix="/lake", storage_options=given),
    "source of an ingest": lambda given: SparkIngest(name="x", files="/landing", source_options=given),
    "options of a protocol": lambda given: SparkIngest(
        name="x", files="/landing", source_options={"sftp": {"more": [1], **given}}
    ),
    "YAML": lambda given: LanceTableComponent.resolve_from_yaml(in_yaml(given, "storage_options:")),
    "source of an ingest in YAML": lambda given: LanceTableComponent.resolve_from_yaml(
        "name: t\nuri: /t\nwrites:\n  - {op: ingest, name: x, files: /in, "
        f"source_options: {json.dumps({'sftp': dict(given)})}}}\n"
    ),
    "storage in YAML": lambda given: LanceTableComponent.resolve_from_yaml(
        in_yaml(given, "storage:\n  storage_options:").replace("    ", "      ")
    ),
    "command line": on_command_line,
}
FORMAT_USES: dict[str, Callable[[LanceDataSource], object]] = {
    "schema": lambda source: source.schema(),
    "reader": lambda source: source.reader(IDS),
    "writer": lambda source: source.writer(IDS, overwrite=False),
    "stream reader": lambda source: source.streamReader(IDS),
    "stream writer": lambda source: source.streamWriter(IDS, overwrite=False),
}
URL_SURFACES: dict[str, Callable[[str], object]] = {
    "root": lambda url: LanceResource(root=url),
    "manifest store": lambda url: LanceResource(manifest_store=url),
    "uri of a table": lambda url: lance_table("t", uri=url),
    "prefix of a fleet": lambda url: lance_fleet("lake", prefix=url),
    "files": lambda url: SparkIngest(name="x", files=url),
    "bad records": lambda url: SparkIngest(name="x", files="/landing", on_bad_record=url),
    "YAML": lambda url: LanceTableComponent.resolve_from_yaml(f"name: t\nuri: {json.dumps(url)}"),
    "Spark in YAML": lambda url: SparkSessionComponent.resolve_from_yaml(f"remote: {json.dumps(url)}"),
    "remote": lambda url: SparkSessionResource(remote=url),
    "master": lambda url: SparkSessionResource(master=url),
    "path of the format": lambda url: LanceDataSource(CaseInsensitiveDict({"path": url})).reader(IDS),
    "bases of the format": lambda url: LanceDataSource(CaseInsensitiveDict({"path": "/t", "bases": url})).reader(IDS),
    "manifest store of the format": lambda url: LanceDataSource(
        CaseInsensitiveDict({"path": "/lake/t", "manifestStore": url})
    ).writer(IDS, overwrite=True),
}


def check_refused(surface: str, declare: Callable[[], object]) -> None:
    try:
        declared = declare()
    except (LanceError, dg.DagsterError) as error:
        text = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
        assert CANARY not in text, surface
    else:
        raise AssertionError(f"{surface} accepts a secret as {type(declared).__name__}")


@pytest.mark.parametrize("surface", SURFACES)
def test_literal_secrets_are_refused_when_constructed(surface: str) -> None:
    assert len(NAMES) > 150
    for name in NAMES:
        for value in secret_values(name):
            check_refused(f"{surface}, {name}", partial(SURFACES[surface], {name: value}))


@pytest.mark.parametrize("use", FORMAT_USES)
def test_format_refuses_secrets_that_spark_would_show(use: str, tmp_path: Path) -> None:
    uri = Table.create(tmp_path / "t", pa.table({"id": [1]}), durable=False).uri
    for name in NAMES:
        for prefix, value in itertools.product(("storage.", ""), secret_values(name)):
            source = LanceDataSource(CaseInsensitiveDict({"path": uri, f"{prefix}{name}": value}))
            if prefix and name in SUPPORTED and re.search(SPARK_REDACTS, name):
                FORMAT_USES[use](source)
            else:
                check_refused(f"{use}, {prefix}{name}", partial(FORMAT_USES[use], source))


@pytest.mark.parametrize("surface", URL_SURFACES)
def test_secrets_in_urls_are_refused_when_constructed(surface: str) -> None:
    for scheme in ("s3", "https", "postgresql", "sc"):
        check_refused(surface, partial(URL_SURFACES[surface], f"{scheme}://me:{CANARY}@host/t"))
        check_refused(surface, partial(URL_SURFACES[surface], f"{scheme}://host/t?password={CANARY}"))


def test_settings_of_spark_are_refused_when_constructed() -> None:
    for name in NAMES:
        for value in secret_values(name):
            settings = {f"spark.hadoop.{name}": value}
            text = json.dumps(settings)
            check_refused(name, partial(SparkSessionResource, conf=settings))
            check_refused(name, partial(SparkSessionComponent.resolve_from_yaml, f"conf: {text}"))
    with pytest.raises(InvalidInput, match="did you mean conf="):
        SparkSessionResource(config={"spark.token": CANARY})


def test_value_of_a_variable_is_a_literal_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to a variable does not allow its value in another argument."""
    monkeypatch.setenv(VARIABLE, CANARY)
    LanceResource(storage_options={"account_key": dg.EnvVar(VARIABLE)})
    check_refused("another option", lambda: LanceResource(storage_options={"sas_key": os.environ[VARIABLE]}))
    check_refused("another class", lambda: SparkSessionResource(conf={"spark.my.token": os.environ[VARIABLE]}))


def use_format(spark: SparkSession, folder: Path) -> Iterator[str]:
    """Read, write and stream a table by the format, with secrets that Spark redacts and with references, in turn."""
    uri = str(folder / "core.lance")
    secret = sorted(SECRET_NAMES & SUPPORTED)
    options = {f"secret.{name}": CANARY for name in secret[::2]}
    options |= {f"storage.{name}": f"env:{VARIABLE}" for name in secret[1::2]}
    frame = spark.read.format("lance").options(**options).load(uri)
    frame.write.format("lance").options(**options).mode("append").save(uri)
    yield frame._jdf.queryExecution().toString()
    stream = spark.readStream.format("lance").options(**options).load(uri)
    sink = (
        stream.writeStream.format("lance").options(**options).option("checkpointLocation", str(folder / "checkpoint"))
    )
    query = sink.trigger(availableNow=True).start(str(folder / "copy.lance"))
    query.awaitTermination()
    yield str(query.recentProgress)
    yield read(spark, uri, storage_options={"token": f"env:{VARIABLE}"})._jdf.queryExecution().toString()


def shown_by_spark(spark: SparkSession) -> Iterator[str]:
    context = spark.sparkContext
    api = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    for page in ("environment", "sql?details=true&planDescription=true&length=10000", "jobs", "stages?details=true"):
        yield urllib.request.urlopen(f"{api}/{page}").read().decode()
    for page in ("environment/", "SQL/", "StreamingQuery/"):
        yield urllib.request.urlopen(f"{context.uiWebUrl}/{page}").read().decode()
    yield str(context.getConf().getAll())
    yield from files_below(Path(context.getConf().get("spark.eventLog.dir", "").removeprefix("file:")))
    local = Path(context.getConf().get("spark.local.dir", ""))
    assert {path.name.partition("-")[0] for path in local.iterdir()} >= {"blockmgr", "spark"}
    yield from files_below(local)


def files_below(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes().decode("latin-1")
        if path.suffix == ".db":
            yield from rows_of_database(path)


def rows_of_database(path: Path) -> Iterator[str]:
    """Yield the values of all tables. Dagster compresses snapshots."""
    with closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        for value in (value for name in names for row in database.execute(f'select * from "{name}"') for value in row):
            try:
                yield zlib.decompress(value).decode() if isinstance(value, bytes) else str(value)
            except zlib.error:
                yield str(value)


if os.environ.get("PROOFS") == "all":

    def test_referenced_secrets_are_stored_and_shown_nowhere(
        spark: SparkSession,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv(VARIABLE, CANARY)
        caplog.set_level(logging.INFO)
        lake = tmp_path / "lake"
        lake.mkdir()
        defs = definitions(lake, spark)
        repository = defs.get_repository_def()
        texts = [
            serialize_value(RepositorySnap.from_def(repository)),
            *(serialize_value(job.get_job_snapshot()) for job in repository.get_all_jobs()),
            repr(defs.resources),
        ]
        assert sum(VARIABLE in text for text in texts) > 1
        with instance_in(tmp_path) as instance:
            result = defs.resolve_job_def("everything").execute_in_process(instance=instance, raise_on_error=False)
            failed = {event.step_key for event in result.get_step_failure_events()}
            assert failed == {"lost_append"}, failed
            texts += [str(event.message) + repr(event) for event in result.all_events]
            texts += use_format(spark, lake)
            texts += shown_by_spark(spark)
            texts += files_below(tmp_path)
        assert Table.open(str(lake / "names.lance")).count_rows() == 2
        assert sum("lost_append" in text for text in texts) > 5
        texts += [*capfd.readouterr(), caplog.text]
        assert not [text[max(0, text.find(CANARY) - 200) :][:300] for text in texts if CANARY in text]
