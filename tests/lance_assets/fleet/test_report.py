"""Fleet report: from the outcome of each table to the text of the page."""

import json
from dataclasses import replace
from typing import Any

import dagster as dg

from lance_assets.fleet.report import Figures, FleetReport, TableOutcome, TableReport


def figures(files: int, size: int) -> Figures:
    return Figures(version=1, rows=10, deleted_rows=files, fragments=files, files=files, bytes=size)


def make_report(uri: str, fate: TableOutcome, **more: object) -> TableReport:
    return TableReport(uri, fate, **more)  # type: ignore[arg-type]


FLEET = FleetReport(
    "s3://lake",
    [
        make_report("s3://lake/calm", TableOutcome.IN_SHAPE, before=figures(2, 20)),
        make_report(
            "s3://lake/done",
            TableOutcome.MAINTAINED,
            due=("9 fragments can be joined",),
            before=replace(figures(1200, 5000), index_rows_uncovered=700, index_segments=3),
            after=replace(figures(3, 4000), index_segments=1),
            compacted=True,
            indexed=True,
            versions_removed=7,
            files_removed=90,
            bytes_removed=12_345,
        ),
        make_report(
            "s3://lake/bad|name", TableOutcome.FAILED, message="it is damaged:\nlook at it", before=figures(1, 1)
        ),
        make_report("s3://lake/delta", TableOutcome.SKIPPED, message="it is a table of Delta Lake, and not of Lance"),
    ],
    planning_seconds=1.23456,
    jobs=1,
)


def test_figures_are_sums() -> None:
    metadata: dict[str, Any] = {name: value.value for name, value in FLEET.metadata.items()}
    expected = {
        "lance/tables": 3,
        "lance/tables_in_shape": 1,
        "lance/tables_maintained": 1,
        "lance/tables_deferred": 0,
        "lance/tables_failed": 1,
        "lance/tables_skipped": 1,
        "lance/tables_compacted": 1,
        "lance/tables_indexed": 1,
        "lance/index_rows_uncovered_before": 700,
        "lance/index_rows_uncovered_after": 0,
        "lance/index_segments_after": 1,
        "lance/versions_removed": 7,
        "lance/files_removed": 90,
        "lance/bytes_removed": 12_345,
        "lance/files_before": 1203,
        "lance/files_after": 6,
        "lance/bytes_before": 5021,
        "lance/bytes_after": 4021,
        "lance/spark_jobs": 1,
        "lance/planning_seconds": 1.235,
    }
    assert {name: metadata[name] for name in expected} == expected
    as_json = json.loads(json.dumps(metadata["lance/report_json"]))
    assert [each["uri"].rpartition("/")[2] for each in as_json["tables"]] == ["bad|name", "delta", "done", "calm"]
    assert as_json["tables"][2]["after"]["files"] == 3
    table = FLEET.metadata["lance/report_table"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data["fate"] for record in table.records] == ["failed", "skipped", "maintained"]


def test_page_begins_with_the_failures() -> None:
    first, _, head, rule, *rows = FLEET.markdown.splitlines()
    assert first == "**4 tables below `s3://lake`**: 1 in shape, 1 maintained, 1 failed, 1 skipped"
    assert head.startswith("| table | fate | found | files | bytes |")
    assert rule == "|" + " --- |" * 9
    assert rows[0] == r"| s3\://lake/bad\|name | failed |  | 1 | 1 |  | 0 | 0 | it is damaged\: look at it |"
    assert rows[2] == (
        r"| s3\://lake/done | maintained | 9 fragments can be joined | 1,200 → 3 | 5,000 → 4,000 | 700 → 0 | 7 "
        "| 12,345 |  |"
    )


def test_directory_names_are_escaped() -> None:
    called = make_report("/lake/![x](https://elsewhere/p.png)\\|<b>", TableOutcome.SKIPPED, message="it is `odd`")
    (row,) = FleetReport("/lake", [called], 0.0, 0).markdown.splitlines()[4:]
    assert row.startswith(r"| /lake/\!\[x\]\(https\://elsewhere/p\.png\)\\\|\<b\> | skipped |")
    assert row.endswith(r"| it is \`odd\` |")


def test_page_length_is_bounded() -> None:
    many = FleetReport("x", [make_report(f"x/{n}", TableOutcome.FAILED, message="no") for n in range(130)], 0.0, 0)
    assert len(many.markdown.splitlines()) == 4 + 100 + 2
    assert many.markdown.endswith("30 more are in the JSON.")
    everything: Any = many.metadata["lance/report_json"].value
    assert len(everything["tables"]) == 130


def test_failures_are_counted() -> None:
    table = TableReport("x")
    table.add_failure(ValueError("first"))
    table.add_failure(KeyError())
    assert (table.fate, table.message) == (TableOutcome.FAILED, "first; KeyError")
    table.add_failure(ValueError("y" * 1000))
    assert len(table.message) == 500
