"""Embeddings: texts are ingested, a small model embeds them in Spark's workers, and a question finds the nearest ones.

`documents` is a small table that is searched exactly; its embeddings are a computed column, which Dagster fills again
when documents arrive. `functions` has some thousand texts: an index is built on their embeddings, and its recall is
checked before it is published and on each version. Another index finds them by their words. The model is WordLlama,
whose weights are part of its package: nothing is downloaded. The `README.md` in this folder says how to run it.
"""

import ast
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
from pyspark import cloudpickle

from lance_assets import (
    ColumnFresh,
    RecallCheck,
    SearchCheck,
    SparkBuildIndex,
    SparkComputedColumn,
    SparkIngest,
    SparkSessionResource,
    WriteContext,
    lance_table,
    lance_write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


HERE = Path(__file__).parent
TABLES = os.environ.get("EMBEDDINGS_TABLES", str(HERE / ".tables"))
LANDING = os.environ.get("EMBEDDINGS_LANDING", str(HERE / "landing"))
SIZE = 256
MEANINGFUL_TEXT = 40
"""Characters that a documentation has at least."""
EMBEDDING = pa.field("embedding", pa.list_(pa.float32(), SIZE))


def model() -> Any:
    """Load the model. The weights are searched below `cache_dir`, which is the package itself."""
    import wordllama  # not at module level, since importing it enables logging for the whole process

    package = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=package, dim=SIZE, disable_download=True)


def embeddings(batch: pa.RecordBatch, loaded: Any = None) -> pa.Array:
    texts = [f"{title}. {text}" for title, text in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]
    vectors = (loaded or model()).embed(texts, norm=True).astype("float32")
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), SIZE)


def load_embedder() -> "Callable[[pa.RecordBatch], pa.Array]":
    """Return the function that embeds documents. Each worker loads the model once."""
    loaded = model()
    return lambda batch: embeddings(batch, loaded)


documents = lance_table(
    "documents",
    uri=f"{TABLES}/documents.lance",
    key_prefix="help",
    description="Answers of a help desk, with their embeddings.",
    writes=[
        SparkIngest(
            "documents_ingest",
            files=f"{LANDING}/*.jsonl",
            format="json",
            description="Ingests new documents. Each file is ingested once.",
        )
    ],
    computed=[
        SparkComputedColumn(
            "embedding",
            type=EMBEDDING.type,
            setup=load_embedder,
            inputs=["title", "text"],
            code_version="wordllama-256",
            name="documents_embed",
            automation="on_new_version",
            description="Embeds the documents that are new or have changed.",
        )
    ],
    checks=[ColumnFresh("embedding", at_least=0.99)],
)

EXPECTED = {
    "temporary directory": ["tempfile.TemporaryDirectory", "tempfile.mkdtemp"],
    "recursively delete a directory tree": ["shutil.rmtree"],
    '{"phrase": {"terms": "longest common leading component"}}': ["genericpath.commonprefix"],
}
"""Functions that some searches should find."""
words = SearchCheck(EXPECTED, measure="recall", k=10, at_least=0.8, key="name", columns=["text"], name="words")
recall = RecallCheck("embedding", k=10, at_least=0.95, nprobes=16, refine=4)
functions = lance_table(
    "functions",
    uri=f"{TABLES}/functions.lance",
    key_prefix="help",
    description="Functions and classes of the Python standard library: their documentation, with embeddings.",
    writes=[
        SparkBuildIndex(
            "embedding",
            "IVF_SQ",
            params={"metric": "cosine", "num_partitions": 32},
            audit=[recall],
            description="Builds a vector index, and extends it by new rows. It is not published below the recall.",
        ),
        SparkBuildIndex(
            "text",
            "INVERTED",
            params={"with_position": True, "language": "English"},
            audit=[words],
            description="Builds a full-text index, and extends it by new rows. It is not published below the recall.",
        ),
    ],
    checks=[recall, words],
)


@lance_write(table=functions, op="ingest", format="json")
def functions_ingest(ctx: WriteContext) -> str:
    """Ingests the documentation that the source files of the standard library contain."""
    path = Path(TABLES) / "functions.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [text for file in sorted(Path(os.__file__).parent.glob("*.py")) for text in documented(file)]
    path.write_text("".join(f"{json.dumps(text)}\n" for text in texts))
    return str(path)


def documented(file: Path) -> "Iterator[dict[str, str]]":
    """Yield the functions and classes of a source file that have documentation."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            text = ast.get_docstring(node)
            if text and len(text) > MEANINGFUL_TEXT:
                yield {"module": file.stem, "name": f"{file.stem}.{node.name}", "text": text}


@lance_write(table=functions, op="map_columns", read_columns=["name", "text"], schema=pa.schema([EMBEDDING]))
def functions_embed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Adds the column `embedding`, one task for each fragment."""
    return pa.record_batch([embeddings(batch)], schema=pa.schema([EMBEDDING]))


class Task(dg.Config):
    task: str = "split a text at commas into fields"


@dg.asset(key_prefix="help", deps=[functions.dep], kinds={"python", "lance"})
def functions_found(config: Task) -> dg.MaterializeResult[None]:
    """Find the functions whose documentation is nearest to a task, by the index."""
    table = functions.ledger.open()
    vector = model().embed(config.task, norm=True)[0]
    nearest = table.search("embedding", vector, 5, nprobes=16, refine=4, columns=["name", "text"])
    lines = [
        f"| `{row['name']}` | {row['text'].splitlines()[0]} | {row['_distance']:.3f} |" for row in nearest.to_pylist()
    ]
    return dg.MaterializeResult(
        metadata={
            "lance/version": table.version,
            "task": config.task,
            "nearest": nearest["name"].to_pylist(),
            "functions": dg.MetadataValue.md("\n".join(["| function | text | distance |", "|---|---|---|", *lines])),
            "search": dg.MetadataValue.md(f"```\n{table.explain_search('embedding', 5, nprobes=16, refine=4)}\n```"),
        }
    )


class Question(dg.Config):
    question: str = "How do I get my money back?"
    topic: str | None = None
    """Search only documents with this topic."""


@dg.asset(key_prefix="help", deps=[documents.dep], kinds={"python", "lance"})
def answers(config: Question) -> dg.MaterializeResult[None]:
    """Find the documents nearest to a question by an exact scan of one version, without Spark."""
    table = documents.ledger.open()
    nearest = table.search(
        "embedding",
        model().embed(config.question, norm=True)[0],
        3,
        metric="cosine",
        filter=None if config.topic is None else f"topic = '{config.topic.replace(chr(39), chr(39) * 2)}'",
        columns=["doc_id", "title"],
    )
    lines = [f"| {row['title']} | {row['_distance']:.3f} |" for row in nearest.to_pylist()]
    return dg.MaterializeResult(
        metadata={
            "lance/version": table.version,
            "question": config.question,
            "nearest": nearest["doc_id"].to_pylist(),
            "answers": dg.MetadataValue.md("\n".join(["| document | distance |", "|---|---|", *lines])),
        }
    )


# Dagster loads this file under a module name that Spark's workers cannot import, so functions are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

defs = dg.Definitions.merge(
    documents.defs,
    functions.defs,
    dg.Definitions(assets=[answers, functions_found], resources={"spark": SparkSessionResource(app_name="embeddings")}),
)
