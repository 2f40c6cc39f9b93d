"""Fixtures of the command line tests: a shell for `lance-assets`, and tables to inspect."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_assets.cli.main import main
from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, INPUTS, INTENT, PARTITION, RUN_ID
from lance_core import Table

RUN = "3f1c9f0e-1111-4222-8333-444455556666"
FROM_RUN = {
    RUN_ID: RUN,
    ASSET_KEY: "lake/orders_append",
    PARTITION: "2026-01-02",
    CODE_LOCATION: "shop",
    INTENT: "once",
}
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SIZE = re.compile(r"\d[\d.]* (B|kB)\b")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def drawn(self, folder: Path) -> str:
        """Return the output with placeholders for times, uuids and sizes."""
        text = self.out.replace(f"{folder}/", "").replace(RUN, "RUN")
        return _SIZE.sub("SIZE", _UUID.sub("UUID", _TIME.sub("TIME", text)))


Shell = Callable[..., Answer]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    def run_command(*arguments: object) -> Answer:
        try:
            code = main([str(each) for each in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run_command


def reading(*tables: Table) -> dict[str, str]:
    """Return the property that records these tables as inputs."""
    return {INPUTS: json.dumps({table.uri: table.version for table in tables})}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "city": [f"city {number}" for number in ids]})


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    """Table of five versions: one from a run, a rebased one, one with another column, and a restored one."""
    first = Table.create(str(tmp_path / "orders.lance"), rows(1, 2, 3), durable=False)
    first.append(rows(4), properties=FROM_RUN)
    removed = first.delete("id = 1").table
    removed.tags.create("spring")
    return removed.add_columns({"n": "length(city)"}).table.restore(2).table
