"""Torch datasets: the rows of a version as datasets of PyTorch, as batches of tensors or as single rows.

`TorchBatches` divides the batches among workers and ranks and can save its position; `TorchRows` reads rows by index.
The module imports torch, so `Table.to_torch` loads it on first use.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch
import torch.distributed
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lance_core.datafiles.tensors import tensor_of
from lance_core.errors import InvalidInput
from lance_core.table.batch_shards import BatchShards, ShardPosition


class TorchBatches(IterableDataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Batches of a version as dicts of tensors. `Table.to_torch` creates it."""

    def __init__(self, shards: BatchShards, rank: int | None, world_size: int | None) -> None:
        super().__init__()
        self._shards = shards
        self._rank, self._world_size = _process_group(rank, world_size)
        self._position = ShardPosition(int(shards.snapshot.version), shards.description_of(*self._shard()))

    def __repr__(self) -> str:
        snapshot = self._shards.snapshot
        return f"<{self._current().dataset} of {snapshot.location.uri!r}, version {snapshot.version}>"

    def __len__(self) -> int:
        """Return the number of batches of this rank, in all its workers."""
        return self._shards.batch_count(self._rank, self._world_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        shard, shards = self._shard()
        position = self._position = self._current().begun()
        for batch in self._shards.batches(shard, shards, epoch=position.epoch, start=position.batch):
            position.batch += 1
            yield _tensors_of(batch)
        if self._position is position:  # no other iteration began meanwhile
            self._position = position.at_epoch(position.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, which has another order if rows are shuffled. Without this call epochs follow each other."""
        self._position = self._position.at_epoch(int(epoch))

    def state_dict(self) -> dict[str, int | str]:
        """Return the position, in the worker that reads."""
        return self._current().state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue at a saved position of the same version. The next iteration begins there, and later ones at the
        beginning of an epoch."""
        self._position = self._current().restored(state)

    def _current(self) -> ShardPosition:
        """Return the position for this worker: the dataset was created in the process that started the workers."""
        return replace(self._position, dataset=self._shards.description_of(*self._shard()))

    def _shard(self) -> tuple[int, int]:
        """Return the part of the rows that this process reads, and the number of parts."""
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        # Ranks first, so that the batches of a rank do not depend on its number of workers.
        return self._rank + number * self._world_size, self._world_size * workers


class TorchRows(Dataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Rows of a version as dicts of tensors, by index. `Table.to_torch(style="map")` creates it."""

    def __init__(self, shards: BatchShards) -> None:
        super().__init__()
        self._shards = shards

    def __repr__(self) -> str:
        snapshot = self._shards.snapshot
        return f"<{len(self)} rows of {snapshot.location.uri!r}, version {snapshot.version}>"

    def __len__(self) -> int:
        return self._shards.rows

    def __getitem__(self, index: int) -> dict[str, object]:
        rows = len(self)
        if not -rows <= index < rows:
            raise IndexError(f"row {index} does not exist: the dataset has {rows} rows")
        return self.__getitems__([index % rows])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, object]]:
        """Return several rows, which a data loader reads in one call."""
        rows = list[dict[str, object]]()
        for batch in self._shards.rows_at(indices):
            values = _tensors_of(batch)
            rows += ({name: column[number] for name, column in values.items()} for number in range(batch.num_rows))
        return rows


def _tensors_of(batch: pa.RecordBatch) -> dict[str, Any]:
    return {name: tensor_of(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _process_group(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of the processes of a distributed training."""
    if (rank is None) != (world_size is None):
        raise InvalidInput("rank= and world_size= belong together")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    if not 0 <= rank < world_size:
        raise InvalidInput(f"rank={rank} does not exist among world_size={world_size} processes")
    return rank, world_size
