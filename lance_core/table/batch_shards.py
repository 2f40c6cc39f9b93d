"""Batch shards: the rows of a version in batches, divided among workers and ranks, from a position that can be saved.

Data loaders of training frameworks build on it; this module needs none of them. The positions of the rows are computed
once, in the process that creates the value, so that every worker divides the same rows. Start with `BatchShards`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.expressions.arrow_filters import Condition
from lance_core.scan import take as scan_take
from lance_core.scan.take import By
from lance_core.table.base import TableBase
from lance_core.table.lazy_scan import Scan
from lance_core.versions.snapshot import Snapshot

_STATE_KEYS = ("version", "epoch", "batch", "dataset")


@dataclass(slots=True)
class BatchShards:
    """Rows of one version in batches, of which shard `i` of `n` has the batches `i`, `i + n`, and so on."""

    table: TableBase
    columns: tuple[str, ...] | None
    batch_size: int
    shuffle: bool
    seed: int
    positions: npt.NDArray[np.uint64] | None
    """Addresses of the rows that match the filter; `None` for all rows."""
    process: int = field(default_factory=os.getpid)
    """Process that created or unpickled this value."""

    @classmethod
    def create(
        cls,
        table: TableBase,
        columns: Sequence[str] | None,
        filter: Condition | None,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
    ) -> "BatchShards":
        """Check the arguments and find the rows."""
        size = validation.check_integer(batch_size, "batch_size", at_least=1, too_small="a batch has at least one row")
        number = validation.check_integer(seed, "seed", at_least=0, too_small="it starts a generator of numbers")
        snapshot = table._snapshot
        Scan.create(snapshot, columns, None)  # refuses unknown columns
        positions = None
        if filter is not None:
            matches = Scan.create(snapshot, ["_rowaddr"], filter).to_table()["_rowaddr"]
            positions = matches.to_numpy()
        names = None if columns is None else tuple(columns)
        return cls(table, names, size, validation.check_flag(shuffle, "shuffle"), number, positions)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the location and the version. The copy belongs to the process that unpickles it."""
        return type(self), (self.table, self.columns, self.batch_size, self.shuffle, self.seed, self.positions)

    @property
    def snapshot(self) -> Snapshot:
        """The version that is read."""
        return self.table._snapshot

    @property
    def rows(self) -> int:
        """Number of rows of all shards."""
        return self.snapshot.manifest.row_count() if self.positions is None else len(self.positions)

    def description_of(self, shard: int, shards: int) -> str:
        """Return the arguments that decide which rows a batch of a shard has."""
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        return f"{self.rows} rows {order} in batches of {self.batch_size}, part {shard + 1} of {shards}"

    def batch_count(self, shard: int, shards: int) -> int:
        """Return the number of batches of a shard."""
        batches = -(-self.rows // self.batch_size)
        return len(range(shard, batches, shards))

    def batches(self, shard: int, shards: int, *, epoch: int = 0, start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a shard, without the first `start`. Shuffled rows have another order in each epoch."""
        if not 0 <= shard < shards:
            raise InvalidInput(f"shard {shard} does not exist among {shards} shards")
        order = self._order(epoch)
        for number in range(shard + start * shards, -(-self.rows // self.batch_size), shards):
            first = number * self.batch_size
            yield from self._take(order[first : first + self.batch_size])

    def rows_at(self, indices: Sequence[int]) -> list[pa.RecordBatch]:
        """Return the rows at these indices, in the given order. Negative ones count from the end."""
        selected: npt.NDArray[np.integer[Any]] = np.asarray(indices, dtype=np.int64)
        selected = np.where(selected < 0, selected + self.rows, selected)
        if self.positions is not None:
            selected = self.positions[selected]
        return self._take(selected)

    def _order(self, epoch: int) -> npt.NDArray[np.uint64]:
        order = np.arange(self.rows, dtype=np.uint64) if self.positions is None else self.positions
        if self.shuffle:
            return np.random.default_rng((self.seed, epoch)).permutation(order)
        return order

    def _take(self, selected: npt.NDArray[np.integer[Any]]) -> list[pa.RecordBatch]:
        location = self.snapshot.location
        if self.process != os.getpid():
            # A fork: threads of the decoders exist in the parent only. Another process decodes for this one.
            location = location.as_untrusted()
        by = By.OFFSET if self.positions is None else By.ROW_ADDRESS
        rows = scan_take.take(location, self.snapshot.manifest, selected.tolist(), self.columns, by=by)
        batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches()
        return batches


@dataclass(slots=True)
class ShardPosition:
    """Position in one shard: what a data loader saves to continue after an interruption."""

    version: int
    dataset: str
    """Arguments of the dataset that decide which rows a batch has."""
    epoch: int = 0
    batch: int = 0
    """Number of batches of the epoch that were returned."""
    is_restored: bool = field(default=False, compare=False)
    """`True` until an iteration begins at a saved position."""

    def state(self) -> dict[str, int | str]:
        """Return the position as values that a checkpoint can hold."""
        return {"version": self.version, "epoch": self.epoch, "batch": self.batch, "dataset": self.dataset}

    def begun(self) -> "ShardPosition":
        """Return the position of a new iteration: a saved one if it was restored, else the beginning of the epoch, also
        if the iteration before was abandoned."""
        return replace(self, batch=self.batch if self.is_restored else 0, is_restored=False)

    def at_epoch(self, epoch: int) -> "ShardPosition":
        """Return the beginning of an epoch."""
        return replace(self, epoch=epoch, batch=0, is_restored=False)

    def restored(self, state: Mapping[str, object]) -> "ShardPosition":
        """Return the position of a saved state. Raise `InvalidInput` if it belongs to another version or dataset."""
        version, epoch, batch, dataset = (state.get(key) for key in _STATE_KEYS)
        if (
            len(state) != len(_STATE_KEYS)
            or not (_is_count(version) and _is_count(epoch) and _is_count(batch))
            or not isinstance(dataset, str)
        ):
            raise InvalidInput(f"the state {dict(state)!r:.200} is not one of a dataset of this library")
        if version != self.version:
            raise InvalidInput(
                f"the state belongs to version {version}, and the dataset reads version {self.version}; create it from "
                f"Table.open(uri, version={version})"
            )
        if dataset != self.dataset:
            raise InvalidInput(
                f"the state belongs to a dataset of {dataset}, and this one has {self.dataset}; create it with the "
                "arguments, workers and processes of the one that was saved"
            )
        return replace(self, epoch=cast("int", epoch), batch=cast("int", batch), is_restored=True)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
