"""Embeddings: documents are ingested, a small model embeds them in Spark's workers, and a question finds the nearest
ones.

The model is WordLlama, whose weights are part of its package: nothing is downloaded. The `README.md` in this folder
says how to run it. Start at `documents`.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
from pyspark import cloudpickle

from lance_assets import SparkIngest, SparkSessionResource, WriteContext, lance_table, lance_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
TABLES = os.environ.get("EMBEDDINGS_TABLES", str(HERE / ".tables"))
LANDING = os.environ.get("EMBEDDINGS_LANDING", str(HERE / "landing"))
SIZE = 256
EMBEDDING = pa.field("embedding", pa.list_(pa.float32(), SIZE))

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
)


def model() -> Any:
    """Load the model. The weights are searched below `cache_dir`, which is the package itself."""
    import wordllama  # not at module level, since importing it enables logging for the whole process

    package = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=package, dim=SIZE, disable_download=True)


def embeddings(batch: pa.RecordBatch) -> pa.Array:
    texts = [f"{title}. {text}" for title, text in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]
    vectors = model().embed(texts, norm=True).astype("float32")
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), SIZE)


@lance_write(table=documents, op="map_columns", read_columns=["title", "text"], schema=pa.schema([EMBEDDING]))
def documents_embed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Adds the column `embedding`, fragment by fragment, without rewriting existing files."""
    return pa.record_batch([embeddings(batch)], schema=pa.schema([EMBEDDING]))


@lance_write(table=documents, op="upsert", on="doc_id")
def documents_embed_new(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Embeds the documents that arrived after the column was added."""
    new = ctx.read(columns=["doc_id", "topic", "title", "text"], filter="embedding is null")

    def embedded(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            vectors = embeddings(batch.select(["title", "text"]))
            yield batch.append_column("embedding", vectors.cast(pa.list_(pa.float32())))  # Spark has no fixed size

    return new.mapInArrow(embedded, "doc_id long, topic string, title string, text string, embedding array<float>")


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
    dg.Definitions(assets=[answers], resources={"spark": SparkSessionResource(app_name="embeddings")}),
)
