"""Notebooks of the examples: they run, and their stored outputs are still what they print.

`make test` executes the one that needs no Spark, and `make notebooks` executes all.
"""

import os
import re

import nbformat
import pytest

from tests.notebooks import BYTES_MAX, TEMPORARY, execute, notebook_of, texts_of

QUICK = "data_frames"
SPARK = ("clickstream", "daily_orders", "embeddings", "yaml_only")
VARIABLE_PARTS = (
    (TEMPORARY, "FOLDER"),
    (re.compile(r"/tmp/tables"), "FOLDER"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"uuid='\w+…'"), "UUID"),
    (re.compile(r"bytes=\d+"), "BYTES"),
)
"""Parts of outputs that differ between two runs."""


def stable_text(text: str) -> str:
    for pattern, name in VARIABLE_PARTS:
        text = pattern.sub(name, text)
    return text


@pytest.mark.parametrize("name", [QUICK, *(SPARK if os.environ.get("NOTEBOOKS") == "all" else ())])
@pytest.mark.timeout(300)
def test_a_notebook_prints_what_it_stores(name: str) -> None:
    stored = nbformat.read(notebook_of(name), as_version=4)
    executed = execute(name)
    assert list(map(stable_text, texts_of(executed))) == list(map(stable_text, texts_of(stored)))


@pytest.mark.parametrize("name", [QUICK, *SPARK])
def test_a_stored_notebook_is_small_and_has_outputs(name: str) -> None:
    path = notebook_of(name)
    assert path.stat().st_size <= BYTES_MAX
    notebook = nbformat.read(path, as_version=4)
    assert any(texts_of(notebook))
    assert not [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "error"
    ]
