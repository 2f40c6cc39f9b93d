"""`lance-assets run`: the versions that a run made, according to the tables or to Dagster."""

from pathlib import Path

import dagster as dg
import pytest

from lance_assets.lineage.runs import versions_of_run
from lance_core import Table
from tests.lance_assets.cli.conftest import FROM_RUN, RUN, Shell, reading, rows


@pytest.fixture
def two(tmp_path: Path) -> tuple[Table, Table]:
    """Two tables with versions of one run and of other writers."""
    raw = Table.create(str(tmp_path / "raw.lance"), rows(1), durable=False)
    orders = Table.create(str(tmp_path / "orders.lance"), rows(1), durable=False)
    orders = orders.append(rows(2), properties={**FROM_RUN, **reading(raw)}).table.append(rows(3)).table
    orders = orders.append(rows(4), properties=FROM_RUN).table
    sums = Table.create(
        str(tmp_path / "sums.lance"), rows(1), properties={**FROM_RUN, **reading(orders)}, durable=False
    )
    return orders, sums


def test_versions_of_the_named_tables(two: tuple[Table, Table], shell: Shell, tmp_path: Path) -> None:
    answer = shell("run", RUN, *(table.uri for table in two))
    assert (answer.code, answer.err) == (0, "")
    assert answer.drawn(tmp_path).splitlines() == [
        "run RUN",
        "  committed orders.lance@4  append  TIME  asset lake/orders_append  partition 2026-01-02",
        "  committed orders.lance@2  append  TIME  asset lake/orders_append  partition 2026-01-02",
        "    read raw.lance@1",
        "  committed sums.lance@1  create (Overwrite)  TIME  asset lake/orders_append  partition 2026-01-02",
        "    read orders.lance@4",
    ]
    output = shell("run", RUN, two[0].uri, "--json").json
    assert (output["run_id"], [each["version"] for each in output["versions"]]) == (RUN, [4, 2])


def test_run_without_versions_of_the_named_tables(two: tuple[Table, Table], shell: Shell) -> None:
    answer = shell("run", "somebody-else", two[0].uri)
    assert (answer.code, answer.out) == (0, "run somebody-else\n  committed none of the versions that were read\n")


def test_only_the_newest_versions_are_read(two: tuple[Table, Table], shell: Shell) -> None:
    orders = two[0]
    assert [each.name.version for each in versions_of_run(orders, RUN, versions_max=2)] == [4]
    assert [each["version"] for each in shell("run", RUN, orders.uri, "--limit", 1, "--json").json["versions"]] == [4]
    assert [each["version"] for each in shell("run", RUN, orders.uri, "--limit", 0, "--json").json["versions"]] == [
        4,
        2,
    ]
    assert [each.name.version for each in versions_of_run(orders.at(3), RUN)] == [2]
    assert shell("run", RUN, orders.uri, "--limit", -1).code == 2


def test_without_tables_and_instance(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    answer = shell("run", RUN)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: DAGSTER_HOME is not set")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    answer = shell("run", RUN)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: the Dagster instance at DAGSTER_HOME cannot be opened: ")


def test_run_unknown_to_dagster(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    answer = shell("run", RUN)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"error: this Dagster instance has no run '{RUN}'; check the id")


def test_run_that_recorded_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))

    @dg.job
    def idle() -> None:
        pass

    with dg.DagsterInstance.get() as instance:
        run_id = idle.execute_in_process(instance=instance).run_id
    answer = shell("run", run_id)
    assert (answer.code, answer.out) == (0, f"run {run_id}  SUCCESS  job idle\n  no version of this run is recorded\n")
