"""A survey tells beforehand what a compaction and a cleanup then do, and writes nothing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.format.ids import Version
from tests.lance_core.maintenance.test_cleanup import NOTHING, age, files, rows

DAY = timedelta(days=1)


def test_it_tells_what_a_compaction_then_does(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 1000), uri, max_rows_per_file=100)
    lance.dataset(uri).delete("id < 150")  # a fragment and a half: the first one goes by that alone
    lance.dataset(uri).insert(rows(2000, 10))
    before = files(uri)
    found = Table.open(uri).survey(target_rows=100)
    assert files(uri) == before
    assert (found.version, found.rows, found.deleted_rows, found.fragments, found.files) == (3, 860, 50, 10, 10)
    assert found.bytes == sum((Path(uri) / path).stat().st_size for path in before if path.startswith("data/")) - max(
        each.file_bytes for each in Table.open(uri, version=1).fragments[:1]
    )
    # The half fragment is worth it by itself; the small one has full neighbours, and nothing to be joined with.
    assert (found.groups, found.small_fragments, found.deleted_rows_compacted) == (1, 0, 50)
    found = Table.open(uri).survey(target_rows=500, small_rows=50)
    assert (found.small_fragments, found.deleted_rows_compacted) == (1, 50)
    after = Table.open(uri).compact(target_rows=500).table.survey(target_rows=500)
    assert (after.groups, after.small_fragments, after.deleted_rows, after.rows) == (0, 0, 0, 860)


def test_it_tells_what_a_cleanup_then_does(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0), durable=False)
    for first in range(10, 60, 10):
        table = table.append(rows(first)).table
    age(uri, 20 * DAY)
    table.tags.create("audited", 2)
    protected = {3: "features v9 was made of it"}
    before = files(uri)
    found = table.survey(keep=2, protected=protected)
    assert files(uri) == before
    assert found.expired_versions == (1, 4)
    assert found.kept == {2: ("tag audited",), 3: ("features v9 was made of it",)}
    assert table.survey(keep=2, older_than=21 * DAY).expired_versions == ()
    assert table.survey(keep=2, older_than=21 * DAY, now=datetime.now(UTC) + 2 * DAY).expired_versions == (1, 3, 4)
    report = table.cleanup(keep=2, protected=protected)
    assert (report.versions, report.kept) == (found.expired_versions, found.kept)
    assert table.version_numbers() == (2, 3, 5, 6)
    assert lance.dataset(uri, version=3).count_rows() == 30
    assert Table.open(uri, version=3).to_table().num_rows == 30
    # A version that is not there, and one that both have a name for.
    report = table.cleanup(keep=1, older_than=NOTHING, protected={77: "nobody", 2: "a report"})
    assert report.kept[Version(2)] == ("tag audited", "a report")
    assert table.version_numbers() == (2, 6)


@pytest.mark.parametrize(
    ("protected", "message"),
    [
        ([3], "protected must be a mapping"),
        ({0: "why"}, "versions"),
        ({3: None}, "protected.3. must be a string"),
    ],
)
def test_what_is_no_protection_is_refused(tmp_path: Path, protected: dict[int, str], message: str) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1]}), durable=False)
    with pytest.raises(InvalidInput, match=message):
        table.cleanup(protected=protected)
    with pytest.raises(InvalidInput, match="small_rows=0: a small fragment"):
        table.survey(small_rows=0)
