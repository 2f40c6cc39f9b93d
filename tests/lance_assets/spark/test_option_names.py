"""Option names of the format: what each use accepts, and what a refusal says. No session is needed."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructType

from lance_assets.spark import option_names
from lance_assets.spark.source import LanceDataSource
from lance_core import LanceError, Table

IDS = StructType().add("id", LongType())
USES: dict[str, Callable[[LanceDataSource], object]] = {
    "schema": lambda source: source.schema(),
    "read": lambda source: source.reader(IDS),
    "append": lambda source: source.writer(IDS, overwrite=False),
    "overwrite": lambda source: source.writer(IDS, overwrite=True),
    "stream read": lambda source: source.streamReader(IDS),
    "stream write": lambda source: source.streamWriter(IDS, overwrite=False),
}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Table.create(str(tmp_path_factory.mktemp("t") / "t"), pa.table({"id": [1, 2]}), durable=False).uri


def use(name: str, uri: str, option: str, value: str) -> None:
    USES[name](LanceDataSource(CaseInsensitiveDict({"path": uri, option: value})))


def refusal(name: str, uri: str, option: str, value: str = "CANARY") -> str:
    with pytest.raises(LanceError) as refused:
        use(name, uri, option, value)
    assert "CANARY" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("option", ["vesion", "versionAsOf", "filterr", "snapshot-id", "nonsense", "storage.aws_regon"])
def test_unknown_options_are_refused_everywhere(uri: str, name: str, option: str) -> None:
    assert option.lower().removeprefix("storage.") in refusal(name, uri, option)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("read", "vesion", "did you mean 'version'?"),
        ("read", "filterr", "did you mean 'filter'?"),
        ("read", "withRowIds", "did you mean 'with_row_id'?"),
        ("append", "max-rows-per-file", "did you mean 'max_rows_per_file'?"),
        ("stream read", "startVersion", "did you mean 'starting_version'?"),
        ("read", "storge.aws_region", "did you mean 'storage.aws_region'?"),
        ("append", "propertys.team", "did you mean 'property.team'?"),
        ("read", "aws_region", "written as storage.aws_region"),
        ("read", "account_key", "written as storage.account_key"),
        ("read", "storage.aws_regon", "did you mean 'aws_region'?"),
        ("read", "secret.acount_key", "did you mean 'account_key'?"),
        ("read", "storage.proxy_url", "set HTTPS_PROXY in the environment"),
        ("read", "nonsense", "its options for batch reads are bases, branch, columns"),
        ("read", "versionAsOf", ": use version"),
        ("read", "version_as_of", ": use version"),
        ("read", "snapshot-id", ": use version"),
        ("read", "timestampAsOf", "Table.open(uri, timestamp=...)"),
        ("read", "as-of-timestamp", "Table.open(uri, timestamp=...)"),
        ("read", "readChangeFeed", "spark.readStream with starting_version"),
        ("read", "startingVersion", "it applies to streams (spark.readStream); a batch read of one version takes"),
        ("read", "maxFilesPerTrigger", "max_files_per_trigger does not apply to batch reads"),
        ("stream read", "version", "use starting_version"),
        ("stream read", "ignoreDeletes", "use on_change='skip'"),
        ("stream read", "ignoreChanges", "use on_change='rewritten'"),
        ("stream read", "maxBytesPerTrigger", "use max_rows_per_trigger or max_files_per_trigger"),
        ("append", "mergeSchema", "Table.add_columns"),
        ("overwrite", "overwriteSchema", ": use replace_schema"),
        ("overwrite", "replaceWhere", "overwrite(df, uri, where=)"),
        ("overwrite", "partitionOverwriteMode", "overwrite(df, uri, where=)"),
        ("overwrite", "filter", "this overwrite replaces all rows"),
        ("append", "txnAppId", "an idempotency key"),
        ("append", "userMetadata", "use property.NAME"),
        ("append", "snapshot-property.run", "use property.NAME"),
        ("append", "maxRecordsPerFile", "use max_rows_per_file"),
        ("append", "target-file-size-bytes", "use max_bytes_per_file"),
        ("append", "version", "adds to the newest version"),
        ("stream write", "intent", "its own intent"),
        ("stream write", "replaceSchema", "does not apply to streams that write"),
        ("read", "paths", "take one location"),
    ],
)
def test_refusal_gives_our_spelling(uri: str, name: str, option: str, message: str) -> None:
    assert message in refusal(name, uri, option)


def test_advice_names_options_that_exist() -> None:
    """Each advice `use NAME` names an option of the format, and no advice is for an option that the format has."""
    names = {name.replace("_", "") for name in option_names.OPTIONS}
    assert not names & option_names.OF_OTHER_FORMATS.keys()
    for foreign, advice in option_names.OF_OTHER_FORMATS.items():
        assert foreign == foreign.lower().replace("_", "").replace("-", "")
        first = advice.removeprefix("use ").split(" or ")[0].split("=")[0].split(",")[0].split(";")[0]
        if advice.startswith("use ") and first.isidentifier():
            assert first in option_names.OPTIONS or first in ("overwrite", "compact"), advice


@pytest.mark.parametrize("name", ["read", "append"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("branch", "main"),
        ("columns", "id"),
        ("filter", "id > 1"),
        ("intent", "x"),
        ("maxRowsPerFile", "3"),
        ("storage.aws_region", "north"),
        ("storage.http2_only", "true"),
        ("storage.provider", "os:getenv"),
        ("secret.account_key", "x"),
        ("property.team", "a"),
        ("retries", "3"),
    ],
)
def test_views_pass_options_of_reads_to_writes_and_the_reverse(uri: str, name: str, option: str, value: str) -> None:
    use(name, uri, option, value)


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("storage.account_key", "CANARY"),
        ("storage.aws_sse_customer_key_base64", "CANARY"),
        ("storage.proxy_url", "http://me:CANARY@proxy"),
        ("storage.endpoint", "http://me:CANARY@host"),
        ("storage.my_signature", "CANARY"),
        ("manifest_store", "postgresql://me:CANARY@host/db"),
        ("bases", "s3://me:CANARY@bucket/t"),
        ("path", "s3://bucket/t?X-Amz-Signature=CANARY"),
    ],
)
def test_exposed_secrets_are_refused(uri: str, name: str, option: str, value: str) -> None:
    refusal(name, uri, option, value)
