"""Index writes: indices created, dropped and brought up to date.

`dml/index_definition.py` and `maintenance/index_maintenance.py` plan them; `index/` builds their files.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from lance_core import validation
from lance_core.commit.loop import ATTEMPTS
from lance_core.dml import index_definition
from lance_core.errors import RetryableConflict
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.maintenance import index_maintenance
from lance_core.progress import ProgressArgument, reporting
from lance_core.table.base import Committed, TableBase, WriteOptions
from lance_core.versions.snapshot import Snapshot


class IndexWrites(TableBase):
    """Part of `Table` that changes indices."""

    def create_index(
        self,
        column: str,
        kind: str,
        *,
        name: str | None = None,
        replace: bool = False,
        fragments: Iterable[int] | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        progress: ProgressArgument = False,
        **params: object,
    ) -> Committed:
        """Create an index on a column or a nested field (`address.city`).

        `kind` is BTREE, BITMAP, LABEL_LIST, ZONEMAP, BLOOMFILTER or NGRAM, for full-text search INVERTED, or for
        vectors IVF_FLAT, IVF_PQ, IVF_SQ or IVF_RQ, or with graphs IVF_HNSW_FLAT, IVF_HNSW_PQ or IVF_HNSW_SQ; these
        and texts need the extra `search`. `params` are parameters of that type, such as `rows_per_zone=4096` for a
        zone map, or pylance's `language` and `with_position` for texts, and its `metric`, `num_partitions` and
        `num_sub_vectors` for vectors. The index covers all rows of this version, or those of `fragments`; queries
        scan rows that are added later until `optimize_indices()` covers them. The default name is the name of the
        column with the suffix `_idx`. An existing name is an error, unless `replace` is true.

        >>> indexed = table.create_index("id", "BTREE").table
        >>> indexed.indices[0].name, indexed.count_rows("id = 2")
        ('id_idx', 1)
        """
        covered = None if fragments is None else validation.check_fragment_ids(fragments, "fragments")
        request = index_definition.IndexRequest(column, kind, name, replace, covered, params)
        with reporting(progress, "create_index"):
            return self._write(
                "create_index",
                lambda base: index_definition.plan_create(base, request, runtime=self.runtime),
                WriteOptions(intent, properties, retries),
                operation=CreateIndex.name,
            )

    def drop_index(
        self,
        name: str,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Drop an index. Its files stay as long as older versions reference them.

        >>> table.create_index("id", "BTREE").table.drop_index("id_idx").table.indices
        ()
        """
        return self._write(
            "drop_index",
            lambda base: index_definition.plan_drop(base, name),
            WriteOptions(intent, properties, retries),
            operation=CreateIndex.name,
        )

    def optimize_indices(
        self,
        names: Sequence[str] | None = None,
        *,
        merge: Literal["small", "all", "none"] = "small",
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        progress: ProgressArgument = False,
    ) -> Committed:
        """Bring indices up to date: cover the rows that are not covered, drop segments that answer nothing, and rewrite
        those whose rows a compaction moved, after which the fragment reuse index is trimmed. If nothing is to do, no
        version is committed.

        `names` restricts the indices. `merge` says which segments of an index are merged with the new one: `"small"`
        ones, so that there are few segments and each row is rewritten a few times in all; `"all"`; or `"none"`.

        >>> appended = table.create_index("id", "BTREE").table.append({"id": [4]}).table
        >>> [index] = appended.optimize_indices().table.indices
        >>> sorted(index.covers)
        [0, 1]
        """
        selected = None if names is None else validation.check_names(names, "names")
        mode = index_maintenance.Merge.of(merge)
        new_segments: list[IndexMetadata] = []

        def plan(base: Snapshot) -> CreateIndex | None:
            operation = index_maintenance.optimize_indices(base, selected, mode, runtime=self.runtime)
            new_segments[:] = operation.new if operation else ()
            return operation

        with reporting(progress, "optimize_indices"):
            optimized = self._write(
                "optimize_indices", plan, WriteOptions(intent, properties, retries), operation=CreateIndex.name
            )
        try:
            trimmed = optimized.table._write(
                "optimize_indices",
                lambda base: index_maintenance.trim_reuse_index(base, new_segments, runtime=self.runtime),
                WriteOptions(properties=properties, retries=retries),
                operation=CreateIndex.name,
            )
        except RetryableConflict:
            return optimized  # the next call trims the fragment reuse index
        return optimized.followed_by(trimmed)
