"""Credentials: secrets that executors use appear nowhere in what Spark shows, logs or stores."""

import json
import pickle
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark import append, delete, read
from lance_core import InvalidInput, LanceError, Table
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan.read import VersionRef
from tests.lance_core.storage.buckets import KEY_ID, SECRET, Bucket
from tests.lance_core.storage.object_servers import s3

PAGES = ("environment", "sql?details=true&planDescription=true&length=10000", "jobs", "stages?details=true")


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with s3() as server:
        test_bucket = server.bucket()
        access_file = _access(test_bucket.uri)
        access_file.write_text(json.dumps(dict(test_bucket.options)))
        yield test_bucket
        access_file.unlink()


def provider(uri: str) -> Mapping[str, str]:
    """Credential provider in a module, which the worker processes import too."""
    access: dict[str, str] = json.loads(_access(uri).read_text())
    return access


def _access(uri: str) -> Path:
    return Path(tempfile.gettempdir(), f"access-{uri.removeprefix('s3://').partition('/')[0]}.json")


PROVIDER = {"provider": f"{__name__}:provider"}


def explained_plans(frame: DataFrame) -> str:
    """Return all plans of a query as text."""
    execution = frame._jdf.queryExecution()
    java = frame.sparkSession._jvm
    assert java is not None
    modes = java.org.apache.spark.sql.execution.ExplainMode
    plans = [execution.explainString(modes.fromString(mode)) for mode in ("extended", "formatted")]
    return "\n".join([*plans, execution.toString(), execution.analyzed().toJSON(), repr(frame), str(frame.schema)])


def visible_texts(spark: SparkSession) -> str:
    """Return the texts of the pages, the REST API, the event log and the settings."""
    context = spark.sparkContext
    at = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    pages = [urllib.request.urlopen(f"{at}/{page}").read().decode() for page in PAGES]
    events = Path(context.getConf().get("spark.eventLog.dir", "").removeprefix("file:"))
    logs = [each.read_text(errors="replace") for each in events.rglob("*") if each.is_file()]
    assert any("SparkListenerSQLExecutionStart" in each for each in logs)
    return "\n".join([*pages, *logs, str(context.getConf().getAll())])


def stored(bucket: Bucket) -> str:
    access = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
    client = boto3.client("s3", endpoint_url=bucket.options["aws_endpoint"], region_name="us-east-1", **access)
    name = bucket.uri.removeprefix("s3://")
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=name)["Contents"]]
    return "\n".join(client.get_object(Bucket=name, Key=key)["Body"].read().decode("latin-1") for key in keys)


def read_by_function(spark: SparkSession, uri: str, options: Mapping[str, str]) -> Iterator[str]:
    yield repr(append(spark.range(10), uri, storage_options=options, properties={"run": "r"}, intent="i"))
    frame = read(spark, uri, storage_options=options)
    yield explained_plans(frame) + repr(delete(spark, uri, "id = 3", storage_options=options)) + str(frame.count())
    with pytest.raises(LanceError) as refused:
        append(spark.range(1).withColumnRenamed("id", "nope"), uri, storage_options=options)
    yield f"{refused.value!r} {refused.value}"


def read_by_format(spark: SparkSession, uri: str, options: Mapping[str, str]) -> Iterator[str]:
    """Spark shows all options of a statement."""
    spelt = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"create or replace temporary view secretive using lance options (path '{uri}', {spelt})")
    frame = spark.table("secretive")
    frame.write.format("lance").options(**options).mode("append").save(uri)
    yield explained_plans(frame) + str(spark.sql("describe extended secretive").collect())
    followed = spark.readStream.format("lance").options(**options).load(uri)
    checkpoint = tempfile.mkdtemp(prefix="checkpoint-")
    writer = followed.writeStream.format("lance").options(**options).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(f"{uri}-copy")
    query.awaitTermination()
    files = [each for each in Path(checkpoint).rglob("*") if each.is_file()]
    assert any(each.parent.name == "commits" for each in files)
    yield "\n".join(each.read_bytes().decode("latin-1") for each in files)
    yield str(query.recentProgress) + str(query.status)
    shutil.rmtree(checkpoint)


def test_secrets_are_not_visible(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The table is in a bucket, which needs the secret, or on disk, where Spark still transports it."""
    far, near = f"{bucket.uri}/t", str(tmp_path / "t")
    plain = {f"storage.{name}": value for name, value in bucket.options.items() if "key" not in name}
    hidden = {f"secret.{name}": value for name, value in {"aws_access_key_id": KEY_ID, "account_key": SECRET}.items()}
    texts = [*read_by_function(spark, far, PROVIDER), *read_by_function(spark, near, bucket.options)]
    texts += read_by_format(spark, near, plain | hidden | {"storage.aws_secret_access_key": SECRET})
    texts += read_by_format(spark, far, {"storage.provider": PROVIDER["provider"]})
    with pytest.raises(PySparkException, match="no column 'nope'") as refused:
        spark.read.format("lance").options(**plain, **hidden, columns="nope").load(near)
    texts += [repr(refused.value), str(refused.value)]
    texts += [visible_texts(spark), stored(bucket), *capfd.readouterr()]
    texts += [each.read_bytes().decode("latin-1") for each in tmp_path.rglob("*") if each.is_file()]
    assert not [text[max(0, text.find(SECRET) - 200) :][:300] for text in texts if SECRET in text]
    assert Table.open(far, storage_options=bucket.options).count_rows() == 18


def test_secret_references_are_not_resolved_in_plans(bucket: Bucket, spark: SparkSession) -> None:
    append(spark.range(3), f"{bucket.uri}/t", storage_options=PROVIDER)
    base = VersionRef(f"{bucket.uri}/t", storage_options=PROVIDER).snapshot()
    assert SECRET.encode() not in pickle.dumps(VersionHeader.of(base))


def test_literal_secrets_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    options = {"storage.account_key": SECRET}
    with pytest.raises(PySparkException, match=r"secret\.account_key, which Spark redacts") as refused:
        spark.read.format("lance").options(**options).load(str(tmp_path))
    assert SECRET not in str(refused.value)


def test_variable_that_executors_lack_is_an_error_on_the_driver(
    spark: SparkSession, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session started before the variable was set, so its workers lack it."""
    monkeypatch.setenv("ONLY_HERE", SECRET)
    options = {**bucket.options, "aws_secret_access_key": "env:ONLY_HERE"}
    with pytest.raises(InvalidInput, match=r"'ONLY_HERE', which this process does not have.*executorEnv"):
        append(spark.range(3), f"{bucket.uri}/t", storage_options=options)
    assert not Table.exists(f"{bucket.uri}/t", bucket.options)
