"""Commands that write: each shows what it would change, and does it only with consent."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lance_assets.cli.main import main
from lance_assets.common.version_actions import plan_promotion, plan_rollback, plan_tag_deletion
from lance_core import AuditFailed, IncompatibleConflict, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = Table.create(str(tmp_path / "t.lance"), {"id": [1, 2]}, durable=False)
    created.append({"id": [3]})
    return created.delete("id = 1").table


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def tags(table: Table) -> dict[str, int]:
    return {name: int(tag.version) for name, tag in table.tags.list().items()}


def test_tags_are_created_moved_and_deleted(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert "done" in command(capsys, "tag", f"{table.uri}@1", "live")
    assert "already" in command(capsys, "tag", f"{table.uri}@1", "live")
    assert main(["tag", f"{table.uri}@2", "live"]) == 2
    assert "promote moves it" in capsys.readouterr().err
    preview = command(capsys, "promote", f"{table.uri}@2", "live")
    assert "from version 1 to version 2" in preview
    assert "nothing was changed" in preview
    assert tags(table) == {"live": 1}
    command(capsys, "promote", table.uri, "live", "--yes")
    assert tags(table) == {"live": 3}
    command(capsys, "untag", table.uri, "live", "--yes", "--dry-run")
    assert tags(table) == {"live": 3}
    command(capsys, "untag", table.uri, "live", "--yes")
    assert tags(table) == {}


def test_a_tag_that_was_moved_after_the_preview_is_left_alone(table: Table) -> None:
    table.tags.create("live", 1)
    plans = plan_promotion(table, "live", 2), plan_tag_deletion(table, "live")
    table.tags.update("live", 3)
    for plan in plans:
        with pytest.raises(IncompatibleConflict, match="moved to version 3"):
            plan.apply()
    assert tags(table) == {"live": 3}
    table.tags.delete("live")
    with pytest.raises(IncompatibleConflict, match="was deleted"):
        plans[0].apply()


def test_a_rollback_is_previewed_and_committed_once(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    preview = command(capsys, "rollback", f"{table.uri}@2")
    assert "rows  2 -> 3 (+1)" in preview
    assert table.refresh().version == 3
    for _ in range(2):
        assert "version 4" in command(capsys, "rollback", f"{table.uri}@2", "--yes", "--intent", "ticket 7")
    assert (table.refresh().version, table.refresh().count_rows()) == (4, 3)
    assert main(["rollback", table.uri, "--yes"]) == 2
    assert "name an older one" in capsys.readouterr().err


def test_a_rollback_undoes_only_the_versions_of_its_preview(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    """A version that another writer commits between the preview and the rollback is kept, and named by the error."""
    preview = command(capsys, "rollback", f"{table.uri}@1")
    assert "versions 2 to 3 are undone" in preview
    assert "--yes --newest 3 does it" in preview
    planned = plan_rollback(table, 1)
    table.append({"id": [9]})
    for committed in ("version 4", "versions 4 to 5"):
        with pytest.raises(IncompatibleConflict, match=f"since {committed}, which the rollback would undo"):
            planned.apply(intent="ticket 8")
        assert main(["rollback", f"{table.uri}@1", "--yes", "--newest", "3"]) == 2
        assert "plan the rollback again" in capsys.readouterr().err
        table.append({"id": [10]})
    assert (table.refresh().version, table.refresh().count_rows()) == (6, 5)
    for _ in range(2):  # the repetition finds its own commit, although the newest version is a later one by then
        ran = command(capsys, "rollback", f"{table.uri}@1", "--yes", "--newest", "6", "--intent", "ticket 8")
        assert "committed as version 7" in ran
    assert table.refresh().count_rows() == 2
    assert main(["rollback", f"{table.uri}@3", "--yes", "--newest", "2"]) == 2


@pytest.mark.parametrize(("answer", "version"), [("y", 4), ("", 3), ("no", 3)])
def test_a_terminal_is_asked(
    table: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, version: int
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _prompt: answer)
    command(capsys, "rollback", f"{table.uri}@1")
    assert table.refresh().version == version


def test_a_refused_version_is_published(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_changed: Table, _base: Table | None) -> None:
        raise ValueError("too many rows")

    with pytest.raises(AuditFailed) as refused:
        table.append({"id": [9]}, audit=refuse)
    number = str(refused.value.detached_version)
    planned: dict[str, Any] = json.loads(command(capsys, "publish", table.uri, number, "--json"))
    assert (planned["done"], planned["rows_before"], planned["rows_after"]) == (False, 2, 3)
    published: dict[str, Any] = json.loads(command(capsys, "publish", table.uri, number, "--json", "--yes"))
    assert (published["done"], published["committed"]) == (True, 4)
    assert table.refresh().count_rows() == 3
    assert main(["publish", table.uri, "word"]) == 2
