"""A split's batches for torch, in the order of training."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchrec import KeyedJaggedTensor

from app.config.app_config import AppConfig
from app.data.split import SplitReader
from data_prep.dataset.format import Manifest

Item = tuple[Any, ...]  # dense, ids, labels, and weights if the dataset has them


class TorchBatches(IterableDataset[Item]):
    """Batches of one epoch: dense [B, N] float32, a KeyedJaggedTensor of B bags a column, labels [B], weights if any.

    Each worker process of a DataLoader makes every n-th batch, so that their order stays.
    """

    def __init__(
        self, path: Path, manifest: Manifest, split: str, config: AppConfig, rank: int, world_size: int
    ) -> None:
        self._path, self._manifest, self._split, self._config = path, manifest, split, config
        self._rank, self._world_size = rank, world_size
        # Shared, because persistent workers of a DataLoader keep the dataset that they were started with.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._batches_of_epoch = self._reader().num_batches(config.train.global_batch_size)

    def __repr__(self) -> str:
        size, epoch = self._config.train.global_batch_size, int(self._epoch)
        share = f", rank {self._rank} of {self._world_size}" if self._world_size > 1 else ""
        return (
            f"TorchBatches({str(self._path)!r}: {self._split}, {len(self):,} batches of {size:,}, epoch {epoch}{share})"
        )

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch of the next iteration, from 0."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return self._batches_of_epoch

    def __iter__(self) -> Iterator[Item]:
        train, worker = self._config.train, get_worker_info()
        batches = self._reader().train_batches(train.global_batch_size, train.seed, int(self._epoch), 0)
        if worker is not None:
            batches = islice(batches, worker.id, None, worker.num_workers)
        for batch in batches:
            # Training masks the padding, but a model of one's own would learn it.
            features, rows = batch.sparse_features, batch.num_valid
            if rows < features.stride():
                lengths = features.lengths().view(-1, features.stride())
                sample = torch.arange(features.stride()).repeat(len(lengths))
                values = features.values()[torch.repeat_interleave(sample, lengths.flatten()) < rows]
                features = KeyedJaggedTensor(features.keys(), values, lengths=lengths[:, :rows].flatten())
            yield batch.dense_features[:rows], features, *batch.targets(slice(rows))

    def _reader(self) -> SplitReader:
        """Open the split: in each process and iteration anew, as open files cannot be sent to another process."""
        data, train, process = self._config.data, self._config.train, (self._rank, self._world_size)
        return SplitReader(self._path, self._manifest, self._split, data, *process, train.drop_last, train.micro_batch)
