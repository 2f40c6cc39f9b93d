"""Notebooks of the examples: executes them in a kernel, and stores their outputs.

    python -m tests.notebooks            execute all, and store the outputs
    python -m tests.notebooks data_frames

The stored outputs are those of the last run; tests execute the cells and ignore what is stored.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SECONDS_MAX = 300
BYTES_MAX = 60_000
"""Size of a stored notebook. It belongs to the repository, so its outputs are short."""
TEMPORARY = re.compile(r"/(?:tmp|dev/shm)/[\w./-]*?tmp\w+")


def notebook_of(name: str) -> Path:
    return EXAMPLES / name / f"{name}.ipynb"


def execute(name: str, environment: Mapping[str, str] | None = None) -> nbformat.NotebookNode:
    """Execute a notebook in a kernel of its own, in its folder, and return it with its outputs."""
    notebook = nbformat.read(notebook_of(name), as_version=4)
    kernel_environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), **(environment or {})}
    client = NotebookClient(
        notebook, timeout=SECONDS_MAX, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES / name)}}
    )
    client.execute(env=kernel_environment)
    return notebook


def texts_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the outputs of each code cell as one text, without those to the standard error."""
    return [
        "".join(
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
            if output.get("name") != "stderr"
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def store(name: str) -> None:
    """Execute a notebook and store it: without the messages of programs, and with a short name of its folder."""
    notebook = execute(name)
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    text = TEMPORARY.sub("/tmp/tables", nbformat.writes(notebook))
    assert len(text) <= BYTES_MAX, f"{name}: {len(text):,} bytes"
    notebook_of(name).write_text(text + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:] or [
        folder.name for folder in sorted(EXAMPLES.iterdir()) if notebook_of(folder.name).exists()
    ]:
        print(each, flush=True)
        store(each)
