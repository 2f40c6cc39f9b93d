"""Survey: it predicts what a compaction and a cleanup then do, and writes nothing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.format.ids import Version
from tests.lance_core.maintenance.test_cleanup import NO_AGE, files, rows, set_age

DAY = timedelta(days=1)


def test_the_survey_predicts_a_compaction(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 1000), uri, max_rows_per_file=100)
    lance.dataset(uri).delete("id < 150")  # one and a half fragments: the first one is removed by the deletion alone
    lance.dataset(uri).insert(rows(2000, 10))
    before = files(uri)
    survey = Table.open(uri).survey(target_rows=100)
    assert files(uri) == before
    assert (survey.version, survey.rows, survey.deleted_rows, survey.fragments, survey.files) == (3, 860, 50, 10, 10)
    assert survey.bytes == sum((Path(uri) / path).stat().st_size for path in before if path.startswith("data/")) - max(
        each.file_bytes for each in Table.open(uri, version=1).fragments[:1]
    )
    # The half fragment is worth a rewrite; the small one has full neighbours and nothing to merge with.
    assert (survey.groups, survey.small_fragments, survey.deleted_rows_compacted) == (1, 0, 50)
    survey = Table.open(uri).survey(target_rows=500, small_rows=50)
    assert (survey.small_fragments, survey.deleted_rows_compacted) == (1, 50)
    after = Table.open(uri).compact(target_rows=500).table.survey(target_rows=500)
    assert (after.groups, after.small_fragments, after.deleted_rows, after.rows) == (0, 0, 0, 860)


def test_the_survey_predicts_a_cleanup(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0), durable=False)
    for first in range(10, 60, 10):
        table = table.append(rows(first)).table
    set_age(uri, 20 * DAY)
    table.tags.create("audited", 2)
    protected = {3: "input of features v9"}
    before = files(uri)
    survey = table.survey(keep=2, protected=protected)
    assert files(uri) == before
    assert survey.expired_versions == (1, 4)
    assert survey.kept == {2: ("tag audited",), 3: ("input of features v9",)}
    assert table.survey(keep=2, older_than=21 * DAY).expired_versions == ()
    assert table.survey(keep=2, older_than=21 * DAY, now=datetime.now(UTC) + 2 * DAY).expired_versions == (1, 3, 4)
    report = table.cleanup(keep=2, protected=protected)
    assert (report.versions, report.kept) == (survey.expired_versions, survey.kept)
    assert table.version_numbers() == (2, 3, 5, 6)
    assert lance.dataset(uri, version=3).count_rows() == 30
    assert Table.open(uri, version=3).to_table().num_rows == 30
    # A version that does not exist, and one that both a tag and the caller protect.
    report = table.cleanup(keep=1, older_than=NO_AGE, protected={77: "missing", 2: "a report"})
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
def test_invalid_protection_is_rejected(tmp_path: Path, protected: dict[int, str], message: str) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1]}), durable=False)
    with pytest.raises(InvalidInput, match=message):
        table.cleanup(protected=protected)
    with pytest.raises(InvalidInput, match="small_rows=0: a small fragment"):
        table.survey(small_rows=0)
