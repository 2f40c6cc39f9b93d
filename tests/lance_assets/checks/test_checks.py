"""Check rules: the result of each check on small tables, without Dagster runs."""

import datetime as dt
import re
import uuid
from collections.abc import Callable
from datetime import UTC, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_assets.checks import (
    Check,
    CheckContext,
    CheckResult,
    ForeignWriters,
    Fresh,
    FunctionCheck,
    IndexCoverage,
    KeysUnique,
    Nulls,
    RowChange,
    RowCount,
    SchemaStable,
    Severity,
    SmallFiles,
    SqlCheck,
    lance_check,
)
from lance_assets.checks import duplicates as finding_duplicates
from lance_assets.checks.evaluate import context_at, evaluate
from lance_core import InvalidInput, Table
from lance_core.operations import CreateIndex, IndexMetadata

CITY = pa.struct([("city", pa.string()), ("zip", pa.int32())])
PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "age": pa.array([30, None, 50, 60], pa.int32()),
        "address": pa.array([{"city": "Bonn", "zip": 1}, {"city": None, "zip": 2}, None, {"city": "Köln"}], CITY),
    }
)
RUN = {"dagster.run_id": "r-1", "dagster.asset_key": "lake/people_append"}
HOSTILE = "<script>'\"alert(1)"


@pytest.fixture
def people(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "people", PEOPLE, properties=RUN)


def check(rule: Check, context: CheckContext, *, passes: bool, description: str) -> CheckResult:
    finding = evaluate(rule, context).result
    assert (finding.passed, bool(re.search(description, finding.description))) == (passes, True), finding.description
    return finding


def after(table: Table, change: Callable[[Table], object]) -> CheckContext:
    change(table)
    return context_at(table.refresh())


SCHEMAS: tuple[tuple[str, Callable[[Table], object], SchemaStable, bool, str], ...] = (
    ("rows", lambda t: t.append(PEOPLE), SchemaStable(), True, "the same columns as in version 1"),
    ("new", lambda t: t.add_columns({"twice": "age * 2"}), SchemaStable(), True, "as allowed: 'twice' of type int64"),
    ("new, refused", lambda t: t.add_columns({"twice": "age * 2"}), SchemaStable(allow=[]), False, "'twice' .* is new"),
    ("dropped", lambda t: t.drop_columns(["age"]), SchemaStable(), False,
        r"'age' was dropped\. If readers .*restore\(1\)"),
    ("dropped struct", lambda t: t.drop_columns(["address"]), SchemaStable(), False,
        "version 1: 'address' was dropped. "),
    ("renamed", lambda t: t.alter_column("age", rename="years"), SchemaStable(), False, "'age' was renamed to 'years'"),
    ("a name, allowed", lambda t: t.alter_column("age", rename="a"), SchemaStable(allow=["renames"]), True,
        "renamed to 'a'"),
    ("recast", lambda t: t.alter_column("age", type=pa.int64()), SchemaStable(), False, "'age' has type int64 instead"),
    (
        "other columns",
        lambda t: t.overwrite(pa.table({"id": [1], "address": pa.array([{"city": "x"}])})),
        SchemaStable(),
        False,
        "'age' was dropped; 'address.zip' was dropped",
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "rule", "passes", "description"), [case[1:] for case in SCHEMAS], ids=[c[0] for c in SCHEMAS]
)
def test_schemas(
    people: Table, change: Callable[[Table], object], rule: SchemaStable, passes: bool, description: str
) -> None:
    check(rule, after(people, change), passes=passes, description=description)


def test_schema_check_detects_new_nullability(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": [1]}, pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    context = after(table, lambda t: t.alter_column("id", nullable=True))
    check(SchemaStable(), context, passes=False, description="'id' is now nullable")
    check(SchemaStable(allow=["nullability"]), context, passes=True, description="as allowed")


def test_first_version_has_no_parent_to_compare(people: Table) -> None:
    for rule in (SchemaStable(allow=[]), RowChange(max_gain=0)):
        check(rule, context_at(people), passes=True, description="no parent version")


def test_removed_parent_cannot_be_compared(people: Table, tmp_path: Path) -> None:
    head = people.append(PEOPLE).table
    (tmp_path / "people" / people.manifest.path.rpartition("people/")[2]).unlink()
    assert context_at(head).parent is None
    check(SchemaStable(), context_at(head), passes=True, description="no parent version")


def test_rows(people: Table) -> None:
    first = context_at(people)
    check(RowCount(min=4, max=4), first, passes=True, description="^4 rows$")
    check(RowCount(min=5), first, passes=False, description="4 rows, fewer than the required 5")
    check(RowCount(max=3), first, passes=False, description="4 rows, more than the allowed 3")
    more = after(people, lambda t: t.append(PEOPLE))
    check(
        RowChange(max_gain=4, max_gain_share=1.0), more, passes=True, description="4 rows more than the 4 of version 1"
    )
    check(RowChange(max_gain=3), more, passes=False, description="more than the allowed 3")
    check(
        RowChange(max_gain_share=0.5), more, passes=False, description=r"which is 100.00%, more than the allowed 50.00%"
    )
    check(RowChange(max_loss=0), more, passes=True, description="4 rows more")
    fewer = after(people, lambda t: t.refresh().delete("id = 1"))
    check(RowChange(max_loss_share=0.25), fewer, passes=True, description="2 rows fewer than the 8 of version 2")
    check(RowChange(max_loss_share=0.2), fewer, passes=False, description="25.00%")
    check(RowChange(max_loss=1), fewer, passes=False, description="more than the allowed 1")
    check(RowCount(min=6, max=6), fewer, passes=True, description="6 rows")


def test_freshness(people: Table) -> None:
    committed_at, fresh = people.timestamp, Fresh(within=timedelta(hours=24))

    def at(age: timedelta, *, is_head: bool = True) -> CheckContext:
        return CheckContext(people, None, is_head=is_head, now=committed_at + age)

    check(fresh, at(timedelta(hours=23)), passes=True, description="it is 23 h old")
    check(
        fresh,
        at(timedelta(hours=25, minutes=2)),
        passes=False,
        description="it is 1 day 1 h old, more than the allowed 1 day",
    )
    check(fresh, at(timedelta(days=9), is_head=False), passes=True, description="a newer version exists")
    check(fresh, at(timedelta(hours=-3)), passes=False, description="3 h in the future")
    check(fresh, at(timedelta(seconds=-3)), passes=True, description="0 s old")


def test_index_coverage(people: Table, tmp_path: Path) -> None:
    every = IndexCoverage()
    check(every, context_at(people), passes=True, description="^there is no index to evaluate$")
    table = people.create_index("id", "BTREE").table.append(PEOPLE).table.create_index("age", "ZONEMAP").table
    finding = check(
        every,
        context_at(table),
        passes=False,
        description="'id_idx' on id covers 50.00% of the rows, less than the required 90",
    )
    assert "4 rows in 1 fragment are scanned; run SparkBuildIndex" in finding.description
    assert finding.description.endswith("; 1 other is covered well")
    assert {name: each.value for name, each in finding.metadata.items()} == {
        "lance/index_coverage/id_idx": 0.5,
        "lance/index_coverage/age_idx": 1.0,
    }
    by_age = IndexCoverage(indices=["age_idx"])
    check(
        by_age,
        context_at(table),
        passes=True,
        description="^1 index covered; the lowest is 'age_idx', with 100.00% of the",
    )
    check(
        IndexCoverage(at_least=0.5), context_at(table), passes=True, description="^2 indices .* 'id_idx', with 50.00%"
    )
    check(IndexCoverage(indices=["x"]), context_at(table), passes=False, description="^there is no index 'x'$")
    # Deleted rows need no index.
    fewer = table.delete("id > 1").table.append(PEOPLE.slice(0, 1)).table
    check(IndexCoverage(indices=["age_idx"], at_least=0.6), context_at(fewer), passes=True, description="66.67%")
    check(
        IndexCoverage(indices=["age_idx"], at_least=0.7),
        context_at(fewer),
        passes=False,
        description="1 row in 1 fragment is",
    )

    # An index of a future type, and one with a damaged bitmap.
    future = _index("future", table, b"", "/lance.index.pb.FutureIndexDetails", BitMap([0]).serialize())
    damaged = _index("damaged", table, b"", "/lance.table.BTreeIndexDetails", b"nonsense")
    strange = fewer.optimize_indices().table.commit(CreateIndex((future,))).table
    left_out = "; not evaluated: 'future' has an unknown index type .FutureIndexDetails.$"
    check(every, context_at(strange), passes=True, description=f"^2 indices covered; .*{left_out}")
    check(
        IndexCoverage(indices=["future"]),
        context_at(strange),
        passes=False,
        description="^'future' has an unknown index type",
    )
    strange = strange.commit(CreateIndex((damaged,))).table
    description = "'damaged' on id covers 0.00% .*since it cannot be trusted: .*; rebuild it; 2 others are covered well"
    check(every, context_at(strange), passes=False, description=f"{description}{left_out}")
    assert not any(each.reads_data for each in (every, by_age))


def _index(name: str, table: Table, details: bytes, url: str, bitmap: bytes) -> IndexMetadata:
    """Return an index whose directory has a file."""
    index = IndexMetadata.new(
        uuid.uuid4(), name=name, field_id=0, dataset_version=table.version, covers=BitMap(), type_url=url,
        details=details, index_version=0, created_ms=0,
    )  # fmt: skip
    index.message.fragment_bitmap = bitmap
    folder = Path(table.uri, "_indices", str(index.uuid))
    folder.mkdir()
    (folder / "of.idx").touch()
    return index


def test_small_files(people: Table) -> None:
    for _ in range(3):
        people = people.append(PEOPLE).table
    check(SmallFiles(max_small=4), context_at(people), passes=True, description="4 of 4 fragments are small")
    finding = check(
        SmallFiles(max_small=3), context_at(people), passes=False, description="more than the allowed 3; compact"
    )
    assert finding.metadata["lance/small_fragments"].value == 4
    check(SmallFiles(max_small=1), context_at(people.compact().table), passes=True, description="1 of 1")


def test_foreign_writers(people: Table) -> None:
    check(
        ForeignWriters(), context_at(people), passes=True, description="committed by the run r-1 of lake/people_append"
    )
    check(
        ForeignWriters(),
        CheckContext(people, None, run_is_known=False),
        passes=False,
        description="r-1 is unknown to this Dagster",
    )
    foreign = after(people, lambda t: t.append(PEOPLE))
    check(ForeignWriters(), foreign, passes=False, description=r"by lance-assets.*\(Append\), without a run id.*people")


def test_nulls(people: Table) -> None:
    context = context_at(people)
    check(Nulls(columns=["id"]), context, passes=True, description="no nulls in 4 rows")
    finding = check(Nulls(columns=["id", "age", "address.city"]), context, passes=False,
                    description=r"'age' has 1 null \(25.00%\); 'address.city' has 2 nulls \(50.00%\), "
                    "and none may")  # fmt: skip
    assert {name: value.value for name, value in finding.metadata.items()} == {
        "lance/nulls/id": 0,
        "lance/nulls/age": 1,
        "lance/nulls/address.city": 2,
    }
    check(Nulls(columns=["age", "address"], max_share=0.25), context, passes=True, description="2 nulls in 4 rows")
    check(Nulls(columns=["age"], max_share=0.2), context, passes=False, description="at most 20.00%")
    check(Nulls(columns=["agee"]), context, passes=False, description="could not be evaluated: .*'agee'")
    without_nulls = after(people, lambda t: t.delete("age is null"))
    check(Nulls(columns=["age"]), without_nulls, passes=True, description="no nulls in 3 rows")


def test_required_columns_are_not_read(tmp_path: Path) -> None:
    rows = pa.table({"id": [1]}, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    table = Table.create(tmp_path / "t", rows)
    for file in (tmp_path / "t" / "data").iterdir():
        file.unlink()
    check(Nulls(columns=["id"]), context_at(table), passes=True, description="no nulls in 1 rows")


KEYS: tuple[tuple[str, pa.Array, str | None], ...] = (
    ("whole numbers", pa.array([1, 2, 2, 3, None, None], pa.int16()), "k=2"),
    ("unsigned", pa.array([2**64 - 1, 0, 2**64 - 1], pa.uint64()), "k=18446744073709551615"),
    ("far apart", pa.array([-(2**63), 2**63 - 1, 0, -1]), None),
    ("texts", pa.array(["a", "b", "ab", "", "b", None]), "k='b'"),
    ("large texts", pa.array(["a", "b"], pa.large_string()), None),
    ("bytes", pa.array([b"a", b"\x00", b"a"]), "k=b'a'"),
    ("of one width", pa.array([b"aa", b"ab", b"ab"], pa.binary(2)), "k=b'ab'"),
    ("floats", pa.array([float("nan"), 1.5, float("nan")]), "k=nan"),
    ("two zeros are two keys", pa.array([0.0, -0.0]), None),
    ("halves", pa.array([1.5, 1.5], pa.float32()).cast(pa.float16()), "k=1.5"),
    ("booleans", pa.array([True, False, True]), "k=True"),
    ("dates", pa.array([dt.date(2026, 1, 2), dt.date(2026, 1, 2)]), r"k=datetime.date\(2026, 1, 2\)"),
    ("times", pa.array([dt.datetime(2026, 1, 2, tzinfo=UTC), dt.datetime(2026, 1, 3, tzinfo=UTC)]), None),
    ("decimals", pa.array(["1.10", "1.1", "2"]).cast(pa.decimal128(9, 2)), r"k=Decimal\('1.10'\)"),
    ("dictionary", pa.array(["x", "y", "x"]).dictionary_encode(), "k='x'"),
    ("none", pa.array([], pa.int64()), None),
    ("only nulls", pa.array([None, None], pa.int64()), None),
)


@pytest.mark.parametrize(("keys", "duplicate"), [case[1:] for case in KEYS], ids=[case[0] for case in KEYS])
@pytest.mark.parametrize("buffered_max", [1, 1 << 22])
def test_keys(
    tmp_path: Path, keys: pa.Array, duplicate: str | None, buffered_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fingerprints are in memory, or all are on disk."""
    monkeypatch.setattr(finding_duplicates, "BUFFERED_MAX", buffered_max)
    table = Table.create(tmp_path / "t", pa.table({"k": keys}))
    description = (
        r"no duplicate key in \d+ rows"
        if duplicate is None
        else f"1 key occurs more than once in .* rows.*: {duplicate}"
    )
    finding = check(KeysUnique(columns=["k"]), context_at(table), passes=duplicate is None, description=description)
    assert (", 2 of them with a null" in finding.description) == (keys.null_count == 2)


def test_composite_keys(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "t", pa.table({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "y"], HOSTILE: [1, 1, 1, 1]})
    )
    context = context_at(table)
    check(KeysUnique(columns=["a", "b"]), context, passes=False, description="1 key occurs more .*: a=1, b='y'$")
    check(KeysUnique(columns=[HOSTILE]), context, passes=False, description="<script>.*=1$")
    check(Nulls(columns=[HOSTILE]), context, passes=True, description="no nulls")
    swapped = Table.create(tmp_path / "u", pa.table({"a": [1, 2], "b": [2, 1]}))
    check(KeysUnique(columns=["a", "b"]), context_at(swapped), passes=True, description="no duplicate key")


def test_keys_with_equal_fingerprints_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding_duplicates, "mix_bits", lambda numbers: numbers & 3)
    table = Table.create(tmp_path / "t", pa.table({"k": list(range(100))}))
    check(KeysUnique(columns=["k"]), context_at(table), passes=True, description="no duplicate key in 100 rows")
    check(
        KeysUnique(columns=["k"]),
        after(table, lambda t: t.append(pa.table({"k": [70]}))),
        passes=False,
        description="k=70$",
    )


def test_many_duplicate_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding_duplicates, "SUSPECTS_PER_PASS", 3)
    table = Table.create(tmp_path / "t", pa.table({"k": [*range(50), *range(50)]}))
    check(
        KeysUnique(columns=["k"]),
        context_at(table),
        passes=False,
        description="5 keys occur .* in 100 rows: k=.*, and more$",
    )
    check(
        KeysUnique(columns=["nope"]), context_at(table), passes=False, description="could not be evaluated: .*'nope'.*k"
    )
    nested = Table.create(tmp_path / "u", pa.table({"k": [[1], [1]]}))
    check(
        KeysUnique(columns=["k"]),
        context_at(nested),
        passes=False,
        description="could not be evaluated: .*cannot be a key",
    )


def test_sql(people: Table) -> None:
    context = context_at(people)
    check(
        SqlCheck("old", "select id from dataset where age > 99"), context, passes=True, description="returned no rows"
    )
    finding = check(SqlCheck("old", "select id, age from dataset where age > 40"), context, passes=False,
                    description="returned 2 rows, the first: id=3, age=50$")  # fmt: skip
    assert [record.data for record in finding.metadata["lance/rows"].records] == [  # type: ignore[attr-defined]
        {"id": "3", "age": "50"},
        {"id": "4", "age": "60"},
    ]
    mean = "select avg(age) > {} from dataset"
    check(SqlCheck("mean", mean.format(10), expect="true"), context, passes=True, description="returned True")
    check(SqlCheck("mean", mean.format(90), expect="true"), context, passes=False, description="returned False")
    check(
        SqlCheck("mean", mean.format(90)), context, passes=False, description="if this value should be .* expect='true'"
    )
    none = "select bool_and(age > 0) from dataset where id > 99"
    check(SqlCheck("none", none, expect="true"), context, passes=False, description="returned null")
    check(
        SqlCheck("odd", "select id from dataset", expect="true"),
        context,
        passes=False,
        description="returned 4 row.*leave expect",
    )
    check(
        SqlCheck("odd", "select nope from dataset"),
        context,
        passes=False,
        description="could not be evaluated: .*'nope'.*id, age",
    )
    many = people.append(PEOPLE).table
    check(SqlCheck("all", "select id from dataset"), context_at(many), passes=False, description="more than 5 rows")


def test_functions(people: Table) -> None:
    context = context_at(people)

    @lance_check(severity=Severity.WARN)
    def has_rows(context: CheckContext) -> bool:
        """There is a row."""
        return context.table.count_rows() > 0

    assert (has_rows.name, has_rows.severity, has_rows.description, has_rows.reads_data) == (
        "has_rows", Severity.WARN, "There is a row.", True,
    )  # fmt: skip
    check(has_rows, context, passes=True, description="There is a row")
    own = FunctionCheck("own", lambda context: CheckResult(False, f"version {context.table.version}"), reads_rows=False)
    check(own, context, passes=False, description="version 1")
    assert not own.reads_data

    def broken(context: CheckContext) -> bool:
        nothing: dict[str, bool] = {}
        return nothing["nope"]

    finding = check(
        FunctionCheck("broken", broken), context, passes=False, description="could not be evaluated: KeyError: 'nope'"
    )
    assert "in broken" in str(finding.metadata["lance/trace"].value)
    check(
        FunctionCheck("odd", lambda context: "yes"),  # type: ignore[arg-type, return-value]
        context,
        passes=False,
        description="must return a CheckResult.*'yes'",
    )


WRONG: tuple[tuple[str, Callable[[], object]], ...] = (
    ("letters, digits and underscores", lambda: RowCount(name="no-good", min=1)),
    ("severity must be Severity.ERROR", lambda: RowCount(min=1, severity="warn")),  # type: ignore[arg-type]
    ("give a bound: min=, max=", lambda: RowCount()),
    ("min=3 is more than max=2", lambda: RowCount(min=3, max=2)),
    ("min= must be a whole number of at least 0, not -1", lambda: RowCount(min=-1)),
    ("max_gain= must be a whole number", lambda: RowChange(max_gain=1.5)),  # type: ignore[arg-type]
    ("give a bound: max_gain=", lambda: RowChange()),
    ("allow= must be a list", lambda: SchemaStable(allow="additions")),  # type: ignore[arg-type]
    ("list of additions, drops", lambda: SchemaStable(allow=["everything"])),  # type: ignore[list-item]
    ("within= must be a timedelta", lambda: Fresh(within=24)),  # type: ignore[arg-type]
    ("columns= must be a list of names", lambda: KeysUnique(columns="id")),
    ("columns= must be a list of names", lambda: Nulls(columns=[])),
    ("names a column twice", lambda: Nulls(columns=["a", "a"])),
    ("max_share= must be a share", lambda: Nulls(columns=["a"], max_share=1.5)),
    ("sql= must be a query", lambda: SqlCheck("x", " ")),
    ("expect= must be 'no rows' or 'true'", lambda: SqlCheck("x", "select 1", expect="false")),  # type: ignore[arg-type]
    ("fn= must be a function", lambda: FunctionCheck("x", "module.fn")),  # type: ignore[arg-type]
    ("with parentheses", lambda: lance_check(lambda context: True)),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(("description", "declare"), WRONG)
def test_invalid_declarations(description: str, declare: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=description):
        declare()
